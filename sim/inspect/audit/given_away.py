"""Where each device's loss can lie, by the exact sums of one round over one model.

A search tells how many devices lie below each of its pivots, and what they weigh; the sum of
updates, how many passed the filter. The pivots cut the losses into intervals. A device can be in
an interval if some way to put all devices into intervals agrees with all of these numbers. Without
weights, devices that were in the same sums are alike. With weights, who is where follows from sums
of subsets. That is worked out where there are few of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from deltafl.protocol.anonymity import Tail
from deltafl.sim.inspect.leakage.consequences import Below

MAX_STATES: Final = 2_000
"""Different sums of subsets up to which weights are taken into account."""

Intervals = tuple[tuple[int, int], ...]
"""Intervals [low, high) of ticks, ascending."""

_State = tuple[int, ...]  # numbers and weights of the devices in each interval, and in the tail


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
        rows, lost = self._rows_with_threshold(), len(self.searched) - len(self.updated)
        of_lost = Tail(0, lost)
        if self.updated:
            (below,) = (row for row in rows if row.pivot == self.pivot)
            passed = len(self.searched) - self.count
            of_lost = Tail(passed - below.most, passed - below.fewest)
        groups = {
            True: _open(rows, self.pivot, len(self.updated), Tail(self.count, self.count)),
            False: _open(rows, self.pivot, lost, of_lost),
        }
        return {device: groups[device in self.updated] for device in self.searched}

    def possible_by(self, weights: Mapping[int, tuple[int, int]]) -> dict[int, Intervals] | None:
        """The same for somebody who knows all weights; None if that is too much to work out.

        Args:
            weights: Of every device searched over, its weight in the search, and its own.
        """
        boxes = list(pairwise(self.rows))
        most = [above.most - below.fewest for below, above in boxes]
        fewest = [above.fewest - below.most for below, above in boxes]
        held = [above.weight - below.weight for below, above in boxes]
        counts = bool(self.updated) and any(row.pivot == self.pivot for row in self.rows)
        tail = (self.count, self.weight) if counts else (0, 0)

        def moves(state: _State, device: int) -> Iterator[tuple[int, _State]]:
            """What is held in all intervals and in the tail once the device is in one more."""
            weight, own = weights[device]
            for index, (below, _) in enumerate(boxes):
                after = list(state)
                after[index] += 1
                after[len(boxes) + index] += weight
                if counts and device in self.updated and below.pivot >= self.pivot:
                    after[-2:] = after[-2] + 1, after[-1] + own
                if all(a <= b for a, b in zip(after, (*most, *held, *tail), strict=True)):
                    yield index, tuple(after)

        layers: list[set[_State]] = [{(0,) * (2 * len(boxes) + 2)}]
        for device in self.searched:
            layers.append({after for state in layers[-1] for _, after in moves(state, device)})
            if len(layers[-1]) > MAX_STATES:
                return None
        ends = (*fewest, *held, *tail)
        alive = {one for one in layers[-1] if all(a >= b for a, b in zip(one, ends, strict=True))}
        found: dict[int, Intervals] = {}
        for device, layer in zip(self.searched[::-1], layers[-2::-1], strict=True):
            leading = [
                (state, index)
                for state in layer
                for index, after in moves(state, device)
                if after in alive
            ]
            alive = {state for state, _ in leading}
            indices = sorted({index for _, index in leading})
            found[device] = tuple((boxes[i][0].pivot, boxes[i][1].pivot) for i in indices)
        return found

    def _rows_with_threshold(self) -> list[Below]:
        """The rows, with one at the threshold."""
        if not self.updated:
            return list(self.rows)
        before = [row for row in self.rows if row.pivot < self.pivot]
        after = [row for row in self.rows if row.pivot > self.pivot]
        at = [row for row in self.rows if row.pivot == self.pivot]
        passed = len(self.searched) - self.count
        lost = len(self.searched) - len(self.updated)
        fewest = max((at or before)[-1].fewest, passed - lost)
        row = Below(self.pivot, 0, fewest, min((at or after)[0].most, passed))
        return [*before, row, *after]


def _open(rows: list[Below], pivot: int, size: int, passed: Tail) -> Intervals:
    """Where a device of a group can be of which so many passed."""
    return tuple(
        (below.pivot, above.pivot)
        for below, above in pairwise(rows)
        if above.most > below.fewest
        and (passed.most > 0 if below.pivot >= pivot else passed.fewest < size)
    )
