"""Whole runs by worker processes, and processes that end when they should."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles import Silent
from hypothesis import given, settings
from hypothesis import strategies as st
from records import checkpoint_of, events_of, note, said_of
from running import is_running

from deltafl.fl.local import LocalTraining
from deltafl.secagg.session import NoObserver
from deltafl.sim.cohort.backends.base import SampleReference
from deltafl.sim.cohort.backends.choice import Choice, open_backend
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.cohort.simulated import SimulatedCohort
from deltafl.sim.cohort.work import BackendDevices
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.record.memory import peak_memory_of_workers_mb
from deltafl.sim.run.algorithms import build_rounds, strategy_of
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.run.simulated import spec_of
from deltafl.sim.settings.config_io import build_config

TRAINING = LocalTraining(0.3, batch_size=8)

pytestmark = pytest.mark.usefixtures("no_figures")

PRIVATE = {
    "data": {"num_devices": 24},
    "federation": {
        "algorithm": "private-delta-fl",
        "rounds": 3,
        "cohort_size": 8,
        "theta": 0.5,
        "evaluate_every": 3,
    },
    "privacy": {"sums": "ideal", "min_cohort": 4, "truth": True},
    "training": {"batch_size": 8, "device": "cpu", "backend": "processes", "workers": 2},
    "experiment": {"baselines": ["delta-fl"], "num_seeds": 1},
    "faults": {"dropout": 0.1},
}


def run(config, path, *, resume=False):
    notes = []
    summary = run_experiment(config, path, resume=resume, progress=Silent(), warn=notes.append)
    return summary, notes


def by(config, backend):
    return replace(config, training=replace(config.training, backend=backend))


def learnt(path):
    runs = [path, path / "arms" / "delta-fl-seed-1"]
    return [
        {key: value for key, value in event.items() if not key.endswith("_s")}
        for one in runs
        for event in events_of(one)
    ], [checkpoint_of(one).state.model.tobytes() for one in runs]


def test_a_run_by_workers_that_train_one_by_one_is_the_reference_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("deltafl.sim.cohort.backends.processes._AT_ONCE", {})
    config = build_config([PRIVATE])
    summary, _ = run(config, tmp_path / "processes")
    alone, _ = run(by(config, "reference"), tmp_path / "reference")
    assert learnt(tmp_path / "processes") == learnt(tmp_path / "reference")
    assert summary["test_error"] == alone["test_error"]
    assert (tmp_path / "processes" / "truth.sqlite").stat().st_size > 0
    for event in events_of(tmp_path / "processes"):
        assert event["train_cpu_s"] > 0
        assert event["protocol_cpu_s"] > 0
    assert summary["peak_memory_mb"] > alone["peak_memory_mb"] + 2 * 50, "two workers with torch"
    assert peak_memory_of_workers_mb() == 0, "nobody is left"
    other = replace(config, experiment=replace(config.experiment, seed=2))
    run(by(other, "reference"), tmp_path / "other")
    assert (
        checkpoint_of(tmp_path / "other").state.model.tobytes()
        not in learnt(tmp_path / "processes")[1]
    ), "the comparison can fail"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "auto"),
        ("backend", 7),
        ("workers", -1),
        ("workers", 1025),
        ("threads", 0),
        ("threads", 65536),
        ("threads", True),
    ],
)
def test_a_record_of_who_did_the_work_that_cannot_be_is_named(tmp_path, name, value):
    path = tmp_path / "run"
    config = by(build_config([PRIVATE]), "auto")
    run(config, path)
    versions = said_of(path, "versions")
    note(path, "versions", {**versions, name: value})
    note(path, "summary", None)
    message = rf"record.sqlite is damaged: {name} = {value!r} is not a possible value"
    with pytest.raises(UserError, match=message):
        run(config, path, resume=True)


SCRIPT = """
import sys
import numpy as np
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import LocalTraining
from deltafl.fl.parameters import to_vector
from deltafl.sim.cohort.backends.base import ModelSpec, SampleReference
from deltafl.sim.cohort.backends.choice import Choice, open_backend

spec = ModelSpec("convnet", (16, 16), 4)
rng = np.random.default_rng(0)
device = DeviceData("0", rng.random((64, 16, 16), np.float32), rng.integers(0, 4, 64))
backend = open_backend(Choice("processes", 1, 1), spec)
start, ref = to_vector(spec.build()), SampleReference((device,), 0, 64)
backend.begin_loss(start, ref).result()
backend.begin_update(start, ref, LocalTraining(0.1, 1, epochs=100_000), 0)
print(backend._crew._processes[0].pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_workers_end_with_whoever_started_them_and_know_only_its_modules(tmp_path):
    (tmp_path / "msgpack.py").write_text("raise SystemExit('not this one')")
    caller = subprocess.Popen(  # noqa: S603 (a script of ours)
        [sys.executable, "-P", "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with caller:
        worker = caller.stdout.readline().strip()
        assert is_running(worker), "in the midst of a long training"
        caller.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    if is_running(worker):
        os.kill(int(worker), signal.SIGKILL)
        pytest.fail("a worker goes on for nobody")


def test_a_worker_that_cannot_start_is_told_in_a_sentence(monkeypatch):
    config = build_config([PRIVATE])
    dataset = build_dataset(config.data)
    spec = spec_of(config, dataset)
    monkeypatch.setattr("deltafl.sim.cohort.backends.processes.sys.executable", "/bin/false")
    with pytest.raises(RunError, match=r"worker 1 of 1 ended with exit code 1"):
        # the sentence comes with the start, or with the first answer
        open_and_ask(spec, dataset)


def open_and_ask(spec, dataset):
    backend = open_backend(Choice("processes", 1, 1), spec)
    try:
        model = np.zeros(sum(p.numel() for p in spec.build().parameters()), np.float32)
        backend.begin_loss(
            model, SampleReference(dataset.train, 0, dataset.train[0].num_samples)
        ).result()
    finally:
        backend.close()


@pytest.fixture(scope="module")
def round_of():
    """Plays one round of private Δ-FL; the model and the report."""
    config = by(build_config([PRIVATE]), "reference")
    dataset = build_dataset(config.data)
    spec, seeds = spec_of(config, dataset), Seeds(1)

    def play(backend_name):
        backend = open_backend(Choice(backend_name, 0, 1), spec)
        strategy = strategy_of(config)
        rng = np.random.default_rng(0)
        state = strategy.init(
            rng.normal(size=sum(p.numel() for p in spec.build().parameters())).astype(np.float32),
            len(dataset.train),
        )
        refs = {
            k: SampleReference(dataset.train, k, dataset.train[k].num_samples) for k in range(8)
        }
        devices = BackendDevices(refs, backend, TRAINING, seeds, 0)
        rounds = build_rounds(config, NoObserver())
        state, report = strategy.apply(state, SimulatedCohort(devices, 0, seeds, rounds))
        return state.model.tobytes(), report

    return play


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(eta=st.floats(-1, 20))
def test_a_foresight_that_errs_changes_no_answer(round_of, eta):
    expected = round_of("reference")
    assert expected[1].kept_devices < 8
    with pytest.MonkeyPatch.context() as patch:
        asked = []
        patch.setattr(
            "deltafl.sim.cohort.work.weighted_quantile",
            lambda *_: asked.append(eta) or eta,
        )
        assert round_of("reference") == expected
        assert asked
