"""Finds wrong shares: unique decoding of Reed–Solomon codes (Gao 2003).

Shares are the values of a polynomial of degree t − 1, so they form a code word. Of m shares, up to
⌊(m − t)/2⌋ wrong ones can be identified and corrected. Polynomials are arrays of coefficients
modulo the prime, with the constant term first.

Spec: §10.10.
"""

import numpy as np
import numpy.typing as npt

from deltafl.secagg.shamir import PRIME, Limbs, inverse, lagrange_at, multiply

_Polynomial = npt.NDArray[np.uint64]
_P = np.uint64(PRIME)
_ONE = np.array([1], dtype=np.uint64)
_ZERO = np.array([0], dtype=np.uint64)


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
