"""Ranks at given cuts as one secure sum: what `bracketed` and `histogram` have in common.

A device contributes its weight, a one, and for every cut whether it lies below, once with its
weight and once as a count. A sum reveals the weight and the number of devices below each cut, no
more.

Spec: §12.3, §12.4.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from deltafl.protocol.encoding import Field, Layout
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.quantile.bracket import Rank
from deltafl.protocol.quantile.narrowing import Sums
from deltafl.protocol.quantile.search import Query, SearchConfig


def rank_layout(config: SearchConfig, num_cuts: int) -> Layout:
    """Return the layout of ranks at `num_cuts` cuts.

    Raises:
        ConfigurationError: If the search has an ε, which ranks know nothing of.
    """
    if config.epsilon_ticks:
        raise ConfigurationError(
            f"epsilon_ticks={config.epsilon_ticks} is an option of 'mm' only: set it to 0"
        )
    bound = config.largest_weight
    fields = (
        Field("weight", 1, 0, bound, 0),
        Field("count", 1, 0, 1, 0),
        Field("weight_below", num_cuts, 0, bound, 0),
        Field("count_below", num_cuts, 0, 1, 0),
    )
    return Layout(fields, config.cohort_size)


def rank_contribution(query: Query, tick: int, weight: int) -> Mapping[str, npt.ArrayLike]:
    """Return what a device of this tick and weight adds to the ranks at the query's cuts."""
    below = (np.asarray(query.cuts) > tick).astype(np.int64)
    return {"weight": weight, "count": 1, "weight_below": weight * below, "count_below": below}


def read_ranks(config: SearchConfig, cuts: tuple[int, ...], sums: Sums) -> tuple[Rank, ...]:
    """Read the ranks at the cuts, and after them the rank of the whole cohort."""
    below = zip(cuts, sums["weight_below"], sums["count_below"], strict=True)
    total = Rank(config.grid.top_cut, sums["weight"][0], sums["count"][0])
    return (*(Rank(cut, weight, count) for cut, weight, count in below), total)
