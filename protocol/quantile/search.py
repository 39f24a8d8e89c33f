"""The interface of a private quantile search, and the values that go in and out.

In the cohort, device k has a tick F_k of the loss grid and an integer weight n_k ≥ 0, which
`SearchParams.weighting` derives from its own. For the conformity level θ and τ = 1 - θ, the exact
weighted quantile is q = min{x : W(≤ x) ≥ τ·W}, where W(≤ x) is the weight of the devices with tick
≤ x and W the weight of all. The search finds the set {F ≥ q}, which Algorithm 2 of the paper trains
on, using only secure sums::

    search = method.start(config)
    while (query := search.query) is not None:
        ...  # every device encodes method.contribution(config, query, tick, weight)
        search = search.update(layout.decode(total))
    result = search.result()
    ...  # a device takes part if result.passes(tick)

All objects are values: `update` returns the next search and leaves the old one as it was.
"""

import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from deltafl.protocol.anonymity import Tail
from deltafl.protocol.errors import ConfigurationError, SearchError
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.selection import Threshold
from deltafl.protocol.weighting import Weighting
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.layout import Layout

_MAX_COHORT: Final = 2**32 - 1


class Ended(enum.StrEnum):
    """Why a search ended."""

    EXACT = "exact"
    """The bracket is one tick wide, so the quantile itself is known."""
    LAST_DEVICE = "last device"
    """One device is left in the bracket, so the devices above the quantile are known."""
    WIDENED = "widened"
    """Fewer than `min_tail` devices are, or with losses may be, at or above the quantile: more are
    kept."""
    BUDGET = "budget"
    """No query was left, or the caller stopped."""
    SHRANK = "shrank"
    """The caller stopped early. Either a device vanished during the search, so that another sum
    would reveal its share by subtraction, or no honest cohort could give the last answer."""
    NO_WEIGHT = "no weight"
    """All weights are zero, so there is no quantile."""
    TOO_FEW = "too few"
    """There are too few devices to search over, or to be a tail: all devices are kept."""
    NOISY = "noisy"
    """The ranks are noisy: they say where the quantile is likely to be, and prove nothing."""


@dataclass(frozen=True, slots=True)
class SearchParams:
    """Parameters of all searches of a run, whatever the method, the cohort and the level.

    Spec: §12.1.

    Attributes:
        max_queries: Most queries, ≥ 0; never exceeded.
        grid: Loss grid on which the cohort's losses lie.
        weighting: A device of weight n has weight weighting.of(n) in the search. Updates are always
            weighted by n.
        epsilon_ticks: ε of Algorithm 3, only for `mm`: a device nearer to a pivot than this many
            ticks contributes as if it were this far away. 0 means half a tick; no device is nearer.
        min_cohort: Fewest devices to search over, in [0, 2^32); with fewer, nothing is asked and
            all devices are kept.
        verified: Whether devices follow the search: they check every sum, and that questions and
            threshold follow from the sums. Such a search counts devices, whatever the method, and
            keeps every device that it does not know to be below the quantile.
        proved: Whether devices prove that their answers are valid, and the server drops those that
            do not. Takes a verified search by `bracketed` or `histogram`.

    Raises:
        ConfigurationError: If an attribute is out of range.
    """

    max_queries: int
    grid: LossGrid = field(default_factory=LossGrid)
    weighting: Weighting = Weighting.SAMPLES
    epsilon_ticks: int = 0
    min_cohort: int = 0
    verified: bool = False
    proved: bool = False

    def __post_init__(self) -> None:
        if self.proved and not self.verified:
            raise ConfigurationError("votes are proved only in a verified search: verify it too")
        if self.max_queries < 0:
            raise ConfigurationError(f"max_queries={self.max_queries} is negative")
        if not 0 <= self.epsilon_ticks <= self.grid.max_tick:
            raise ConfigurationError(
                f"epsilon_ticks={self.epsilon_ticks} is not in [0, {self.grid.max_tick}], the "
                "ticks of the grid"
            )
        if not 0 <= self.min_cohort <= _MAX_COHORT:
            raise ConfigurationError(
                f"min_search_cohort={self.min_cohort} is not in [0, {_MAX_COHORT}]"
            )

    @property
    def assurance(self) -> int:
        """One number for `verified` and `proved`: 0 for neither, 1 for the first, 2 for both.

        Spec: §12.1.
        """
        return int(self.verified) + int(self.proved)


@dataclass(frozen=True, slots=True)
class SearchConfig:
    """What server and devices agree on before a search.

    Attributes:
        theta: Conformity level θ, the fraction of the weight to keep, in (0, 1]. Exact:
            `Fraction("0.8")`, not `Fraction(0.8)`.
        search: Parameters of the search.
        max_weight: Largest weight of a device, ≥ 1.
        cohort_size: Most devices in a sum, ≥ 1.
        warm_start: Tick near which the quantile is expected, such as the last round's; or None.
        min_tail: Fewest devices to keep, of those whose weight is not zero, in [0, cohort_size]. If
            fewer are at or above the quantile, the search is for the `min_tail`-th largest loss.

    Raises:
        ConfigurationError: If an attribute is out of range.
    """

    theta: Fraction
    search: SearchParams
    max_weight: int
    cohort_size: int
    warm_start: int | None = None
    min_tail: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.theta <= 1:
            raise ConfigurationError(f"theta={self.theta} is not in (0, 1]")
        if self.max_weight < 1:
            raise ConfigurationError(f"max_weight={self.max_weight} is less than 1")
        if self.cohort_size < 1:
            raise ConfigurationError(f"cohort_size={self.cohort_size} is less than 1")
        max_tick = self.search.grid.max_tick
        if self.warm_start is not None and not 0 <= self.warm_start <= max_tick:
            raise ConfigurationError(
                f"warm_start={self.warm_start} is not a tick in [0, {max_tick}]"
            )
        if not 0 <= self.min_tail <= self.cohort_size:
            raise ConfigurationError(
                f"min_tail={self.min_tail} is not in [0, {self.cohort_size}], the cohort"
            )

    @property
    def largest_weight(self) -> int:
        """Largest weight in the search, once mapped by its weighting."""
        return self.search.weighting.of(self.max_weight)

    def check_device(self, tick: int, weight: int) -> None:
        """Check a device's own tick, and its weight in the search.

        Raises:
            EncodingError: If the tick is off the grid or the weight is not in
                [0, largest_weight].
        """
        max_tick = self.search.grid.max_tick
        if not 0 <= tick <= max_tick:
            raise EncodingError(
                f"tick={tick} is not in [0, {max_tick}]: take it from LossGrid.tick"
            )
        if not 0 <= weight <= self.largest_weight:
            raise EncodingError(
                f"weight={weight} is not in [0, {self.largest_weight}]: cap it or raise "
                f"max_weight, and pass what weighting={self.search.weighting.value!r} makes of it"
            )


@dataclass(frozen=True, slots=True)
class Query:
    """One public question: what is the cohort's sum at these pivots?

    Attributes:
        method: Name of the method that asks.
        pivots: Pivots of the loss grid, never decreasing.
    """

    method: str
    pivots: tuple[int, ...]

    def canonical(self) -> bytes:
        """Describe the query in bytes; different queries give different bytes. Spec: §12.6."""
        name = self.method.encode()
        numbers = (len(name), len(self.pivots), *self.pivots)
        return b"".join(number.to_bytes(8, "big") for number in numbers) + name

    def check(self, method: str, num_pivots: int, grid: LossGrid) -> None:
        """Check that a device can answer this query.

        Spec: §12.4.

        Raises:
            SearchError: If it belongs to another method, or its pivots are not `num_pivots` pivots
                of the grid in order.
        """
        if self.method != method or len(self.pivots) != num_pivots:
            raise SearchError(
                f"query of method {self.method!r} with {len(self.pivots)} pivots is not one of "
                f"{method!r} with {num_pivots}"
            )
        bounded = (0, *self.pivots, grid.top_pivot)
        if any(low > high for low, high in itertools.pairwise(bounded)):
            raise SearchError(
                f"pivots {self.pivots} are not in order or not in [0, {grid.top_pivot}]"
            )


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The threshold η that a search found, with its half-width δ: a device takes part if F ≥ η - δ.

    Both are in half ticks, so that they are integers. If `certified`, {F ≥ η - δ} is exactly
    {F ≥ q}, but for devices of weight zero. If not, more devices may be kept, or fewer.

    Attributes:
        grid: Loss grid of the search.
        eta_half_ticks: η, in half ticks.
        half_width_half_ticks: δ ≥ 0, in half ticks.
        certified: Whether the kept set is proved to be that of the exact weighted quantile.
        ended: Why the search ended.
        num_queries: Queries answered.
        tail: The devices that are kept, of those in the sums; None if nothing was asked, so that
            all are kept.
    """

    grid: LossGrid
    eta_half_ticks: int
    half_width_half_ticks: int
    certified: bool
    ended: Ended
    num_queries: int
    tail: Tail | None = None

    @property
    def eta(self) -> float:
        """η in units of the loss."""
        return self.grid.value(Fraction(self.eta_half_ticks, 2))

    @property
    def half_width(self) -> float:
        """δ in units of the loss."""
        return self.grid.value(Fraction(self.half_width_half_ticks, 2))

    @property
    def threshold(self) -> Threshold:
        """η and δ in the form that is announced to the devices."""
        return Threshold(self.eta_half_ticks, self.half_width_half_ticks)

    def passes(self, tick: int) -> bool:
        """Decide whether a device with this tick takes part, F ≥ η - δ, exactly."""
        return self.threshold.passes(tick)


class Search(Protocol):
    """A search under way: an immutable value."""

    @property
    def query(self) -> Query | None:
        """The next query; None once the search is finished."""

    def update(self, sums: Mapping[str, npt.NDArray[np.int64]]) -> "Search":
        """Return the search as it is after the answer to `query`.

        Args:
            sums: Decoded sums of the method's layout, over the same devices in every query.

        Raises:
            SearchError: If the search is finished, or the sums contradict themselves or earlier
                ones: no honest cohort gives such sums.
        """

    def result(self, *, shrank: bool = False, num_lost: int = 0) -> SearchResult:
        """Return what is known so far; the caller may stop at any time.

        Args:
            shrank: The caller stops because a device vanished since the first query.
            num_lost: Devices of the sums that are gone, all of which may have been in the tail.
        """


class QuantileMethod(Protocol):
    """A way to find the quantile: what the server asks, what a device answers."""

    @property
    def name(self) -> str:
        """Name in the registry and in queries."""

    @property
    def num_pivots(self) -> int:
        """Pivots of a query, the same for all queries."""

    @property
    def default_max_queries(self) -> int:
        """Queries that certify any search on the default loss grid."""

    def layout(self, config: SearchConfig) -> Layout:
        """Return the layout of a contribution, the same for all queries of a search."""

    def start(self, config: SearchConfig) -> Search:
        """Return the search before its first query."""

    def contribution(
        self, config: SearchConfig, query: Query, tick: int, weight: int
    ) -> Mapping[str, npt.ArrayLike]:
        """Return what a device of this tick adds to the sum, to be encoded.

        Args:
            config: Configuration of the search.
            query: The query to answer.
            tick: The device's loss.
            weight: Its weight in the search, config.search.weighting.of(n).

        Raises:
            SearchError: If the query is not one of this method's.
            EncodingError: If tick or weight are out of range.
        """
