"""At which thresholds a search may start: the possible results of the rounds before it."""

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from itertools import product

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import Round
from deltafl.protocol.selection import Threshold
from deltafl.secagg import SlotSum


def starts_elsewhere(config: RoundConfig, starts: Iterable[Threshold]) -> bool:
    """Whether a search is announced to start where no round has come to, though not afresh.

    The server chooses where a search starts.

    Args:
        config: The round's.
        starts: At which thresholds the search may start.
    """
    ticks = (round(start.eta_half_ticks / 2) for start in starts)
    allowed = {min(tick, config.search.grid.max_tick) for tick in ticks}
    return config.warm_start is not None and config.warm_start not in allowed


def given_up(round_again: Round, last: SlotSum | None) -> tuple[Threshold, ...]:
    """What a search may have come to where no threshold was announced any more.

    Whether and how many devices had vanished since its last sum, which ends it early and keeps
    more of the others, is not in the record.

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
    ended = [one for one in (shrank, went_on) if isinstance(one.question, Threshold)]
    thresholds = [one.question for one in ended]
    num_summed = 0 if last is None else len(last.contributors)
    for one, num_left in product(ended, range(num_summed - 1, 0, -1)):
        fewer = copy(one)
        fewer.assemble(num_left)
        thresholds.append(fewer.question)
    return tuple(dict.fromkeys(one for one in thresholds if isinstance(one, Threshold)))
