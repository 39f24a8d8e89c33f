"""A device's weight in the search for the threshold: its own, a rounded one, or the same for all.

A search reveals the weight below public points. If weights differ, devices can be recognised: a
step of n in the weighted rank is the device that has n samples. Rounded or equal weights reveal
less about which device is where, but the quantile is then that of the changed weights. Updates are
always averaged with the devices' own weights.

Spec: §12.4.
"""

from enum import StrEnum


class Weighting(StrEnum):
    """How a device's weight enters the search."""

    SAMPLES = "samples"
    """The weight as it is: the quantile of Algorithm 2."""
    POWERS_OF_TWO = "powers-of-two"
    """The weight rounded down to a power of two."""
    EQUAL = "equal"
    """1 for every device with a positive weight."""

    def of(self, weight: int) -> int:
        """The weight in the search of a device of weight `weight` ≥ 0; never more than that.

        >>> [(rule.of(0), rule.of(1), rule.of(100)) for rule in Weighting]
        [(0, 1, 100), (0, 1, 64), (0, 1, 1)]
        """
        if self is Weighting.SAMPLES or weight == 0:
            return weight
        return 1 if self is Weighting.EQUAL else 1 << (weight.bit_length() - 1)
