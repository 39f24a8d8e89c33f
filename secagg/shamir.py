"""Shamir's secret sharing of 32-byte secrets over the prime field of 2^31 − 1, many at once.

A secret is split into nine 30-bit limbs. Each limb is shared by a random polynomial of degree t − 1
over the field: any t shares give the secret, and t − 1 reveal nothing (Shamir 1979). The Mersenne
prime lets one matrix product share all secrets of a device: 31-bit numbers are split into halves
whose products, summed over t < 2^21 terms, are exact in double precision.

The slow twins `split_plain` and `combine_plain` work over any prime with Python integers.

Shares are the values of a polynomial of degree t − 1, so they form a code word of a Reed–Solomon
code, whose unique decoding (Gao 2003) finds wrong shares. Of m shares, up to ⌊(m − t)/2⌋ wrong ones
can be identified and corrected. Polynomials are arrays of coefficients modulo the prime, with the
constant term first.

Spec: §2.7, §10.10.
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

_Polynomial = npt.NDArray[np.uint64]
_ONE: Final = np.array([1], dtype=np.uint64)
_ZERO: Final = np.array([0], dtype=np.uint64)


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


def combine(weights: Limbs, shares: Limbs) -> Limbs:
    """The limbs of many secrets, each from t shares of its own holders.

    Args:
        weights: `lagrange_at_zero` of each secret's holders, shape (secrets, t).
        shares: The holders' shares in the same order, shape (secrets, t, 9).

    Returns:
        Limbs of shape (secrets, 9), for `from_limbs`.
    """
    terms = shares * weights[:, :, None].astype(np.uint64) % _P
    limbs: Limbs = (terms.sum(axis=1) % _P).astype(np.uint32)
    return limbs


def combine_alike(weights: Limbs, shares: Iterable[Limbs]) -> Limbs:
    """`combine` for secrets that all have the same holders; it takes one holder after another.

    Args:
        weights: `lagrange_at_zero` of the holders, shape (t,).
        shares: Each holder's shares in the same order, of shape (secrets, 9) each.

    Returns:
        Limbs of shape (secrets, 9).
    """
    terms = (row * w % _P for w, row in zip(weights.astype(np.uint64), shares, strict=True))
    total = reduce(np.add, terms)
    limbs: Limbs = (total % _P).astype(np.uint32)
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


def decode(
    points: npt.NDArray[np.int64], values: Limbs, threshold: int
) -> tuple[int, list[int]] | None:
    """Correct the values of a polynomial of degree below `threshold`.

    Args:
        points: Distinct, in [0, 2^31 − 1), shape (m,), m ≥ threshold.
        values: Each below the prime, shape (m,).
        threshold: t, at least 1.

    Returns:
        The polynomial's value at zero and the indices of the wrong values, ascending; None if more
        than ⌊(m − t)/2⌋ are wrong.
    """
    at = points.astype(np.uint64)
    given = values.astype(np.uint64)
    most = (len(at) - threshold) // 2
    # Gao: run Euclid's algorithm on (locus of the points, interpolation). Half way, the remainder
    # is the product of the code word and the error locator.
    before, remainder = _from_roots(at), _interpolate(at, given)
    before_factor, factor = _ZERO, _ONE
    while 2 * (len(remainder) - 1) >= len(at) + threshold:
        quotient, following = _divide(before, remainder)
        before, remainder = remainder, following
        before_factor, factor = factor, _subtract(before_factor, _multiply(quotient, factor))
    polynomial, rest = _divide(remainder, factor)
    if rest.any() or len(polynomial) > threshold:
        return None
    wrong = np.flatnonzero(_evaluate(polynomial, at) != given)
    return (int(polynomial[0]), wrong.tolist()) if len(wrong) <= most else None


def locate(
    points: npt.NDArray[np.int64], words: Limbs, threshold: int
) -> npt.NDArray[np.bool_] | None:
    """What is wrong in several words, which are most often wrong in the same places.

    Decoding is slow, and a share has nine limbs. So the places where one word was wrong are left
    out of the others, which are then only checked: a word that differs from a polynomial in no more
    values than decoding corrects is what decoding would give.

    Args:
        points: Distinct, in [0, 2^31 − 1), shape (m,), m ≥ threshold.
        words: Values below the prime, shape (m, words).
        threshold: t, at least 1.

    Returns:
        Whether each value is wrong, shape (m, words); None if a word cannot be decoded.
    """
    wrong = np.zeros(words.shape, dtype=np.bool_)
    most = (len(points) - threshold) // 2
    waiting = np.arange(words.shape[1])
    while len(waiting):
        found = decode(points, words[:, waiting[0]], threshold)
        if found is None:
            return None
        wrong[found[1], waiting[0]] = True
        waiting = waiting[1:]
        order = np.argsort(wrong.any(axis=1), kind="stable")
        # Those that were right in all words come first.
        base, others = order[:threshold], order[threshold:]
        weights = lagrange_at(points[base], points[others])
        differs = multiply(weights, words[base][:, waiting]) != words[others][:, waiting]
        sure = differs.sum(axis=0) <= most
        wrong[np.ix_(others, waiting[sure])] = differs[:, sure]
        waiting = waiting[~sure]
    return wrong


def _interpolate(points: _Polynomial, values: _Polynomial) -> _Polynomial:
    """The polynomial of degree below m through m points (Newton's divided differences)."""
    differences = values.copy()
    for order in range(1, len(points)):
        gaps = (points[order:] + _P - points[:-order]) % _P
        step = (differences[order:] + _P - differences[order - 1 : -1]) % _P
        differences[order:] = step * inverse(gaps) % _P
    polynomial = np.zeros(len(points), dtype=np.uint64)
    for point, difference in zip(points[::-1], differences[::-1], strict=True):
        shifted = np.concatenate([_ZERO, polynomial[:-1]])
        polynomial = (shifted + (_P - point) * polynomial) % _P
        polynomial[0] = (polynomial[0] + difference) % _P
    return _trim(polynomial)


def _from_roots(roots: _Polynomial) -> _Polynomial:
    """The monic polynomial that vanishes at the roots."""
    polynomial = _ONE
    for root in roots:
        longer = np.concatenate([_ZERO, polynomial])
        longer[:-1] = (longer[:-1] + (_P - root) * polynomial) % _P
        polynomial = longer
    return polynomial


def _divide(dividend: _Polynomial, divisor: _Polynomial) -> tuple[_Polynomial, _Polynomial]:
    """Quotient and remainder; the divisor is not zero."""
    remainder = dividend.copy()
    leading = inverse(divisor[-1:])[0]
    quotient = np.zeros(max(len(dividend) - len(divisor) + 1, 1), dtype=np.uint64)
    for degree in range(len(dividend) - len(divisor), -1, -1):
        top = degree + len(divisor)
        quotient[degree] = coefficient = remainder[top - 1] * leading % _P
        taken = coefficient * divisor % _P
        remainder[degree:top] = (remainder[degree:top] + _P - taken) % _P
    return _trim(quotient), _trim(remainder)


def _multiply(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    product = np.zeros(len(left) + len(right) - 1, dtype=np.uint64)
    for degree, coefficient in enumerate(left):
        part = product[degree : degree + len(right)]
        part[:] = (part + coefficient * right) % _P
    return _trim(product)


def _subtract(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    difference = np.zeros(max(len(left), len(right)), dtype=np.uint64)
    difference[: len(left)] = left
    difference[: len(right)] = (difference[: len(right)] + _P - right) % _P
    return _trim(difference)


def _evaluate(polynomial: _Polynomial, points: _Polynomial) -> _Polynomial:
    values = np.zeros(len(points), dtype=np.uint64)
    for coefficient in polynomial[::-1]:
        values = (values * points + coefficient) % _P
    return values


def _trim(polynomial: _Polynomial) -> _Polynomial:
    """Without leading zeros; the zero polynomial keeps one coefficient."""
    used = np.flatnonzero(polynomial)
    return polynomial[: int(used[-1]) + 1 if len(used) else 1]
