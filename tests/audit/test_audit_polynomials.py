"""Polynomials from shares: as they were dealt, whatever the points."""

import numpy as np
import pytest

from deltafl.secagg import shamir
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.polynomials import coefficients, evaluate, leading

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
