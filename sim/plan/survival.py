"""How likely a cohort is to lose more devices than its session survives."""

import math


def fewer_stay(num_devices: int, rate: float, fewest: int) -> float:
    """The probability that fewer than `fewest` of the devices stay, each vanishing by itself.

    >>> round(fewer_stay(3, 0.5, 2), 9), fewer_stay(10, 0.0, 10)
    (0.5, 0.0)

    Args:
        num_devices: of the cohort.
        rate: with which each vanishes, in [0, 1).
        fewest: that must stay.
    """
    if rate == 0:
        return float(num_devices < fewest)
    stay, go = math.log1p(-rate), math.log(rate)

    def term(staying: int) -> float:
        ways = math.lgamma(num_devices + 1) - math.lgamma(staying + 1)
        ways -= math.lgamma(num_devices - staying + 1)
        return math.exp(ways + staying * stay + (num_devices - staying) * go)

    return min(1.0, math.fsum(map(term, range(min(fewest, num_devices + 1)))))
