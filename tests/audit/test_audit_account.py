"""What a run directory says of its run must follow from its settings and its sums."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from real_runs import leave, settings
from reports import serious

from deltafl.fl.bundle import Bundle
from deltafl.fl.vectors import vector_sha256
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.checkpoint import read_checkpoint, save_checkpoint
from deltafl.sim.record.evaluations import read_evaluation, write_evaluation
from deltafl.sim.record.own_files import write_file
from deltafl.sim.record.rundir import RunDirectory, write_json
from deltafl.sim.settings.config_io import to_toml

LIMITS = Options()


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What a finished run has left, of three rounds."""
    path = tmp_path_factory.mktemp("account") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        assert leave(path)
    return path


@pytest.fixture
def directory(left, tmp_path):
    """A copy to be changed."""
    shutil.copytree(left, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def disagreements(directory):
    findings = audit(directory.path, LIMITS).findings
    return [one.detail for one in findings if one.rule == "record.disagrees"]


@pytest.mark.slow
def test_what_the_run_left_agrees(directory):
    report = audit(directory.path, LIMITS)
    assert serious(report) == set()
    assert any(
        c.name == "the run's own account" and c.outcome == "passed" and c.detail[:6] == "3 of 3"
        for c in report.checks
    )


def change_json(path, **changes):
    """Say something else, in the bytes that a run would write."""
    write_json(path, json.loads(path.read_text()) | changes)


def change_checkpoint(directory, number, **changes):
    path = directory.checkpoints / f"round-{number:06}.npz"
    kept = read_checkpoint(path)
    changes = {k: v(kept) if callable(v) else v for k, v in changes.items()}
    others = {p: p.read_bytes() for p in directory.checkpoints.iterdir()}
    save_checkpoint(directory.checkpoints, replace(kept, **changes))
    for other, data in others.items():
        if other != path:
            other.write_bytes(data)


def nudged(model):
    """A model of which one number is another."""
    changed = model.copy()
    changed[7] = np.nextafter(changed[7] + np.float32(0.25), np.float32(9))
    return changed


def other_model(kept):
    return replace(kept.state, model=nudged(kept.state.model))


def change_bundle(directory, **changes):
    bundle = Bundle.load(directory.bundle)
    write_file(directory.bundle, replace(bundle, **changes).to_bytes())


def other_bundle(directory):
    models = Bundle.load(directory.bundle).models
    change_bundle(directory, models={level: nudged(model) for level, model in models.items()})


def all_other_models(directory):
    """Checkpoint, bundle and summary agree with one another, and with nothing else."""
    change_checkpoint(directory, 3, state=other_model)
    other_bundle(directory)
    model = read_checkpoint(directory.checkpoints / "round-000003.npz").state.model
    digest = vector_sha256(model).hex()
    said = json.loads(directory.summary.read_text())
    said["final_model_sha256"] = digest
    said["seeds"]["private-delta-fl"]["1"]["final_model_sha256"] = digest
    directory.summary.write_text(json.dumps(said))


def better_losses(directory, number):
    path = directory.metrics / f"round-{number:06}.csv"
    old = read_evaluation(path)
    test = [replace(row, loss=row.loss / 2, error=0.0) for row in old.test]
    write_evaluation(directory.metrics, replace(old, test=test))


def impossible_errors(directory, error=0.3333):
    path = directory.metrics / "round-000002.csv"
    old = read_evaluation(path)
    test = [replace(row, error=error) for row in old.test]
    write_evaluation(directory.metrics, replace(old, test=test))


def fewer_devices(directory):
    old = read_evaluation(directory.metrics / "round-000002.csv")
    write_evaluation(directory.metrics, replace(old, test=old.test[:-1]))


def change_event(directory, number, **changes):
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    events[number - 1] |= changes
    directory.events.write_text("".join(json.dumps(event) + "\n" for event in events))


def without_key(directory, key):
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    del events[1][key]
    directory.events.write_text("".join(json.dumps(event) + "\n" for event in events))


TAMPERED = {
    "the model of the last checkpoint": lambda d: change_checkpoint(d, 3, state=other_model),
    "the model of the checkpoint before": lambda d: change_checkpoint(d, 2, state=other_model),
    "the threshold of a checkpoint": lambda d: change_checkpoint(
        d, 3, state=lambda kept: replace(kept.state, eta=0.5)
    ),
    "what a checkpoint remembers": lambda d: change_checkpoint(
        d, 3, state=lambda kept: replace(kept.state, memory={"server_optimizer.m": np.zeros(3)})
    ),
    "the events of a checkpoint": lambda d: change_checkpoint(d, 3, events_size=17),
    "the transcript of a checkpoint": lambda d: change_checkpoint(
        d, 2, transcript=lambda kept: replace(kept.transcript, digest=bytes(32))
    ),
    "the models of the bundle": other_bundle,
    "all models": all_other_models,
    "the origin of the bundle": lambda d: change_bundle(d, provenance={"seed": "2"}),
    "no bundle": lambda d: d.bundle.unlink(),
    "a bundle of nothing": lambda d: d.bundle.write_bytes(b"PK"),
    "the summary's model": lambda d: change_json(d.summary, final_model_sha256="0" * 64),
    "the summary's error": lambda d: change_json(d.summary, test_error={"mean": 0.01, "p90": 0.02}),
    "the summary's lost rounds": lambda d: change_json(d.summary, lost_rounds=1),
    "the summary's sums": lambda d: change_json(d.summary, secure_sums=3),
    "the summary's rounds": lambda d: change_json(d.summary, rounds=30),
    "the summary's algorithm": lambda d: change_json(d.summary, algorithm="private-fedavg"),
    "the summary's seeds": lambda d: change_json(d.summary, seeds={}),
    "better errors in the end": lambda d: better_losses(d, 3),
    "errors that no device can have": impossible_errors,
    "errors without bound": lambda d: impossible_errors(d, float("inf")),
    "fewer devices in the middle": fewer_devices,
    "an evaluation less": lambda d: (d.metrics / "round-000002.csv").unlink(),
    "an evaluation more": lambda d: write_evaluation(
        d.metrics, replace(read_evaluation(d.metrics / "round-000002.csv"), round=1)
    ),
    "an evaluation of another round": lambda d: shutil.copy(
        d.metrics / "round-000002.csv", d.metrics / "round-000000.csv"
    ),
    "a learning rate": lambda d: change_event(d, 2, learning_rate=9.0),
    "the bytes that devices sent": lambda d: change_event(d, 2, bytes_up_per_device=1.0),
    "the cohort": lambda d: change_event(d, 2, cohort=[1, 2, 3]),
    "how a search ended": lambda d: change_event(d, 2, search_ended="too few"),
    "a key less": lambda d: without_key(d, "clipped"),
    "no checkpoints": lambda d: shutil.rmtree(d.checkpoints),
    "a checkpoint of nothing": lambda d: (d.checkpoints / "round-000002.npz").write_bytes(b"PK"),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED.keys())
def test_what_does_not_follow_is_found(directory, change):
    change(directory)
    assert disagreements(directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("experiment", "seed", 2),
        ("federation", "cohort_size", 9),
        ("federation", "rounds", 4),
        ("federation", "theta", "0.4"),
        ("federation", "algorithm", "private-fedavg"),
        ("quantile", "method", "mm"),
        ("quantile", "min_cohort", 6),
        ("quantile", "loss_bound", 16),
        ("quantile", "warm_start", False),
        ("quantile", "search", "verified"),
        ("privacy", "colluding", 0.5),
        ("privacy", "expected_dropout", 0.5),
        ("privacy", "min_cohort", 7),
        ("privacy", "update_resolution_bits", 11),
        ("privacy", "adversary", "active"),
        ("privacy", "graph", "sparse"),
        ("training", "learning_rate", 0.25),
        ("strategy", "server_optimizer", "adam"),
        ("model", "name", "convnet"),
    ],
)
def test_other_settings_are_found(directory, section, key, value):
    changes = {section: {key: value}}
    if value == "verified":
        changes["privacy"] = {"signed": True}
    write_file(directory.config, to_toml(settings(**changes)).encode())
    assert serious(audit(directory.path, LIMITS))


def test_a_digest_is_compared_without_a_checkpoint(directory):
    shutil.rmtree(directory.checkpoints)
    change_json(directory.summary, transcript_sha256="0" * 64)
    assert "record.head-differs" in serious(audit(directory.path, LIMITS))


@pytest.mark.slow
def test_records_after_those_that_a_finished_run_vouches_for_are_found(directory):
    """A closing record that the checkpoint knows of, and a record behind it."""
    last = read_checkpoint(directory.checkpoints / "round-000003.npz")
    mark = replace(last.transcript, num_frames=last.transcript.num_frames - 1)
    change_checkpoint(directory, 3, transcript=mark)
    assert serious(audit(directory.path, LIMITS)) >= {"record.head-differs"}


@pytest.mark.slow
def test_a_column_is_not_read_as_another(directory):
    path = directory.metrics / "round-000002.csv"
    path.write_bytes(path.read_bytes().replace(b",loss,error", b",error,loss", 1))
    assert disagreements(directory)
