"""How likely a cohort is to lose no more devices than its session survives."""

import math


def at_least(num_devices: int, rate: float, fewest: int) -> float:
    """The probability that at least `fewest` of the devices stay, each vanishing by itself.

    >>> at_least(3, 0.5, 2), at_least(10, 0.0, 10)
    (0.5, 1.0)

    Args:
        num_devices: of the cohort.
        rate: with which each vanishes, in [0, 1).
        fewest: that must stay.
    """
    if rate == 0:
        return float(num_devices >= fewest)
    stay, go = math.log1p(-rate), math.log(rate)

    def term(staying: int) -> float:
        ways = math.lgamma(num_devices + 1) - math.lgamma(staying + 1)
        ways -= math.lgamma(num_devices - staying + 1)
        return math.exp(ways + staying * stay + (num_devices - staying) * go)

    # the smaller of the two tails keeps its digits
    if fewest > num_devices * (1 - rate):
        return min(1.0, math.fsum(map(term, range(fewest, num_devices + 1))))
    return max(0.0, 1 - math.fsum(map(term, range(fewest))))
