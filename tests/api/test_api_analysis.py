"""`deltafl.analyse`: what the command does, for values that a program has."""

import numpy as np
import pytest

import deltafl as dfl
from deltafl.secagg import ThreatModel
from deltafl.sim.errors import UserError

VALUES = {f"person {i}": np.arange(i, i + 3) for i in range(12)}


def test_a_mean_is_that_of_numpy():
    answer = dfl.analyse(VALUES, "mean", 0, 20)
    assert answer.value == np.mean(list(VALUES.values()))
    assert (answer.devices, answer.secure_sums) == (12, 2)


def test_levels_and_noise_are_the_decimals_that_they_print_as():
    answer = dfl.analyse(VALUES, "quantile", 0, 20, level=0.9)
    exact = np.quantile(list(VALUES.values()), 0.9, method="inverted_cdf")
    assert abs(answer.value - exact) <= answer.plus_minus
    noisy = dfl.analyse(VALUES, "count", 0, 20, noise=0.1, min_cohort=5)
    assert noisy.epsilon > 0


def test_a_device_without_values_is_no_holder():
    answer = dfl.analyse({**VALUES, "nobody": []}, "count", 0, 20)
    assert (answer.value, answer.holders, answer.invited) == (36, 12, 13)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="'person 3' has a value"):
        dfl.analyse({**VALUES, "person 3": [1.0, bad]}, "mean", 0, 20)


def test_a_guard_that_nobody_meets_is_refused():
    with pytest.raises(UserError, match="12 devices are fewer"):
        dfl.analyse(VALUES, "mean", 0, 20, min_cohort=13, threat=ThreatModel(0.0, 0.0))


@pytest.mark.parametrize(
    "bad",
    [
        np.ma.masked_array([1.0, 9.0], [0, 1]),
        np.array(["2020-01-01"], "datetime64[D]"),
        ["1", "2"],
        [1j],
    ],
)
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match=r"'person 3' has .*(masked|no numbers)"):
        dfl.analyse({**VALUES, "person 3": bad}, "mean", 0, 20)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"cap": 2.5}, "cap 2.5"),
        ({"bins": True}, "bins True"),
        ({"min_cohort": 1}, "min_cohort 1"),
        ({"level": "half"}, "'half'"),
        ({"noise": None}, "None"),
    ],
)
def test_arguments_of_another_kind_are_refused(wrong, named):
    with pytest.raises(UserError, match=named):
        dfl.analyse(VALUES, "mean", 0, 20, **wrong)
