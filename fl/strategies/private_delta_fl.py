"""Private Δ-FL: the same round as `delta_fl`, but the server sees only sums.

Source: arXiv 2002.11223, Algorithm 3 and appendix B.1. The devices find η together by secure sums,
filter themselves, and add up masked updates, weights and losses (`deltafl.protocol.round`). On the
loss grid the devices kept are exactly those of Algorithm 2, unless these are too few to hide one
another (`deltafl.protocol.anonymity`), or the search uses rounded weights or noisy ranks or is
forbidden; updates agree up to fixed-point rounding.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from deltafl.fl.cohort import Cohort, Weighing, check_cohort
from deltafl.fl.strategies.base import Memory, RoundReport, Strategy, TrainingState, Visibility
from deltafl.fl.strategies.norm_clipping import NormClipping
from deltafl.fl.superquantile import parse_theta
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.registry import default_max_queries
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.round import RoundOutcome
from deltafl.protocol.update_noise import UpdateNoise


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a round's numbers become integers, and how η is searched for.

    Attributes:
        method: the quantile method: "bracketed", "mm" (Algorithm 3), "histogram" or "noisy".
        search: how it searches.
        update: how updates become integers.
    """

    method: str = "bracketed"
    search: SearchParams = field(
        default_factory=lambda: SearchParams(default_max_queries("bracketed"))
    )
    update: UpdateParams = field(default_factory=UpdateParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateRoundReport(RoundReport):
    """What the server learnt in a private round.

    Attributes:
        half_width: δ of the threshold; a device takes part if F_k ≥ η − δ.
        num_queries: number of secure sums that the search for η used.
        certified: whether the filter is proven equal to that of the exact weighted quantile.
        search_ended: why the search ended.
        dropped_by_stage: devices that were lost, by the stage at which they were.
        bytes_up_per_device: what a device of the cohort sent, on average; None without messages.
        clipped: numbers that devices had to clip.
        aborted: why the round was given up; None if it was not.
    """

    half_width: float | None
    num_queries: int
    certified: bool | None
    search_ended: str | None
    dropped_by_stage: dict[str, int]
    bytes_up_per_device: float | None
    clipped: int
    aborted: str | None


def exact_updates(cohort_size: int, update_length: int) -> None:
    """Of runs without noise in the sums of updates."""
    del cohort_size, update_length


@dataclass(frozen=True, slots=True)
class PrivateDeltaFL(Strategy):
    """Algorithm 3. θ = 1 is FedAvg under secure aggregation.

    Attributes:
        theta: the conformity level in (0, 1], the smallest share of the weight that is kept.
        encoding: how numbers become integers.
        noise: from the cohort size to the noise of a search; None for methods without noise.
        warm_start: whether a search starts from the last round's η.
        clipping: how long updates are scaled down; None to sum them as they are.
        update_noise: from the cohort size and the number of parameters to the noise of the sum of
            updates; None where that is exact.
        min_tail: from the cohort size to the fewest devices of a tail.

    Raises:
        ValueError: θ is not in (0, 1].
    """

    name: ClassVar[str] = "private-delta-fl"
    """The name in configurations and tables."""

    server_sees: ClassVar[Visibility] = Visibility.SUMS
    """Nothing but sums over the cohort."""

    theta: Fraction
    encoding: Encoding = field(default_factory=Encoding)
    noise: Callable[[int], Noise | None] | None = None
    warm_start: bool = True
    clipping: NormClipping | None = None
    update_noise: Callable[[int, int], UpdateNoise | None] = exact_updates
    min_tail: Callable[[int], int] = RoundPolicy().min_tail

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta", parse_theta(self.theta))

    def apply(
        self, state: TrainingState, cohort: Cohort, weighing: Weighing | None = None
    ) -> tuple[TrainingState, PrivateRoundReport]:
        """Run one round with this cohort.

        Args:
            state: before the round.
            cohort: the devices.
            weighing: what devices contribute in place of n_k and Δ_k.

        Raises:
            ValueError: the cohort is empty, or too small for the threat that a session must
                withstand.
            DivergenceError: a device's loss or update is NaN or infinite.
            PeerError: the session falls short of the devices' policy.
        """
        check_cohort(cohort)
        levels = self.levels_for(state, len(cohort.weights))
        result = cohort.secure_round(levels, [state.model], weighing)
        return self.follow(state, result.outcomes[0], result.bytes_up)

    def follow(
        self, state: TrainingState, outcome: RoundOutcome, bytes_up: float | None
    ) -> tuple[TrainingState, PrivateRoundReport]:
        """Draw the conclusions of a round: the next state, and the report.

        Args:
            state: before the round.
            outcome: what the server has learnt.
            bytes_up: bytes that each device sent, on average; None where that is not known.
        """
        model = state.model
        if outcome.update is not None:
            model = (model + outcome.update).astype(np.float32)
        found = outcome.search
        eta = None
        if outcome.aborted is None and found is not None and found.tail is not None:
            eta = found.eta
        report = _report(outcome, eta, bytes_up)
        following = replace(
            state,
            model=model,
            round=state.round + 1,
            eta=eta or state.eta,  # 0 keeps all, and is no place to search from
            memory=self._remembered(state, outcome),
        )
        return following, report

    def _remembered(self, state: TrainingState, outcome: RoundOutcome) -> Memory:
        if self.clipping is None or outcome.aborted is not None:
            return state.memory
        learnt = self.clipping.remembered(self._update_of(state), outcome)
        return MappingProxyType({**state.memory, **learnt})

    def levels_for(self, state: TrainingState, cohort_size: int) -> Levels:
        """What the next round announces to a cohort of this size: a single level.

        Raises:
            ConfigurationError: a sum would not fit the ring, or a setting is out of its range.
        """
        return Levels((self.round_config(state, cohort_size),))

    def search_noise(self, cohort_size: int) -> Noise | None:
        """The noise of a round's search; None where there is no search, or no noise in it.

        Raises:
            ConfigurationError: no device is certain to bring noise.
        """
        return None if self.theta == 1 else self._noise(cohort_size)

    def round_config(self, state: TrainingState, cohort_size: int) -> RoundConfig:
        """The configuration of the next round, over a cohort of this size.

        Raises:
            ConfigurationError: a sum would not fit the ring, or a setting is out of its range.
        """
        update, noise = self._update_of(state), self.update_noise(cohort_size, len(state.model))
        if noise is not None:
            update = replace(update, aggregation=noise)
        return RoundConfig(
            round_index=state.round,
            cohort_size=cohort_size,
            theta=self.theta,
            method=self.encoding.method,
            search=self.encoding.search,
            update=update,
            update_length=len(state.model),
            warm_start=self.warm_start_of(state),
            noise=self._noise(cohort_size),
            min_tail=self.min_tail(cohort_size),
        )

    def _noise(self, cohort_size: int) -> Noise | None:
        return None if self.noise is None else self.noise(cohort_size)

    def _update_of(self, state: TrainingState) -> UpdateParams:
        own = self.encoding.update
        return own if self.clipping is None else self.clipping.params(own, state)

    def warm_start_of(self, state: TrainingState) -> int | None:
        """The tick from which the next search starts; None to start afresh."""
        if not self.warm_start or state.eta is None:
            return None
        return self.encoding.search.grid.tick(state.eta)[0]


def _report(outcome: RoundOutcome, eta: float | None, bytes_up: float | None) -> PrivateRoundReport:
    found = outcome.search
    dropped = Counter(drop.step.stage.name.lower() for drop in outcome.drops.values())
    return PrivateRoundReport(
        eta=eta,
        kept_devices=outcome.kept_devices,
        kept_weight=outcome.kept_weight,
        train_loss=outcome.train_loss,
        empty=outcome.aborted is None and outcome.update is None,
        secure_sums=outcome.secure_sums,
        half_width=None if found is None or eta is None else found.half_width,
        num_queries=0 if found is None else found.num_queries,
        certified=None if found is None else found.certified,
        search_ended=None if found is None else str(found.ended),
        dropped_by_stage=dict(dropped),
        bytes_up_per_device=bytes_up,
        clipped=outcome.clipped,
        aborted=outcome.aborted,
    )
