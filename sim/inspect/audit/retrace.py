"""The run once more: its own strategy, with the sums of the record in the place of devices.

The server of a run decides nothing that its settings and the sums do not decide. So the strategy
that the settings name is built again, and is given each round's outcome as the record has it. What
it would have announced, reported and kept is what the run must have announced, reported and kept.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import numpy as np

from deltafl.fl.cohort import Pending, SecureRoundResult, Weighing
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.base import RoundReport, Strategy, TrainingState
from deltafl.fl.strategies.levels import split_models
from deltafl.fl.strategies.server_optimizer import Sgd
from deltafl.fl.vectors import Vector
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import Round, RoundOutcome
from deltafl.secagg.errors import SecAggError
from deltafl.sim.cohort.sampling import lost_outcomes
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.check import RoundOver
from deltafl.sim.inspect.audit.views import SessionView
from deltafl.sim.record.transcript import INTERRUPTED
from deltafl.sim.run.algorithms import levels_of, strategy_of
from deltafl.sim.settings.config import OWN_STRATEGIES, RunConfig
from deltafl.sim.settings.config_io import check_together

IMPOSSIBLE: Final = (ValueError, UserError, ProtocolError, SecAggError)
"""What a strategy raises whose settings, or cohort, allow no round."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedCohort:
    """A cohort that is not there any more; a `Cohort` that only gives the outcome of its round.

    Attributes:
        weights: The devices of the round; their weights are not known, and nobody asks.
        outcomes: What the record has of each level.
        bytes_up: Bytes that a device sent, on average.
    """

    weights: Mapping[int, int]
    outcomes: tuple[RoundOutcome, ...]
    bytes_up: float | None

    def reveal_losses(
        self, model: Vector, ids: Collection[int] | None = None
    ) -> Sequence[Pending[float]]:
        """No record has losses in clear."""
        del model, ids
        _refuse()

    def reveal_updates(
        self,
        model: Vector,
        ids: Collection[int] | None = None,
        objective: LocalObjective = PLAIN,
    ) -> Sequence[Pending[Vector]]:
        """No record has updates in clear."""
        del model, ids, objective
        _refuse()

    def secure_round(
        self, levels: Levels, models: Sequence[Vector], weighing: Weighing | None = None
    ) -> SecureRoundResult:
        """What the round came to; see `Cohort`."""
        del levels, models, weighing
        return SecureRoundResult(self.outcomes, self.bytes_up)


def _refuse() -> NoReturn:
    raise ValueError("the strategy asks for values in clear, and a record of sums has none")


@dataclass(frozen=True, slots=True, eq=False)
class ServerState:
    """What is known of the server after a round.

    Attributes:
        state: The state.
        has_model: Whether its model is known; else it is zeros.
        has_moments: Whether what the server's optimiser remembers is known.
    """

    state: TrainingState
    has_model: bool
    has_moments: bool


@dataclass(frozen=True, slots=True, eq=False)
class Retraced:
    """A round, retraced.

    Attributes:
        wanted: What must have been announced; None where nothing is known any more.
        report: What must have been reported; None where the round could not be played again.
    """

    wanted: Levels | None = None
    report: RoundReport | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """How far a run has been followed.

    Attributes:
        known: As in `Retrace`.
        problem: As there.
    """

    known: ServerState | None = None
    problem: str = ""


@dataclass(slots=True, eq=False)
class Retrace:
    """Follows a run round by round.

    Attributes:
        config: The run's settings, of a single run.
        known: What is known of the server now; None before the first round, and once it is lost.
        problem: Why it cannot be followed any further; "" while it can.
        impossible: Why no run can have these settings; "" if one can.
        contradiction: Which round cannot have been played with these settings, and why; "" if all
            can.
        started: What was known before the first round.
    """

    config: RunConfig
    known: ServerState | None = None
    problem: str = ""
    impossible: str = ""
    contradiction: str = ""
    started: ServerState | None = None
    _strategy: Strategy | None = None

    def __post_init__(self) -> None:
        if self.config.federation.algorithm in OWN_STRATEGIES:
            self.problem = "the strategy is of the user's own making, and not in the directory"
            return
        try:
            check_together(self.config)
            self._strategy = strategy_of(self.config)
        except IMPOSSIBLE as error:
            self.impossible = str(error)
            self.problem = f"no run can have these settings: {error}"

    def follow(self, over: RoundOver, bytes_up: int) -> Retraced:
        """Take a round that is over.

        Args:
            over: The round.
            bytes_up: Bytes that its devices have sent.
        """
        number, sessions = over.view.number, list(over.view.sessions.values())
        if self.problem:
            return Retraced()
        if over.view.end is not None and over.view.end.aborted == INTERRUPTED:
            return self._interrupted(over)
        if not sessions and not over.view.is_opaque and self.known is not None:
            self.known = replace(self.known, state=replace(self.known.state, round=number))
            return Retraced()
        levels = sessions[0].levels if len(sessions) == 1 else None
        if levels is None:
            why = "it has several sessions" if len(sessions) > 1 else "its announcement is not kept"
            return self._lose(f"round {number} cannot be followed: {why}")
        try:
            return self._follow(over, sessions[0], levels, bytes_up)
        except IMPOSSIBLE as error:
            self.contradiction = f"round {number} is impossible with the run's settings: {error}"
            return self._lose(self.contradiction)

    def _follow(
        self, over: RoundOver, session: SessionView, levels: Levels, bytes_up: int
    ) -> Retraced:
        before = self._before(over, session, levels)
        strategy, devices = self._strategy, over.view.cohort
        if devices is None:  # a lost round is repeated with its cohort, of whom some stay away
            devices = tuple({seen.record.peer for seen in session.announcements})
        size = len(devices)
        wanted = _levels_for(strategy, before.state, size)
        if wanted.rounds != levels.rounds:
            self._lose(f"round {over.view.number} was announced otherwise than the settings say")
            return Retraced(wanted)
        ends = _outcomes(over, session, levels)
        if ends is None or strategy is None:
            self._lose(f"round {over.view.number} could not be played again from its sums")
            return Retraced(levels)
        cohort = RecordedCohort(dict.fromkeys(sorted(devices), 0), ends, bytes_up / size)
        with np.errstate(all="ignore"):  # a record may hold anything
            following, report = strategy.apply(before.state, cohort)
        exact = all(one.is_exact or one.outcome is None for one in over.played)
        exact = exact and session.is_whole
        stays = all(outcome.update is None for outcome in ends)
        moments = before.has_moments and (exact or stays)
        has_model = before.has_model and (stays or (exact and (moments or not self.has_memory)))
        self.known = ServerState(following, has_model, moments)
        return Retraced(levels, report)

    def _interrupted(self, over: RoundOver) -> Retraced:
        """Take a round that was lost with the server's process."""
        cohort, strategy = over.view.cohort, self._strategy
        if self.known is None or cohort is None or strategy is None:
            return Retraced()
        slots = [one.slot for one in over.view.sums]
        levels = _levels_for(strategy, self.known.state, len(cohort))
        lost = lost_outcomes(levels, slots, INTERRUPTED)
        recorded = RecordedCohort(dict.fromkeys(cohort, 0), lost, None)
        following, report = strategy.apply(self.known.state, recorded)
        self.known = replace(self.known, state=following)
        return Retraced(levels, report)

    @property
    def progress(self) -> Progress:
        """How far the run has been followed."""
        return Progress(self.known, self.problem)

    def go_back(self, progress: Progress, number: int) -> None:
        """Go on from an earlier state, after the round of this number."""
        self.known, self.problem = progress.known, progress.problem
        if self.known is not None:
            self.known = replace(self.known, state=replace(self.known.state, round=number))

    @property
    def has_memory(self) -> bool:
        """Whether the server's steps depend on the steps before."""
        optimizer = getattr(self._strategy, "optimizer", None)
        return optimizer is not None and not isinstance(optimizer, Sgd)

    def _lose(self, problem: str) -> Retraced:
        self.known, self.problem = None, problem
        return Retraced()

    def _before(self, over: RoundOver, session: SessionView, levels: Levels) -> ServerState:
        """What is known of the server before a round, with the model that was announced."""
        models = session.announce.models if session.announce is not None else b""
        vector = np.frombuffer(models, dtype="<f4").astype(np.float32)
        size = levels.common.update_length * len(levels.rounds)
        is_kept = len(vector) == size
        if self.known is None:
            start = vector if is_kept else np.zeros(size, np.float32)
            if self._strategy is None:
                raise ValueError("there is no strategy")
            state = self._strategy.init(start, len(session.announcements))
            state = replace(state, round=over.view.number - 1)
            self.started = ServerState(state, is_kept, has_moments=True)
            return self.started
        if not is_kept:
            return self.known
        return replace(self.known, state=replace(self.known.state, model=vector), has_model=True)


def _levels_for(strategy: Strategy | None, state: TrainingState, cohort_size: int) -> Levels:
    """What a strategy announces to a cohort of this size."""
    levels = None if strategy is None else levels_of(strategy, state, cohort_size)
    if levels is None:
        raise ValueError("the strategy has no rounds by secure sums")
    return levels


def _outcomes(
    over: RoundOver, session: SessionView, levels: Levels
) -> tuple[RoundOutcome, ...] | None:
    """What the levels of a round have come to; None where one could not be played again."""
    aborted = over.view.end.aborted if over.view.end is not None else ""
    by_level: list[RoundOutcome] = []
    for config, view, played in zip(levels.rounds, session.by_level(), over.played, strict=True):
        is_over = bool(view.slots) and any(slot.opened for slot in view.slots.values())
        if played.outcome is None and (is_over or not aborted):
            return None
        by_level.append(played.outcome or Round(config).outcome({}, aborted or None))
    return tuple(by_level)


def same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays are of one type and shape, and equal to the bit; NaN equals itself."""
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and first.tobytes() == second.tobytes()
    )


def models_of(state: TrainingState, num_levels: int) -> list[Vector]:
    """Each level's model."""
    return split_models(state.model, num_levels)
