"""Over how many honest devices each released number, and each difference of two, is at least taken.

A device that does not pass the filter adds zeros, so the sum of updates hides a device among those
of the tail alone, and of these some may collude with the server. So the tail has a floor, counted
with as many colluding devices as may be among those invited: they do not drop out, and may all
claim the largest losses. Devices that were lost since the search may all have been in the tail.

If two levels have nearly equal models, their sums of updates are nearly a sum over one tail each.
Their difference is then taken over the devices that are in only one of the two, and has the same
floor.

Server, devices, plans and audits take these numbers from here. Spec: §12.12, §12.14.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor


@dataclass(frozen=True, slots=True)
class Tail:
    """How many devices are at or above a threshold.

    Those of weight zero do not count where a search has counted: they add zeros. Where nothing was
    asked, and with `noisy`, they do.

    Attributes:
        fewest: There are at least so many.
        most: There are at most so many.
    """

    fewest: int
    most: int

    def among(self, num_searched: int, num_asked: int, num_left: int) -> "Tail":
        """What is left of it if all devices that were lost may have been in it.

        Args:
            num_searched: Devices that the search counted.
            num_asked: Devices that were asked for their updates.
            num_left: Devices that are left.
        """
        lost = max(num_searched - num_left, 0)
        return Tail(max(self.fewest - lost, 0), min(self.most, num_asked))

    def apart(self, other: "Tail") -> int:
        """The fewest devices by which the numbers of two tails may differ.

        0 if they may be equal. That does not make them the same devices: a colluding device may be
        in one of them, in the place of an honest one.
        """
        return max(self.fewest - other.most, other.fewest - self.most, 0)


def least_tail(num_colluding: int, min_honest: int) -> int:
    """The fewest devices that a tail, or a difference of two, must have; 0 if none is asked for.

    Args:
        num_colluding: Most of the invited devices that may collude with the server.
        min_honest: Fewest devices in it that do not collude; 0 asks for nothing.
    """
    return num_colluding + min_honest if min_honest else 0


def expected_tail(theta: Fraction, num_devices: int) -> int:
    """Devices that θ is sure to keep of so many, if all weigh the same: ⌊θ·n⌋.

    If no two losses are equal, there is one more, for θ below 1.
    """
    return floor(theta * num_devices)


def expected_apart(above: Fraction, below: Fraction, num_devices: int) -> int:
    """Fewest devices by which the tails of two levels differ, if all weigh the same.

    Args:
        above: θ of the larger tail.
        below: θ of the smaller one.
        num_devices: Devices to search over, or more.
    """
    share = (above - below) * num_devices
    return ceil(share) - 1 if above == 1 else floor(share)
