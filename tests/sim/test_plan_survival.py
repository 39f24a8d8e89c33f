"""The probability of losing too many devices is the binomial one."""

import pytest
from scipy.stats import binom

from deltafl.sim.plan.survival import fewer_stay


@pytest.mark.parametrize("num", [1, 7, 20, 1000])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_it_is_that_of_another_library(num, rate):
    for fewest in {0, 1, num // 2, num, num + 1}:
        expected = binom.cdf(fewest - 1, num, 1 - rate)
        assert fewer_stay(num, rate, fewest) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_nobody_vanishes_at_rate_zero():
    assert fewer_stay(5, 0.0, 5) == 0
    assert fewer_stay(5, 0.0, 6) == 1
