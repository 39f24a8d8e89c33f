"""Bracketing and interpolation: one pivot per query, and only two ranks revealed.

First the search steps outward, until both ends of the bracket are pivots that were asked. The size
of a step is the fraction of the weight still missing, divided by an assumed density of the losses
on a logarithmic scale; it doubles with every step that falls short. After that, the search
interpolates the weighted rank inside the bracket. Of k devices spread evenly over the bracket, the
one at fraction p is there up to a standard deviation √(p(1 - p)/(k + 2)). The pivot is moved that
far beyond it, away from the nearer end but not past the middle, so that the larger part is likely
to be cut off (as in the selection algorithm of Floyd & Rivest 1975). The guard on the budget limits
the worst case to that of bisection (`guarded`).

The search ends when one device is left in the bracket, usually long before the quantile is known to
a tick. A certificate only needs devices and pivots to be in the right order.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from deltafl.protocol.quantile.bracket import Bracket, guarded
from deltafl.protocol.quantile.narrowing import Pivots, Position, RankMethod, first_proposal
from deltafl.protocol.quantile.search import SearchConfig

_ASSUMED_DENSITY = 0.7  # weight fraction per e-fold of the loss; a Gamma(2) has 0.5 to 0.8 inside
_LEAST_STEP = 1 / 64  # of the loss: a round moves a quantile by a few per cent


@dataclass(frozen=True, slots=True)
class Bracketed(RankMethod):
    """The method `bracketed`.

    One query reveals the weight and the number of devices below one pivot, and of the cohort.
    """

    name: ClassVar[str] = "bracketed"
    """Name in the registry and in queries."""

    num_pivots: ClassVar[int] = 1
    """Always 1."""

    default_max_queries: ClassVar[int] = 26
    """Queries that certify any search on the default loss grid.

    22 would be enough for bisection; with 26 the guard rarely acts unless losses are tied.
    """

    def first(self, config: SearchConfig) -> Pivots:
        """Propose the first query."""
        return first_proposal(config)

    def propose(self, position: Position) -> Pivots:
        """Propose the next pivot outward, or the interpolated one."""
        bracket = position.bracket
        low, high = bracket.low.pivot, bracket.high.pivot
        if low == 0 or high == position.config.search.grid.top_pivot:
            pivot = _outward(bracket, from_low=low > 0, num_steps=position.run + 1)
        else:
            pivot = low + round(bracket.width * _fraction(bracket))
        pivot = guarded(pivot, low, high, position.num_queries_left)
        return (pivot,)


def _outward(bracket: Bracket, *, from_low: bool, num_steps: int) -> int:
    nearest, total = bracket.low if from_low else bracket.high, bracket.total
    missing = (
        (bracket.target_weight - nearest.weight) / total.weight,
        Fraction(bracket.target_count - nearest.count, total.count),
    )
    nearer = min(missing) if from_low else -min(missing)
    relative = max(float(nearer) / _ASSUMED_DENSITY, _LEAST_STEP) * 2.0**num_steps
    return round(nearest.pivot * (1 + relative if from_low else 1 / (1 + relative)))


def _fraction(bracket: Bracket) -> float:
    num_devices = bracket.num_devices
    place = (float(bracket.fraction) * num_devices + 0.5) / (num_devices + 1)
    deviation = math.sqrt(place * (1 - place) / (num_devices + 2))
    return min(place + deviation, 0.5) if place < 0.5 else max(place - deviation, 0.5)
