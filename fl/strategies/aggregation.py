"""Weighted means of updates, by fixed weights or by a mixture that follows from losses."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.cohort import Cohort, Pending
from deltafl.fl.errors import DivergenceError
from deltafl.fl.simplex import Reals
from deltafl.fl.strategies.base import RoundReport
from deltafl.fl.vectors import Vector

Numbers: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
"""An update as it was trained, or as it was scaled."""


def add_mean_update(
    model: Vector, cohort: Cohort, ids: Collection[int], weights: Sequence[float]
) -> Vector:
    """Train every device of positive weight and add the weighted mean of their updates.

    w ← w + Σ weight_k·Δ_k / Σ weight_k, summed in float64 in the order of `ids`.

    Raises:
        ValueError: no weight is positive.
        DivergenceError: an update is NaN or infinite.
    """
    taking_part = {one: weight for one, weight in zip(ids, weights, strict=True) if weight}
    updates = finite_updates(cohort, model, taking_part)
    return step_by_mean(
        model,
        (
            (weight, 1.0, update)
            for weight, update in zip(taking_part.values(), updates, strict=True)
        ),
    )


def step_by_mean(model: Vector, contributions: Iterable[tuple[float, float, Numbers]]) -> Vector:
    """Add a weighted mean: w ← w + Σ a_k·(step_k·Δ_k) / Σ a_k, summed in float64 in order.

    Args:
        model: w.
        contributions: a_k, step_k and Δ_k of every device; taken one by one.

    Raises:
        ValueError: no weight is positive.
    """
    stepped: Vector = (model + mean_of(model.shape, contributions)).astype(np.float32)
    return stepped


def mean_of(
    shape: tuple[int, ...], contributions: Iterable[tuple[float, float, Numbers]]
) -> npt.NDArray[np.float64]:
    """Compute Σ a_k·(step_k·Δ_k) / Σ a_k, summed in float64 in order; see `step_by_mean`.

    Raises:
        ValueError: no weight is positive.
    """
    total = np.zeros(shape, dtype=np.float64)
    total_weight = 0.0
    product = np.empty_like(total)
    for weight, step, update in contributions:
        total += np.multiply(update, weight * step, out=product, dtype=np.float64)
        total_weight += weight
    if total_weight <= 0:
        raise ValueError(f"weights sum to {total_weight}: at least one must be positive")
    mean: npt.NDArray[np.float64] = total / total_weight
    return mean


def finite_updates(cohort: Cohort, model: Vector, ids: Collection[int]) -> Iterator[Vector]:
    """Start training on all devices, then wait for each update and check it.

    Raises:
        DivergenceError: an update is NaN or infinite, or has another shape than the model.
    """
    asked = cohort.reveal_updates(model, ids)
    return (
        finite_update(one, pending, model.shape) for one, pending in zip(ids, asked, strict=True)
    )


def finite_loss(device: int, pending: Pending[float]) -> float:
    """Wait for a device's loss and check it.

    Raises:
        DivergenceError: the loss is NaN or infinite.
    """
    loss = pending.result()
    if not math.isfinite(loss):
        raise DivergenceError(
            f"the loss of device {device} is {loss}: training diverged, lower the learning rate"
        )
    return loss


def finite_update(device: int, pending: Pending[Vector], shape: tuple[int, ...]) -> Vector:
    """Wait for a device's update and check it.

    Args:
        device: whose it is.
        pending: the update.
        shape: that of the model.

    Raises:
        DivergenceError: the update is NaN or infinite, or has another shape.
    """
    update = shaped_update(device, pending, shape)
    if not np.isfinite(update).all():
        raise DivergenceError(
            f"the update of device {device} is NaN or infinite: its training diverged, "
            "lower the learning rate"
        )
    return update


def shaped_update(device: int, pending: Pending[Vector], shape: tuple[int, ...]) -> Vector:
    """Wait for a device's update and check that it has the model's shape.

    Raises:
        DivergenceError: it has another.
    """
    update = pending.result()
    if np.shape(update) != shape:  # or it would be broadcast into the model
        raise DivergenceError(
            f"the update of device {device} has shape {np.shape(update)} and the model {shape}: "
            "the device trained another model"
        )
    return update


def ids_in_population(cohort: Cohort, num_devices: int) -> list[int]:
    """List the cohort's ids, as indices into what is remembered per device.

    Raises:
        ValueError: an id is not in 0..num_devices − 1.
    """
    ids = list(cohort.weights)
    for identity in ids:
        if not 0 <= identity < num_devices:
            raise ValueError(f"device id {identity} is not in 0..{num_devices - 1}")
    return ids


def measure_losses(cohort: Cohort, model: Vector) -> list[float]:
    """Ask every device for its loss F_k(model), in nats, in the order of the cohort.

    Raises:
        DivergenceError: a loss is NaN or infinite.
    """
    asked = cohort.reveal_losses(model)
    return [finite_loss(one, loss) for one, loss in zip(cohort.weights, asked, strict=True)]


def step_by_mixture(model: Vector, cohort: Cohort, mixture: Reals) -> Vector:
    """Train every device of positive weight and add the mean of updates with weights `mixture`.

    That is w ← w + Σ mixture_k·Δ_k / Σ mixture_k, in float64.

    Raises:
        DivergenceError: an update is NaN or infinite.
    """
    weights = [max(weight, 0.0) for weight in mixture.tolist()]
    return add_mean_update(model, cohort, cohort.weights, weights)


def report_mixture(cohort: Cohort, mixture: Reals, losses: Sequence[float] | None) -> RoundReport:
    """Report a round in which the devices with positive weight in `mixture` were aggregated.

    Args:
        cohort: the cohort.
        mixture: the weight of each device in the step.
        losses: F_k before training; None for a strategy that asks for none.
    """
    kept = [index for index, weight in enumerate(mixture.tolist()) if weight > 0]
    sizes = list(cohort.weights.values())
    counts = [sizes[index] for index in kept]
    kept_weight = sum(counts)
    train_loss = None
    if losses is not None and kept_weight > 0:
        train_loss = float(np.average([losses[index] for index in kept], weights=counts))
    return RoundReport(kept_devices=len(kept), kept_weight=kept_weight, train_loss=train_loss)
