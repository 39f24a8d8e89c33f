"""The weighted mean of updates, by which every strategy with a fixed weighting steps."""

from collections.abc import Iterable, Sequence

import numpy as np

from deltafl.fl.errors import DivergenceError
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.base import Device, expect_updates
from deltafl.fl.vectors import Vector


def add_mean_update(model: Vector, devices: Sequence[Device], weights: Sequence[float]) -> Vector:
    """Train every device of positive weight and step by the weighted mean of their updates.

    w ← w + Σ weight_k·Δ_k / Σ weight_k, summed in float64 in the order of `devices`.

    Raises:
        ValueError: no weight is positive.
        DivergenceError: an update is NaN or infinite.
    """
    taking_part = [
        (device, weight) for device, weight in zip(devices, weights, strict=True) if weight
    ]
    expect_updates((device for device, _ in taking_part), model)
    return step_by_mean(
        model, ((weight, 1.0, finite_update(device, model)) for device, weight in taking_part)
    )


def step_by_mean(model: Vector, contributions: Iterable[tuple[float, float, Vector]]) -> Vector:
    """Step by a weighted mean: w ← w + Σ a_k·(step_k·Δ_k) / Σ a_k, summed in float64 in order.

    Args:
        model: w.
        contributions: a_k, step_k and Δ_k of every device; taken one by one.

    Raises:
        ValueError: no weight is positive.
    """
    total = np.zeros(model.shape, dtype=np.float64)
    total_weight = 0.0
    product = np.empty_like(total)
    for weight, step, update in contributions:
        total += np.multiply(update, weight * step, out=product, dtype=np.float64)
        total_weight += weight
    if total_weight <= 0:
        raise ValueError(f"weights sum to {total_weight}: at least one must be positive")
    stepped: Vector = (model + total / total_weight).astype(np.float32)
    return stepped


def finite_update(device: Device, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
    """Train a device and check its update.

    Raises:
        DivergenceError: the update is NaN or infinite.
    """
    plain = objective == PLAIN
    update = device.update(model) if plain else device.update(model, objective)
    if not np.isfinite(update).all():
        raise DivergenceError(
            f"the update of device {device.id} is NaN or infinite: its training diverged, "
            "lower the learning rate"
        )
    return update
