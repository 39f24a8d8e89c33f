"""Which devices may have answered for a model: in secure rounds, they answer for each only once.

A device refuses a second round over the same bytes (spec, 12.6). So after a round that has left the
model as it was, such as a lost one, the server asks only devices that have not answered yet. It
cannot know who has: a message may have been lost on its way. All devices count that were still in
the session when their first masked vector was due.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from deltafl.fl.cohort import Cohort, Pending, SecureRoundResult, Weighing
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import RoundOutcome
from deltafl.secagg import ClientId, Stage, Step


@dataclass(slots=True)
class Answers:
    """A note of one round: for each level, the devices that may have answered for its model."""

    by_level: tuple[frozenset[int], ...] = ()

    def note(
        self, invited: Collection[int], levels: Levels, outcomes: Sequence[RoundOutcome]
    ) -> None:
        """Note a secure round.

        Args:
            invited: its devices.
            levels: what was announced.
            outcomes: what became of each level.
        """
        self.by_level = tuple(
            _answering(invited, levels.first_slot(level), outcome)
            for level, outcome in enumerate(outcomes)
        )


@dataclass(frozen=True, slots=True, eq=False)
class NotedCohort:
    """A cohort of whose secure rounds it is noted who may have answered; a `Cohort`.

    Attributes:
        cohort: does all the rest.
        answers: where it is noted.
    """

    cohort: Cohort
    answers: Answers

    @property
    def weights(self) -> Mapping[int, int]:
        """n_k by device."""
        return self.cohort.weights

    def reveal_losses(
        self, model: Vector, ids: Collection[int] | None = None
    ) -> Sequence[Pending[float]]:
        """Ask for losses in clear; see `Cohort`."""
        return self.cohort.reveal_losses(model, ids)

    def reveal_updates(
        self,
        model: Vector,
        ids: Collection[int] | None = None,
        objective: LocalObjective = PLAIN,
    ) -> Sequence[Pending[Vector]]:
        """Ask for updates in clear; see `Cohort`."""
        return self.cohort.reveal_updates(model, ids, objective)

    def secure_round(
        self,
        levels: Levels,
        models: Sequence[Vector],
        weighing: Weighing | None = None,
    ) -> SecureRoundResult:
        """Play a round and note it; see `Cohort`."""
        result = self.cohort.secure_round(levels, models, weighing)
        self.answers.note(self.weights, levels, result.outcomes)
        return result


@dataclass(frozen=True, slots=True)
class Answered:
    """The devices that may have answered for the models that the server has now: a value.

    Attributes:
        by_level: for each level's model; shorter if nobody has answered for the last ones.
    """

    by_level: tuple[frozenset[int], ...] = field(default=())

    @property
    def anyone(self) -> frozenset[int]:
        """The devices that cannot be asked: a session is about the models of all levels."""
        return frozenset().union(*self.by_level)

    def after(
        self, answers: Answers, before: Sequence[Vector], now: Sequence[Vector]
    ) -> "Answered":
        """What is known after a round. A model that has changed by a bit is a new one.

        Args:
            answers: of the round.
            before: the levels' models before it.
            now: and after it.
        """
        known: list[frozenset[int]] = []
        for level, (old, new) in enumerate(zip(before, now, strict=True)):
            same = old.tobytes() == new.tobytes()
            known.append(
                _at(self.by_level, level) | _at(answers.by_level, level) if same else _NONE
            )
        return Answered(tuple(known))


_NONE: frozenset[int] = frozenset()


def _at(by_level: Sequence[frozenset[int]], level: int) -> frozenset[int]:
    return by_level[level] if level < len(by_level) else _NONE


def _answering(invited: Collection[int], first_slot: int, outcome: RoundOutcome) -> frozenset[int]:
    if not outcome.asked:
        return _NONE
    due = Step(Stage.MASK, first_slot).order
    drops = outcome.drops
    return frozenset(
        device
        for device in invited
        if not ((drop := drops.get(ClientId(device))) is not None and drop.step.order < due)
    )
