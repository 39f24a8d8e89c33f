"""Where each device's loss can lie, by the exact counts of one round over one model.

A search tells how many devices lie below each of its pivots, and the sum of updates, how many
passed the filter. The pivots cut the losses into intervals. A device can be in an interval if some
way to put all devices into intervals agrees with all of these numbers. Devices that were in the
same sums are alike; by their weights, they may be told apart (`leakage.labels`).
"""

from collections.abc import Collection, Sequence
from operator import attrgetter

from deltafl.protocol.anonymity import Tail
from deltafl.sim.inspect.leakage.consequences import Below, between

Interval = tuple[int, int]
"""Ticks [low, high)."""


def possible(
    rows: Sequence[Below],
    searched: Collection[int],
    updated: Collection[int] = (),
    pivot: int = 0,
    count: int = 0,
) -> dict[int, Interval]:
    """Of each device, the interval that holds all in which it can be.

    Where devices without weight leave a number open, less may be possible.

    Args:
        rows: What lies below each pivot of the search, from pivot 0 to the one above all ticks.
        searched: The devices of the search.
        updated: Those of the sum of updates, all searched; empty if it is not to be counted.
        pivot: The lowest tick that passes the filter.
        count: How many of `updated` passed.
    """
    lost = len(searched) - len(updated)
    failed = len(searched) - count  # or are lost
    fewest = max(failed - lost, *(row.fewest for row in rows if row.pivot <= pivot))
    most = min(failed, *(row.most for row in rows if row.pivot >= pivot))
    others = [row for row in rows if row.pivot != pivot]
    cut = sorted([Below(pivot, 0, fewest, most), *others], key=attrgetter("pivot"))
    of_updated = _hull(cut, pivot, len(updated), Tail(count, count))
    of_lost = _hull(cut, pivot, lost, Tail(failed - most, failed - fewest))
    return {device: of_updated if device in updated else of_lost for device in searched}


def _hull(rows: Sequence[Below], pivot: int, size: int, passed: Tail) -> Interval:
    """Where a device of a group can be of which so many passed."""
    open_ = [
        box
        for box in between(rows)
        if box.most > 0 and (passed.most > 0 if box.low >= pivot else passed.fewest < size)
    ]
    return (open_[0].low, open_[-1].high) if open_ else (rows[0].pivot, rows[-1].pivot)
