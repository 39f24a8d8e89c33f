"""Rounding to whole numbers at random, so that the mean is right and the length stays bounded.

A number is rounded up with the probability of its fraction. The rounded vector can be longer than
the exact one; it is drawn again until it is not longer than a bound, which happens so rarely that
the mean stays right for every purpose. The bound is what the privacy of a sum is computed from, so
it is checked in whole numbers.

Source: Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation", section 4 (conditional randomised rounding).

Spec: §12.16.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.discrete_gaussian import Integers
from deltafl.secagg.randomness import Randomness

TRIES: Final = 64
"""Draws before rounding towards zero, which is never too long."""

_COINS: Final = float(1 << 32)
_MOST: Final = float(1 << 31)


def rounded(values: npt.NDArray[np.float64], square_bound: int, randomness: Randomness) -> Integers:
    """Round a vector at random to whole numbers of a bounded L2 norm.

    Args:
        values: float64 of shape (d,), each below 2^31 in size.
        square_bound: Largest squared L2 norm of the result; zeros if `values` rounded towards zero
            are longer.
        randomness: Source of the coins.

    Returns:
        Each number next to that of `values`, or zeros; int64 of shape (d,).

    Raises:
        ValueError: a number is not finite, or too large.
    """
    # Only of such numbers does the norm below not wrap around.
    if not np.abs(values).max(initial=0.0) * math.sqrt(values.size or 1) < _MOST:
        raise ValueError("a vector to be rounded has numbers that are not finite, or too large")
    floors = np.floor(values)
    fractions = values - floors
    for _ in range(TRIES):
        coins = np.frombuffer(randomness(4 * values.size), dtype=">u4")
        result = (floors + (coins < fractions * _COINS)).astype(np.int64)
        if int(result @ result) <= square_bound:
            return result
    shortest = np.trunc(values).astype(np.int64)
    return shortest if int(shortest @ shortest) <= square_bound else np.zeros_like(shortest)
