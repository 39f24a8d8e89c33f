"""The polynomials by which secrets were shared, from the shares that came.

t shares of a secret determine a polynomial of degree t − 1 for each of its limbs. If the device
that dealt them drew the coefficients at random, they are uniform modulo the prime. A polynomial of
lower degree needs fewer shares, and one whose coefficients are known needs a single one.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg import shamir
from deltafl.secagg.graph import Positions
from deltafl.secagg.messages import UnmaskShares
from deltafl.secagg.shamir import Limbs
from deltafl.sim.inspect.audit.randomness.strings import Rows

_P: Final = np.uint64(shamir.PRIME)
_UNUSED: Final = 32 - shamir.PRIME.bit_length()


def by_secret(came: Mapping[int, UnmaskShares]) -> Iterator[tuple[int, Positions, Limbs]]:
    """Sort the shares of a slot by secret.

    Args:
        came: By holder's roster position, what came from it; at least one.

    Yields:
        The roster position of the device that dealt the secret, the points of its m shares,
        ascending, and these shares, shape (m, 9).
    """
    messages = came.values()
    holders = np.repeat(list(came), [len(one.positions) for one in messages])
    shares = np.concatenate([one.shares for one in messages])
    secrets = np.concatenate([2 * one.positions.astype(np.int64) + one.kinds for one in messages])
    order = np.lexsort((holders, secrets))
    for alike in np.split(order, np.flatnonzero(np.diff(secrets[order])) + 1):
        if len(alike):
            yield int(secrets[alike[0]]) // 2, holders[alike] + 1, shares[alike]


def beyond(points: Positions, shares: Limbs, count: int) -> npt.NDArray[np.int64]:
    """By how much later shares differ from what the first `count` of them alone would give.

    If these are enough to rebuild the secret, by nothing. If they are one too few, the first
    difference is the leading coefficient times a number that follows from the points.

    Args:
        points: Distinct, in [1, 2^31 − 1), shape (m,), m > count.
        shares: The values there, shape (m, 9).
        count: At least 1.

    Returns:
        Differences modulo the prime, shape (m − count, 9).
    """
    weights = shamir.lagrange_at(points[:count], points[count:])
    expected = shamir.multiply(weights, shares[:count]).astype(np.int64)
    return (shares[count:] - expected) % shamir.PRIME


def coefficients(points: Positions, shares: Limbs) -> npt.NDArray[np.int64]:
    """The polynomial through some shares, by divided differences.

    Args:
        points: Distinct, in [1, 2^31 − 1), shape (t,).
        shares: The values there, shape (t, 9).

    Returns:
        Coefficients modulo the prime, the constant term first, shape (t, 9).
    """
    at, values = points.astype(np.uint64)[:, None], shares.astype(np.uint64)
    for order in range(1, len(at)):
        steps = (values[order:] + _P - values[order - 1 : -1]) % _P
        values[order:] = steps * shamir.inverse((at[order:] + _P - at[:-order]) % _P) % _P
    # Now they are the coefficients of Newton's form, which is multiplied out from the inside.
    for start in range(len(at) - 2, -1, -1):
        inner = values[start + 1 :] * (_P - at[start]) % _P
        values[start:-1] = (values[start:-1] + inner) % _P
    return values.astype(np.int64)


def packed(limbs: npt.NDArray[np.int64]) -> Rows:
    """The bits of field elements, of which all are random if the elements are.

    Args:
        limbs: Integers modulo the prime, shape (n, 9).

    Returns:
        Shape (n, 34).
    """
    octets = (limbs % shamir.PRIME).astype(">u4").view(np.uint8)
    digits = np.unpackbits(octets.reshape(*limbs.shape, 4), axis=2)
    every = np.packbits(digits[:, :, _UNUSED:].reshape(len(limbs), -1), axis=1)
    return every[:, : shamir.PRIME.bit_length() * shamir.NUM_LIMBS // 8]
