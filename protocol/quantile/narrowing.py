"""The search that all exact methods share: ask, narrow the bracket, stop.

The methods differ in what a device contributes, and in the pivots they ask for next. This module
contains what is the same for all: when to stop, what is certified, and what a result says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from deltafl.protocol.errors import SearchError
from deltafl.protocol.quantile.bracket import Bracket, Rank, guarded
from deltafl.protocol.quantile.search import (
    Ended,
    QuantileMethod,
    Query,
    SearchConfig,
    SearchResult,
    Tail,
)

Sums = Mapping[str, tuple[int, ...]]
"""Decoded sums as Python integers, by field name."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a method would do next.

    Attributes:
        pivots: Pivots to ask for, never decreasing, strictly inside the bracket.
        estimate: Best guess of the quantile's tick, in case there is no further query.
    """

    pivots: tuple[int, ...]
    estimate: int


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
        num_queries_left: Queries left, at least 1 (when none is, only the estimate is used).
    """

    config: SearchConfig
    bracket: Bracket
    pivots: tuple[int, ...]
    sums: Sums
    side: int
    run: int
    num_queries_left: int


class NarrowingMethod(QuantileMethod, Protocol):
    """A quantile method that narrows a bracket."""

    def ranks(self, config: SearchConfig, pivots: tuple[int, ...], sums: Sums) -> tuple[Rank, ...]:
        """Read the ranks at the pivots, and after them the rank of the whole cohort.

        Raises:
            SearchError: If no cohort has these sums.
        """

    def first(self, config: SearchConfig) -> Proposal:
        """Propose the first query."""

    def propose(self, position: Position) -> Proposal:
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
        proposal: The next query, and the guess in case it is never asked.
        bracket: What is known so far; None before the first answer.
        side: See `Position`.
        run: See `Position`.
        num_queries: Queries answered.
    """

    config: SearchConfig
    method: NarrowingMethod
    proposal: Proposal
    bracket: Bracket | None = None
    side: int = 0
    run: int = 0
    num_queries: int = 0

    @property
    def query(self) -> Query | None:
        """The next query; None once the search is finished."""
        if self._ended is not None or self.num_queries >= self.config.search.max_queries:
            return None
        return Query(self.method.name, self.proposal.pivots)

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
        pivots = self.proposal.pivots
        *ranks, total = self.method.ranks(self.config, pivots, answer)
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
        if after._ended is not None:
            return after
        position = Position(
            config=self.config,
            bracket=bracket,
            pivots=pivots,
            sums=answer,
            side=side,
            run=after.run,
            num_queries_left=max(self.config.search.max_queries - after.num_queries, 1),
        )
        return replace(after, proposal=self.method.propose(position))

    def result(self, *, shrank: bool = False) -> SearchResult:
        """Return what is known so far; the caller may stop at any time.

        Args:
            shrank: The caller stops because a device vanished since the first query. A search that
                was finished before stays as it is.
        """
        ended = self._ended
        if ended is None:
            ended = Ended.SHRANK if shrank else Ended.BUDGET
        eta, half_width = 2 * self.proposal.estimate, 0
        certified = ended in (Ended.EXACT, Ended.LAST_DEVICE)
        if ended is Ended.NO_WEIGHT or self.config.theta == 1:
            eta = 0
        elif certified and self.bracket is not None:
            low, last = self.bracket.low.pivot, self.bracket.high.pivot - 1
            eta, half_width = low + last, last - low
        elif self.config.search.verified:
            eta = 0 if self.bracket is None else 2 * self.bracket.low.pivot
        return SearchResult(
            grid=self.config.search.grid,
            eta_half_ticks=eta,
            half_width_half_ticks=half_width,
            certified=certified,
            ended=ended,
            num_queries=self.num_queries,
        )

    @property
    def tail(self) -> Tail | None:
        """Of a verified search, the tail of `result`; None before the first answer."""
        if self.bracket is None:
            return None
        total, low = self.bracket.total, self.bracket.low
        if self._ended is Ended.NO_WEIGHT:
            return Tail(total.count or 0, 0)
        return Tail((total.count or 0) - (low.count or 0), total.weight - low.weight)

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


def first_proposal(config: SearchConfig) -> Proposal:
    """Propose the warm start, or a loss of one if there is none.

    The loss per sample is of the order of one for trained and untrained models alike (a classifier
    that guesses among C classes has ln C), so one unit is a far better start than the middle of
    the grid.
    """
    grid = config.search.grid
    start = grid.tick(1.0)[0] if config.warm_start is None else config.warm_start
    pivot = guarded(start, 0, grid.top_pivot, max(config.search.max_queries, 1))
    return Proposal((pivot,), estimate=config.warm_start or 0)
