"""Distributions and pairs of methods, against numbers that are computed by hand."""

import numpy as np
import pytest
from made_runs import error_of, make_run
from records import evaluate, note

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.snapshot import Reader
from deltafl.sim.view.pairs import baseline_of, comparisons, distribution, pairs
from deltafl.sim.view.sections import Page, compared, paired


@pytest.fixture
def methods(tmp_path):
    make_run(tmp_path / "run")
    return Reader(tmp_path / "run").read().methods


def errors(method, seed, number):
    return np.array([error_of(method, seed, number, device) for device in range(8)])


def test_a_distribution_counts_every_device_of_every_seed(methods):
    found = distribution(methods[0], 0, 10)
    assert found.rounds == (0, 2, 4)
    assert np.allclose(found.shares.sum(axis=1), 1)
    everyone = np.concatenate([errors(0, seed, 4) for seed in range(2)])
    assert np.allclose(found.shares[-1], np.histogram(everyone, 10, (0, 1))[0] / 16)


def test_pairs_are_the_same_devices_under_both_methods(methods):
    found = pairs(methods[0], methods[1])
    ours = np.mean([errors(0, seed, 4) for seed in range(2)], axis=0)
    theirs = np.mean([errors(1, seed, 4) for seed in range(2)], axis=0)
    assert found.ours == pytest.approx(ours)
    assert found.theirs == pytest.approx(theirs)
    assert found.helped == (ours < theirs).sum() > 0
    assert found.hurt == (ours > theirs).sum() > 0
    assert (found.round, found.seeds) == (4, 2)
    assert found.worst is None  # of eight devices, nobody is a tenth


def noise(folder, seeds, gain=0.0):
    """Two methods that are equal but for chance, or for a gain of the worst-served fifth."""
    make_run(folder, seeds=seeds, finished=True)
    truth = np.random.default_rng(0).uniform(0.1, 0.5, 60)
    for number, run in enumerate(Reader(folder).read().runs):
        drawn = np.random.default_rng([1, number]).binomial(40, truth) / 40
        lower = gain * (truth >= np.sort(truth)[-12]) * (number < seeds)
        devices = [
            DeviceMetrics(f"device-{at}", 40, 1.0, float(error))
            for at, error in enumerate(np.clip(drawn - lower, 0, 1))
        ]
        evaluate(run.path, Evaluation(4, devices, devices))
    return Reader(folder).read().methods


def test_chance_is_no_gain_of_the_worst_served_and_a_gain_is(tmp_path):
    found = pairs(*noise(tmp_path / "null", 4))
    mean, low, high = found.worst
    assert low < 0 < high
    ours, theirs = found.ranked
    assert abs((ours - theirs)[-12:].mean()) < 0.03
    # control: by the errors that are measured, the worst served seem to gain
    naive = np.argsort(found.theirs)[-6:]
    assert (found.ours - found.theirs)[naive].mean() < mean - 0.02
    assert pairs(*noise(tmp_path / "gain", 4, gain=0.2)).worst[2] < 0


def test_one_seed_does_not_tell_who_is_helped(tmp_path):
    assert pairs(*noise(tmp_path / "one", 1)) is None
    page = Page([Reader(tmp_path / "one").read()])
    assert "cannot be told from who was unlucky" in paired(page)["problem"]
    assert paired(page)["found"] == []


def test_methods_on_other_devices_are_no_pair(tmp_path, methods):
    make_run(tmp_path / "other", names=[f"other-{number}" for number in range(8)])
    other = Reader(tmp_path / "other").read().methods
    assert pairs(methods[0], other[0]) is None
    with pytest.raises(ValueError, match="not the same"):
        comparisons([methods[0], other[1]], other[1], 90)


@pytest.mark.parametrize("unlike", ["split", "data"])
def test_runs_on_another_split_or_other_data_are_no_pair(tmp_path, methods, unlike):
    """Of samples that are split anew, the devices keep their names."""
    split = {"data": {"source": "digits", "num_devices": 12, "split_seed": 1}}
    make_run(tmp_path / "other", finished=True, **(split if unlike == "split" else {}))
    if unlike == "data":
        note(tmp_path / "other", "versions", {"data_sha256": "11"})
    other = Reader(tmp_path / "other").read().methods
    assert pairs(*other) is not None
    assert pairs(methods[0], other[1]) is None
    with pytest.raises(ValueError, match=rf"seed 1: their .*{unlike}.* are not the same"):
        comparisons([methods[0], other[1]], other[1], 90)


def test_pairs_are_of_the_latest_round_that_two_seeds_have(tmp_path):
    make_run(tmp_path / "run", played=[4, 2, 4, 2])
    found = pairs(*Reader(tmp_path / "run").read().methods)
    assert (found.round, found.seeds) == (2, 2)
    make_run(tmp_path / "three", seeds=3, played=[4, 4, 2, 4, 4, 2])
    found = pairs(*Reader(tmp_path / "three").read().methods)
    assert (found.round, found.seeds) == (4, 2)


def test_devices_of_one_name_are_no_pair(tmp_path):
    make_run(tmp_path / "run", names=["twin"] * 8)
    methods = Reader(tmp_path / "run").read().methods
    assert pairs(methods[0], methods[1]) is None


def test_differences_are_those_of_the_statistics(methods):
    found = comparisons(methods, methods[1], None)
    assert [one.method for one in found] == ["delta-fl, θ = 0.5", "fedavg"]
    difference = np.mean([(errors(0, s, 4) - errors(1, s, 4)).mean() for s in range(2)])
    assert found[0].devices.difference == pytest.approx(difference)
    assert found[1].devices is None


def test_methods_that_have_not_come_as_far_are_not_compared(tmp_path):
    make_run(tmp_path / "run", played=[4, 4, 4, 2])
    methods = Reader(tmp_path / "run").read().methods
    with pytest.raises(ValueError, match="same seeds and last rounds"):
        comparisons(methods, methods[1], 90)


def test_methods_are_compared_with_fedavg_or_the_last_or_the_wanted_one(methods):
    assert baseline_of(methods).label == "fedavg"
    assert baseline_of(methods[::-1]).label == "fedavg"
    assert baseline_of(methods[:1]) is None
    assert baseline_of(methods, "delta-fl, θ = 0.5").label == "delta-fl, θ = 0.5"
    assert baseline_of([methods[1], methods[1], methods[0]]) is methods[0]  # which FedAvg?
    with pytest.raises(ValueError, match=r"not one of the methods: delta-fl, θ = 0\.5, fedavg"):
        baseline_of(methods, "q-ffl")


def test_differences_are_tested_once_and_at_the_end(tmp_path):
    """Whoever tests after every round finds something sooner or later."""
    make_run(tmp_path / "run")
    found = compared(Page([Reader(tmp_path / "run").read()]))
    assert found["tables"] == ()
    assert "when all runs are finished" in found["problem"]
    make_run(tmp_path / "done", finished=True)
    reader = Reader(tmp_path / "done")
    first, again = (compared(Page([reader.read()]))["tables"] for _ in range(2))
    assert first[0]["rows"] is again[0]["rows"]  # not computed for every page
