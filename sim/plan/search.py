"""How many queries a search is likely to ask: it is played on losses drawn at random."""

from collections.abc import Iterator
from statistics import median_high
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.secagg import ring

_DEVICES: Final = 600
"""Devices in all draws together: playing takes microseconds for each and query."""

_DRAWS: Final = 5
_SPREAD: Final = 0.5
_MAX_SAMPLES: Final = 100


def typical_queries(config: RoundConfig) -> int:
    """Queries until a search that starts afresh is done: the median over a few draws.

    Losses are log-normal about one nat, as those of a model that has learnt something; weights are
    uniform. A search that starts from the last round's η asks fewer.

    Args:
        config: of the round; its search has no noise, or asks as often as it may.
    """
    if not config.selects or config.noise is not None:
        return config.num_query_slots
    draws = max(1, min(_DRAWS, _DEVICES // config.cohort_size))
    return median_high(_played(config, draws))


def _played(config: RoundConfig, draws: int) -> Iterator[int]:
    random = np.random.default_rng(0)
    num = min(config.cohort_size, _DEVICES)
    params, layout = config.search_config, config.search_layout
    most = min(_MAX_SAMPLES, config.update.max_weight)
    for _ in range(draws):
        losses = random.lognormal(0, _SPREAD, num).tolist()
        ticks = [config.search.grid.tick(loss)[0] for loss in losses]
        weights = [
            config.search.weighting.of(int(n)) for n in random.integers(1, most, num, endpoint=True)
        ]
        search = config.start_search()
        while (query := search.query) is not None:
            total = ring.zeros(layout.length, layout.ring_bits)
            for tick, weight in zip(ticks, weights, strict=True):
                answer = config.quantile.contribution(params, query, tick, weight)
                np.add(total, layout.encode(answer)[0], out=total)
            ring.reduce(total, layout.ring_bits)
            search = search.update(layout.decode(total))
        yield search.result().num_queries
