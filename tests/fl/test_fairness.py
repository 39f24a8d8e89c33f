"""How evenly a model serves its devices: the numbers of the fairness tables."""

import itertools
import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.metrics import gini, summarise_fairness

accuracies = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1, width=32))
sizes = st.integers(1, 500)
devices = st.lists(st.builds(DeviceMetrics, st.just("d"), sizes, st.just(0.0), st.floats(0, 1)))


def device(error, num_samples=1):
    return DeviceMetrics("d", num_samples, 0.0, error)


def mean_difference(values):
    """The Gini coefficient by its other definition, over all pairs."""
    return np.abs(np.subtract.outer(values, values)).mean() / 2 / values.mean()


@given(accuracies)
def test_gini_is_half_the_relative_mean_difference(values):
    assume(values.max() > 1e-6)
    assert gini(values) == pytest.approx(mean_difference(values), abs=1e-9)


@given(accuracies)
def test_gini_is_at_least_0_and_at_most_1_less_1_over_n(values):
    assert 0 <= gini(values) <= 1 - 1 / len(values) + 1e-12


@given(st.floats(0, 1), st.integers(1, 30))
def test_gini_of_equal_values_is_0(value, size):
    assert gini([value] * size) == pytest.approx(0, abs=1e-15)


@pytest.mark.slow
@given(accuracies, st.floats(1e-3, 1e3))
def test_gini_has_no_unit(values, scale):
    assert gini(values * scale) == pytest.approx(gini(values), abs=1e-9)


@pytest.mark.slow
@given(accuracies, st.data())
def test_a_transfer_from_the_better_to_the_worse_lowers_gini(values, data):
    rich, poor = int(values.argmax()), int(values.argmin())
    assume(values[rich] - values[poor] > 1e-3)
    gift = (values[rich] - values[poor]) * data.draw(st.floats(0.01, 0.5))
    after = values.copy()
    after[rich] -= gift
    after[poor] += gift
    assert gini(after) < gini(values)
    # and the way back raises it, so the statement is not empty
    assert gini(values) > gini(after)


def test_a_transfer_to_the_better_raises_gini():
    assert gini([0.4, 0.6]) < gini([0.3, 0.7])


def test_gini_survives_extreme_scales():
    assert gini([1e308, 1e308, 0.0]) == pytest.approx(1 / 3)
    assert gini([5e-324, 0.0]) == pytest.approx(1 / 2)


@pytest.mark.parametrize("values", [[], [[0.5]], [-0.1, 0.5], [math.nan], [math.inf, 1.0]])
def test_gini_refuses_what_it_is_not_defined_for(values):
    with pytest.raises(ValueError, match="values"):
        gini(values)


def test_where_nobody_is_served_everybody_is_served_alike():
    summary = summarise_fairness([device(1.0), device(1.0)])
    assert (summary.gini, summary.gap, summary.average) == (0, 0, 0)


def test_the_tenths_are_weighted_by_test_samples():
    errors = [0.9, 0.8] + [0.5] * 17 + [0.1]
    weights = [300, 100] + [10] * 17 + [50]
    population = [device(*pair) for pair in zip(errors, weights, strict=True)]
    summary = summarise_fairness(population)
    assert summary.worst_tenth == pytest.approx((300 * 0.1 + 100 * 0.2) / 400)
    assert summary.best_tenth == pytest.approx((50 * 0.9 + 10 * 0.5) / 60)
    assert summary.average == pytest.approx((30 + 20 + 85 + 45) / 620)
    assert summary.worst == pytest.approx(0.1)
    assert summary.gap == pytest.approx(0.8)


@pytest.mark.parametrize(("number", "tenth"), [(1, 1), (9, 1), (19, 1), (20, 2), (39, 3)])
def test_a_tenth_is_rounded_down_but_never_nobody(number, tenth):
    errors = [index / number for index in range(number)]
    summary = summarise_fairness([device(error) for error in errors])
    assert summary.worst_tenth == pytest.approx(1 - np.mean(errors[-tenth:]))


@pytest.mark.slow
@given(devices, st.randoms(use_true_random=False))
def test_the_order_of_the_devices_does_not_matter(population, random):
    assume(population)
    shuffled = random.sample(population, len(population))
    here = astuple(summarise_fairness(population))
    assert astuple(summarise_fairness(shuffled)) == here


def test_the_smaller_of_equals_is_the_worse():
    equals = [device(0.5, 1), device(0.5, 100)]
    for two in (equals, equals[::-1]):  # one of them is in the worst tenth of 20
        population = [device(0.9, 1), *two, *[device(0.1, 1)] * 17]
        assert summarise_fairness(population).worst_tenth == pytest.approx((0.1 + 0.5) / 2)


@pytest.mark.slow
@given(devices)
def test_the_numbers_are_ordered(population):
    assume(population)
    found = summarise_fairness(population)
    best = found.worst + found.gap
    order = [found.worst, found.worst_tenth, found.average, found.best_tenth, best]
    assert all(low <= high + 1e-12 for low, high in itertools.pairwise(order))


@pytest.mark.parametrize(
    ("population", "message"),
    [
        ([], "no devices"),
        ([device(1.5)], r"error=1.5 .* not in \[0, 1\]"),
        ([device(math.nan)], "error=nan"),
        ([device(0.5, 0)], "num_samples=0"),
    ],
)
def test_devices_that_can_not_be_summarised_are_refused(population, message):
    with pytest.raises(ValueError, match=message):
        summarise_fairness(population)
