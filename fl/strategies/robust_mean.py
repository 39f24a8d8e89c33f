"""Robust steps in clear: a strategy whose updates are aggregated robustly, and how they can be."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from deltafl.fl.cohort import Cohort, check_cohort
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.aggregation import finite_update
from deltafl.fl.strategies.base import RoundReport, TrainingState, Visibility
from deltafl.fl.strategies.geometric_median import Robustly
from deltafl.fl.strategies.norm_clipping import NormClipping
from deltafl.fl.strategies.weighted_mean import WeightedMean
from deltafl.fl.vectors import Vector

Robust: TypeAlias = Robustly | NormClipping
"""How the updates of a round become one step that few liars hardly move."""


@dataclass(frozen=True, slots=True)
class RobustMean:
    """FedAvg or FedProx with a robust step.

    Attributes:
        mean: the strategy; its weights are numbers of samples.
        robustly: how updates become one step.

    Raises:
        ValueError: its weights are no numbers of samples.
    """

    server_sees: ClassVar[Visibility] = Visibility.SUMS
    """Each sum is one that secure aggregation can make."""

    mean: WeightedMean
    robustly: Robust

    def __post_init__(self) -> None:
        if not self.mean.has_whole_weights:
            raise ValueError(
                f"{self.mean.name} weighs devices by real numbers, and a device that claims a "
                "large one is what a robust mean is to withstand: take fedavg or fedprox"
            )

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return self.mean.name

    def init(self, model: Vector, num_devices: int) -> TrainingState:
        """Start from `model`."""
        return self.mean.init(model, num_devices)

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Play one round with this cohort; a device without samples takes no part.

        Raises:
            ValueError: the cohort is empty.
            DivergenceError: an update is NaN or infinite.
        """
        check_cohort(cohort)
        sizes = {one: size for one, size in cohort.weights.items() if size}
        if sizes:
            stepped = robustly_stepped(
                state, cohort, sizes, list(sizes.values()), self.robustly, self.mean.objective
            )
        else:
            stepped = state
        report = RoundReport(
            kept_devices=len(cohort.weights),
            kept_weight=sum(sizes.values()),
            empty=not sizes,
            secure_sums=self.robustly.sums if sizes else 1,
        )
        return replace(stepped, round=state.round + 1), report


def robustly_stepped(
    state: TrainingState,
    cohort: Cohort,
    ids: Collection[int],
    weights: Sequence[int],
    robustly: Robust,
    objective: LocalObjective = PLAIN,
) -> TrainingState:
    """Train every device of positive weight and step by what a robust aggregation makes of them.

    The number of the round stays as it is.

    Raises:
        ValueError: no weight is positive.
        DivergenceError: an update is NaN or infinite.
    """
    taking_part = {one: weight for one, weight in zip(ids, weights, strict=True) if weight}
    asked = cohort.reveal_updates(state.model, taking_part, objective)
    contributions = [
        (weight, finite_update(one, pending, state.model.shape))
        for (one, weight), pending in zip(taking_part.items(), asked, strict=True)
    ]
    model, learnt = robustly.step(state, contributions)
    memory = MappingProxyType({**state.memory, **learnt})
    return replace(state, model=model, memory=memory)
