"""Many draws from a discrete Gaussian at once, as exact as one after another.

The algorithms are those of `deltafl.protocol.noise`, on arrays: integers are drawn and compared,
and no probability is rounded. All numbers fit 64 bits, because the standard deviation is a whole
number: then the acceptance of a discrete Laplace of the same scale t needs only
exp(-(|x| - t)²/2t²). Every draw that is not decided yet is worked on at the same time.

Source: Canonne, Kamath, Steinke 2020, "The Discrete Gaussian for Differential Privacy", algorithms
1 to 3.

Spec: §12.16.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg.randomness import Randomness

MAX_DEVIATION: Final = 1 << 20
"""Largest standard deviation; numbers stay far below 2^63."""

Integers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


def discrete_gaussians(deviation: int, size: int, randomness: Randomness) -> Integers:
    """Draw integers x with probabilities proportional to exp(-x²/2·deviation²), exactly.

    Args:
        deviation: A whole number from 1 to `MAX_DEVIATION`.
        size: How many.
        randomness: Source of the bits.

    Returns:
        int64 of shape (size,).
    """
    found = np.zeros(size, dtype=np.int64)
    pending = np.arange(size)
    while pending.size:
        drawn, counts = _laplaces(deviation, pending.size, randomness)
        distance = np.abs(drawn) - deviation
        accepted = counts & _bernoulli_exp(distance * distance, 2 * deviation**2, randomness)
        found[pending[accepted]] = drawn[accepted]
        pending = pending[~accepted]
    return found


def uniforms_below(limit: int, size: int, randomness: Randomness) -> Integers:
    """Draw integers in [0, limit), each with the same probability, exactly.

    Args:
        limit: From 1 to 2^63.
        size: How many.
        randomness: Source of the bits.

    Returns:
        int64 of shape (size,).
    """
    found = np.zeros(size, dtype=np.int64)
    bits = (limit - 1).bit_length()
    word = next(width for width in (1, 2, 4, 8) if bits <= 8 * width)
    pending = np.arange(size if bits else 0)
    while pending.size:
        words = np.frombuffer(randomness(word * pending.size), dtype=f">u{word}")
        drawn = words.astype(np.uint64) >> np.uint64(8 * word - bits)
        accepted = drawn < limit
        found[pending[accepted]] = drawn[accepted]
        pending = pending[~accepted]
    return found


def _laplaces(scale: int, size: int, randomness: Randomness) -> tuple[Integers, _Flags]:
    """Draw x with probabilities proportional to exp(-|x|/scale); and which of the draws count."""
    rest = uniforms_below(scale, size, randomness)
    counts = _series(rest, scale, randomness)
    whole = np.zeros(size, dtype=np.int64)
    going = np.flatnonzero(counts)
    while going.size:
        going = going[_series(np.ones(going.size, dtype=np.int64), 1, randomness)]
        whole[going] += 1
    sizes = rest + scale * whole
    negative = uniforms_below(2, size, randomness) == 1
    # zero has only one sign
    return np.where(negative, -sizes, sizes), counts & ~(negative & (sizes == 0))


def _bernoulli_exp(num: Integers, den: int, randomness: Randomness) -> _Flags:
    """True with probability exp(-num/den), each by itself."""
    whole, rest = np.divmod(num, den)
    result = np.ones(num.size, dtype=np.bool_)
    going = np.flatnonzero(whole)
    done = 0
    while going.size:
        held = _series(np.ones(going.size, dtype=np.int64), 1, randomness)
        result[going[~held]] = False
        done += 1
        going = going[held]
        going = going[whole[going] > done]
    left = np.flatnonzero(result)
    result[left] = _series(rest[left], den, randomness)
    return result


def _series(num: Integers, den: int, randomness: Randomness) -> _Flags:
    """True with probability exp(-num/den), for 0 ≤ num ≤ den.

    1 - γ + γ²/2! - …: the first k at which a coin of γ/k fails is odd.
    """
    odd = np.zeros(num.size, dtype=np.bool_)
    going, k = np.arange(num.size), 1
    while going.size:
        held = uniforms_below(den * k, going.size, randomness) < num[going]
        odd[going[~held]] = k % 2 == 1
        going, k = going[held], k + 1
    return odd
