"""Polynomials from shares: as they were dealt, whatever the points."""

import numpy as np
import pytest

from deltafl.secagg import shamir
from deltafl.secagg.messages import UnmaskShares
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.randomness.polynomials import (
    beyond,
    by_secret,
    coefficients,
    packed,
)

SOURCE = SeededRandomness(b"polynomials".ljust(32))


def shared(points, threshold):
    """A secret, its points and its shares."""
    secret = SOURCE(32)
    return secret, np.array(points), shamir.split([secret], points, threshold, SOURCE)[:, 0]


@pytest.mark.parametrize("points", [[1, 2, 3, 4, 5], [9, 2, 77, 5, 31]])
def test_polynomials_are_those_that_were_dealt(points):
    secret, at, shares = shared(points, 4)
    found = coefficients(at[:4], shares[:4])
    assert (found[0] == shamir.to_limbs([secret])[0]).all()
    for point, share in zip(points, shares, strict=True):
        values = [
            sum(c * point**power for power, c in enumerate(limb)) % shamir.PRIME
            for limb in found.T.tolist()
        ]
        assert values == share.tolist()
    assert not beyond(at, shares, 4).any()


def test_one_share_fewer_differs_by_the_leading_coefficient():
    _, at, shares = shared([3, 1, 8, 6], 4)
    (last,) = beyond(at, shares, 3).tolist()
    factor = (6 - 3) * (6 - 1) * (6 - 8)
    leading = coefficients(at, shares)[3].tolist()
    assert last == [factor * one % shamir.PRIME for one in leading]


def test_a_lower_degree_shows():
    _, at, shares = shared([3, 1, 8, 6], 2)
    found = coefficients(at, shares)
    assert found[:2].all()
    assert not found[2:].any()
    assert not beyond(at, shares, 3).any()


def test_a_share_that_does_not_fit_shows():
    _, at, shares = shared(range(1, 8), 4)
    shares[6, 0] ^= 1
    assert np.flatnonzero(beyond(at, shares, 4).any(axis=1)).tolist() == [2]


def test_shares_are_sorted_by_secret():
    holders = (4, 0, 2)
    every = shamir.split([SOURCE(32) for _ in range(3)], [h + 1 for h in holders], 2, SOURCE)
    owners, kinds = np.array([2, 3, 5], np.uint32), np.array([0, 1, 0], np.uint8)
    came = {h: UnmaskShares(0, owners, kinds, every[at]) for at, h in enumerate(holders)}
    came[0] = UnmaskShares(0, owners[:1], kinds[:1], every[1, :1])
    found = [(owner, points.tolist()) for owner, points, _ in by_secret(came)]
    assert found == [(2, [1, 3, 5]), (3, [3, 5]), (5, [3, 5])]
    (_, _, shares), *_ = by_secret(came)
    assert (shares == every[[1, 2, 0], 0]).all()
    empty = UnmaskShares(0, owners[:0], kinds[:0], every[0, :0])
    assert list(by_secret({3: empty})) == []


def test_bits_of_field_elements_are_packed():
    limbs = np.array([[1 << 30, 1, *[0] * 7], [shamir.PRIME - 1] * 9])
    first, other = packed(limbs)
    assert first.tolist() == [0x80, 0, 0, 0, 0, 0, 0, 0b100, *[0] * 26]
    assert int(np.bitwise_count(other).sum()) == 34 * 8 - 8
