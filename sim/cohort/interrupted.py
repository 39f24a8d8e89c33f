"""Rounds that were begun before the server's process ended, as they appear to the next process.

Nobody knows how far such a round had come. Its sums may be known, but what the server had made of
them is not. So it is lost, and nobody is asked anything again: a second round over its context
would give the server a second answer of the same devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from deltafl.fl.cohort import SecureRoundResult
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import RoundOutcome
from deltafl.protocol.sessions import Sessions
from deltafl.secagg.stages import Vanishing
from deltafl.sim.cohort.work import CohortWork


@dataclass(frozen=True, slots=True)
class InterruptedRounds:
    """Plays nothing, and says that the round was lost; any device may have answered in it.

    Attributes:
        sessions: How sessions are set up.
        slots: Of the sums that the server had learnt, indices into the session's slots.
        reason: Why the round was lost.
    """

    sessions: Sessions
    slots: Sequence[int]
    reason: str

    def play(
        self,
        levels: Levels,
        work: CohortWork,
        *,
        graph_seed: bytes,
        vanishing: Vanishing,
    ) -> SecureRoundResult:
        """Lose a round; see `deltafl.sim.cohort.simulated.SecureRounds`."""
        del work, graph_seed, vanishing
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
