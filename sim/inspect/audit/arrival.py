"""Does the order in which answers come follow a value of the devices, such as their losses?

The statistic is Kendall's: the pairs of devices of which the one with the smaller value comes
second. If order and values are unrelated, its distribution is known, with equal values too, and
its tail is bounded (Chernoff), not approximated.

Devices that answer in the order in which they were asked tell nothing, even if that order follows
their values, as where ids do. So an order counts only if it follows the values more closely than
the order of asking does.
"""

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from deltafl.sim.inspect.audit.tails import Floats

_TILTS: Final = np.geomspace(1e-6, 64, 400)
"""Where the bound is tried; it holds at each, and the smallest is taken."""


def reversed_pairs(values: Sequence[float]) -> int:
    """How many pairs have the larger value first.

    >>> reversed_pairs([2.0, 2.0, 3.0, 1.0])
    3
    """
    before: list[float] = []
    count = 0
    for value in values:
        count += len(before) - bisect_right(before, value)
        insort(before, value)
    return count


@dataclass(slots=True)
class Orders:
    """The orders of one kind of answer over rounds, against one value of the devices.

    The number of reversed pairs of n devices is distributed as the sum of one uniform number below
    i for each i up to n, if all values differ. Where g devices have one value, those of i up to g
    are taken away: pairs of equal values are never reversed.

    Attributes:
        num_pairs: Pairs of devices of different values.
        num_reversed: Those of which the larger value came first.
        num_reversed_if_asked: Those of which the larger value was asked first.
        uniforms: How many uniform numbers below i are summed, by i.
    """

    num_pairs: int = 0
    num_reversed: int = 0
    num_reversed_if_asked: int = 0
    uniforms: Counter[int] = field(default_factory=Counter)

    def add(self, came: Sequence[float], asked: Sequence[float]) -> None:
        """Take in a round.

        Args:
            came: The devices' values, in the order of their answers.
            asked: The same values, in the order in which they were asked.
        """
        groups = Counter(came).values()
        self.num_pairs += math.comb(len(came), 2) - sum(math.comb(size, 2) for size in groups)
        self.num_reversed += reversed_pairs(came)
        self.num_reversed_if_asked += reversed_pairs(asked)
        self.uniforms.update(range(1, len(came) + 1))
        for size in groups:
            self.uniforms.subtract(range(1, size + 1))

    def p_value(self) -> float:
        """Probability, at most, that unrelated orders and values are as far from chance."""
        far = abs(2 * self.num_reversed - self.num_pairs) / 2
        if far <= abs(2 * self.num_reversed_if_asked - self.num_pairs) / 2:
            return 1.0
        pairs = [one for one in self.uniforms.items() if one[0] > 1]
        sizes, counts = np.array(pairs, dtype=np.float64).T
        tilts = _TILTS[:, None]
        # log E exp(t·(U - E U)), U uniform below a size: log(sinh(t·size/2) / (size·sinh(t/2)))
        logs = _log_sinh(tilts * sizes / 2) - np.log(sizes) - _log_sinh(tilts / 2)
        return float(min(1.0, 2 * np.exp((logs @ counts - _TILTS * far).min())))


def _log_sinh(x: Floats) -> Floats:
    """Its logarithm, plus log 2."""
    return x + np.log(-np.expm1(-2 * x))
