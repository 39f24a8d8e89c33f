"""Which device is in which bucket, if the server knows the devices' weights.

A bucket's weight is a sum of known numbers. If only one subset of devices has this sum, these are
the bucket's devices. A device that is in no subset with the right sum is not in the bucket.
`candidates` is certain but may leave open more than necessary. `assignments` lists everything that
fits, if that is not too much. `probabilities` is the attacker's guess.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltafl.protocol.errors import SearchError
from deltafl.protocol.weighting import Weighting
from deltafl.sim.inspect.leakage.consequences import Below, Bucket, between, buckets, ranks
from deltafl.sim.inspect.leakage.counts import BucketCounts
from deltafl.sim.inspect.leakage.observations import Numbers, Prior, SearchView

_FEW = 4  # devices in a bucket up to which all its subsets are looked at
_SMALLEST = 1e-12
_MOST_WAYS = 64
_MOST_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Numbers that are to be put into boxes of known sums.

    Attributes:
        boxes: The buckets with their weights and numbers of devices.
        edges: What lies below each edge of a box.
        weights: Every device's weight in these sums.
    """

    boxes: tuple[Bucket, ...]
    edges: tuple[Below, ...]
    weights: tuple[int, ...]


def puzzles(view: SearchView) -> tuple[Puzzle, ...]:
    """What a view says about which device is where, from the search and from the update.

    The update counts only if its weights differ from those of the search. It always uses the
    devices' own weights, so that the weight of the tail may still name its devices. None if the
    weights are not known.

    Raises:
        SearchError: The sums contradict each other.
    """
    if view.weights is None or view.search_weights is None:
        return ()
    search = Puzzle(buckets(view), ranks(view), view.search_weights)
    if view.tail is None or view.config.search.weighting is Weighting.SAMPLES:
        return (search,)
    top, tail, total = view.config.search.grid.top_pivot, view.tail, sum(view.weights)
    below = Below(
        tail.pivot, total - tail.weight, view.devices - tail.count, view.devices - tail.count
    )
    edges = [Below(0, 0, 0, 0), below, Below(top, total, view.devices, view.devices)]
    if tail.pivot in (0, top):
        edges.remove(below)
    return (search, Puzzle(between(edges), tuple(edges), view.weights))


def candidates(view: SearchView) -> tuple[tuple[int, ...], ...]:
    """For every device, the indices of the buckets in which it can be; never empty.

    All other buckets are impossible: no subset of the other devices has the weight that would be
    missing. Equal weights leave everything open except buckets that hold no device or all devices.

    Raises:
        SearchError: No device fits anywhere: the weights are not those of this search.
    """
    found = buckets(view)
    possible = np.zeros((view.devices, len(found)), dtype=bool)
    possible[:] = [bucket.most > 0 for bucket in found]
    for puzzle in puzzles(view):
        open_ = _possible(puzzle)
        for index, bucket in enumerate(found):
            inside = [
                box
                for box, whole in enumerate(puzzle.boxes)
                if whole.low < bucket.high and bucket.low < whole.high
            ]
            possible[:, index] &= open_[:, inside].any(axis=1)
    if not possible.any(axis=1).all():
        raise SearchError("some device fits into no bucket: the weights are not those of the sums")
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in possible)


def device_intervals(view: SearchView) -> tuple[tuple[int, int], ...]:
    """For every device the interval [low, high) of ticks in which its loss lies, with certainty.

    Raises:
        SearchError: The sums contradict each other or the weights.
    """
    found = buckets(view)
    return tuple((found[open_[0]].low, found[open_[-1]].high) for open_ in candidates(view))


@functools.lru_cache(maxsize=8)
def _possible(puzzle: Puzzle) -> npt.NDArray[np.bool_]:
    """Which device can be in which box; asked for several times, and not to be written to."""
    room = [box.weight if box.most > 0 else -1 for box in puzzle.boxes]
    possible = np.array(puzzle.weights)[:, None] <= np.array(room)
    possible &= _by_pivots(puzzle.edges, puzzle.weights)
    _propagate(possible, puzzle.boxes, puzzle.weights)
    possible.flags.writeable = False
    return possible


@functools.lru_cache(maxsize=8)
def assignments(puzzle: Puzzle) -> tuple[tuple[int, ...], ...] | None:
    """The ways to put all devices into buckets that agree with every sum; None if there are many.

    A depth-first search lists them. Devices of the same weight are interchangeable: of the ways
    that differ by no more than that one is listed, the one in which their buckets never fall with
    their index.

    Returns:
        For each way the bucket of every device.
    """
    weights, found = puzzle.weights, puzzle.boxes
    size = len(weights)
    possible = _possible(puzzle)
    open_ = [np.flatnonzero(row).tolist() for row in possible]
    freedom: dict[int, int] = {}
    for device, weight in enumerate(weights):
        freedom[weight] = min(freedom.get(weight, size), len(open_[device]))
    order = sorted(range(size), key=lambda k: (freedom[weights[k]], -weights[k], k))
    left = [(bucket.weight, bucket.most, bucket.fewest) for bucket in found]
    chosen = [0] * size
    ways: list[tuple[int, ...]] = []
    steps = 0

    def place(position: int) -> bool:
        """Place the devices from this position on; False once the limits are reached."""
        nonlocal steps
        steps += 1
        if steps > _MOST_STEPS or len(ways) >= _MOST_WAYS:
            return False
        if position == len(order):
            if all(room == 0 and fewest <= 0 for room, _, fewest in left):
                ways.append(tuple(chosen))
            return True
        device = order[position]
        weight = weights[device]
        twin = order[position - 1] if position else device
        first = chosen[twin] if position and weights[twin] == weight else 0
        for bucket in open_[device]:
            room, places, fewest = before = left[bucket]
            if bucket < first or weight > room or places == 0:
                continue
            left[bucket] = room - weight, places - 1, fewest - 1
            chosen[device] = bucket
            goes_on = place(position + 1)
            left[bucket] = before
            if not goes_on:
                return False
        return True

    return tuple(ways) if place(0) else None


def probabilities(view: SearchView, counts: BucketCounts, prior: Prior) -> Numbers:
    """The attacker's belief that device k is in bucket j, shape (m, J); rows sum to one.

    Exact where all ways can be listed; else every bucket is taken on its own (how likely is it that
    the others make up the rest of its weight?) and the whole is balanced so that rows and columns
    have the right sums.

    Raises:
        SearchError: The sums contradict each other or the weights.
    """
    found = counts.buckets
    expected = np.array([_expected(counts, index) for index in range(len(found))])
    table = np.tile(expected / view.devices, (view.devices, 1))
    for puzzle in puzzles(view):
        if len(set(puzzle.weights)) == 1:
            continue
        inside = np.searchsorted([box.low for box in puzzle.boxes], [b.low for b in found], "right")
        held = np.bincount(inside - 1, expected, len(puzzle.boxes)).astype(np.float64)
        alone = _solved(puzzle, held, prior) / np.maximum(held / view.devices, _SMALLEST)
        table *= alone[:, inside - 1]
    return _balanced(table, expected)


def _solved(puzzle: Puzzle, expected: Numbers, prior: Prior) -> Numbers:
    """The belief that device k is in a box, from this puzzle alone, shape (m, boxes)."""
    if ways := assignments(puzzle):
        return _from_ways(ways, puzzle.weights, puzzle.boxes, prior)
    table = _possible(puzzle).astype(float)
    for index, box in enumerate(puzzle.boxes):
        table[:, index] *= _fit(box, table[:, index], round(expected[index]), puzzle.weights)
    return _balanced(table, expected)


def _balanced(table: Numbers, expected: Numbers) -> Numbers:
    for _ in range(50):
        table = table / np.maximum(table.sum(axis=0) / np.maximum(expected, _SMALLEST), _SMALLEST)
        table = table / np.maximum(table.sum(axis=1, keepdims=True), _SMALLEST)
    return table


def _from_ways(
    ways: Sequence[tuple[int, ...]], weights: Sequence[int], found: Sequence[Bucket], prior: Prior
) -> Numbers:
    """Every way counts as often as interchangeable devices allow, and as likely as its losses."""
    log_mass = np.log(prior.mass([b.low for b in found], [b.high for b in found]))
    twins = {
        weight: [k for k, other in enumerate(weights) if other == weight] for weight in weights
    }
    logs, tables = [], []
    for way in ways:
        table = np.zeros((len(weights), len(found)))
        log = float(log_mass[list(way)].sum())
        for devices in twins.values():
            placed = np.bincount([way[k] for k in devices], minlength=len(found))
            log -= sum(math.lgamma(count + 1) for count in placed)
            table[devices] = placed / len(devices)
        logs.append(log)
        tables.append(table)
    likely = np.exp(np.array(logs) - max(logs))
    return np.asarray(np.tensordot(likely / likely.sum(), np.array(tables), axes=1))


def _expected(counts: BucketCounts, index: int) -> float:
    return float(counts.joint(index).sum(axis=0) @ np.arange(counts.devices + 1))


def _fit(bucket: Bucket, possible: Numbers, count: int, weights: Sequence[int]) -> Numbers:
    """How well others make up the rest of a bucket's weight, by the device in question."""
    fit = np.full(len(weights), _SMALLEST)
    if bucket.most <= _FEW:
        counted = _subsets_with(np.flatnonzero(possible).tolist(), bucket, weights)
        fit[list(counted)] = list(counted.values())
        return np.asarray(fit / fit.max())
    values = np.array(weights, dtype=float)
    rest = (bucket.weight - values) / max(count - 1, 1)
    deviation = max(float(values.std()), 0.5) / np.sqrt(max(count - 1, 1))
    return np.asarray(np.exp(-0.5 * ((rest - values.mean()) / deviation) ** 2) + _SMALLEST)


def _by_pivots(known: Sequence[Below], weights: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which buckets a device can be in as far as the weights below single pivots tell."""

    @functools.cache
    def sums_without(weight: int) -> int:
        """Sums that the others can reach, as bits; they are alike for devices of one weight."""
        others = list(weights)
        others.remove(weight)
        return functools.reduce(lambda sums, other: sums | sums << other, others, 1)

    def others_reach(weight: int, wanted: int) -> bool:
        return wanted >= 0 and bool(sums_without(weight) >> wanted & 1)

    can_be_below = [
        [edge.most > 0 and others_reach(weight, edge.weight - weight) for edge in known]
        for weight in weights
    ]
    can_be_above = [
        [edge.fewest < len(weights) and others_reach(weight, edge.weight) for edge in known]
        for weight in weights
    ]
    return np.asarray(np.array(can_be_above)[:, :-1] & np.array(can_be_below)[:, 1:])


def _propagate(
    possible: npt.NDArray[np.bool_], found: Sequence[Bucket], weights: Sequence[int]
) -> None:
    """Strike out until nothing changes: nobody is twice, and small buckets need their sum."""
    before = np.zeros_like(possible)
    while (before != possible).any():
        before = possible.copy()
        for index, bucket in enumerate(found):
            if bucket.most > _FEW:
                continue
            open_ = np.flatnonzero(possible[:, index]).tolist()
            keep = list(_subsets_with(open_, bucket, weights))
            possible[[device for device in open_ if device not in keep], index] = False
            certain = [device for device in keep if possible[device].sum() == 1]
            if len(certain) == bucket.most:
                possible[[device for device in keep if device not in certain], index] = False
            elif bucket.fewest == len(keep):
                possible[keep] = False
                possible[keep, index] = True


def _subsets_with(open_: Sequence[int], bucket: Bucket, weights: Sequence[int]) -> dict[int, int]:
    """How many subsets of the right size and sum a device is in; those that are in none left out.

    All subsets are counted once, then those without the device are taken away again.
    """
    reach: list[dict[int, int]] = [{0: 1}] + [{} for _ in range(bucket.most)]  # by size and sum
    for device in open_:
        for size in range(bucket.most, 0, -1):
            for total, ways in list(reach[size - 1].items()):
                if total + weights[device] <= bucket.weight:
                    key = total + weights[device]
                    reach[size][key] = reach[size].get(key, 0) + ways
    found = {}
    for device in open_:
        without: list[dict[int, int]] = [{0: 1}]
        for size in range(1, bucket.most + 1):
            row = {}
            for total, ways in reach[size].items():
                left = ways - without[size - 1].get(total - weights[device], 0)
                if left:
                    row[total] = left
            without.append(row)
        ways = sum(
            without[size - 1].get(bucket.weight - weights[device], 0)
            for size in range(max(bucket.fewest, 1), bucket.most + 1)
        )
        if ways:
            found[device] = ways
    return found
