"""Do masked vectors reveal what they mask, alone or in pairs?

If two vectors were masked with the same masks, their difference is that of their inputs, y1 − y2 =
x1 − x2. If one mask was negated, this holds for their sum. Inputs are numbers of bounded size in a
ring made for the sum of a whole cohort. Such a word therefore begins with many equal bits. A
uniform word does not: the number of bits after the first that equal it is geometric. A vector
without any mask is found in the same way.

What can be found: the sum of L such numbers has to be surprising, so that short vectors must be of
small inputs, and long ones may be of almost anything. At 10^-12, differences are found that fit
b−17 bits for L = 3, b−7 for L = 10, b−4 from L = 26 on and b−2 from L = 146 on, sign included
(`detectable_bits`). A ring for sums over n devices leaves about log2(n) − 1 bits.

Vectors of two rings are compared in the smaller one: masks from one seed agree modulo it.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.tails import Counts, Floats, heads_before_tails

MAX_WORDS: Final = 1024
"""Words of a vector that are looked at; the first ones."""

_DOUBLE_EXPONENT_BIAS: Final = 1023
_DOUBLE_MANTISSA_BITS: Final = 52


@dataclass(frozen=True, slots=True)
class Relations:
    """P-values of every two vectors of a device being unrelated.

    Attributes:
        pairs: The two positions of each pair, first < second, shape (P, 2).
        differences: p-values of y_first − y_second not being small, shape (…, P).
        sums: p-values of y_first + y_second not being small, shape (…, P).
    """

    pairs: Counts
    differences: Floats
    sums: Floats


def leading_repeats(words: Vector, bits: int) -> Counts:
    """How many bits follow the top bit of each word of Z_2^b and equal it, before one differs.

    A word that fits m bits as a signed number, sign included, has b − m or more. For uniform words
    the number is geometric, P(G ≥ g) = 2^−g, and ends at b − 1.

    Args:
        words: uint32 or uint64 of any shape; bits from b on are ignored.
        bits: b, 1 to 64.

    Returns:
        Numbers in [0, b), of the shape of `words`.
    """
    aligned = (words.astype(np.uint64) << np.uint64(64 - bits)).view(np.int64)
    magnitude = aligned ^ (aligned >> 63)  # complement of negative numbers: from 0 to 2^63 − 1
    # The exponent of a double is where its first one is. Without the ones that follow a one, no
    # rounding can move it. Zero has the least exponent of all.
    doubles = (magnitude & ~(magnitude >> 1)).astype(np.float64)
    exponents = doubles.view(np.int64) >> _DOUBLE_MANTISSA_BITS
    repeats: Counts = np.minimum(62 + _DOUBLE_EXPONENT_BIAS - exponents, bits - 1)
    return repeats


def small_words(words: Vector, bits: int) -> Floats:
    """P-values of words of Z_2^b not being small in absolute value.

    Args:
        words: Shape (…, L), L ≥ 1, uint32 or uint64; bits from b on are ignored.
        bits: b, 1 to 64.

    Returns:
        p-values, shape (…): exact as long as no word has all b − 1 repeats, else conservative.
    """
    return heads_before_tails(leading_repeats(words, bits).sum(axis=-1), words.shape[-1])


def relate(vectors: Vector, bits: int) -> Relations:
    """Compare every two of T vectors, for many devices at once.

    The vectors may also be those of T devices in one slot: each has a self-mask of its own.

    Args:
        vectors: Shape (…, T, L), L ≥ 1, words of Z_2^b, uint32 or uint64. Words beyond the first
            `MAX_WORDS` are left out.
        bits: b, 1 to 64.

    Returns:
        The p-values of all T·(T−1)/2 pairs, in the order of `itertools.combinations`.
    """
    num_vectors = vectors.shape[-2]
    pairs = list(combinations(range(num_vectors), 2))
    shape = (*vectors.shape[:-2], len(pairs))
    differences, sums = np.ones(shape), np.ones(shape)
    by_vector = np.moveaxis(vectors[..., :MAX_WORDS], -2, 0)
    for position, (first, second) in enumerate(pairs):
        differences[..., position] = small_words(by_vector[first] - by_vector[second], bits)
        sums[..., position] = small_words(by_vector[first] + by_vector[second], bits)
    return Relations(_as_array(pairs), differences, sums)


def detectable_bits(length: int, bits: int, p_value: float) -> int | None:
    """How small differences must be for a second use of masks to be found for certain.

    Args:
        length: Words of the vectors, ≥ 1; beyond `MAX_WORDS` they do not count.
        bits: b, 1 to 64.
        p_value: What the p-value has to be, at most.

    Returns:
        The greatest m such that differences that all lie in [−2^(m−1), 2^(m−1)) are found; None if
        none are.

    >>> detectable_bits(3, 30, 1e-12), detectable_bits(650, 24, 1e-12)
    (13, 22)
    """
    length = min(length, MAX_WORDS)
    repeats = np.arange(bits)
    found = np.flatnonzero(heads_before_tails(repeats * length, length) <= p_value)
    return bits - int(found[0]) if len(found) else None


def _as_array(pairs: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    return np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
