"""What weight a device has in the search for the threshold: its own, a rounded one, or one for all.

A search tells the weight below public points. Weights that differ make devices recognisable in it:
a step of the weighted rank by n is the device that has n samples. Weights that are rounded, or the
same for all, say less about who is where; the quantile is then that of the rounded weights. Updates
are averaged by the devices' own weights in any case.

Spec: §12.4.
"""

from enum import StrEnum


class Weighting(StrEnum):
    """How a device's weight enters the search."""

    SAMPLES = "samples"
    """As it is: the quantile of Algorithm 2."""
    POWERS_OF_TWO = "powers-of-two"
    """Rounded down to a power of two."""
    EQUAL = "equal"
    """One for every device that has any."""

    def of(self, weight: int) -> int:
        """The weight in the search of a device that weighs `weight` ≥ 0; never more.

        >>> [(rule.of(0), rule.of(1), rule.of(100)) for rule in Weighting]
        [(0, 1, 100), (0, 1, 64), (0, 1, 1)]
        """
        if self is Weighting.SAMPLES or weight == 0:
            return weight
        return 1 if self is Weighting.EQUAL else 1 << (weight.bit_length() - 1)
