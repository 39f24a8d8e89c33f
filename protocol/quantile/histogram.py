"""Pivots that are the bin edges of a histogram: all their ranks in one secure sum.

A sum of 2B + 2 numbers costs one round trip like any other, so B pivots narrow the bracket by a
factor of B + 1 in one query. The pivots of the first query form a ladder. Around a warm start, its
steps grow geometrically in both directions. Without one, it is geometric over the whole grid,
because the scale of the losses is unknown. Later queries spread the pivots evenly inside the
bracket. The lower latency costs privacy: a query reveals how many devices are between any two of
its pivots.

With one edge, a query reveals two ranks, and the search does not start from the whole grid. First
it steps outward, from the warm start or a loss of one, until both ends of the bracket are pivots
that were asked. The size of a step is the fraction of the weight still missing, divided by an
assumed density of the losses on a logarithmic scale; it doubles with every step that falls short.
After that, the search interpolates the weighted rank inside the bracket. Of k devices spread evenly
over the bracket, the one at fraction p is there up to a standard deviation √(p(1 - p)/(k + 2)). The
pivot is moved that far beyond it, away from the nearer end but not past the middle, so that the
larger part is likely to be cut off (as in the selection algorithm of Floyd & Rivest 1975). The
guard on the budget limits the worst case to that of bisection (`guarded`). The search ends when one
device is left in the bracket, usually long before the quantile is known to a tick.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Final

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.quantile.bracket import Bracket, guarded, inside
from deltafl.protocol.quantile.narrowing import Pivots, Position, RankMethod, first_proposal
from deltafl.protocol.quantile.search import SearchConfig

_FINEST_STEP: Final = Fraction(
    1, 256
)  # of the warm start: well below the few per cent by which a quantile moves
_DEFAULT_GRID_BITS = 22
_DIGITS: Final = 50
_QUERIES_OF_ONE_EDGE: Final = 26  # bisection takes 22; the guard rarely acts unless losses are tied
_ASSUMED_DENSITY: Final = 0.7  # weight per e-fold of the loss; a Gamma(2) has 0.5 to 0.8 inside
_LEAST_STEP: Final = 1 / 64  # of the loss: a round moves a quantile by a few per cent


@dataclass(frozen=True, slots=True)
class Histogram(RankMethod):
    """The method `histogram`.

    One query reveals the weight and the number of devices below each of its pivots, and of the
    cohort.

    Attributes:
        num_pivots: Pivots in a query, B ≥ 1.

    Raises:
        ConfigurationError: If `num_pivots` is less than 1.
    """

    num_pivots: int = 64

    def __post_init__(self) -> None:
        if self.num_pivots < 1:
            raise ConfigurationError(f"num_pivots={self.num_pivots} is less than 1")

    name: ClassVar[str] = "histogram"
    """Name in the registry and in queries."""

    @property
    def default_max_queries(self) -> int:
        """Queries that certify any search on the default grid: the ladder, then even pivots."""
        if self.num_pivots == 1:
            return _QUERIES_OF_ONE_EDGE
        num_queries, width = 1, 2**_DEFAULT_GRID_BITS
        while width > 1:
            width = -(-width // (self.num_pivots + 1))
            num_queries += 1
        return num_queries

    def first(self, config: SearchConfig) -> Pivots:
        """Propose the ladder, or the one edge to start from."""
        return first_proposal(config) if self.num_pivots == 1 else self.ladder(config)

    def ladder(self, config: SearchConfig) -> Pivots:
        """Pivots over the whole grid, near the warm start if there is one."""
        grid = config.search.grid
        ladder = _ladder(self.num_pivots, grid.max_tick, config.warm_start or 0)
        return self._filled(ladder, 0, grid.top_pivot)

    def propose(self, position: Position) -> Pivots:
        """Propose even pivots inside the bracket, or the one edge outward or interpolated."""
        bracket = position.bracket
        low, high = bracket.low.pivot, bracket.high.pivot
        if self.num_pivots == 1:
            if low == 0 or high == position.config.search.grid.top_pivot:
                pivot = _outward(bracket, from_low=low > 0, num_steps=position.run + 1)
            else:
                pivot = low + round(bracket.width * _fraction(bracket))
            return (guarded(pivot, low, high, position.num_queries_left),)
        num_parts = self.num_pivots + 1
        even = (low + bracket.width * part // num_parts for part in range(1, num_parts))
        return self._filled(even, low, high)

    def _filled(self, pivots: Iterable[int], low: int, high: int) -> Pivots:
        """Sort the distinct pivots inside; repeat the last up to the declared number."""
        different = sorted({inside(pivot, low, high) for pivot in pivots})
        return tuple(different + different[-1:] * (self.num_pivots - len(different)))


@dataclass(frozen=True, slots=True)
class Bracketed(Histogram):
    """The method `bracketed`: a histogram with one bin edge in a query."""

    num_pivots: int = 1

    name: ClassVar[str] = "bracketed"
    """Name in the registry and in queries."""


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


@lru_cache(maxsize=8)
def _ladder(num_pivots: int, top: int, start: int) -> tuple[int, ...]:
    """The pivots of a first query, not yet in order: geometric from a tick outward.

    Every device of a verified search has to find the same ones, whatever its processor and its
    mathematical library, so they are not computed in binary floating point.
    """
    if not start:
        num_parts = num_pivots + 1
        return tuple(_powers(Fraction(1), Fraction(top), range(1, num_parts), num_parts))
    num_up = (num_pivots + 1) // 2
    num_down = num_pivots - num_up
    finest = start * _FINEST_STEP
    ratio_up, ratio_down = max((top - start) / finest, Fraction(1)), 1 / _FINEST_STEP
    up = (start + offset for offset in _powers(finest, ratio_up, range(num_up), num_up))
    down = (start - offset for offset in _powers(finest, ratio_down, range(num_down), num_down))
    return (*up, *down)


def _powers(first: Fraction, ratio: Fraction, steps: range, num_steps: int) -> list[int]:
    """The integers nearest to first·ratio^(step / num_steps), ties to even, by decimal numbers."""
    with localcontext(prec=_DIGITS):
        start, logarithm = _decimal(first), _decimal(ratio).ln()
        powers = [start * (logarithm * step / num_steps).exp() for step in steps]
    with localcontext(prec=_DIGITS - 10):
        return [round(+power) for power in powers]  # without the last digits, which would hide ties


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / number.denominator
