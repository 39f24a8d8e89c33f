"""Shared code of the strategies that compute a mixture from losses and step by the mixed update."""

from collections.abc import Sequence

import numpy as np

from deltafl.fl.cohort import Cohort
from deltafl.fl.simplex import Reals
from deltafl.fl.strategies.aggregation import add_mean_update, finite_loss
from deltafl.fl.strategies.base import RoundReport
from deltafl.fl.vectors import Vector


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
    return RoundReport(
        eta=None,
        kept_devices=len(kept),
        kept_weight=kept_weight,
        train_loss=train_loss,
        empty=False,
        secure_sums=1,
    )
