"""Were secrets shared by random polynomials of full degree? From the shares that came.

t shares of a secret determine a polynomial of degree t − 1 for each of its limbs. If the device
that dealt them drew the coefficients at random, they are uniform modulo the prime. A polynomial of
lower degree needs fewer shares, and one whose coefficients are known needs a single one.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg import shamir
from deltafl.secagg.graph import Positions
from deltafl.secagg.shamir import Limbs

_P: Final = np.uint64(shamir.PRIME)

Words = npt.NDArray[np.uint64]


def coefficients(points: Positions, shares: Limbs) -> Words:
    """The polynomials through some shares, by divided differences.

    Args:
        points: The points of each polynomial, distinct, in [1, 2^31 − 1), shape (n, t).
        shares: The values there, shape (n, t, 9).

    Returns:
        Coefficients modulo the prime, the constant term first, shape (n, t, 9).
    """
    count, at = points.shape[1], points.astype(np.uint64)[..., None]
    values = shares.astype(np.uint64)
    spread = int(points.max(initial=0) - points.min(initial=0))
    inverses = np.zeros(spread + 1, dtype=np.uint64)
    inverses[1:] = shamir.inverse(np.arange(1, spread + 1, dtype=np.uint64))
    for order in range(1, count):
        gaps = points[:, order:] - points[:, :-order]
        factors = inverses[np.abs(gaps)]
        factors = np.where(gaps < 0, _P - factors, factors)[..., None]
        steps = (values[:, order:] + _P - values[:, order - 1 : -1]) % _P
        values[:, order:] = steps * factors % _P
    # Now they are the coefficients of Newton's form, which is multiplied out from the inside.
    for start in range(count - 2, -1, -1):
        lower = values[:, start:-1]
        values[:, start:-1] = (
            lower + _P - values[:, start + 1 :] * at[:, start : start + 1] % _P
        ) % _P
    return values


def leading(points: Positions, shares: Limbs) -> Words:
    """The last of the `coefficients` alone, which takes t times less work.

    Args:
        points: Shape (n, t).
        shares: Shape (n, t, 9).

    Returns:
        Shape (n, 9).
    """
    at = points.astype(np.uint64)
    denominators = np.ones_like(at)
    for column in range(at.shape[1]):
        gaps = (at + _P - at[:, column : column + 1]) % _P
        gaps[:, column] = 1
        denominators = denominators * gaps % _P
    weights = shamir.inverse(denominators).astype(np.uint32)
    return shamir.combine(weights, shares).astype(np.uint64)


def evaluate(polynomials: Words, points: Positions) -> Words:
    """The values of polynomials, each at its own point.

    Args:
        polynomials: Shape (n, t, 9), the constant term first.
        points: Shape (n,).

    Returns:
        Shape (n, 9).
    """
    at, values = points.astype(np.uint64)[:, None], polynomials[:, -1]
    for power in range(polynomials.shape[1] - 2, -1, -1):
        values = (values * at + polynomials[:, power]) % _P
    return values
