"""Δ-FL without secure aggregation: train only on the devices in the tail of the largest losses.

Source: arXiv 2002.11223, Algorithm 2: η is the (1 − θ)-quantile of the losses F_k(w_t), weighted by
n_k; the devices with F_k(w_t) ≥ η train, and their updates are averaged with weights n_k
renormalised over them. The workshop version (NeurIPS 2022 DistShift, Algorithm 1) gives every
device the same weight; that is `DeviceWeights.UNIFORM`. Appendix C.3 keeps η for T_η rounds, so
that the w-step of Algorithm 1 takes T_η rounds instead of one: `eta_every`.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from deltafl.fl.cohort import Cohort, check_cohort
from deltafl.fl.strategies.aggregation import add_mean_update, measure_losses
from deltafl.fl.strategies.base import RoundReport, Strategy, TrainingState, Visibility
from deltafl.fl.strategies.choices import DeviceWeights
from deltafl.fl.strategies.robust_mean import Robust, robustly_stepped
from deltafl.fl.superquantile import parse_theta, weighted_quantile


@dataclass(frozen=True, slots=True)
class DeltaFL(Strategy):
    """Algorithm 2. θ = 1 is FedAvg, bit for bit.

    Attributes:
        theta: the conformity level in (0, 1], the smallest share of the weight that is kept.
        weighting: the weight of a device.
        eta_every: T_η, at least 1: η is computed in rounds 0, T_η, 2·T_η, … of the run and kept in
            the rounds between. 1 is Algorithm 2. A lost round computes no η: the previous one stays
            for another T_η rounds. At θ = 1 no device is filtered out and no η is kept.
        robustly: how the updates become one step; None for their mean.

    Raises:
        ValueError: θ is not in (0, 1], or T_η is not at least 1.
    """

    name: ClassVar[str] = "delta-fl"
    """The name in configurations and tables."""

    server_sees: ClassVar[Visibility] = Visibility.LOSSES
    """Each device's loss; the updates could be summed securely."""

    theta: Fraction
    weighting: DeviceWeights = DeviceWeights.SAMPLES
    eta_every: int = 1
    robustly: Robust | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta", parse_theta(self.theta))
        if self.eta_every < 1:
            raise ValueError(f"eta_every={self.eta_every} is not at least 1")

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Run one round with this cohort.

        Ties at η are all kept. The model stays unchanged if no device has any weight, or if all
        losses are below an η kept from an earlier round.

        Raises:
            ValueError: the cohort is empty.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        check_cohort(cohort)
        weights = [self._weight(size) for size in cohort.weights.values()]
        if sum(weights) == 0:
            return _leave(state, None)
        losses = measure_losses(cohort, state.model)
        eta = state.eta
        # None: no round has computed η yet. At θ = 1 an old η would filter out devices whose losses
        # have since fallen below it.
        if eta is None or state.round % self.eta_every == 0 or self.theta == 1:
            eta = weighted_quantile(losses, weights, self.theta)
        kept = [index for index, loss in enumerate(losses) if loss >= eta]
        kept_weights = [weights[index] for index in kept]
        if sum(kept_weights) == 0:
            return _leave(state, eta)
        ids = list(cohort.weights)
        taking_part = [ids[index] for index in kept]
        if self.robustly is None:
            model = add_mean_update(state.model, cohort, taking_part, kept_weights)
            stepped = replace(state, model=model)
        else:
            stepped = robustly_stepped(state, cohort, taking_part, kept_weights, self.robustly)
        report = RoundReport(
            eta=eta,
            kept_devices=len(kept),
            kept_weight=sum(kept_weights),
            train_loss=float(np.average([losses[index] for index in kept], weights=kept_weights)),
            secure_sums=1 if self.robustly is None else self.robustly.sums,
        )
        return replace(stepped, round=state.round + 1, eta=eta), report

    def _weight(self, num_samples: int) -> int:
        return num_samples if self.weighting is DeviceWeights.SAMPLES else 1


def _leave(state: TrainingState, eta: float | None) -> tuple[TrainingState, RoundReport]:
    """End a round in which no device with any weight was kept."""
    report = RoundReport(eta=eta, kept_devices=0, kept_weight=0, empty=True)
    return replace(state, round=state.round + 1), report
