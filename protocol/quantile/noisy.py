"""One noisy histogram: the only method whose sums do not reveal exact ranks.

The pivots are those of the first query of `histogram`, a ladder around the warm start. Every device
adds one to the bin of its loss, and its share of the noise (`deltafl.protocol.noise`) to all bins.
The server gets noisy counts, and takes the nearest counts that are possible: not negative, and with
the number of devices, which is public, as their sum. η is where these counts reach the rank of the
quantile, interpolated in that bin. This uses only what was released, so it costs no privacy.

There is only one query in a round. A second would add fresh noise to the same losses, and the
average of many answers has almost none. Up to about 64 bins, flat bins are better than a tree of
bins: the noise of prefix sums grows with the number of bins in flat bins, and with the square of
its logarithm in a tree (Pillutla et al. 2022).

The threshold is a guess and never certified. Its rank is only near τ. It keeps at least all bins of
which the noisy counts, less four standard deviations of their noise, come to `min_tail`; so fewer
are kept with a probability of 3·10^-5, and where no bins do, all devices are kept. The method
protects a device's loss in the search, and nothing else. The sum of the update slot reveals the
exact weight, weighted loss and number of the devices in the tail.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, sqrt
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.anonymity import Tail
from deltafl.protocol.errors import ConfigurationError, SearchError
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.histogram import Histogram
from deltafl.protocol.quantile.search import Ended, Query, SearchConfig, SearchResult
from deltafl.protocol.weighting import Weighting
from deltafl.secagg.layout import Field, Layout
from deltafl.secagg.randomness import Randomness

_DEVIATIONS: Final = 4  # of the noise: beyond them on one side with a probability of 3·10^-5


@dataclass(frozen=True, slots=True)
class NoisyHistogram:
    """The method `noisy`.

    The query reveals noisy counts of the devices between neighbouring pivots, and how many devices
    there are.

    Spec: §12.3, §12.4, §12.10.

    Attributes:
        noise: Noise of each count.
        num_pivots: Pivots in the query, B ≥ 1. More pivots locate η more finely, but with more
            noise.

    Raises:
        ConfigurationError: If `num_pivots` is less than 1.
    """

    noise: Noise
    num_pivots: int = 16

    def __post_init__(self) -> None:
        Histogram(self.num_pivots)  # which has the same limits

    name: ClassVar[str] = "noisy"
    """Name in the registry and in queries."""

    default_max_queries: ClassVar[int] = 1
    """Always 1, the only query that is allowed."""

    @property
    def num_bins(self) -> int:
        """Number of counts in an answer: one more than pivots."""
        return self.num_pivots + 1

    def layout(self, config: SearchConfig) -> Layout:
        """Return the layout: `count` and `bins`, which are signed.

        Raises:
            ConfigurationError: If the search has an ε, weights that are not equal, or more than one
                query; or if the noise must come from more devices than there are.
        """
        search = config.search
        if search.epsilon_ticks:
            raise ConfigurationError(
                f"epsilon_ticks={search.epsilon_ticks} is an option of 'mm' only: set it to 0"
            )
        if search.weighting is not Weighting.EQUAL:
            raise ConfigurationError(
                f"weighting={search.weighting.value!r} is not for 'noisy': noise hides one device "
                "that counts one, so set it to 'equal'"
            )
        if search.max_queries > 1:
            raise ConfigurationError(
                f"max_queries={search.max_queries} is more than the 1 of 'noisy': noise averages "
                "out over queries"
            )
        if self.noise.num_devices > config.cohort_size:
            raise ConfigurationError(
                f"noise from {self.noise.num_devices} devices is from more than cohort_size="
                f"{config.cohort_size}"
            )
        step = Fraction(1, 1 << self.noise.resolution_bits)
        most = float(self._bound(config) * step)
        fields = (
            Field("count", 1, 0, 1, 0),
            Field("bins", self.num_bins, -most, 1 + most, self.noise.resolution_bits),
        )
        return Layout(fields, config.cohort_size)

    def start(self, config: SearchConfig) -> "NoisySearch":
        """Return the search before its query."""
        return NoisySearch(config, self, Histogram(self.num_pivots).ladder(config))

    def contribution(
        self, config: SearchConfig, query: Query, tick: int, weight: int
    ) -> Mapping[str, npt.ArrayLike]:
        """Return 1, and 1 for the bin of the tick. It has no noise yet, so do not encode it.

        A device of weight zero counts too; otherwise the counts would reveal that it has no data.

        Raises:
            SearchError: If the query is not one of this method's.
            EncodingError: If tick or weight are out of range.
        """
        query.check(self.name, self.num_pivots, config.search.grid)
        config.check_device(tick, weight)
        bins = np.zeros(self.num_bins, dtype=np.int64)
        bins[np.searchsorted(np.asarray(query.pivots), tick, side="right")] = 1
        return {"count": 1, "bins": bins}

    def with_noise(
        self, config: SearchConfig, values: Mapping[str, npt.ArrayLike], randomness: Randomness
    ) -> Mapping[str, npt.ArrayLike]:
        """Return a contribution with the device's share of the noise, to be encoded and masked.

        Args:
            config: Configuration of the search.
            values: What `contribution` gave.
            randomness: Source of the noise. Draw only once per query, because noise that is drawn
                again for the same answer averages out.
        """
        share = self.noise.share(self.num_bins, self._bound(config), randomness)
        steps = 1 << self.noise.resolution_bits
        # Exact: a share has few digits, and a step is a power of two.
        return {**values, "bins": np.asarray(values["bins"]) + share / steps}

    def _bound(self, config: SearchConfig) -> int:
        return self.noise.bound(self.num_bins * config.cohort_size)


@dataclass(frozen=True, slots=True)
class NoisySearch:
    """A search of one noisy query.

    Attributes:
        config: Configuration of the search.
        method: The method.
        pivots: The pivots of the query.
        num_devices: Devices in the answer; 0 before it, and if nobody answered.
        estimate: Tick of η.
        fewest: Devices at or above η, at least.
        num_queries: Queries answered, 0 or 1.
    """

    config: SearchConfig
    method: NoisyHistogram
    pivots: tuple[int, ...]
    num_devices: int = 0
    estimate: int = 0
    fewest: int = 0
    num_queries: int = 0

    @property
    def query(self) -> Query | None:
        """The query; None once it is answered, or if there is none to ask."""
        if self.config.theta == 1 or self.num_queries >= self.config.search.max_queries:
            return None
        return Query(self.method.name, self.pivots)

    def update(self, sums: Mapping[str, npt.NDArray[np.int64]]) -> "NoisySearch":
        """Return the search as it is after the answer.

        Raises:
            SearchError: If the search is finished, or the sums are not of the layout's shapes.
        """
        if self.query is None:
            raise SearchError(f"the search is finished ({self.result().ended}): it takes no sums")
        shapes = {name: array.shape for name, array in sums.items()}
        if shapes != {"count": (1,), "bins": (self.method.num_bins,)}:
            raise SearchError(f"sums of shapes {shapes} are not a count and noisy bins")
        steps = 1 << self.method.noise.resolution_bits
        num_devices = int(sums["count"][0])
        noisy = [Fraction(int(number), steps) for number in sums["bins"]]
        answered = replace(self, num_devices=num_devices, num_queries=1)
        if not num_devices:
            return answered
        sure = self._sure(noisy, num_devices)
        estimate = self._crossing(nearest_counts(noisy, num_devices))
        if least := self.config.min_tail:
            estimate = min(estimate, next((p for p, fewest in sure if fewest >= least), 0))
        fewest = max((fewest for pivot, fewest in sure if pivot >= estimate), default=0)
        return replace(answered, estimate=estimate, fewest=fewest)

    def result(self, *, shrank: bool = False, num_lost: int = 0) -> SearchResult:
        """Return what is known so far.

        Args:
            shrank: The caller stops because a device vanished. A search that was finished before
                stays as it is.
            num_lost: Devices of the sums that are gone. They change nothing here.
        """
        del num_lost
        keeps_all = self.config.theta == 1
        ended, tail = Ended.SHRANK if shrank else Ended.BUDGET, None
        if keeps_all:
            ended = Ended.EXACT
        elif self.num_queries:
            ended = Ended.NOISY if self.num_devices else Ended.NO_WEIGHT
            tail = Tail(self.fewest, self.num_devices)
        return SearchResult(
            grid=self.config.search.grid,
            eta_half_ticks=2 * self.estimate,
            half_width_half_ticks=0,
            certified=keeps_all,
            ended=ended,
            num_queries=self.num_queries,
            tail=tail,
        )

    def _sure(self, noisy: Sequence[Fraction], num_devices: int) -> list[tuple[int, int]]:
        """For each pivot, the highest first, and 0: the devices above it, whatever the noise.

        Every device has added its share of the noise: there are more than is asked for.
        """
        noise = self.method.noise
        variance = noise.variance / noise.num_devices * num_devices
        above = itertools.accumulate(reversed(noisy[1:]))
        fewest = [
            max(floor(count - Fraction(_DEVIATIONS * sqrt(variance * num_bins))), 0)
            for num_bins, count in enumerate(above, 1)
        ]
        return [*zip(reversed(self.pivots), fewest, strict=True), (0, num_devices)]

    def _crossing(self, counts: Sequence[Fraction]) -> int:
        """The pivot below which all devices before the quantile are, if each bin is evenly filled.

        The quantile is the loss of device ⌈τ·m⌉ of m, which must pass.
        """
        below = list(itertools.accumulate(counts))
        wanted = ceil((1 - self.config.theta) * below[-1]) - 1
        if wanted == 0:
            return 0
        at = next(index for index, rank in enumerate(below) if rank >= wanted)
        low, high = (0, *self.pivots, self.config.search.grid.top_pivot)[at : at + 2]
        return low + int((high - low) * (1 - (below[at] - wanted) / counts[at]))


def nearest_counts(noisy: Sequence[Fraction], total: int) -> list[Fraction]:
    """Return the counts nearest to the noisy ones that are not negative and sum to `total` ≥ 1.

    This is the projection onto a simplex: it subtracts one number from all counts, and sets those
    below zero to zero (Held, Wolfe & Crowder 1974, "Validation of Subgradient Optimization").

    >>> [str(count) for count in nearest_counts([Fraction(3), Fraction(-2), Fraction(2)], 4)]
    ['5/2', '0', '3/2']
    """
    sum_of_largest, excess = Fraction(0), Fraction(0)
    for number, count in enumerate(sorted(noisy, reverse=True), start=1):
        sum_of_largest += count
        if count * number <= sum_of_largest - total:
            break
        excess = (sum_of_largest - total) / number
    return [max(count - excess, Fraction(0)) for count in noisy]
