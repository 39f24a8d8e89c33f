"""Ranks at given pivots as one secure sum: what `bracketed` and `histogram` have in common.

A device contributes its weight and a one, and for every pivot both again if it is below the pivot,
else zeros. A sum reveals only the weight and the number of devices, of the whole cohort and below
each pivot.

Spec: §12.3, §12.4.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.quantile.bracket import Rank
from deltafl.protocol.quantile.narrowing import Sums
from deltafl.protocol.quantile.search import Query, SearchConfig
from deltafl.secagg.layout import Field, Layout


def rank_layout(config: SearchConfig, num_pivots: int) -> Layout:
    """Return the layout of ranks at `num_pivots` pivots.

    Raises:
        ConfigurationError: If the search has an ε, which ranks cannot use.
    """
    if config.search.epsilon_ticks:
        raise ConfigurationError(
            f"epsilon_ticks={config.search.epsilon_ticks} is an option of 'mm' only: set it to 0"
        )
    bound = config.largest_weight
    fields = (
        Field("weight", 1, 0, bound, 0),
        Field("count", 1, 0, 1, 0),
        Field("weight_below", num_pivots, 0, bound, 0),
        Field("count_below", num_pivots, 0, 1, 0),
    )
    return Layout(fields, config.cohort_size)


def rank_contribution(query: Query, tick: int, weight: int) -> Mapping[str, npt.ArrayLike]:
    """Return what a device of this tick and weight adds to the ranks at the query's pivots."""
    below = (np.asarray(query.pivots) > tick).astype(np.int64)
    one = counted(weight)
    return {
        "weight": weight,
        "count": one,
        "weight_below": weight * below,
        "count_below": one * below,
    }


def counted(weight: int) -> int:
    """What a device of this weight adds to the number of devices.

    A device of weight zero does not count, because it would not hide another one that is with it in
    the tail.
    """
    return int(weight > 0)


def read_ranks(config: SearchConfig, pivots: tuple[int, ...], sums: Sums) -> tuple[Rank, ...]:
    """Read the ranks at the pivots, and after them the rank of the whole cohort."""
    below = zip(pivots, sums["weight_below"], sums["count_below"], strict=True)
    total = Rank(config.search.grid.top_pivot, sums["weight"][0], sums["count"][0])
    return (*(Rank(pivot, weight, count) for pivot, weight, count in below), total)
