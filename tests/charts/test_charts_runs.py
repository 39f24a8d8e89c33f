"""Curves of runs, against numbers that are computed by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import error_of, make_run

from deltafl.sim.charts.runs import chart_of, curve
from deltafl.sim.record.snapshot import Reader


@pytest.fixture
def methods(tmp_path):
    make_run(tmp_path / "run")
    return Reader(tmp_path / "run").read().methods


def errors(method, seed, number):
    return np.array([error_of(method, seed, number, device) for device in range(8)])


def test_the_test_error_is_averaged_over_seeds_with_its_range(methods):
    tail = chart_of("tail", methods).curves
    mean = chart_of("mean", methods).curves
    assert [one.rounds for one in tail] == [(0, 2, 4)] * 2
    for method in range(2):
        by_seed = [np.percentile(errors(method, seed, 4), 90) for seed in range(2)]
        assert tail[method].mean[-1] == pytest.approx(np.mean(by_seed))
        assert (tail[method].low[-1], tail[method].high[-1]) == (min(by_seed), max(by_seed))
        assert mean[method].mean[-1] == pytest.approx(
            np.mean([errors(method, seed, 4).mean() for seed in range(2)])
        )


def test_seeds_that_have_not_come_so_far_do_not_count(tmp_path):
    make_run(tmp_path / "run", played=[4, 2, None, None])
    methods = Reader(tmp_path / "run").read().methods
    (found,) = chart_of("mean", methods).curves
    assert found.rounds == (0, 2, 4)
    assert found.mean[-1] == pytest.approx(errors(0, 0, 4).mean())
    assert found.mean[1] == pytest.approx(np.mean([errors(0, s, 2).mean() for s in range(2)]))


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.integers(0, 50), st.floats(-1e6, 1e6), max_size=20), max_size=4))
def test_a_curve_lies_within_its_range(seeds):
    found = curve("x", 0, [table.items() for table in seeds])
    rounds = sorted(set().union(*seeds))
    assert (found is None) == (not rounds)
    if found is not None:
        assert found.rounds == tuple(rounds)
        for low, mean, high in zip(found.low, found.mean, found.high, strict=True):
            assert low - 1e-6 <= mean <= high + 1e-6


def test_the_bracket_is_that_of_the_first_seed():
    log = [{"round": 1, "eta": 2.0, "half_width": 0.5}, {"round": 2, "eta": None}]
    method = SimpleNamespace(label="m", runs=[SimpleNamespace(events=log)])
    (found,) = chart_of("threshold", [method]).curves
    assert (found.rounds, found.mean, found.low, found.high) == ((1,), (2.0,), (1.5,), (2.5,))
    method = SimpleNamespace(label="m", runs=[SimpleNamespace(events=[])])
    assert chart_of("threshold", [method]).curves == []


def test_numbers_of_events_keep_the_number_of_their_method(methods):
    assert [one.number for one in chart_of("seconds", methods).curves] == [0, 1]
    assert chart_of("queries", methods).curves == []
