"""Polynomials from shares: as they were dealt, whatever the points."""

import numpy as np
import pytest

from deltafl.secagg import shamir
from deltafl.secagg.messages import UnmaskShares
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.randomness import polynomials
from deltafl.sim.inspect.audit.randomness.polynomials import (
    alike,
    coefficients,
    dealt,
    evaluate,
    examine,
    leading,
)

SOURCE = SeededRandomness(b"polynomials".ljust(32))


@pytest.mark.parametrize("points", [[1, 2, 3, 4, 5], [9, 2, 77, 5, 31]])
def test_polynomials_are_those_that_were_dealt(points):
    secrets = [SOURCE(32) for _ in range(6)]
    shares = shamir.split(secrets, points, 4, SOURCE).transpose(1, 0, 2)
    at = np.tile(np.array(points[:4]), (6, 1))
    found = coefficients(at, shares[:, :4])
    assert (found[:, 0] == shamir.to_limbs(secrets)).all()
    assert (leading(at, shares[:, :4]) == found[:, -1]).all()
    for column, point in enumerate(points):
        assert (evaluate(found, np.full(6, point)) == shares[:, column]).all()


def test_a_lower_degree_shows():
    shares = shamir.split([SOURCE(32)], [3, 1, 8, 6], 2, SOURCE).transpose(1, 0, 2)
    at = np.array([[3, 1, 8, 6]])
    found = coefficients(at, shares)
    assert found[:, 1].all()
    assert not found[:, 2:].any()
    assert not leading(at, shares).any()


HOLDERS, THRESHOLD = range(7), 4


def shares_of(threshold=THRESHOLD, change=None):
    """What seven holders gave of the seeds of devices 2, 3 and 5."""
    secrets = [SOURCE(32) for _ in range(3)]
    every = shamir.split(secrets, [holder + 1 for holder in HOLDERS], threshold, SOURCE)
    if change is not None:
        change(every)
    positions, kinds = np.array([2, 3, 5], np.uint32), np.zeros(3, np.uint8)
    came = [(h, UnmaskShares(0, positions, kinds, every[h])) for h in HOLDERS]
    return dealt(came, THRESHOLD)


def found_in(slot):
    """The tests that honest shares do not explain, and whose shares do not fit."""
    results, wrong, _ = examine(slot)
    return {result.test for result in results if result.value < 1e-9}, wrong


def test_shares_are_sorted_by_secret():
    slot = shares_of()
    assert slot.owners.tolist() == [2, 3, 5]
    assert slot.points.tolist() == [[1, 2, 3, 4]] * 3
    assert slot.others.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert slot.other_points.tolist() == [5, 6, 7] * 3
    few = dealt([(0, UnmaskShares(0, slot.owners, slot.owners * 0, slot.shares[:, 0]))], 2)
    assert few.owners.size == few.others.size == 0


def test_honest_shares_pass():
    assert found_in(shares_of()) == (set(), ())


@pytest.mark.parametrize("most", [1 << 23, 1])
def test_a_lower_degree_is_found(most, monkeypatch):
    monkeypatch.setattr(polynomials, "MAX_NUMBERS", most)
    found, _ = found_in(shares_of(threshold=2))
    assert "leading coefficients are zero" in found


def test_a_share_that_does_not_fit_is_its_secret_s():
    def change(every):
        every[6, 1, 0] ^= 1

    assert found_in(shares_of(change=change)) == (set(), (3,))


def test_polynomials_that_are_used_again_are_found():
    drawn = np.random.default_rng(0).integers(0, shamir.PRIME, (5, 3, 9), dtype=np.uint64)
    assert alike(drawn).value > 1e-3
    drawn[4, 2] = drawn[0, 1]
    assert alike(drawn).value < 1e-9
