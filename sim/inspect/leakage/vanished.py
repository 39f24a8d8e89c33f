"""What the difference of two searches reveals about a device that was in only one of them.

If a device drops out and the search goes on over the rest, the server has ranks of the cohort with
and without the device. At the same pivot, the difference is the device's own contribution, in
clear. At neighbouring pivots it must still fit: the rank of the rest never falls from one pivot to
the next, which leaves only some places where the device can have been.
"""

import itertools
from dataclasses import dataclass
from typing import Final

from deltafl.protocol.errors import SearchError
from deltafl.sim.inspect.leakage.consequences import Below, ranks
from deltafl.sim.inspect.leakage.observations import SearchView, beta_bits

_MARGIN_BITS: Final = 12


@dataclass(frozen=True, slots=True)
class Vanished:
    """What is known about the device that dropped out.

    Attributes:
        weight: Its weight in the search, exactly.
        places: Intervals [low, high) of ticks in one of which its loss lies, in order.
    """

    weight: int
    places: tuple[tuple[int, int], ...]

    @property
    def interval(self) -> tuple[int, int]:
        """The interval from the first place to the last."""
        return self.places[0][0], self.places[-1][1]

    @property
    def width(self) -> int:
        """Ticks in all places."""
        return sum(high - low for low, high in self.places)


def vanished_device(before: SearchView, after: SearchView) -> Vanished:
    """Locate the device that is in the sums of `before` and missing in those of `after`.

    Args:
        before: The search over the whole cohort, as far as it went.
        after: The search over all but one of its devices.

    Raises:
        SearchError: The two views are not of cohorts that differ by one device.
    """
    if before.devices != after.devices + 1:
        raise SearchError(
            f"cohorts of {before.devices} and {after.devices} devices do not differ by one"
        )
    whole, rest = ranks(before), ranks(after)
    weight = whole[-1].weight - rest[-1].weight
    if weight < 0:
        raise SearchError("the rest of a cohort weighs more than the cohort")
    pivots = sorted({row.pivot for row in (*whole, *rest)})
    places = [
        (low, high) for low, high in itertools.pairwise(pivots) if _fits(whole, rest, weight, low)
    ]
    if before.method == "mm":
        places = _from_beta(before, after, weight, places)
    if not places:
        raise SearchError("no place of one device explains both searches")
    return Vanished(weight, _joined(places))


def _fits(whole: tuple[Below, ...], rest: tuple[Below, ...], weight: int, tick: int) -> bool:
    """Whether the ranks of the rest never fall if the device lies on `tick`."""
    weights = [(row.pivot, row.weight - weight * (tick < row.pivot)) for row in whole]
    counts = [(row.pivot, row.fewest, row.most, tick < row.pivot) for row in whole]
    by_pivot = sorted([*weights, *((row.pivot, row.weight) for row in rest)])
    for (pivot, below), (next_pivot, above) in itertools.pairwise(by_pivot):
        if above < below or (pivot == next_pivot and above != below):
            return False
    bounds = sorted(
        [(pivot, low - lies, high - lies) for pivot, low, high, lies in counts]
        + [(row.pivot, row.fewest, row.most) for row in rest]
    )
    fewest = 0
    for _, low, high in bounds:
        fewest = max(fewest, low)
        if high < 0 or high < fewest:
            return False
    return True


def _from_beta(
    before: SearchView, after: SearchView, weight: int, places: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Narrow the places by β at pivots that both searches asked: n / max(|F − μ|, ε)."""
    bits = beta_bits(before.config) + _MARGIN_BITS + 1
    betas = {answer.pivots[0]: answer.sums["beta"][0] for answer in after.answers}
    epsilon = 2 * before.config.search.epsilon_ticks
    for answer in before.answers:
        pivot = answer.pivots[0]
        if weight == 0 or pivot not in betas:
            continue
        # rounded once, on the device: the fraction is off by half a unit and a float's error
        beta = (answer.sums["beta"][0] - betas[pivot]) << _MARGIN_BITS
        margin = (1 << (_MARGIN_BITS - 1)) + 1
        near = -((weight << bits) // -(beta + margin))  # half ticks from the pivot, at least
        far = (
            (weight << bits) // (beta - margin)
            if beta > margin
            else 2 * before.config.search.grid.top_pivot
        )
        if near <= epsilon:
            near = 1
        below = (pivot - (far + 1) // 2, pivot + 1 - (near + 2) // 2)
        above = (pivot + near // 2, pivot + (far + 1) // 2)
        places = [
            (max(low, first), min(high, last))
            for low, high in places
            for first, last in (below, above)
            if max(low, first) < min(high, last)
        ]
    return places


def _joined(places: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(places):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)
