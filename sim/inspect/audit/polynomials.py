"""Were secrets shared by random polynomials of full degree? From the shares that came.

t shares of a secret determine a polynomial of degree t − 1 for each of its limbs. If the device that
dealt them drew its coefficients at random, they are uniform modulo the prime. A polynomial of lower
degree needs fewer shares, and one of known coefficients needs one.

The coefficients are those of Newton's form, c_k = P[x_0, …, x_k] (divided differences). They follow
from the ordinary ones by a triangular matrix with ones in its diagonal, so that they are as uniform,
and the degree is below k exactly if c_k and all later ones are zero.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg import shamir
from deltafl.secagg.graph import Positions
from deltafl.secagg.shamir import Limbs

MAX_WORK: Final = 1 << 26
"""So many multiplications are made per slot; of larger slots, fewer secrets are examined whole."""

_P: Final = np.uint64(shamir.PRIME)
Words = npt.NDArray[np.uint64]


def newton(points: Positions, shares: Limbs) -> Words:
    """The coefficients of Newton's form, modulo the prime.

    Args:
        points: The points of each polynomial, distinct, shape (n, t).
        shares: The values there, shape (n, t, 9).

    Returns:
        c_0 … c_(t−1) of each polynomial and limb, shape (n, t, 9).
    """
    values = shares.astype(np.uint64)
    count = points.shape[1]
    spread = int(points.max(initial=0) - points.min(initial=0))
    inverses = np.zeros(spread + 1, dtype=np.uint64)
    inverses[1:] = shamir.inverse(np.arange(1, spread + 1, dtype=np.uint64))
    for order in range(1, count):
        gaps = points[:, order:] - points[:, :-order]
        factors = inverses[np.abs(gaps)]
        factors = np.where(gaps < 0, _P - factors, factors)[..., None]
        steps = (values[:, order:] + _P - values[:, order - 1 : -1]) % _P
        values[:, order:] = steps * factors % _P
    return values


def leading(points: Positions, shares: Limbs) -> Words:
    """The coefficient of the highest power, of each polynomial and limb; as the last of `newton`.

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
