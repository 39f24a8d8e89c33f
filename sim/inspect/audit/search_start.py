"""At which thresholds a search may start: the possible results of the rounds before it."""

from collections.abc import Iterable
from copy import copy
from dataclasses import replace

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import Round
from deltafl.protocol.selection import Threshold
from deltafl.secagg import SlotSum
from deltafl.sim.inspect.audit.views import SlotView


def begin(config: RoundConfig, first: SlotView, starts: Iterable[Threshold]) -> tuple[Round, bool]:
    """The round before its first sum, and whether its search starts where no round has come to.

    The server chooses where a search starts.

    Args:
        config: The round's.
        first: Its first slot.
        starts: At which thresholds the search may start, unless afresh.
    """
    fresh = Round(config, None)
    if fresh.question == first.question or not first.opened:
        return fresh, False
    for start in starts:
        tick = min(round(start.eta_half_ticks / 2), config.search.grid.max_tick)
        warm = Round(config, tick)
        if warm.question == first.question:
            return warm, False
    pivots = getattr(first.question, "pivots", ())
    for pivot in pivots:
        if 0 <= pivot <= config.search.grid.max_tick:
            elsewhere = Round(config, pivot)
            if elsewhere.question == first.question:
                return elsewhere, True
    return fresh, False


def given_up(round_again: Round, last: SlotSum | None) -> tuple[Threshold, ...]:
    """What a search may have come to where no threshold was announced any more.

    Whether devices had vanished since its last sum, which ends it early, is not in the record.

    Args:
        round_again: The round before its last sum; it is not changed.
        last: That sum; None where there is none.
    """
    if not isinstance(round_again.question, Query):
        return ()
    shrank, went_on = copy(round_again), copy(round_again)
    if last is None:
        shrank.lose()
    else:
        shrank.take(replace(last, remaining=()))
        went_on.take(last)
    ended = (shrank.question, went_on.question)
    return tuple(question for question in ended if isinstance(question, Threshold))
