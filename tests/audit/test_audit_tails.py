from fractions import Fraction
from math import comb, erfc, exp, factorial, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal import super_uniform, too_often

from deltafl.sim.inspect.audit import tails

RANDOM = np.random.default_rng(11)


def at_most(count, trials):
    """P(Bin(trials, 1/2) <= count), exact."""
    return Fraction(sum(comb(trials, k) for k in range(count + 1)), 2**trials)


@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_ones_are_the_exact_binomial_doubled(case):
    count, trials = case
    rarer = min(count, trials - count)
    expected = min(Fraction(1), 2 * at_most(rarer, trials))
    assert float(tails.ones(count, trials)) == pytest.approx(float(expected), rel=1e-10)


def test_ones_of_nothing_say_nothing():
    assert tails.ones(np.zeros(3), 0).tolist() == [1.0, 1.0, 1.0]


@given(st.integers(0, 600), st.integers(1, 200))
def test_heads_before_tails_are_the_exact_negative_binomial(heads, num_tails):
    expected = at_most(num_tails - 1, heads + num_tails - 1) if heads else Fraction(1)
    got = float(tails.heads_before_tails(heads, num_tails))
    assert got == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize(("count", "expected"), [(3, 0.001), (1, 0.0), (40, 10.0), (6, 4.9)])
def test_repetitions_are_the_poisson_tail(count, expected):
    below = sum(expected**k / factorial(k) for k in range(count))
    beyond = sum(exp(-expected) * expected**k / factorial(k) for k in range(count, count + 100))
    assert tails.repetitions(count, expected) == pytest.approx(beyond, rel=1e-9)
    assert exp(-expected) * below + beyond == pytest.approx(1)


def test_repetitions_claim_nothing_up_to_what_is_expected():
    assert tails.repetitions(0, 0.0) == tails.repetitions(10, 9.1) == 1.0


@pytest.mark.parametrize("cells", [16, 256])
def test_histograms_are_valid_at_the_fewest_counts_allowed(cells):
    total = tails.MIN_EXPECTED * cells
    drawn = RANDOM.multinomial(total, np.full(cells, 1 / cells), size=2000)
    assert super_uniform([tails.histogram(counts) for counts in drawn])


@pytest.mark.slow
@pytest.mark.parametrize(("cells", "spread"), [(16, 3.0), (256, 1.5)])
def test_histograms_are_valid_far_out_in_the_tail(cells, spread):
    """Importance sampling from a Dirichlet mixture: the probability of p <= 10^-6."""
    total, rate, draws = tails.MIN_EXPECTED * cells, 1e-6, 4000
    alpha = (total - spread) / (spread - 1) / cells
    drawn = np.stack(
        [RANDOM.multinomial(total, p) for p in RANDOM.dirichlet(np.full(cells, alpha), draws)]
    )
    gammaln = tails.special.gammaln
    log_mixture = (
        gammaln(alpha * cells)
        - gammaln(alpha * cells + total)
        + (gammaln(drawn + alpha) - gammaln(alpha)).sum(axis=1)
    )
    weights = np.exp(-total * np.log(cells) - log_mixture)
    hits = np.array([tails.histogram(counts) <= rate for counts in drawn])
    estimate = np.where(hits, weights, 0.0)
    assert hits.sum() > 500
    assert estimate.mean() + 4 * estimate.std() / draws**0.5 <= rate


def test_histograms_of_two_cells_are_the_normal_tail():
    """One degree of freedom: a chi-square is the square of a normal variable."""
    statistic = 2 * (400 * log(0.8) + 600 * log(1.2)) / (1 + 3 / 6000)
    expected = 2 * erfc((statistic / 2) ** 0.5)
    assert tails.histogram(np.array([400, 600])) == pytest.approx(expected)


def test_histograms_find_what_is_not_uniform():
    even = np.full(256, 1000)
    odd = even + 150 * (-1) ** np.arange(256)
    assert tails.histogram(even) == 1.0
    assert tails.histogram(odd) < 1e-9


def test_an_empty_cell_is_no_difficulty():
    counts = np.array([0, *[100] * 15])
    assert tails.histogram(counts) < 1e-9


def test_the_worst_of_many_pays_for_having_looked():
    counts = np.array([[3, 9], [4, 5]])
    place, value = tails.most(counts, 20, 0.25)
    assert (place, value) == (1, pytest.approx(4 * float(tails.at_least(9, 20, 0.25))))
    place, value = tails.least_even(counts, 10)
    assert (place, value) == (1, pytest.approx(4 * float(tails.ones(9, 10))))
    assert tails.least_even(np.array([9, 0]), 10)[0] == 1
    assert tails.most(np.array([0, 0]), 20, 0.25)[1] == 1


def test_counts_of_successes_are_exact():
    chances = [tails.at_least(k, 3, 0.25) for k in range(4)]
    assert np.allclose(chances, [1, 1 - 27 / 64, 10 / 64, 1 / 64])


def test_p_values_that_are_too_small_are_noticed():
    uniform = RANDOM.uniform(size=3000)
    assert super_uniform(uniform)
    assert not super_uniform(uniform / 2)
    assert too_often(np.full(10, 0.001), 0.001)
