import argparse
import contextlib
import importlib.util
import json
import os
import threading
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from multiprocessing import Pipe

import numpy as np
import pytest
import torch
from running import is_running

from deltafl.fl.parameters import load_vector, to_vector
from deltafl.sim.bench import sim, sim_flags
from deltafl.sim.bench.peers import ours, plain
from deltafl.sim.bench.peers.party import Conversation, Party, tree, usage
from deltafl.sim.bench.peers.tasks import TASKS
from deltafl.sim.bench.sim import (
    PEERS,
    check_agreement,
    differences_from,
    measure,
)
from deltafl.sim.bench.sim_flags import SimulationBenchmark
from deltafl.sim.errors import RunError, UserError


def tiny(name, clients=2, samples=20):
    return replace(TASKS[name], clients=clients, samples=samples, seed=3)


def run(*words):
    parser = argparse.ArgumentParser()
    sim_flags.add_arguments(parser)
    return sim_flags.main(parser.parse_args(words))


@pytest.mark.parametrize("name", TASKS)
def test_made_up_samples_fit_the_model_and_depend_on_the_seed_alone(name):
    task = tiny(name)
    made, again, other = (one.samples_of(1) for one in (task, task, replace(task, seed=4)))
    assert made.x.shape == (20, *task.input_shape)
    assert made.y.shape == (20,)
    assert 0 <= made.y.min() <= made.y.max() < task.num_classes
    for array in ("x", "y"):
        np.testing.assert_array_equal(getattr(made, array), getattr(again, array))
    np.testing.assert_array_equal(task.first_model(), task.first_model())
    assert not np.array_equal(made.x, other.x)
    assert not np.array_equal(made.x, task.samples_of(0).x)


@pytest.mark.parametrize("name", TASKS)
def test_textbook_models_are_the_functions_that_ours_are(name):
    task = tiny(name)
    ours, theirs = task.spec.build(), plain.build(task)
    vector = to_vector(ours) + np.float32(0.01)
    load_vector(ours, vector)
    load_vector(theirs, vector)
    x, _ = plain.tensors(task, 1)
    with torch.no_grad():
        torch.testing.assert_close(theirs(x), ours(torch.tensor(task.samples_of(1).inputs())))


def in_a_thread(target, *arguments):
    """As `party.start`, without a process of its own."""
    ours, theirs = Pipe()

    def live():
        with contextlib.suppress(EOFError):
            target(theirs, *arguments)

    thread = threading.Thread(target=live)
    thread.start()
    return thread, ours


@pytest.mark.parametrize("options", [(), ("warm",)])
def test_the_textbooks_round_is_the_mean_of_its_clients(options, monkeypatch):
    task, workers = tiny("linear", clients=3), []

    def started(*arguments):
        workers.append(in_a_thread(*arguments))
        return workers[-1]

    monkeypatch.setattr(plain, "start", started)
    monkeypatch.setattr(plain, "usable_cores", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # they are this process's here
    start, module = task.first_model(), plain.build(task)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.learning_rate)
    party, pipe = in_a_thread(
        lambda end: plain.main(Conversation(end), task, start, *options),
    )
    assert "processes of one thread: 2" in pipe.recv()
    expected = start
    for round_index in range(2):
        trained = []
        for client in range(3):
            load_vector(module, expected)
            batches = plain.epoch(
                task, *plain.tensors(task, client), round_index=round_index, client=client
            )
            plain.train(module, optimizer, batches)
            trained.append(to_vector(module).astype(float))
        expected = np.mean(trained, axis=0).astype(np.float32)
        pipe.send("round")
        assert pipe.recv() > 0
        pipe.send("model")
        np.testing.assert_allclose(pipe.recv(), expected, rtol=1e-6, atol=1e-8)
    for thread, end in ((party, pipe), *workers):
        end.close()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def measured():
    return measure(
        SimulationBenchmark("linear", "reference", ["plain"], clients=2, samples=20, repeats=2)
    )


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


@pytest.mark.slow
def test_memory_is_that_of_all_processes(measured):
    plain = measured["parties"]["plain"]
    assert plain["processes"] >= 2  # a parent and its workers
    assert plain["peak_rss_mb"] > 100  # torch alone takes more


@pytest.mark.parametrize("peer", [name for name, peer in PEERS.items() if not peer.missing()])
@pytest.mark.slow
def test_other_peers_play_the_same_round(peer):
    task = tiny("linear")
    start, (program, _, options, _) = task.first_model(), PEERS[peer]
    with (
        closing(Party("ours", ours.main, task, start, "reference")) as own,
        closing(Party("peer", program, task, start, *options)) as other,
    ):
        for _ in range(2):
            models = {party.name: party.model() for party in (own, other) if party.play() > 0}
            check_agreement(differences_from(models, start))


def test_another_model_is_no_agreement():
    start = np.zeros(4, dtype=np.float32)
    ours = np.array([1, 0, 0, 0], dtype=np.float32)
    check_agreement(differences_from({"ours": ours, "peer": ours * np.float32(1.0001)}, start))
    for wrong in (ours[::-1], ours * 2, start, ours * np.float32(np.nan)):
        with pytest.raises(RunError, match="model of peer differs"):
            check_agreement(differences_from({"ours": ours, "peer": wrong}, start))


def test_another_shuffle_is_no_agreement():
    """A peer that trained on the same samples in another order is found out."""
    task = tiny("linear", samples=30)
    start, models = task.first_model(), {}
    for name, round_index in (("ours", 0), ("peer", 1)):
        module = plain.build(task)
        load_vector(module, start)
        optimizer = torch.optim.SGD(module.parameters(), lr=task.learning_rate)
        x, y = plain.tensors(task, 0)
        batches = plain.epoch(task, x, y, round_index=round_index, client=0)
        plain.train(module, optimizer, batches)
        models[name] = to_vector(module)
    with pytest.raises(RunError, match="do not play the same round"):
        check_agreement(differences_from(models, start))


def test_a_party_that_ends_says_why():
    start = np.zeros(1, dtype=np.float32)
    with pytest.raises(RunError, match=r"first has ended: .*guess"):
        Party("first", ours.main, replace(tiny("linear"), model="guess"), start, "reference")


def test_a_party_leaves_no_process_behind():
    task = tiny("linear", clients=1)
    with closing(Party("plain", plain.main, task, task.first_model())) as party:
        pids = tree(party._process.pid)
        assert len(pids) >= 2
        assert all(map(is_running, pids))
    assert not any(map(is_running, pids))


def test_usage_counts_this_process():
    mine = usage(os.getpid())
    assert mine.processes >= 1
    assert mine.peak_rss_mb > 10
    assert mine.cpu_s > 0


def test_a_peer_that_is_not_installed_is_named(monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pfl" else real(name)
    )
    with pytest.raises(UserError, match=r"pfl needs pfl.*pip install '\.\[bench\]'"):
        sim.peers_of(["plain", "pfl"])
    peers, absent = sim.peers_of(None)
    assert "pfl" not in peers
    assert absent["pfl"] == ["pfl"]
    assert "the others go on" in capsys.readouterr().err
    assert sim.peers_of(["none"]) == ([], {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--peers", "plain,fast"], "'fast' is none of plain, plain-warm, flower, pfl"),
        (["--private", "--methods", "guess"], "unknown quantile method 'guess'"),
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


def test_the_command_prints_a_table(capsys):
    words = ["--clients", "2", "--samples", "20", "--repeats", "1"]
    assert run("--task", "linear", "--peers", "none", "--backend", "reference", *words) == 0
    out = capsys.readouterr().out
    assert "clients 2, samples 20" in out
    assert "FedAvg on the backend 'reference'" in out


def test_shuffles_differ_by_round_and_client():
    task = TASKS["cnn"]
    seeds = {task.shuffle_seed(r, k) for r in range(3) for k in range(3)}
    assert len(seeds) == 9
