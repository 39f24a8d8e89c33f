"""The bracket: what the exact ranks at the pivots asked so far prove about the quantile.

Pivot c is *safe* when W(< c) < τ·W, which means that the quantile q is ≥ c. Every search keeps a
safe pivot `low` and an unsafe pivot `high`, so low ≤ q < high. Pivot 0 is safe for every θ < 1, and
the pivot above all ticks is not. The answer is proved, {F ≥ low} = {F ≥ q}, when

- high - low = 1: then q = low; or
- one device, whatever its weight, is in [low, high): q is the tick of a device, so it is the tick
  of this one, and no device is in [low, q).

Everything here is integer arithmetic; θ is an exact fraction.

Spec: §12.9.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from deltafl.protocol.errors import SearchError
from deltafl.protocol.quantile.search import Ended, SearchConfig


@dataclass(frozen=True, slots=True)
class Rank:
    """The weight and number of devices below a pivot.

    Attributes:
        pivot: The pivot.
        weight: Weight of the devices below it.
        count: Number of devices below it; None if the method does not ask.
    """

    pivot: int
    weight: int
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Bracket:
    """A safe pivot and an unsafe one, with their ranks.

    Attributes:
        theta: Conformity level θ in (0, 1).
        max_weight: Largest weight of a device in the search.
        low: Highest pivot known to be safe.
        high: Lowest pivot known to be unsafe.
        total: Rank of the pivot above all ticks: the whole cohort.
    """

    theta: Fraction
    max_weight: int
    low: Rank
    high: Rank
    total: Rank

    @classmethod
    def whole(cls, config: SearchConfig, total: Rank) -> "Bracket":
        """Return the bracket that contains every tick."""
        none = Rank(0, 0, None if total.count is None else 0)
        return cls(config.theta, config.largest_weight, none, total, total)

    @property
    def width(self) -> int:
        """Number of ticks inside."""
        return self.high.pivot - self.low.pivot

    @property
    def num_devices(self) -> int | None:
        """Number of devices inside; None if the method does not count them."""
        if self.low.count is None or self.high.count is None:
            return None
        return self.high.count - self.low.count

    @property
    def target_weight(self) -> Fraction:
        """τ·W, the rank of the quantile."""
        return (1 - self.theta) * self.total.weight

    @property
    def ended(self) -> Ended | None:
        """The reason why nothing is left to ask; None while something is."""
        if self.total.weight == 0:
            return Ended.NO_WEIGHT
        if self.width == 1:
            return Ended.EXACT
        if self.num_devices == 1:
            return Ended.LAST_DEVICE
        return None

    def narrowed(self, ranks: Sequence[Rank], total: Rank) -> "Bracket":
        """Return the bracket after ranks at pivots inside it, in the order of their pivots.

        Raises:
            SearchError: If no cohort has these ranks, or only a different one than the bracket's.
        """
        if total != self.total:
            raise SearchError(
                f"the cohort has weight {total.weight} and count {total.count}, but had weight "
                f"{self.total.weight} and count {self.total.count}: when it shrinks, end the "
                f"search with result(shrank=True)"
            )
        low, high = self.low, self.high
        for below, above in itertools.pairwise((self.low, *ranks, self.high)):
            self._check_between(below, above)
        for rank in ranks:
            if rank.weight < self.target_weight:
                low = rank
            else:
                high = rank
                break
        return replace(self, low=low, high=high)

    def _check_between(self, below: Rank, above: Rank) -> None:
        weight = above.weight - below.weight
        most = weight
        if below.count is not None and above.count is not None:
            most = (above.count - below.count) * self.max_weight
        if weight < 0 or weight > most or (below.pivot == above.pivot and below != above):
            raise SearchError(
                f"between {below} and {above} no devices of weight 0 to {self.max_weight} fit: "
                f"some device answered falsely"
            )


def interpolated_pivot(bracket: Bracket) -> int:
    """Return the pivot at which the weight reaches τ·W if it is spread evenly over the bracket."""
    weight = bracket.high.weight - bracket.low.weight
    missing = bracket.target_weight - bracket.low.weight
    offset = bracket.width * missing / weight if weight else bracket.width / 2
    return inside(bracket.low.pivot + round(offset), bracket.low.pivot, bracket.high.pivot)


def inside(pivot: int, low: int, high: int) -> int:
    """Return the pivot nearest to `pivot` strictly between two pivots at least 2 apart.

    >>> inside(3, 3, 9), inside(20, 3, 9)
    (4, 8)
    """
    return min(max(pivot, low + 1), high - 1)


def guarded(pivot: int, low: int, high: int, num_queries_left: int) -> int:
    """Return the pivot nearest to `pivot` after which bisection can still finish in time.

    With j queries left, including this one, a bracket of at most 2^j ticks can be narrowed to one
    tick by halving. A method may therefore ask for any pivot as long as neither side of it is wider
    than 2^(j-1). Near the end of the budget that leaves only the middle. If the bracket is too wide
    for the budget anyway, nothing can be promised, and the pivot stays where it is.

    >>> guarded(10, 0, 1024, num_queries_left=20)
    10
    >>> guarded(10, 0, 1024, num_queries_left=10)
    512
    >>> guarded(10, 0, 1024, num_queries_left=5)
    10
    """
    half = 1 << (num_queries_left - 1)
    if high - low <= 2 * half:
        pivot = min(max(pivot, high - half), low + half)
    return inside(pivot, low, high)
