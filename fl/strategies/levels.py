"""The Δ-FL framework: one model for each conformity level, trained together on the same cohorts.

Source: arXiv 2002.11223, section 3 and Figure 1: the server keeps r models w_θ1, …, w_θr; the
devices of a cohort take part in training each of them; afterwards each device chooses the level
with the smallest error for its data (`deltafl.fl.bundle`). At each level a round is that of
Algorithm 2 or 3.

The state's model is the concatenation of the levels' models, in the order of the levels. Levels
start from different models (`starting_models`): with the same model, the tails of two levels would
differ by only a few devices, and so would their sums (docs/spec.md, 12.11). The levels' memories
are stored in the state's memory.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np

from deltafl.fl.cohort import Cohort, check_cohort
from deltafl.fl.strategies.base import RoundReport, Strategy, TrainingState, Visibility, under
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.noise import Noise

START_SPREAD: Final = 0.01
"""Standard deviation of the noise added to a level's initial model if it equals another's."""

ETAS: Final = "eta"
"""The name of the levels' thresholds in the memory, of shape (levels,); NaN for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelsReport(RoundReport):
    """What the server learnt in a round at all levels.

    Of the attributes of a single level's report, η, the devices kept and the training loss are
    None; weights and sums are added up, and the round is empty if it is at every level.

    Attributes:
        levels: each level's report, by θ.
        dropped_by_stage: devices that were lost, by the stage at which they were.
        bytes_up_per_device: what a device sent for all levels, on average; None without messages.
        clipped: numbers that devices had to clip.
        certified: whether every level's filter is proved to be that of the exact quantile; None
            where no level has a search.
        aborted: why the round was given up, at some level or at all; None if it was not.
    """

    levels: Mapping[Fraction, RoundReport]
    dropped_by_stage: Mapping[str, int]
    bytes_up_per_device: float | None
    clipped: int
    certified: bool | None
    aborted: str | None


@dataclass(frozen=True, slots=True)
class LevelsInClear:
    """Several single-level strategies, all run on the same cohort.

    Attributes:
        thetas: the conformity levels, falling.
        strategies: one for each, such as `DeltaFL` at that θ.

    Raises:
        ValueError: there is not one strategy for each level, or the levels do not fall.
    """

    thetas: tuple[Fraction, ...]
    strategies: tuple[Strategy, ...]

    def __post_init__(self) -> None:
        check_levels(self.thetas)
        if len(self.strategies) != len(self.thetas):
            raise ValueError(
                f"{len(self.strategies)} strategies for {len(self.thetas)} levels: give one each"
            )

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return f"{self.strategies[0].name}-levels"

    @property
    def server_sees(self) -> Visibility:
        """What the strategies of the levels show."""
        return self.strategies[0].server_sees

    def init(self, model: Vector, num_devices: int) -> TrainingState:
        """Start from the levels' models, joined in order.

        Raises:
            ValueError: `model` is not as many models of one size.
        """
        parts = split_models(model, len(self.thetas))
        pairs = zip(self.strategies, parts, strict=True)
        return _joined([strategy.init(part, num_devices) for strategy, part in pairs])

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, LevelsReport]:
        """Play one round at every level with this cohort.

        Raises:
            ValueError: the cohort is empty.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        states, reports = [], []
        for strategy, part in zip(self.strategies, level_states(state, self.thetas), strict=True):
            following, report = strategy.apply(part, cohort)
            states.append(following)
            reports.append(report)
        return _joined(states), _report(self.thetas, reports, None)


@dataclass(frozen=True, slots=True)
class PrivateLevels(LevelsInClear):
    """Algorithm 3 at every level, in one session of secure aggregation.

    The levels run one after another: first the search, then the sum of updates. The server sees
    only sums, but those of r searches and r updates of the same cohort, which reveal more than
    those of one: see docs/spec.md, 12.11.

    Attributes:
        strategies: the rounds of each level; but for θ they are set up alike.
    """

    strategies: tuple[PrivateDeltaFL, ...]

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, LevelsReport]:
        """Play one round at every level with this cohort, in one session.

        Raises:
            ValueError: the cohort is empty, or too small for the threat that a session must
                withstand.
            DivergenceError: a device's loss or update is NaN or infinite.
            PeerError: the session falls short of the devices' policy, such as by two levels with
                one model.
        """
        check_cohort(cohort)
        states = level_states(state, self.thetas)
        pairs = list(zip(self.strategies, states, strict=True))
        result = cohort.secure_round(
            self.levels_for(state, len(cohort.weights)),
            [part.model for part in states],
        )
        followed = [
            level.follow(part, outcome, None)
            for (level, part), outcome in zip(pairs, result.outcomes, strict=True)
        ]
        reports = [report for _, report in followed]
        return (
            _joined([following for following, _ in followed]),
            _report(self.thetas, reports, result.bytes_up),
        )

    def levels_for(self, state: TrainingState, cohort_size: int) -> Levels:
        """What the next round announces to a cohort of this size.

        Raises:
            ConfigurationError: a sum would not fit the ring, or a setting is out of its range.
        """
        pairs = zip(self.strategies, level_states(state, self.thetas), strict=True)
        return Levels(tuple(level.round_config(part, cohort_size) for level, part in pairs))

    def search_noise(self, cohort_size: int) -> Noise | None:
        """The noise of each level's search; None where there is none. See `PrivateDeltaFL`."""
        return self.strategies[-1].search_noise(cohort_size)


def check_levels(thetas: Sequence[Fraction]) -> None:
    """Check that conformity levels fall, and that there are some.

    Raises:
        ValueError: they do not.
    """
    if not thetas or any(after >= before for before, after in pairwise(thetas)):
        raise ValueError(
            f"conformity levels {', '.join(map(str, thetas))} do not fall: name each once, the "
            "largest first"
        )


def split_models(model: Vector, num_levels: int) -> list[Vector]:
    """Each level's model, of those that are joined in the order of the levels.

    Raises:
        ValueError: they cannot be of one size.
    """
    if len(model) % num_levels:
        raise ValueError(f"{len(model)} numbers are not {num_levels} models of one size")
    return list(model.reshape(num_levels, -1))


def starting_models(
    num_levels: int,
    build: Callable[[int], Vector],
    generator: Callable[[int], np.random.Generator],
) -> Vector:
    """The levels' first models, no two of them the same, joined in the order of the levels.

    If a model's initial value does not depend on the seed (the linear model starts at zero),
    Gaussian noise of standard deviation `START_SPREAD` is added at every level except the first.

    Args:
        num_levels: how many.
        build: a freshly initialised model, by level.
        generator: a source of randomness, by level.
    """
    started: list[Vector] = []
    for level in range(num_levels):
        model = build(level)
        if any(np.array_equal(model, other) for other in started):
            noise = START_SPREAD * generator(level).standard_normal(len(model))
            model = (model + noise).astype(np.float32)
        started.append(model)
    return np.concatenate(started)


def level_states(state: TrainingState, thetas: Sequence[Fraction]) -> list[TrainingState]:
    """The state of each level, out of that of all of them."""
    etas = state.memory.get(ETAS, np.full(len(thetas), np.nan))
    parts = split_models(state.model, len(thetas))
    return [
        TrainingState(
            model,
            state.round,
            None if np.isnan(eta) else float(eta),
            under(f"{level}/", state.memory),
        )
        for level, (model, eta) in enumerate(zip(parts, etas, strict=True))
    ]


def _joined(states: Sequence[TrainingState]) -> TrainingState:
    memory = {
        f"{level}/{name}": remembered
        for level, state in enumerate(states)
        for name, remembered in state.memory.items()
    }
    etas = [np.nan if state.eta is None else state.eta for state in states]
    memory[ETAS] = np.array(etas, dtype=np.float64)
    model = np.concatenate([state.model for state in states])
    return TrainingState(model, states[0].round, None, memory)


def _report(
    thetas: Sequence[Fraction], reports: Sequence[RoundReport], bytes_up: float | None
) -> LevelsReport:
    dropped: Counter[str] = Counter()
    certified, aborted = [], []
    for report in reports:
        # every level tells of all the devices that the session lost
        dropped |= Counter(getattr(report, "dropped_by_stage", {}))
        certified.append(getattr(report, "certified", None))
        aborted.append(getattr(report, "aborted", None))
    known = [one for one in certified if one is not None]
    return LevelsReport(
        kept_devices=None,
        kept_weight=sum(report.kept_weight for report in reports),
        empty=all(report.empty for report in reports),
        secure_sums=sum(report.secure_sums for report in reports),
        levels=dict(zip(thetas, reports, strict=True)),
        dropped_by_stage=dict(dropped),
        bytes_up_per_device=bytes_up,
        clipped=sum(getattr(report, "clipped", 0) for report in reports),
        certified=all(known) if known else None,
        aborted=next((reason for reason in aborted if reason), None),
    )
