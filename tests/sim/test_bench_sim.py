import argparse
import importlib.util
import json
from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest
import torch
from running import is_running

from deltafl.fl.models import build_model
from deltafl.fl.parameters import load_vector, to_vector
from deltafl.sim.bench import sim
from deltafl.sim.bench.peers import party, plain, tasks
from deltafl.sim.bench.peers.party import Party, missing, tree, usage
from deltafl.sim.bench.peers.tasks import TASKS, Federation, make, resized
from deltafl.sim.bench.sim import (
    SimulationBenchmark,
    check_agreement,
    differences_from,
    measure,
)
from deltafl.sim.errors import RunError, UserError

installed = [peer for peer in ("flower", "pfl") if not missing(peer)]


def tiny(name, clients=2, samples=20):
    return resized(TASKS[name], clients=clients, samples=samples, seed=3)


def run(*words):
    parser = argparse.ArgumentParser()
    sim.add_arguments(parser)
    return sim.main(parser.parse_args(words))


@pytest.mark.parametrize("name", TASKS)
def test_made_up_samples_fit_the_model_and_depend_on_the_seed_alone(name):
    task = tiny(name)
    federation, again, other = make(task), make(task), make(replace(task, seed=4))
    assert federation.x.shape == (2, 20, *task.input_shape)
    assert federation.y.shape == (2, 20)
    assert 0 <= federation.y.min() <= federation.y.max() < task.num_classes
    for array in ("x", "y", "model"):
        np.testing.assert_array_equal(getattr(federation, array), getattr(again, array))
    assert not np.array_equal(federation.x, other.x)


def test_a_task_is_read_as_it_was_written(tmp_path):
    federation = make(tiny("gru"))
    federation.save(tmp_path)
    read = Federation.load(tmp_path)
    assert read.task == federation.task
    for array in ("x", "y", "model"):
        np.testing.assert_array_equal(getattr(read, array), getattr(federation, array))


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_textbook_models_are_the_functions_that_ours_are(name):
    task = tiny(name)
    federation = make(task)
    ours = build_model(
        task.model, input_shape=task.input_shape, num_classes=task.num_classes, seed=0
    )
    theirs = plain.build(task)
    vector = to_vector(ours) + np.float32(0.01)
    load_vector(ours, vector)
    plain.load(theirs, vector)
    np.testing.assert_array_equal(plain.flat(theirs), vector)
    x, _ = plain.tensors(federation, 1)
    with torch.no_grad():
        torch.testing.assert_close(theirs(x), ours(torch.tensor(federation.x[1])))


def test_a_loaded_model_does_not_share_memory_with_its_vector():
    theirs, vector = plain.build(tiny("linear")), np.ones(784 * 62, dtype=np.float32)
    plain.load(theirs, vector)
    with torch.no_grad():
        next(theirs.parameters()).zero_()
    assert vector.all()


@pytest.fixture(scope="module")
def measured():
    return measure(SimulationBenchmark(tiny("linear"), ["plain"], repeats=2, backend="reference"))


@pytest.mark.slow
def test_ours_and_the_plain_loop_are_measured_in_turns(measured):
    assert list(measured["parties"]) == ["ours", "plain"]
    assert measured["best_peer"] == "plain"
    for one in measured["parties"].values():
        assert len(one["round_s"]) == 2
        assert 0 < one["updates_per_s"]["lowest"] <= one["updates_per_s"]["highest"]
        assert one["differs_by"] < 1e-5  # rounding of float32
    seconds = [measured["parties"][name]["round_s"] for name in ("plain", "ours")]
    expected = sorted(peer / own for peer, own in zip(*seconds, strict=True))
    ratio = measured["parties"]["plain"]["ours_over"]
    assert f"torch {metadata.version('torch')}" in measured["made_of"]["plain"]
    assert [ratio["lowest"], ratio["highest"]] == pytest.approx(expected, rel=0.05)
    json.dumps(measured)


def test_memory_is_that_of_all_processes(measured):
    plain = measured["parties"]["plain"]
    assert plain["processes"] >= 2  # a parent and its workers
    assert plain["peak_rss_mb"] > 100  # torch alone takes more


@pytest.mark.parametrize("peer", installed)
@pytest.mark.slow
def test_other_peers_play_the_same_round(peer, tmp_path):
    federation = make(tiny("linear"))
    federation.save(tmp_path)
    with Party("ours", tmp_path, "reference") as ours, Party(peer, tmp_path) as other:
        models = {party.name: party.model() for party in (ours, other) if party.play() > 0}
    check_agreement(differences_from(models, federation.model))


def test_another_model_is_no_agreement():
    start = np.zeros(4, dtype=np.float32)
    ours = np.array([1, 0, 0, 0], dtype=np.float32)
    check_agreement(differences_from({"ours": ours, "peer": ours * np.float32(1.0001)}, start))
    for wrong in (ours[::-1], ours * 2, start, ours * np.float32(np.nan)):
        with pytest.raises(RunError, match="model of peer differs"):
            check_agreement(differences_from({"ours": ours, "peer": wrong}, start))


@pytest.mark.slow
def test_another_shuffle_is_no_agreement(monkeypatch):
    """A peer that trained on the same samples in another order is found out."""
    federation = make(tiny("linear", samples=30))
    models = {}
    for name, round_index in (("ours", 0), ("peer", 1)):
        module = plain.build(federation.task)
        plain.load(module, federation.model)
        optimizer = torch.optim.SGD(module.parameters(), lr=federation.task.learning_rate)
        x, y = plain.tensors(federation, 0)
        batches = plain.epoch(federation.task, x, y, round_index=round_index, client=0)
        plain.train(module, optimizer, batches)
        models[name] = plain.flat(module)
    with pytest.raises(RunError, match="do not play the same round"):
        check_agreement(differences_from(models, federation.model))


@pytest.mark.slow
def test_a_party_that_ends_says_why(tmp_path):
    with pytest.raises(RunError, match=r"plain has ended: .*task\.json"):
        Party("plain", tmp_path)


@pytest.mark.slow
def test_a_party_leaves_no_process_behind(tmp_path):
    make(tiny("linear", clients=1)).save(tmp_path)
    with Party("plain", tmp_path) as party:
        pids = tree(party._process.pid)
        assert len(pids) >= 2
        assert all(map(is_running, pids))
    assert not any(map(is_running, pids))


def test_usage_counts_this_process():
    import os

    mine = usage(os.getpid())
    assert mine.processes >= 1
    assert mine.peak_rss_mb > 10
    assert mine.cpu_s > 0


def test_a_peer_that_is_not_installed_is_named(monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        party.importlib.util, "find_spec", lambda name: None if name == "pfl" else real(name)
    )
    with pytest.raises(UserError, match=r"pfl needs pfl.*pip install '\.\[bench\]'"):
        sim._peers("plain,pfl")
    peers, absent = sim._peers(None)
    assert "pfl" not in peers
    assert absent["pfl"] == ["pfl"]
    assert "the others go on" in capsys.readouterr().err
    assert sim._peers("none") == ([], {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--peers", "plain,fast"], "'fast' is none of plain, plain-warm, flower, pfl"),
        (["--clients", "0"], "clients=0 must be at least 1"),
        (["--repeats", "0", "--peers", "none"], "repeats=0"),
        (["--seed", "-1"], "seed=-1"),
        (["--private", "--methods", "guess"], "'guess' is none of"),
        (["--private", "--theta", "2"], "theta"),
        (["--private", "--theta", "half"], "half"),
        (["--private", "--clients", "3", "--samples", "5"], ""),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(words, message, capsys):
    assert run("--task", "linear", *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("deltafl: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_the_command_prints_a_table(capsys):
    words = ["--clients", "2", "--samples", "20", "--repeats", "1"]
    assert run("--task", "linear", "--peers", "none", "--backend", "reference", *words) == 0
    out = capsys.readouterr().out
    assert "clients 2, samples 20" in out
    assert "FedAvg on the backend 'reference'" in out


def test_shuffles_differ_by_round_and_client():
    task = tasks.TASKS["cnn"]
    seeds = {task.shuffle_seed(r, k) for r in range(3) for k in range(3)}
    assert len(seeds) == 9
