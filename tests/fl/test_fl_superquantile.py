import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.fl.superquantile import conformity, parse_theta, superquantile, weighted_quantile

thetas = st.fractions(min_value=Fraction(1, 1000), max_value=1, max_denominator=1000)
samples = st.lists(
    # few distinct values, so that ties are common
    st.tuples(st.integers(-5, 5).map(lambda k: k / 4), st.integers(0, 6)),
    min_size=1,
    max_size=12,
).filter(lambda sample: any(weight for _, weight in sample))


def split(sample):
    values, weights = zip(*sample, strict=True)
    return list(values), list(weights)


@pytest.mark.slow
@given(samples, thetas.filter(lambda theta: theta < 1))
def test_quantile_equals_repeating_each_value_weight_times(sample, theta):
    values, weights = split(sample)
    repeated = sorted(v for v, w in sample for _ in range(w))
    index = max(math.ceil(len(repeated) * (1 - theta)), 1) - 1
    assert weighted_quantile(values, weights, theta) == repeated[index]


@pytest.mark.slow
@given(samples, thetas)
def test_quantile_is_the_least_value_with_enough_weight_at_or_below(sample, theta):
    values, weights = split(sample)
    enough = [
        x for x in values if sum(w for v, w in sample if v <= x) >= (1 - theta) * sum(weights)
    ]
    assert weighted_quantile(values, weights, theta) == min(enough)


@given(samples)
def test_theta_one_gives_the_minimum(sample):
    values, weights = split(sample)
    assert weighted_quantile(values, weights, Fraction(1)) == min(values)


def test_quantile_index_is_not_moved_by_floating_point():
    values = list(range(1, 101))
    assert weighted_quantile(values, [1] * 100, parse_theta(0.7)) == 30
    assert weighted_quantile(values, [1] * 100, Fraction(0.7)) == 31  # the double is below 7/10


def test_quantile_does_not_overflow():
    huge = np.array([2**62, 2**62, 2**62], dtype=np.int64)
    assert weighted_quantile([1.0, 2.0, 3.0], huge, Fraction(1, 2)) == 2.0


def dual_superquantile(values, weights, theta):
    """Equation (1): the largest mean over mixtures with pi_k <= alpha_k / theta, greedily."""
    total, left, best = sum(weights), Fraction(1), Fraction(0)
    for value, weight in sorted(zip(values, weights, strict=True), reverse=True):
        pi = min(Fraction(weight, total) / theta, left)
        best += pi * Fraction(value)
        left -= pi
    return best


def rockafellar_uryasev(eta, values, weights, theta):
    """Equation (2) at one eta."""
    excess = sum(w * max(Fraction(v) - eta, 0) for v, w in zip(values, weights, strict=True))
    return eta + excess / (theta * sum(weights))


@pytest.mark.slow
@given(samples, thetas)
def test_superquantile_equals_its_dual_and_its_minimum_over_eta(sample, theta):
    values, weights = split(sample)
    found = superquantile(values, weights, theta)
    assert found == float(dual_superquantile(values, weights, theta))
    # piecewise linear in eta with kinks at the values, so the minimum is at one of them
    candidates = [rockafellar_uryasev(Fraction(v), values, weights, theta) for v in values]
    assert found == float(min(candidates))
    eta = Fraction(weighted_quantile(values, weights, theta))
    if theta < 1:
        assert rockafellar_uryasev(eta, values, weights, theta) == min(candidates)


@pytest.mark.slow
@given(samples)
def test_superquantile_at_theta_one_is_the_weighted_mean(sample):
    values, weights = split(sample)
    assert superquantile(values, weights, Fraction(1)) == pytest.approx(
        np.average(values, weights=weights)
    )


def test_superquantile_of_the_tail_mean_needs_the_fractional_boundary():
    # the workshop paper's claim that "mean of values >= quantile" is exact is off by one device
    values, weights, theta = [1.0, 2.0, 3.0, 4.0], [1] * 4, Fraction(1, 2)
    eta = weighted_quantile(values, weights, theta)
    assert np.mean([v for v in values if v >= eta]) == 3.0
    assert superquantile(values, weights, theta) == 3.5


@pytest.mark.parametrize("function", [weighted_quantile, superquantile])
@pytest.mark.parametrize(
    ("values", "weights", "message"),
    [
        ([], [], "at least one number"),
        ([1.0, float("nan")], [1, 1], r"values\[1\]=nan"),
        ([1.0, float("inf")], [1, 1], r"values\[1\]=inf"),
        ([1.0, 2.0], [1, -1], r"weights\[1\]=-1 is negative"),
        ([1.0, 2.0], [0, 0], "all weights are zero"),
        ([1.0, 2.0], [1], "pass one each"),
        ([1.0, 2.0], [0.5, 0.5], "integers"),
    ],
)
def test_bad_samples_are_refused(function, values, weights, message):
    with pytest.raises(ValueError, match=message):
        function(values, weights, Fraction(1, 2))


@pytest.mark.parametrize("theta", [Fraction(0), Fraction(-1, 2), Fraction(3, 2)])
@pytest.mark.parametrize("function", [weighted_quantile, superquantile])
def test_bad_theta_is_refused(function, theta):
    with pytest.raises(ValueError, match=r"is not in \(0, 1\]"):
        function([1.0], [1], theta)


@pytest.mark.parametrize(
    ("given_theta", "expected"),
    [
        (0.8, Fraction(4, 5)),
        ("0.8", Fraction(4, 5)),
        ("1/3", Fraction(1, 3)),
        (Fraction(2, 7), Fraction(2, 7)),
        (1, Fraction(1)),
        (1e-3, Fraction(1, 1000)),
    ],
)
def test_theta_means_the_decimal_that_was_written(given_theta, expected):
    assert parse_theta(given_theta) == expected


@pytest.mark.parametrize("text", ["", "half", "1/0", float("nan"), float("inf"), 0, 1.5, -0.1])
def test_theta_that_is_no_level_is_refused(text):
    with pytest.raises(ValueError, match="theta="):
        parse_theta(text)


def test_conformity_is_one_for_the_population_and_less_for_others():
    assert conformity([0.25, 0.75], [0.25, 0.75]) == 1.0
    assert conformity([0.25, 0.75], [1.0, 0.0]) == 0.25
    assert conformity([0.5, 0.5, 0.0], [0.0, 0.5, 0.5]) == 0.0


@pytest.mark.slow
@given(st.lists(st.integers(1, 20), min_size=2, max_size=8), st.data())
def test_a_mixture_conforms_to_theta_iff_its_weights_are_capped(alpha_counts, data):
    size = len(alpha_counts)
    pi_counts = data.draw(st.lists(st.integers(0, 20), min_size=size, max_size=size).filter(any))
    alpha = [a / sum(alpha_counts) for a in alpha_counts]
    pi = [p / sum(pi_counts) for p in pi_counts]
    theta = conformity(alpha, pi)
    assert theta <= 1 + 1e-12
    assert all(p <= a / theta + 1e-12 for a, p in zip(alpha, pi, strict=True))


@pytest.mark.parametrize(
    ("alpha", "pi"),
    [([1.0], [0.5, 0.5]), ([0.5, 0.6], [0.5, 0.5]), ([0.5, 0.5], [1.5, -0.5]), ([], [])],
)
def test_conformity_refuses_what_is_no_mixture(alpha, pi):
    with pytest.raises(ValueError, match=r"non-negative weights|one per device"):
        conformity(alpha, pi)
