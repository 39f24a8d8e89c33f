"""Who attacks."""

from fractions import Fraction

from deltafl.sim.cohort.seeds import Purpose, Seeds


def attackers_of(seeds: Seeds, share: Fraction, num_devices: int) -> frozenset[int]:
    """Draw the devices that attack in all runs of a seed.

    Args:
        seeds: of the run.
        share: of all training devices, in [0, 1); rounded to whole devices.
        num_devices: how many train.

    Returns:
        Their indices. A larger share has those of a smaller one.
    """
    number = num_attackers(share, num_devices)
    if not number:
        return frozenset()
    order = seeds.generator(Purpose.ATTACKERS).permutation(num_devices)
    return frozenset(order[:number].tolist())


def num_attackers(share: Fraction, num_devices: int) -> int:
    """How many of these devices attack.

    >>> num_attackers(Fraction(1, 10), 96), num_attackers(Fraction(0), 96)
    (10, 0)
    """
    return round(share * num_devices)
