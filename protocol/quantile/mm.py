"""Algorithm 3: the weighted quantile by majorise-minimise (Hunter & Lange 2000).

At μ every device contributes β = n/|F - μ|, its signed weight β(F - μ) = ±n, and n. The update

    μ⁺ = (Σβ·F + (2τ - 1)·Σn) / Σβ  =  μ + (Σ±n + (2τ - 1)·Σn) / Σβ

is that of the paper (Appendix B.1, eq. 17), except that the paper assumes weights that sum to one,
and here they sum to Σn. This module uses the second form. Σ±n is the paper's Σβ·F less the public
multiple μ·Σβ, so it reveals the same, but it is an exact integer and gives the exact weighted rank
at the pivot, W(below) = (Σn - Σ±n)/2. No ε is needed (see `deltafl.protocol.losses`); β is at most
2n per tick. If the configuration sets an ε, β = n/max(|F - μ|, ε), and Σβ reveals less about how
near the nearest device is. The ranks stay exact, and so do the proofs; only the steps change.

Plain MM approaches the quantile from one side, at a linear rate, and never proves that it arrived.
Four changes make it stop with a proof; none of them reveals more per query:

- *Rounding.* An iterate is rounded to the nearest pivot strictly inside the bracket of the ranks.
  The search stops when the bracket is one tick wide: then η is the quantile, exactly.
- *Step doubling* (De Leeuw & Heiser 1980, who double every step). After the same end of the bracket
  has moved 2, 3, 4, … times in a row, the step is 2, 4, 8, … times the MM step, so that it reaches
  past the quantile. If the pull Σ±n + (2τ - 1)·Σn is zero, μ is a minimiser but not the quantile,
  which is the left end of the minimisers. So a pull counts as at least half a mean weight.
- *Halving.* In a bracket no wider than 2ε, Σβ does not show where the losses are, and its steps
  would alternate between the two ends. The bracket is halved instead.
- *Guard.* A step never goes where bisection could not finish within the budget (`guarded`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy.typing as npt

from deltafl.protocol.errors import SearchError
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.bracket import Rank, guarded
from deltafl.protocol.quantile.narrowing import (
    NarrowingMethod,
    Pivots,
    Position,
    Sums,
    counted,
    first_proposal,
)
from deltafl.protocol.quantile.search import Query, SearchConfig
from deltafl.secagg.layout import Field, Layout

_GUARD_BITS = 4  # the smallest β, weight 1 at the far end of the grid, is precise to 1 part in 16


@dataclass(frozen=True, slots=True)
class MajoriseMinimise(NarrowingMethod):
    """The method `mm`.

    One query reveals Σβ, Σ±n and Σn at one pivot: the weighted rank there, and how near the losses
    are.

    Spec: §12.3, §12.4.
    """

    name: ClassVar[str] = "mm"
    """Name in the registry and in queries."""

    num_pivots: ClassVar[int] = 1
    """Always 1."""

    default_max_queries: ClassVar[int] = 30
    """Queries that certify any search on the default loss grid.

    22 would be enough for bisection; with 30 the guard rarely acts.
    """

    def layout(self, config: SearchConfig) -> Layout:
        """Return the layout: `beta` per tick, `signed_weight`, `weight` and both counts."""
        bound = config.largest_weight
        fields = (
            Field("beta", 1, 0, _beta(config, bound, 1), _beta_resolution_bits(config.search.grid)),
            Field("signed_weight", 1, -bound, bound, 0),
            Field("weight", 1, 0, bound, 0),
            Field("count", 1, 0, 1, 0),
            Field("count_below", 1, 0, 1, 0),
        )
        return Layout(fields, config.cohort_size)

    def contribution(
        self, config: SearchConfig, query: Query, tick: int, weight: int
    ) -> Mapping[str, npt.ArrayLike]:
        """Return β in 1/tick, ±n, n and 1, and 1 if below the pivot.

        Raises:
            SearchError: If the query is not one of this method's.
            EncodingError: If tick or weight are out of range.
        """
        query.check(self.name, self.num_pivots, config.search.grid)
        config.check_device(tick, weight)
        half_ticks = 2 * (tick - query.pivots[0]) + 1  # from the pivot, never 0
        one = counted(weight)
        return {
            "beta": _beta(config, weight, half_ticks),
            "signed_weight": weight if half_ticks > 0 else -weight,
            "weight": weight,
            "count": one,
            "count_below": one * (half_ticks < 0),
        }

    def ranks(self, config: SearchConfig, pivots: Pivots, sums: Sums) -> tuple[Rank, ...]:
        """Read the weighted rank at the pivot and the weight of the cohort.

        Raises:
            SearchError: If no cohort has these sums.
        """
        total, signed = sums["weight"][0], sums["signed_weight"][0]
        if (total - signed) % 2:
            raise SearchError(f"weight {total} and signed weight {signed} differ in parity")
        if total > 0 and sums["beta"][0] <= 0:
            raise SearchError(f"sum of beta is {sums['beta'][0]} although the weight is {total}")
        return (
            Rank(pivots[0], (total - signed) // 2, sums["count_below"][0]),
            Rank(config.search.grid.top_pivot, total, sums["count"][0]),
        )

    def first(self, config: SearchConfig) -> Pivots:
        """Propose the first query."""
        return first_proposal(config)

    def propose(self, position: Position) -> Pivots:
        """Propose the MM iterate, a doubled step in the same direction, or the middle."""
        config, bracket, sums = position.config, position.bracket, position.sums
        (pivot,) = position.pivots
        total = sums["weight"][0]
        pull = sums["signed_weight"][0] + (1 - 2 * config.theta) * total
        beta = Fraction(sums["beta"][0], 1 << _beta_resolution_bits(config.search.grid))
        pull = max(abs(pull), Fraction(total, 2 * config.cohort_size))
        step = position.side * pull * (1 << position.run) / beta
        low, high = bracket.low.pivot, bracket.high.pivot
        following = round(pivot + step)
        if bracket.width <= 2 * config.search.epsilon_ticks:
            following = (low + high) // 2  # β does not distinguish losses nearer than ε
        return (guarded(following, low, high, position.num_queries_left),)


def _beta(config: SearchConfig, weight: int, half_ticks: int) -> float:
    """β in 1/tick of a device `half_ticks` half ticks from the pivot, an odd number."""
    return 2 * weight / max(abs(half_ticks), 2 * config.search.epsilon_ticks)


def _beta_resolution_bits(grid: LossGrid) -> int:
    return grid.max_tick.bit_length() + _GUARD_BITS
