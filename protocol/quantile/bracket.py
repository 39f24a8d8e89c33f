"""The bracket: what the exact ranks at the pivots asked so far prove about the quantile.

Pivot c is *safe* when W(< c) < τ·W, which means that the quantile q is ≥ c, and when at least
`min_tail` devices are at or above c, which means that the `min_tail`-th largest loss r is. So the
safe pivots are those up to min(q, r), which is the quantile but where too few devices are at or
above it. Every search keeps its safe pivots, of which the highest is `low`, and an unsafe pivot
`high`, so low ≤ min(q, r) < high. Pivot 0 is safe for every θ < 1 if there are `min_tail` devices,
and the pivot above all ticks is not. The answer is proved, {F ≥ low} = {F ≥ min(q, r)}, when

- high - low = 1: then min(q, r) = low; or
- one device is in [low, high): q and r are ticks of devices, so the lower one is the tick of this
  device, and no device is in [low, min(q, r)). Devices of weight zero are not counted.

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
        count: Number of devices below it, without those of weight zero.
    """

    pivot: int
    weight: int
    count: int


@dataclass(frozen=True, slots=True)
class Bracket:
    """Safe pivots and an unsafe one, with their ranks.

    Attributes:
        theta: Conformity level θ in (0, 1).
        min_tail: Fewest devices to keep.
        max_weight: Largest weight of a device in the search.
        lows: Pivots known to be safe, ascending; the first is pivot 0.
        high: Lowest pivot known to be unsafe.
        total: Rank of the pivot above all ticks: the whole cohort.
    """

    theta: Fraction
    min_tail: int
    max_weight: int
    lows: tuple[Rank, ...]
    high: Rank
    total: Rank

    @classmethod
    def whole(cls, config: SearchConfig, total: Rank) -> "Bracket":
        """Return the bracket that contains every tick."""
        lows = (Rank(0, 0, 0),)
        return cls(config.theta, config.min_tail, config.largest_weight, lows, total, total)

    @property
    def low(self) -> Rank:
        """Highest pivot known to be safe."""
        return self.lows[-1]

    @property
    def width(self) -> int:
        """Number of ticks inside."""
        return self.high.pivot - self.low.pivot

    @property
    def num_devices(self) -> int:
        """Number of devices inside."""
        return self.high.count - self.low.count

    @property
    def target_weight(self) -> Fraction:
        """τ·W, the rank of the quantile."""
        return (1 - self.theta) * self.total.weight

    @property
    def target_count(self) -> int:
        """Most devices below a threshold that keeps `min_tail`, or one."""
        return self.total.count - max(self.min_tail, 1)

    @property
    def ended(self) -> Ended | None:
        """The reason why nothing is left to ask; None while something is."""
        if self.total.weight == 0:
            return Ended.NO_WEIGHT
        if self.target_count < 0:
            return Ended.TOO_FEW
        if self.width > 1 and self.num_devices > 1:
            return None
        if self.high.weight < self.target_weight:
            return Ended.WIDENED
        return Ended.EXACT if self.width == 1 else Ended.LAST_DEVICE

    @property
    def fraction(self) -> Fraction:
        """Where in the bracket min(q, r) is, in (0, 1], if devices are spread evenly over it."""
        weight, half = self.high.weight - self.low.weight, Fraction(1, 2)
        by_count = (self.target_count + half - self.low.count) / self.num_devices
        missing = self.target_weight - self.low.weight
        return min(missing / weight, by_count) if weight else by_count

    def is_safe(self, rank: Rank) -> bool:
        """Whether a pivot of this rank is safe."""
        return rank.weight < self.target_weight and rank.count <= self.target_count

    def kept(self, num_lost: int, *, only_safe: bool) -> Rank:
        """The pivot to announce before the search has come to an end: one whose rank is known.

        It keeps `min_tail` devices even if all lost ones were in the tail, or it is pivot 0.

        Args:
            num_lost: Devices that are gone.
            only_safe: Whether it must be safe; if not, the unsafe one is taken if it is nearer.
        """
        most = self.target_count - num_lost
        low = next((rank for rank in reversed(self.lows) if rank.count <= most), self.lows[0])
        missed, beyond = self.target_weight - low.weight, self.high.weight - self.target_weight
        return low if only_safe or self.high.count > most or missed <= beyond else self.high

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
        for below, above in itertools.pairwise((self.low, *ranks, self.high)):
            self._check_between(below, above)
        safe = tuple(itertools.takewhile(self.is_safe, ranks))
        high = ranks[len(safe)] if len(safe) < len(ranks) else self.high
        return replace(self, lows=(*self.lows, *safe), high=high)

    def _check_between(self, below: Rank, above: Rank) -> None:
        weight = above.weight - below.weight
        most = (above.count - below.count) * self.max_weight
        if weight < 0 or weight > most or (below.pivot == above.pivot and below != above):
            raise SearchError(
                f"between {below} and {above} no devices of weight 0 to {self.max_weight} fit: "
                f"some device answered falsely"
            )


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
