"""A lower bound on ε, measured: canary updates that somebody tries to tell from the sums.

Each of many devices contributes a made-up update or its opposite, by a fair coin. Whoever guesses
the coins from the sums, and is right more often than (ε, δ)-differential privacy under replacement
allows, has shown that the sums are not private to that degree. One run is enough, because the
coins are independent. A bound above what the accountant says is a fault of the noise or of the
accountant; one below proves nothing, since there may be better guesses.

Source: Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2 and
appendix D.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from deltafl.protocol.rotation import Floats
from deltafl.protocol.update_noise import FIELDS, NoisyUpdates
from deltafl.secagg.randomness import Randomness

CONFIDENCE: Final = 0.95
"""A bound is wrong with a probability of at most one in twenty."""

_LARGEST: Final = 64.0
_HALVINGS: Final = 40


def epsilon_at_least(
    num_right: int,
    num_guesses: int,
    num_canaries: int,
    delta: float,
    confidence: float = CONFIDENCE,
) -> float:
    """The largest ε that guesses refute, with this confidence; 0 if they refute none.

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


def guessed(
    updates: NoisyUpdates,
    num_guesses: int,
    coins: np.random.Generator,
    randomness_of: Callable[[int], Randomness],
) -> int:
    """Let every device of a cohort be a canary, sum them up once, and guess from the sum.

    Device k contributes C or -C in its own number of the update, which no other device touches:
    the canary that is easiest to tell. The guesses are of those that stand out most.

    Args:
        updates: The round's, of at least as many parameters as devices.
        num_guesses: How many coins to guess.
        coins: Where the coins come from.
        randomness_of: From a device to the source of its noise.

    Returns:
        How many guesses were right.
    """
    number, norm = updates.cohort_size, updates.noise.norm
    signs = coins.choice((-1, 1), size=number)
    sums = {name: np.zeros(1, dtype=np.int64) for name in FIELDS}
    for device, sign in enumerate(signs):
        canary = np.zeros(updates.update_length)
        canary[device] = sign * norm
        parts = updates.contribution(canary, Fraction(0), randomness_of(device))
        sums = {name: sums[name] + parts[name] for name in FIELDS}
    mean = updates.read(sums, Fraction(1), number).update
    scores = np.zeros(0) if mean is None else mean[:number]
    return _right(scores, signs, num_guesses)


def _right(scores: Floats, signs: npt.NDArray[np.int_], num_guesses: int) -> int:
    """Right guesses, of the scores that are farthest from zero."""
    told = np.argsort(-np.abs(scores), kind="stable")[:num_guesses]
    return int(np.count_nonzero(np.sign(scores[told]) == signs[told]))
