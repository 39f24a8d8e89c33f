"""Which devices take part in a round.

Sampling is uniform and without replacement, as in the experiments behind arXiv 2002.11223 (its
Algorithm 2 prints sampling with replacement). Where a run's sums have noise, it matters how often a
device is invited at most, and cohorts are dealt.

A device answers for a model in one round (spec, 12.13). So after a round that has left the model as
it was, such as a lost one, the server asks devices that have not answered yet. It cannot know who
has: a message may have been lost on its way. All devices count that were still in the session when
their first masked vector was due. Where the others are too few, the lost round is repeated with its
cohort: it goes on with what the search had revealed, and only if no sum of updates was.

Of a round that was begun before the server's process ended, nobody knows how far it had come. Its
sums may be known, but what the server had made of them is not. So it is lost, and nobody is asked
anything again: a second round over its context would give the server a second answer of the same
devices.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from deltafl.fl.cohort import Cohort, SecureRoundResult, Weighing
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import LostSearch, RoundOutcome
from deltafl.secagg import ClientId, Stage, Step
from deltafl.sim.record.checkpoint import LostRound

Indices = npt.NDArray[np.int64]
"""Devices by their indices, ascending."""


def others(num_devices: int, without: AbstractSet[int] = frozenset()) -> Indices:
    """All devices of a population, but for some."""
    if not without:
        return np.arange(num_devices, dtype=np.int64)
    return np.array([index for index in range(num_devices) if index not in without], np.int64)


def drawn_of(generator: np.random.Generator, left: Indices, cohort_size: int) -> tuple[int, ...]:
    """Draw `cohort_size` of the devices that are left, ascending; all if there are not more."""
    drawn = generator.choice(left, size=min(cohort_size, len(left)), replace=False)
    return tuple(sorted(int(index) for index in drawn))


def participations(rounds: int, num_devices: int, cohort_size: int) -> int:
    """How often a device is invited at most in so many rounds, if cohorts are dealt by `dealt`."""
    return -(-rounds // (num_devices // cohort_size))


def dealt(
    generator_of: Callable[[int], np.random.Generator],
    num_devices: int,
    cohort_size: int,
    round_index: int,
) -> Indices:
    """The devices that are dealt to a round.

    The population is shuffled and dealt into cohorts that have nothing in common. When fewer than a
    cohort are left, it is shuffled again.

    Args:
        generator_of: the generator of the shuffle with this number, counted from 0.
        num_devices: the population.
        cohort_size: how many to deal, in [1, num_devices].
        round_index: the round, counted from 0.
    """
    shuffle, turn = divmod(round_index, num_devices // cohort_size)
    order = generator_of(shuffle).permutation(num_devices)
    return np.sort(order[turn * cohort_size : (turn + 1) * cohort_size]).astype(np.int64)


@dataclass(slots=True)
class Answers:
    """A note of one round.

    Attributes:
        by_level: for each level, the devices that may have answered for its model.
        lost: for each level, what another round over its model may go on with; None if none may.
    """

    by_level: tuple[frozenset[int], ...] = ()
    lost: tuple[LostSearch | None, ...] = ()

    def note(self, invited: Collection[int], levels: Levels, result: SecureRoundResult) -> None:
        """Note a secure round.

        Args:
            invited: its devices.
            levels: what was announced.
            result: what became of each level.
        """
        outcomes = result.outcomes
        self.by_level = tuple(
            _answering(invited, levels.first_slot(level), outcome)
            for level, outcome in enumerate(outcomes)
        )
        self.lost = tuple(outcome.lost for outcome in outcomes)


@dataclass(frozen=True, slots=True)
class Answered:
    """The devices that may have answered for the models that the server has now: a value.

    Attributes:
        by_level: for each level's model; shorter if nobody has answered for the last ones.
        lost: the last round, if it was lost and may be repeated.
    """

    by_level: tuple[frozenset[int], ...] = field(default=())
    lost: LostRound | None = None

    @property
    def anyone(self) -> frozenset[int]:
        """The devices that cannot be asked: a session is about the models of all levels."""
        return frozenset().union(*self.by_level)

    def after(
        self,
        answers: Answers,
        cohort: tuple[int, ...],
        before: Sequence[Vector],
        now: Sequence[Vector],
    ) -> "Answered":
        """What is known after a round. A model that has changed by a bit is a new one.

        Args:
            answers: of the round.
            cohort: its devices.
            before: the levels' models before it.
            now: and after it.
        """
        known: list[frozenset[int]] = []
        searches: list[LostSearch | None] = []
        for level, (old, new) in enumerate(zip(before, now, strict=True)):
            same = old.tobytes() == new.tobytes()
            known.append(
                _at(self.by_level, level) | _at(answers.by_level, level) if same else _NONE
            )
            noted = answers.lost[level] if level < len(answers.lost) else None
            searches.append(noted if same else LostSearch())
        going_on = [one for one in searches if one is not None]
        if not any(known) or len(going_on) < len(searches):
            return Answered(tuple(known))
        before_it = self.lost.rounds if self.lost and self.lost.cohort == cohort else 0
        rounds = before_it + any(answers.by_level)
        return Answered(tuple(known), LostRound(cohort, rounds, tuple(going_on)))


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


@dataclass(frozen=True, slots=True, eq=False)
class InterruptedCohort(Cohort):
    """The devices of such a round, any of which may have answered in it; a `Cohort`.

    Attributes:
        cohort: The devices.
        slots: Of the sums that the server had learnt, indices into the session's slots.
        reason: Why the round was lost.
    """

    cohort: Cohort
    slots: Sequence[int]
    reason: str

    @property
    def weights(self) -> Mapping[int, int]:
        """n_k by device."""
        return self.cohort.weights

    def secure_round(
        self,
        levels: Levels,
        models: Sequence[Vector],
        weighing: Weighing | None = None,
    ) -> SecureRoundResult:
        """Lose a round; see `Cohort`."""
        del models, weighing
        return SecureRoundResult(lost_outcomes(levels, self.slots, self.reason), None)


def lost_outcomes(levels: Levels, slots: Sequence[int], reason: str) -> tuple[RoundOutcome, ...]:
    """The outcome of each level of a lost round.

    Args:
        levels: The levels.
        slots: Of the sums that the server had learnt, indices into the session's slots.
        reason: Why the round was lost.
    """
    first = [levels.first_slot(level) for level in range(len(levels.rounds) + 1)]
    sums = [sum(begin <= slot < end for slot in slots) for begin, end in pairwise(first)]
    return tuple(
        RoundOutcome(
            search=None,
            secure_sums=count,  # of a lost round, nothing else is known
            update=None,
            kept_weight=0,
            kept_devices=0,
            train_loss=None,
            clipped=0,
            drops={},
            aborted=reason,
        )
        for count in sums
    )
