"""Where each device's loss can lie, by the exact sums of one round over one model.

A search tells how many devices lie below each of its pivots, and what they weigh; the sum of
updates, how many passed the filter. The pivots cut the losses into intervals. A device can be in
an interval if some way to put all devices into intervals agrees with all of these numbers. Without
weights, devices that were in the same sums are alike. With weights, who is where follows from sums
of subsets. That is worked out where there are few of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, le
from typing import Final

from deltafl.protocol.anonymity import Tail
from deltafl.sim.inspect.leakage.consequences import Below, between

MAX_STATES: Final = 2_000
"""Different sums of subsets up to which weights are taken into account."""

Intervals = tuple[tuple[int, int], ...]
"""Intervals [low, high) of ticks, ascending."""

_State = tuple[int, ...]
"""Of the devices that are still to come: numbers and weights in each interval, and in the tail."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What was released of one round over one model, without noise.

    Attributes:
        rows: What lies below each pivot of the search, from pivot 0 to the one above all ticks.
        searched: The devices of the search.
        updated: Those of the sum of updates, all searched; empty if it is not to be counted.
        pivot: The lowest tick that passes the filter.
        count: How many of `updated` passed.
        weight: What these weigh, by their own weights.
    """

    rows: tuple[Below, ...]
    searched: tuple[int, ...]
    updated: frozenset[int] = frozenset()
    pivot: int = 0
    count: int = 0
    weight: int = 0

    def possible(self) -> dict[int, Intervals]:
        """Of each device, the intervals in which it can be for somebody who knows no weights.

        Where devices without weight leave a number open, one of these may be impossible.
        """
        lost = len(self.searched) - len(self.updated)
        failed = len(self.searched) - self.count  # or are lost
        fewest = max(row.fewest for row in self.rows if row.pivot <= self.pivot)
        most = min(row.most for row in self.rows if row.pivot >= self.pivot)
        at = Below(self.pivot, 0, max(fewest, failed - lost), min(most, failed))
        rows = sorted(
            [at, *(row for row in self.rows if row.pivot != self.pivot)], key=attrgetter("pivot")
        )
        groups = {
            True: _open(rows, self.pivot, len(self.updated), Tail(self.count, self.count)),
            False: _open(rows, self.pivot, lost, Tail(failed - at.most, failed - at.fewest)),
        }
        return {device: groups[device in self.updated] for device in self.searched}

    def possible_by(self, weights: Mapping[int, tuple[int, int]]) -> dict[int, Intervals] | None:
        """The same for somebody who knows all weights; None if that is too much to work out.

        Args:
            weights: Of every device searched over, its weight in the search, and its own.
        """
        boxes = between(self.rows)
        counts = bool(self.updated) and any(row.pivot == self.pivot for row in self.rows)
        tail = (self.count, self.weight) if counts else (0, 0)
        start = (*(box.most for box in boxes), *(box.weight for box in boxes), *tail)
        spare = (*(box.most - box.fewest for box in boxes), *[0] * (len(boxes) + 2))

        def moves(left: _State, device: int) -> Iterator[tuple[int, _State]]:
            """What is left in all intervals and in the tail once the device is in one more."""
            weight, own = weights[device]
            for index, box in enumerate(boxes):
                passes = counts and device in self.updated and box.low >= self.pivot
                after = list(left)
                after[index] -= 1
                after[len(boxes) + index] -= weight
                after[-2:] = after[-2] - passes, after[-1] - own * passes
                if min(after) >= 0:
                    yield index, tuple(after)

        layers: list[set[_State]] = [{start}]
        for device in self.searched:
            layers.append({after for left in layers[-1] for _, after in moves(left, device)})
            if len(layers[-1]) > MAX_STATES:
                return None
        alive = {one for one in layers[-1] if all(map(le, one, spare))}
        found: dict[int, Intervals] = {}
        for device, layer in zip(self.searched[::-1], layers[-2::-1], strict=True):
            every = ((left, *move) for left in layer for move in moves(left, device))
            leading = [(left, index) for left, index, after in every if after in alive]
            alive = {left for left, _ in leading}
            indices = sorted({index for _, index in leading})
            found[device] = tuple((boxes[i].low, boxes[i].high) for i in indices)
        return found


def _open(rows: Sequence[Below], pivot: int, size: int, passed: Tail) -> Intervals:
    """Where a device of a group can be of which so many passed."""
    return tuple(
        (box.low, box.high)
        for box in between(rows)
        if box.most > 0 and (passed.most > 0 if box.low >= pivot else passed.fewest < size)
    )
