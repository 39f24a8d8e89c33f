"""Rounds that were begun before the server's process ended, as they appear to the next process.

Nobody knows how far such a round had come. Its sums may be known, but what the server had made of
them is not. So it is lost, and nobody is asked anything again: a second round over its context
would give the server a second answer of the same devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from deltafl.fl.cohort import Cohort, SecureOnly, SecureRoundResult, Weighing
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import RoundOutcome


@dataclass(frozen=True, slots=True, eq=False)
class InterruptedCohort(SecureOnly):
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
    return tuple(_lost(count, reason) for count in sums)


def _lost(num_sums: int, reason: str) -> RoundOutcome:
    """The outcome of a level of which nothing is known but how many sums it had."""
    return RoundOutcome(
        search=None,
        secure_sums=num_sums,
        update=None,
        kept_weight=0,
        kept_devices=0,
        train_loss=None,
        clipped=0,
        drops={},
        aborted=reason,
    )
