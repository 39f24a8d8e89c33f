"""Numbers to be drawn, against numbers that are computed by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import error_of, make_run

from deltafl.sim.view.look import Reader
from deltafl.sim.view.series import (
    baseline_of,
    bracket_curve,
    comparisons,
    curve,
    error_curves,
    event_curves,
    pairs,
    spread,
)


@pytest.fixture
def methods(tmp_path):
    make_run(tmp_path / "run")
    return Reader(tmp_path / "run").look().methods


def errors(method, seed, number):
    return np.array([error_of(method, seed, number, device) for device in range(8)])


def test_the_test_error_is_averaged_over_seeds_with_its_range(methods):
    tail = error_curves(methods, 90)
    mean = error_curves(methods, None)
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
    methods = Reader(tmp_path / "run").look().methods
    (found,) = error_curves(methods, None)
    assert found.rounds == (0, 2, 4)
    assert found.mean[-1] == pytest.approx(errors(0, 0, 4).mean())
    assert found.mean[1] == pytest.approx(np.mean([errors(0, s, 2).mean() for s in range(2)]))


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
    found = bracket_curve(method, 3)
    assert (found.rounds, found.mean, found.low, found.high) == ((1,), (2.0,), (1.5,), (2.5,))
    assert bracket_curve(SimpleNamespace(label="m", runs=[SimpleNamespace(events=[])]), 0) is None


def test_numbers_of_events_keep_the_number_of_their_method(methods):
    assert [one.number for one in event_curves(methods, "wall_s")] == [0, 1]
    assert event_curves(methods, "num_queries") == []


def test_a_distribution_counts_every_device_of_every_seed(methods):
    found = spread(methods[0], 0, 10)
    assert found.rounds == (0, 2, 4)
    assert np.allclose(found.shares.sum(axis=1), 1)
    everyone = np.concatenate([errors(0, seed, 4) for seed in range(2)])
    assert np.allclose(found.shares[-1], np.histogram(everyone, 10, (0, 1))[0] / 16)


def test_pairs_are_the_same_devices_under_both_methods(methods):
    found = pairs(methods[0], methods[1])
    ours = np.mean([errors(0, seed, 4) for seed in range(2)], axis=0)
    theirs = np.mean([errors(1, seed, 4) for seed in range(2)], axis=0)
    assert list(found.theirs) == sorted(theirs)
    for name, mine, his in zip(found.devices, found.ours, found.theirs, strict=True):
        device = int(name.removeprefix("device-"))
        assert (mine, his) == pytest.approx((ours[device], theirs[device]))
    assert found.helped == (ours < theirs).sum() > 0
    assert found.hurt == (ours > theirs).sum() > 0
    assert (found.round, found.seeds) == (4, 2)


def test_methods_on_other_devices_are_no_pair(tmp_path, methods):
    make_run(tmp_path / "other", names=[f"other-{number}" for number in range(8)])
    other = Reader(tmp_path / "other").look().methods
    assert pairs(methods[0], other[0]) is None
    with pytest.raises(ValueError, match="not the same"):
        comparisons([methods[0], other[1]], other[1], 90)


def test_devices_of_one_name_are_no_pair(tmp_path):
    make_run(tmp_path / "run", names=["twin"] * 8)
    methods = Reader(tmp_path / "run").look().methods
    assert pairs(methods[0], methods[1]) is None


def test_differences_are_those_of_the_statistics(methods):
    found = comparisons(methods, methods[1], None)
    assert [one.method for one in found] == ["delta-fl", "fedavg"]
    difference = np.mean([(errors(0, s, 4) - errors(1, s, 4)).mean() for s in range(2)])
    assert found[0].devices.difference == pytest.approx(difference)
    assert found[1].devices is None


def test_methods_that_have_not_come_as_far_are_not_compared(tmp_path):
    make_run(tmp_path / "run", played=[4, 4, 4, 2])
    methods = Reader(tmp_path / "run").look().methods
    with pytest.raises(ValueError, match="same seeds and last rounds"):
        comparisons(methods, methods[1], 90)


def test_methods_are_compared_with_fedavg_or_the_last_or_the_wanted_one(methods):
    assert baseline_of(methods).label == "fedavg"
    assert baseline_of(methods[::-1]).label == "fedavg"
    assert baseline_of(methods[:1]) is None
    assert baseline_of(methods, "delta-fl").label == "delta-fl"
    with pytest.raises(ValueError, match="not one of the methods: delta-fl, fedavg"):
        baseline_of(methods, "q-ffl")
