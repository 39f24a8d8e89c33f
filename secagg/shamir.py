"""Shamir's secret sharing of 32-byte secrets over the prime field of 2^31 − 1, many at once.

A secret is split into nine 30-bit limbs. Each limb is shared by a random polynomial of degree t − 1
over the field: any t shares give the secret, and t − 1 reveal nothing (Shamir 1979). The Mersenne
prime lets one matrix product share all secrets of a device: 31-bit numbers are split into halves
whose products, summed over t < 2^21 terms, are exact in double precision.

The slow twins `split_plain` and `combine_plain` work over any prime with Python integers.

Spec: §2.7.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg.randomness import Randomness

Limbs = npt.NDArray[np.uint32]

PRIME: Final = 2**31 - 1
SECRET_SIZE: Final = 32
NUM_LIMBS: Final = 9
SHARE_SIZE: Final = 4 * NUM_LIMBS
_LIMB_BITS: Final = 30
_P: Final = np.uint64(PRIME)
# Matrix products are cut into tiles of up to this many multiplications, which stay on one core. For
# larger ones, and for single rows, BLAS wakes its threads, at up to 40 times the product's cost.
_SERIAL_PRODUCT: Final = 1 << 18
_TILE_WIDTH: Final = 32


def to_limbs(secrets: Sequence[bytes]) -> Limbs:
    """Split 32-byte secrets into 30-bit limbs, little-endian; uint32 of shape (secrets, 9)."""
    low = (1 << _LIMB_BITS) - 1
    numbers = [int.from_bytes(secret, "little") for secret in secrets]
    limbs = [[(n >> (_LIMB_BITS * i)) & low for i in range(NUM_LIMBS)] for n in numbers]
    return np.array(limbs, dtype=np.uint32).reshape(len(secrets), NUM_LIMBS)


def from_limbs(limbs: Limbs) -> list[bytes | None]:
    """The inverse of `to_limbs`; None if limbs, though below the prime, encode no secret."""
    secrets: list[bytes | None] = []
    for row in limbs.tolist():
        number = sum(limb << (_LIMB_BITS * i) for i, limb in enumerate(row))
        fits = all(limb >> _LIMB_BITS == 0 for limb in row) and number >> (8 * SECRET_SIZE) == 0
        secrets.append(number.to_bytes(SECRET_SIZE, "little") if fits else None)
    return secrets


def split(
    secrets: Sequence[bytes], points: Sequence[int], threshold: int, randomness: Randomness
) -> Limbs:
    """Share every secret among the same holders.

    Spec: §2.7, §9.12.

    Args:
        secrets: Strings of 32 bytes.
        points: The holders' evaluation points: distinct, in [1, 2^31 − 1).
        threshold: Shares needed to combine; at least 1.
        randomness: Source of the coefficients.

    Returns:
        Shares, uint32 of shape (points, secrets, 9), each limb in [0, 2^31 − 1).
    """
    constants = to_limbs(secrets).reshape(1, -1)
    random = _field_elements((threshold - 1) * constants.size, randomness)
    coefficients = np.concatenate([constants, random.reshape(threshold - 1, constants.size)])
    shares = multiply(_powers(points, threshold), coefficients)
    return shares.reshape(len(points), len(secrets), NUM_LIMBS)


def lagrange_at_zero(points: npt.NDArray[np.int64]) -> Limbs:
    """The weights that turn values of a polynomial at some points into its value at zero.

    Args:
        points: Sets of t distinct points in [1, 2^31 − 1), shape (sets, t).

    Returns:
        The weights, shape (sets, t).
    """
    at = points.astype(np.uint64)
    numerators = np.ones((len(at), 1), dtype=np.uint64)
    denominators = at.copy()
    for column in range(at.shape[1]):
        other = at[:, column : column + 1]
        numerators = numerators * other % _P
        differences = (other + _P - at) % _P
        differences[:, column] = 1
        denominators = denominators * differences % _P
    return (numerators * inverse(denominators) % _P).astype(np.uint32)


def lagrange_at(base: npt.NDArray[np.int64], points: npt.NDArray[np.int64]) -> Limbs:
    """The weights that turn values of a polynomial at `base` into its values at other points.

    Args:
        base: Distinct, in [0, 2^31 − 1), shape (t,).
        points: In [0, 2^31 − 1), none of them in the base, shape (m,).

    Returns:
        The weights, shape (m, t).
    """
    at = base.astype(np.uint64)
    gaps = (points.astype(np.uint64)[:, None] + _P - at) % _P
    own = (at[:, None] + _P - at) % _P
    np.fill_diagonal(own, 1)
    numerators = np.ones(len(points), dtype=np.uint64)
    denominators = np.ones(len(at), dtype=np.uint64)
    for column in range(len(at)):
        numerators = numerators * gaps[:, column] % _P
        denominators = denominators * own[:, column] % _P
    weights: Limbs = (numerators[:, None] * inverse(denominators * gaps % _P) % _P).astype(
        np.uint32
    )
    return weights


def inverse(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The inverses modulo the prime of numbers in [1, 2^31 − 1), by Fermat's little theorem."""
    powers, result = numbers, np.ones_like(numbers)
    for bit in range((PRIME - 2).bit_length()):
        if (PRIME - 2) >> bit & 1:
            result = result * powers % _P
        powers = powers * powers % _P
    return result


def combine(weights: Limbs, shares: Iterable[Limbs]) -> Limbs:
    """The limbs of many secrets, each from t shares of its own holders.

    Args:
        weights: `lagrange_at_zero` of each secret's holders, shape (secrets, t).
        shares: Of shape (secrets, 9) each: the shares of each secret's first holder, then those of
            its second, and so on. They are read one after the other.

    Returns:
        Limbs of shape (secrets, 9), for `from_limbs`.
    """
    columns = weights.T.astype(np.uint64)
    terms = (each * w[:, None] % _P for w, each in zip(columns, shares, strict=True))
    limbs: Limbs = (reduce(np.add, terms) % _P).astype(np.uint32)
    return limbs


def multiply(left: Limbs, right: Limbs) -> Limbs:
    """The product of two matrices over the field, exact in four products of doubles.

    Args:
        left: Elements below the prime, shape (a, b), b below 2^21.
        right: Elements below the prime, shape (b, c).

    Returns:
        Shape (a, c).
    """
    product = np.empty((left.shape[0], right.shape[1]), dtype=np.uint32)
    height = max(_SERIAL_PRODUCT // (_TILE_WIDTH * left.shape[1]), 1)
    for column in range(0, right.shape[1], _TILE_WIDTH):
        columns = slice(column, column + _TILE_WIDTH)
        right_high, right_low = _halves(np.ascontiguousarray(right[:, columns]))
        for row in range(0, left.shape[0], height):
            rows = slice(row, row + height)
            high, low = _halves(left[rows])
            highest = (high @ right_high).astype(np.uint64) % _P
            middle = (high @ right_low + low @ right_high).astype(np.uint64) % _P
            total = (low @ right_low).astype(np.uint64)
            # The product of the high halves is doubled because 2^32 = 2 modulo the prime.
            total += (highest << np.uint64(1)) + (middle << np.uint64(16))
            product[rows, columns] = total % _P
    return product


def split_plain(
    secret: int, points: Sequence[int], coefficients: Sequence[int], prime: int
) -> dict[int, int]:
    """The slow twin of `split` for one field element: the polynomial's value at each point.

    >>> split_plain(42, [1, 2, 3], [7], 101)
    {1: 49, 2: 56, 3: 63}
    """
    shares = {}
    for point in points:
        value = 0
        for coefficient in reversed([secret, *coefficients]):
            value = (value * point + coefficient) % prime
        shares[point] = value
    return shares


def combine_plain(shares: Mapping[int, int], prime: int) -> int:
    """The slow twin of `combine` for one field element.

    >>> combine_plain({1: 49, 3: 63}, 101)
    42
    """
    weights = lagrange_at_zero_plain(list(shares), prime)
    return sum(w * share for w, share in zip(weights, shares.values(), strict=True)) % prime


def lagrange_at_zero_plain(points: Sequence[int], prime: int) -> list[int]:
    """Lagrange's weights at zero: the product of x_j / (x_j − x_i) over the other points."""
    weights = []
    for own in points:
        numerator = denominator = 1
        for other in points:
            if other != own:
                numerator = numerator * other % prime
                denominator = denominator * (other - own) % prime
        weights.append(numerator * pow(denominator, -1, prime) % prime)
    return weights


def _field_elements(count: int, randomness: Randomness) -> Limbs:
    """Uniform field elements: 31 random bits each, drawn again if they equal the prime.

    Spec: §9.12.
    """
    elements = np.frombuffer(randomness(4 * count), dtype="<u4").astype(np.uint32)
    elements &= np.uint32(PRIME)
    while (too_large := elements == PRIME).any():
        elements[too_large] = _field_elements(int(too_large.sum()), randomness)
    return elements


def _powers(points: Sequence[int], count: int) -> Limbs:
    """The powers 0 … count − 1 of each point modulo the prime, shape (points, count)."""
    base = np.array(points, dtype=np.uint64)
    powers = np.empty((count, len(points)), dtype=np.uint64)
    powers[0] = 1
    for exponent in range(1, count):
        powers[exponent] = powers[exponent - 1] * base % _P
    return np.ascontiguousarray(powers.T).astype(np.uint32)


def _halves(matrix: Limbs) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    high = (matrix >> np.uint32(16)).astype(np.float64)
    low = (matrix & np.uint32(0xFFFF)).astype(np.float64)
    return high, low
