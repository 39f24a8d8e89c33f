"""What follows from the sums with certainty: how much lies between any two pivots.

Every answer holds the exact weighted rank at its pivots. The pivots divide the grid into buckets
whose weight is known, and whose number of devices is known or bounded. Nothing here is an estimate:
whatever the losses and weights were, they lie where this module says. Nothing follows from noisy
counts with certainty. Then only the update tells how many devices are in the tail.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deltafl.protocol.errors import SearchError
from deltafl.protocol.quantile.narrowing import BracketSearch
from deltafl.protocol.quantile.registry import NOISY, quantile_method
from deltafl.protocol.weighting import Weighting
from deltafl.sim.inspect.leakage.observations import SearchView


@dataclass(frozen=True, slots=True)
class Below:
    """What lies below a pivot.

    Attributes:
        pivot: The pivot.
        weight: Weight of the devices below it, as it counts in the search.
        fewest: Fewest devices below it.
        most: Most devices below it.
    """

    pivot: int
    weight: int
    fewest: int
    most: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """The devices between two neighbouring pivots.

    Attributes:
        low: Lowest tick inside.
        high: Lowest tick above.
        weight: Their weight, as it counts in the search.
        fewest: Fewest devices there.
        most: Most devices there.
    """

    low: int
    high: int
    weight: int
    fewest: int
    most: int


def ranks(view: SearchView) -> tuple[Below, ...]:
    """What is known below every pivot, from 0 to the pivot above all ticks, in order.

    Raises:
        SearchError: The sums contradict each other: no cohort of honest devices gives them.
    """
    top = view.config.search.grid.top_pivot
    found: dict[int, Below] = {}
    total = None
    if view.method != NOISY and view.answers:
        num_pivots = len(view.answers[0].pivots) if view.method == "histogram" else None
        search = quantile_method(view.method, num_pivots=num_pivots).start(view.config)
        assert isinstance(search, BracketSearch)  # noqa: S101 - for mypy: every method's is one
        method = search.method
        for answer in view.answers:
            *inner, total = method.ranks(view.config, answer.pivots, answer.sums)
            for rank in inner:
                # devices of weight zero are not counted, and may be anywhere
                most = rank.count + view.devices - total.count
                known = Below(rank.pivot, rank.weight, rank.count, most)
                if found.setdefault(rank.pivot, known) != known:
                    raise SearchError(
                        f"two answers differ at pivot {rank.pivot}: not the same cohort"
                    )
    if total is not None:
        total_weight = total.weight
    elif (weights := view.search_weights) is not None:
        total_weight = sum(weights)
    else:
        # nothing was asked and nothing is known: everybody is somewhere
        return (Below(0, 0, 0, 0), Below(top, 0, view.devices, view.devices))
    found[0] = Below(0, 0, 0, 0)
    found[top] = Below(top, total_weight, view.devices, view.devices)
    _add_tail(view, found, total_weight)
    return _tightened([found[pivot] for pivot in sorted(found)])


def buckets(view: SearchView) -> tuple[Bucket, ...]:
    """The devices between neighbouring pivots, from the smallest losses to the largest.

    Raises:
        SearchError: The sums contradict each other.
    """
    found, weights = between(ranks(view)), view.search_weights
    return found if weights is None else tuple(_refined(bucket, weights) for bucket in found)


def between(rows: Sequence[Below]) -> tuple[Bucket, ...]:
    """The buckets between neighbouring pivots of these."""
    return tuple(
        Bucket(
            below.pivot,
            above.pivot,
            above.weight - below.weight,
            max(above.fewest - below.most, 0, int(above.weight > below.weight)),
            above.most - below.fewest,
        )
        for below, above in itertools.pairwise(rows)
    )


def order_intervals(view: SearchView) -> tuple[tuple[int, int], ...]:
    """For the i-th smallest loss, i = 1 … m: its lowest possible tick, and the lowest above all.

    Raises:
        SearchError: The sums contradict each other.
    """
    known = ranks(view)
    return tuple(
        (
            max(at.pivot for at in known if at.most < i),
            min(at.pivot for at in known if at.fewest >= i),
        )
        for i in range(1, view.devices + 1)
    )


def threshold_interval(view: SearchView) -> tuple[int, int]:
    """The interval [low, high) of ticks in which the weighted quantile lies.

    The quantile is that of the weights in the search. The interval is the whole grid if nothing was
    asked or all weights are zero.

    Raises:
        SearchError: The sums contradict each other.
    """
    known = ranks(view)
    wanted = (1 - view.config.theta) * known[-1].weight
    if not wanted or not view.answers:
        return 0, view.config.search.grid.top_pivot
    low = max(rank.pivot for rank in known if rank.weight < wanted)
    return low, min(rank.pivot for rank in known if rank.weight >= wanted)


def _refined(bucket: Bucket, weights: Sequence[int]) -> Bucket:
    """A bucket with as many devices as may have its weight, by the order of all weights alone."""
    ascending = np.sort(weights)
    most = int(np.searchsorted(np.cumsum(ascending), bucket.weight, side="right"))
    fewest = 0
    if bucket.weight > 0:
        fewest = int(np.searchsorted(np.cumsum(ascending[::-1]), bucket.weight)) + 1
    fewest = max(bucket.fewest, min(fewest, len(weights)))
    return replace(bucket, fewest=fewest, most=min(bucket.most, most))


def _add_tail(view: SearchView, found: dict[int, Below], total_weight: int) -> None:
    """Count the devices below the threshold, from the size of the tail."""
    if view.tail is None:
        return
    pivot, count = view.tail.pivot, view.devices - view.tail.count
    if pivot in found:
        found[pivot] = replace(found[pivot], fewest=count, most=count)
    elif view.method == NOISY:
        found[pivot] = Below(pivot, count, count, count)
    elif view.config.search.weighting is Weighting.SAMPLES:
        found[pivot] = Below(pivot, total_weight - view.tail.weight, count, count)


def _tightened(rows: list[Below]) -> tuple[Below, ...]:
    """Counts never fall from one pivot to the next."""
    fewest = list(itertools.accumulate((row.fewest for row in rows), max))
    most = list(itertools.accumulate((row.most for row in reversed(rows)), min))[::-1]
    for below, above in itertools.pairwise(rows):
        if above.weight < below.weight:
            raise SearchError(f"less weight lies below {above.pivot} than below {below.pivot}")
    if any(low > high for low, high in zip(fewest, most, strict=True)):
        raise SearchError("no number of devices fits the weights and the size of the tail")
    return tuple(
        replace(row, fewest=low, most=high)
        for row, low, high in zip(rows, fewest, most, strict=True)
    )
