"""The search that all exact methods share: ask, narrow the bracket, stop.

The methods differ in what a device contributes, and in the pivots they ask for next. This module
contains what is the same for all: when to stop, what is certified, and what a result says; and what
`bracketed` and `histogram` have in common.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from deltafl.protocol.anonymity import Tail
from deltafl.protocol.errors import ConfigurationError, SearchError
from deltafl.protocol.quantile.bracket import Bracket, Rank, guarded
from deltafl.protocol.quantile.search import (
    Ended,
    QuantileMethod,
    Query,
    SearchConfig,
    SearchResult,
)
from deltafl.secagg.layout import Field, Layout

Sums = Mapping[str, tuple[int, ...]]
"""Decoded sums as Python integers, by field name."""


Pivots = tuple[int, ...]
"""Pivots to ask for, never decreasing, strictly inside the bracket."""


@dataclass(frozen=True, slots=True)
class Position:
    """The state of a search after an answer: all that a method may use to choose its next pivots.

    Attributes:
        config: Configuration of the search.
        bracket: Bracket after the answer, at least 2 ticks wide.
        pivots: Pivots that were asked for.
        sums: The answer.
        side: +1 if the answer raised the bracket's low end, -1 if it lowered the high end, 0 if
            both.
        run: How many earlier answers in a row moved the same end and no other.
        num_queries_left: Queries left, at least 1.
    """

    config: SearchConfig
    bracket: Bracket
    pivots: Pivots
    sums: Sums
    side: int
    run: int
    num_queries_left: int


class NarrowingMethod(QuantileMethod, Protocol):
    """A quantile method that narrows a bracket."""

    def start(self, config: SearchConfig) -> "BracketSearch":
        """Return the search before its first query."""
        return BracketSearch(config, self, self.first(config))

    def ranks(self, config: SearchConfig, pivots: Pivots, sums: Sums) -> tuple[Rank, ...]:
        """Read the ranks at the pivots, and after them the rank of the whole cohort.

        Raises:
            SearchError: If no cohort has these sums.
        """

    def first(self, config: SearchConfig) -> Pivots:
        """Propose the first query."""

    def propose(self, position: Position) -> Pivots:
        """Propose the next query.

        Raises:
            SearchError: If no cohort has these sums.
        """


@dataclass(frozen=True, slots=True)
class BracketSearch:
    """A search that narrows a bracket.

    Attributes:
        config: Configuration of the search.
        method: Chooses the pivots and reads the sums.
        pivots: The pivots of the next query.
        bracket: What is known so far; None before the first answer.
        side: See `Position`.
        run: See `Position`.
        num_queries: Queries answered.
    """

    config: SearchConfig
    method: NarrowingMethod
    pivots: Pivots
    bracket: Bracket | None = None
    side: int = 0
    run: int = 0
    num_queries: int = 0

    @property
    def query(self) -> Query | None:
        """The next query; None once the search is finished."""
        if self._ended is not None or self.num_queries >= self.config.search.max_queries:
            return None
        return Query(self.method.name, self.pivots)

    def update(self, sums: Mapping[str, npt.NDArray[np.int64]]) -> "BracketSearch":
        """Return the search as it is after the answer to `query`.

        Args:
            sums: Decoded sums of the method's layout, over the same devices in every query.

        Raises:
            SearchError: If the search is finished, or the sums contradict themselves or earlier
                ones: no honest cohort gives such sums.
        """
        if self.query is None:
            raise SearchError(f"the search is finished ({self.result().ended}): it takes no sums")
        answer = self._integers(sums)
        *ranks, total = self.method.ranks(self.config, self.pivots, answer)
        before = self.bracket or Bracket.whole(self.config, total)
        bracket = before.narrowed(ranks, total)
        side = int(bracket.low != before.low) - int(bracket.high != before.high)
        after = replace(
            self,
            bracket=bracket,
            side=side,
            run=self.run + 1 if side == self.side else 0,
            num_queries=self.num_queries + 1,
        )
        if after.query is None:
            return after
        position = Position(
            config=self.config,
            bracket=bracket,
            pivots=self.pivots,
            sums=answer,
            side=side,
            run=after.run,
            num_queries_left=self.config.search.max_queries - after.num_queries,
        )
        return replace(after, pivots=self.method.propose(position))

    def result(self, *, shrank: bool = False, num_lost: int = 0) -> SearchResult:
        """Return what is known so far; the caller may stop at any time.

        Args:
            shrank: The caller stops because a device vanished since the first query. A search that
                was finished before stays as it is.
            num_lost: Devices of the sums that are gone, all of which may have been in the tail.
        """
        found = SearchResult(
            grid=self.config.search.grid,
            eta_half_ticks=0,
            half_width_half_ticks=0,
            certified=False,
            ended=self._ended or (Ended.SHRANK if shrank else Ended.BUDGET),
            num_queries=self.num_queries,
        )
        if self.bracket is None:
            return replace(found, certified=self.config.theta == 1)
        total, low = self.bracket.total.count, self.bracket.low
        if found.ended in (Ended.NO_WEIGHT, Ended.TOO_FEW):
            return replace(found, tail=Tail(total, total))
        is_over = self._ended is not None
        only_safe = is_over or self.config.search.verified
        kept = self.bracket.kept(num_lost, only_safe=only_safe)
        tail = Tail(total - kept.count, total - kept.count)
        if is_over and kept is low:
            last = self.bracket.high.pivot - 1
            certified = found.ended is not Ended.WIDENED
            eta, half_width = low.pivot + last, last - low.pivot
        else:
            certified, eta, half_width = False, 2 * kept.pivot, 0
        return replace(
            found,
            eta_half_ticks=eta,
            half_width_half_ticks=half_width,
            certified=certified,
            ended=Ended.WIDENED if is_over and not certified else found.ended,
            tail=tail,
        )

    @property
    def _ended(self) -> Ended | None:
        if self.config.theta == 1:
            return Ended.EXACT  # τ = 0: every device is kept, whatever its loss
        return None if self.bracket is None else self.bracket.ended

    def _integers(self, sums: Mapping[str, npt.NDArray[np.int64]]) -> Sums:
        sizes = {field.name: field.size for field in self.method.layout(self.config).fields}
        shapes = {name: array.shape for name, array in sums.items()}
        if shapes != {name: (size,) for name, size in sizes.items()}:
            raise SearchError(f"sums of shapes {shapes} do not fit the layout's sizes {sizes}")
        return {name: tuple(map(int, array)) for name, array in sums.items()}


def first_proposal(config: SearchConfig) -> Pivots:
    """Propose the warm start, or a loss of one if there is none.

    The loss per sample is of the order of one for trained and untrained models alike (a classifier
    that guesses among C classes has ln C), so one unit is a far better start than the middle of
    the grid.
    """
    grid = config.search.grid
    start = grid.tick(1.0)[0] if config.warm_start is None else config.warm_start
    return (guarded(start, 0, grid.top_pivot, max(config.search.max_queries, 1)),)


class RankMethod(NarrowingMethod, Protocol):
    """A method whose secure sum is the ranks at its pivots.

    A device contributes its weight and a one, and for every pivot both again if it is below the
    pivot, else zeros. A sum reveals only the weight and the number of devices, of the whole cohort
    and below each pivot.

    Spec: §12.3, §12.4.
    """

    def layout(self, config: SearchConfig) -> Layout:
        """Return the layout: `weight`, `count`, `weight_below` and `count_below`.

        Raises:
            ConfigurationError: If the search has an ε, which ranks cannot use.
        """
        if config.search.epsilon_ticks:
            raise ConfigurationError(
                f"epsilon_ticks={config.search.epsilon_ticks} is an option of 'mm' only: set it "
                "to 0"
            )
        bound = config.largest_weight
        fields = (
            Field("weight", 1, 0, bound, 0),
            Field("count", 1, 0, 1, 0),
            Field("weight_below", self.num_pivots, 0, bound, 0),
            Field("count_below", self.num_pivots, 0, 1, 0),
        )
        return Layout(fields, config.cohort_size)

    def contribution(
        self, config: SearchConfig, query: Query, tick: int, weight: int
    ) -> Mapping[str, npt.ArrayLike]:
        """Return n, 1, and for every pivot both again if the device is below it, else zeros.

        Raises:
            SearchError: If the query is not one of this method's.
            EncodingError: If tick or weight are out of range.
        """
        query.check(self.name, self.num_pivots, config.search.grid)
        config.check_device(tick, weight)
        below = (np.asarray(query.pivots) > tick).astype(np.int64)
        one = counted(weight)
        return {
            "weight": weight,
            "count": one,
            "weight_below": weight * below,
            "count_below": one * below,
        }

    def ranks(self, config: SearchConfig, pivots: Pivots, sums: Sums) -> tuple[Rank, ...]:
        """Read the rank at every pivot, and the rank of the whole cohort."""
        below = zip(pivots, sums["weight_below"], sums["count_below"], strict=True)
        total = Rank(config.search.grid.top_pivot, sums["weight"][0], sums["count"][0])
        return (*(Rank(pivot, weight, count) for pivot, weight, count in below), total)


def counted(weight: int) -> int:
    """What a device of this weight adds to the number of devices.

    A device of weight zero does not count, because it would not hide another one that is with it in
    the tail.
    """
    return int(weight > 0)
