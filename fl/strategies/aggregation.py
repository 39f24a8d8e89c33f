"""The weighted mean of updates that FedAvg and Algorithm 2 share."""

from collections.abc import Sequence

import numpy as np

from fl.errors import DivergenceError
from fl.strategies.base import Device
from fl.vectors import Vector


def add_mean_update(model: Vector, devices: Sequence[Device], weights: Sequence[int]) -> Vector:
    """Train every device of positive weight and step by the weighted mean of their updates.

    w ← w + Σ weight_k·Δ_k / Σ weight_k, summed in float64 in the order of `devices`.

    Raises:
        ValueError: no weight is positive.
        DivergenceError: an update is NaN or infinite.
    """
    total_weight = sum(weights)
    if total_weight <= 0:
        raise ValueError(f"weights sum to {total_weight}: at least one must be positive")
    total = np.zeros(model.shape, dtype=np.float64)
    for device, weight in zip(devices, weights, strict=True):
        if weight:
            update = device.update(model)
            if not np.isfinite(update).all():
                raise DivergenceError(
                    f"the update of device {device.id} is NaN or infinite: its training diverged, "
                    "lower the learning rate"
                )
            total += np.multiply(update, weight, dtype=np.float64)
    stepped: Vector = (model + total / total_weight).astype(np.float32)
    return stepped
