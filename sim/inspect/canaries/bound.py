"""What guesses of coins refute: a lower bound on ε.

Each of many devices contributes a made-up update or its opposite, by a fair coin. Whoever guesses
the coins from the sums, and is right more often than (ε, δ)-differential privacy under replacement
allows, has shown that the sums are not private to that degree. One run is enough, because the
coins are independent. A bound above what the accountant says is a fault of the noise or of the
accountant; one below proves nothing, since there may be better guesses.

Source: Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2 and
appendix D.
"""

import math
from typing import Final

import numpy as np
from scipy.stats import binom, norm

CONFIDENCE: Final = 0.95
"""A bound is wrong with a probability of at most one in twenty."""

_LARGEST: Final = 64.0
_HALVINGS: Final = 40
_SHARES: Final = tuple(2.0**-halvings for halvings in range(7))


def epsilon_at_least(
    num_right: int,
    num_guesses: int,
    num_canaries: int,
    delta: float,
    confidence: float = CONFIDENCE,
) -> float:
    """The largest ε that guesses refute, with this confidence; 0 if they refute none.

    The number of guesses must not depend on the coins or on what was seen.

    Args:
        num_right: Guesses that were right.
        num_guesses: Guesses made, at most the canaries; others were abstained from.
        num_canaries: Coins tossed.
        delta: δ.
        confidence: One less the probability of a bound that is too high.
    """
    low, high = 0.0, _LARGEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if chance(num_right, num_guesses, num_canaries, middle, delta) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def chance(
    num_right: int, num_guesses: int, num_canaries: int, epsilon: float, delta: float
) -> float:
    """How likely so many right guesses are at most, under (ε, δ)-differential privacy.

    Args:
        num_right: Guesses that were right, from 0 to those made.
        num_guesses: Guesses made.
        num_canaries: Coins tossed.
        epsilon: ε ≥ 0.
        delta: δ.
    """
    each = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(num_right - 1, num_guesses, each))
    fewer = np.arange(1, num_right + 1)
    added = np.cumsum(binom.pmf(num_right - fewer, num_guesses, each)) / fewer
    return min(tail + float(added.max(initial=0.0)) * delta * 2 * num_canaries, 1.0)


def guesses_to_make(signal: float, num_canaries: int, delta: float) -> int:
    """How many coins to guess, for a large bound: those whose scores are farthest from zero.

    It is worked out before anything is seen, as if scores were Gaussian.

    Args:
        signal: A canary's part of its score, in standard deviations of the score; above 0.
        num_canaries: Coins tossed, at least 1.
        delta: δ.
    """

    def expected(share: float) -> tuple[float, int]:
        num_guesses = max(int(num_canaries * share), 1)
        low, high = 0.0, signal + 9.0
        for _ in range(_HALVINGS):  # the distance from zero beyond which this share lies
            middle = (low + high) / 2
            beyond = norm.sf(middle - signal) + norm.sf(middle + signal)
            low, high = (middle, high) if beyond > share else (low, middle)
        right = norm.sf(low - signal) / (norm.sf(low - signal) + norm.sf(low + signal))
        bound = epsilon_at_least(int(num_guesses * right), num_guesses, num_canaries, delta)
        return bound, num_guesses

    return max(map(expected, _SHARES))[1]
