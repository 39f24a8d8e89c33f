"""Many draws at once: the exact distribution, by χ² and moments; and of sums of shares."""

import math

import numpy as np
import pytest
from scipy import stats

from deltafl.protocol import noise as module
from deltafl.protocol.noise import MAX_DEVIATION, discrete_gaussians, uniforms_below
from deltafl.secagg.randomness import SeededRandomness


def seeded(number):
    return SeededRandomness(bytes([number]) * 32)


def exact(deviation, most):
    """The probabilities of -most … most."""
    values = np.arange(-most, most + 1)
    density = np.exp(-(values**2) / (2 * deviation**2))
    return values, density / density.sum()


def goodness_of_fit(drawn, values, chances):
    """The p-value of χ², over values that are expected five times or more."""
    counts = np.array([np.count_nonzero(drawn == value) for value in values])
    often = chances * drawn.size >= 5
    observed = np.append(counts[often], drawn.size - counts[often].sum())
    expected = np.append(chances[often], 1 - chances[often].sum()) * drawn.size
    return stats.chisquare(observed, expected).pvalue


@pytest.mark.parametrize("deviation", [1, 2, 3, 7])
def test_draws_are_discrete_gaussian(deviation):
    drawn = discrete_gaussians(deviation, 20_000, seeded(deviation))
    assert goodness_of_fit(drawn, *exact(deviation, 10 * deviation)) > 1e-3


@pytest.mark.parametrize("wrong", ["the next deviation", "rounded", "no sign rule for zero"])
def test_the_test_tells_other_distributions_apart(wrong):
    generator = np.random.default_rng(1)
    drawn = discrete_gaussians(1, 20_000, seeded(2))
    if wrong == "the next deviation":
        drawn = discrete_gaussians(2, 20_000, seeded(2))
    elif wrong == "rounded":
        drawn = np.rint(generator.normal(0, 1, 20_000)).astype(int)
    else:
        drawn = np.where(generator.random(20_000) < 0.05, 0, drawn)
    assert goodness_of_fit(drawn, *exact(1, 10)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("deviation", "num_shares"), [(2, 5), (3, 12)])
def test_a_million_sums_of_shares_are_discrete_gaussian(deviation, num_shares):
    total = np.zeros(1_000_000, dtype=np.int64)
    source = seeded(9)
    for _ in range(num_shares):
        total += discrete_gaussians(deviation, total.size, source)
    spread = deviation * math.sqrt(num_shares)
    assert goodness_of_fit(total, *exact(spread, math.ceil(10 * spread))) > 1e-3
    error = 5 / math.sqrt(total.size)  # in standard deviations of each moment
    assert abs(total.mean()) < error * spread
    assert abs(total.var() / spread**2 - 1) < error * math.sqrt(2)
    assert abs(np.mean(total**3) / spread**3) < error * math.sqrt(15)
    assert abs(np.mean(total**4) / spread**4 - 3) < error * math.sqrt(96)
    assert goodness_of_fit(total, *exact(1.01 * spread, math.ceil(10 * spread))) < 1e-6


def test_large_deviations_are_as_large_as_they_should_be():
    drawn = discrete_gaussians(MAX_DEVIATION, 4000, seeded(3)) / MAX_DEVIATION
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    assert stats.kstest(1.3 * drawn, "norm").pvalue < 1e-3


@pytest.mark.parametrize("limit", [2, 3, 100, 256, 257, 3 << 14, 3 << 40, 1 << 63])
def test_numbers_below_a_limit_are_uniform(limit):
    drawn = uniforms_below(limit, 4000, seeded(4))
    assert drawn.min() >= 0
    assert drawn.max() < limit
    bins = np.bincount([int(x) * min(limit, 16) // limit for x in drawn])
    expected = np.diff([-(-limit * i // min(limit, 16)) for i in range(min(limit, 16) + 1)]) / limit
    assert stats.chisquare(bins, 4000 * expected).pvalue > 1e-3


def test_no_draw_is_cut_short_by_what_was_drawn_before():
    """As many draws as were asked for, also of none."""
    assert discrete_gaussians(5, 0, seeded(5)).shape == (0,)
    assert uniforms_below(10, 3, seeded(5)).shape == (3,)
    assert uniforms_below(1, 3, seeded(5)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("num", "den"), [(0, 7), (7, 7), (14, 7), (3, 7), (20, 7)])
def test_coins_have_the_chance_of_an_exponential(num, den):
    held = module._bernoulli_exp(np.full(20_000, num), den, seeded(6)).sum()
    chance = math.exp(-num / den)
    assert abs(held - 20_000 * chance) <= 4 * math.sqrt(20_000 * chance * (1 - chance))
