"""Run directories of honest runs of many kinds: nothing is found, and every round is followed."""

from contextlib import contextmanager

import numpy as np
import pytest
import records
from doubles import Killed, Silent
from real_runs import leave
from reports import serious

from deltafl.sim.inspect.audit import run_replay
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.catalogue import DevicesAgain, RunAgain, ServerAgain
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import TranscriptWriter
from deltafl.sim.run import engine

LOSSY = {"expected_dropout": 0.3, "colluding": 0.0}
BY_MM = {"max_mm_pivots_per_device": 10}
NEAR = {"max_pivots": 1024}
CLIPPED = {"aggregation": "clipped", "clipped_radius": 0.5}
FEW = {"min_honest_tail": 0}  # for levels of six devices
LINEAR = {"name": "linear"}
RUNS = {
    "steep": {"quantile": {"method": "mm"}, "policy": BY_MM},
    "histogram": {"quantile": {"method": "histogram"}, "policy": NEAR},
    "many lost": {
        "faults": {"dropout": 0.3},
        "privacy": LOSSY,
        "federation": {"rounds": 6, "cohort_size": 12},
    },
    "sparse": {
        "privacy": {
            "graph": "sparse",
            "min_cohort": 10,
            "expected_dropout": 0.05,
            "colluding": 0.05,
        },
        "federation": {"cohort_size": 40, "rounds": 2},
        "data": {"num_devices": 100},
    },
    "active": {"privacy": {"adversary": "active"}, "quantile": {"method": "mm"}, "policy": BY_MM},
    "active, proved": {
        "privacy": {"adversary": "active"},
        "quantile": {"votes": "proved", "max_queries": 2, "resolution_bits": 6},
        "federation": {"rounds": 2},
    },
    "clipped": {"federation": {"algorithm": "private-fedavg"}, "strategy": CLIPPED},
    "some lost": {
        "privacy": {"expected_dropout": 0.2, "colluding": 0.0},
        "faults": {"dropout": 0.15},
    },
    "levels": {
        "federation": {"levels": ("1", "0.8", "0.5")},
        "quantile": {"method": "histogram"},
        "policy": NEAR,
        "privacy": FEW,
    },
    "levels, some lost": {
        "federation": {"levels": ("0.8", "0.5"), "rounds": 5, "cohort_size": 10},
        "faults": {"dropout": 0.15},
        "privacy": LOSSY | FEW,
        "policy": NEAR,
    },
    "q-ffl": {"federation": {"algorithm": "private-q-ffl", "rounds": 4}},
    "tilted": {
        "federation": {"algorithm": "private-tilted-erm"},
        "faults": {"dropout": 0.1},
        "privacy": LOSSY,
    },
    "noisy": {"quantile": {"method": "noisy", "weights": "equal", "noise": "2", "max_queries": 0}},
    "private": {
        "dp": {"noise": 1},
        "quantile": {"method": "noisy", "weights": "equal", "noise": "2", "max_queries": 0},
        "privacy": {"max_weight": 1},
        "federation": {"rounds": 4, "cohort_size": 5},
        "policy": {"max_participations": 4, "min_update_noise": 1},
    },
    "private, averaging, some lost": {
        "dp": {"noise": "0.5", "epsilon_budget": 500},
        "privacy": LOSSY | {"max_weight": 1},
        "federation": {"theta": "1", "rounds": 5, "cohort_size": 10},
        "faults": {"dropout": 0.15},
    },
    "adam": {
        "strategy": {"server_optimizer": "adam", "server_learning_rate": 0.01},
        "faults": {"dropout": 0.2},
        "privacy": LOSSY,
    },
    "momentum": {"strategy": {"server_optimizer": "momentum"}},
    "averaging": {"federation": {"theta": "1"}},
    "nearly all": {"federation": {"theta": "0.99"}},
    "the worst": {"federation": {"theta": "0.02"}, "privacy": FEW},
    "too few to search": {
        "quantile": {"min_cohort": 8},
        "faults": {"dropout": 0.2},
        "privacy": LOSSY,
    },
    "afresh": {"quantile": {"warm_start": False}},
    "lost rounds": {"faults": {"dropout": 0.5}, "federation": {"rounds": 6, "cohort_size": 10}},
    "sparse, forty": {
        "privacy": {
            "graph": "sparse",
            "min_cohort": 10,
            "expected_dropout": 0.05,
            "colluding": 0.05,
        },
        "federation": {"cohort_size": 40, "rounds": 1},
        "data": {"num_devices": 100},
    },
    "active, levels": {
        "privacy": {"adversary": "active", **FEW},
        "federation": {"levels": ("0.8", "0.5"), "rounds": 2},
        "policy": NEAR,
    },
    "active, averaging, some lost": {
        "privacy": {"adversary": "active", **LOSSY},
        "federation": {"algorithm": "private-fedavg", "cohort_size": 12},
        "faults": {"dropout": 0.15},
    },
    "equal weights": {"quantile": {"weights": "equal"}},
    "repeated": {
        "data": {"num_devices": 28},
        "faults": {"dropout": 0.4},
        "privacy": LOSSY,
        "federation": {"rounds": 5, "cohort_size": 10},
    },
    "generated": {"data": {"source": "synthetic", "num_devices": 30}, "model": LINEAR},
    "split by samples": {"data": {"split": "samples"}},
    "validation": {"data": {"validation_fraction": 0.2}},
    "attackers": {"attackers": {"share": "0.2"}},
    "a nonce": {"experiment": {"nonce": "abc"}},
    "decaying": {"training": {"decay": 0.5}},
    "fedprox": {"federation": {"algorithm": "private-fedprox"}},
    "several seeds": {"experiment": {"num_seeds": 2, "baselines": ("private-fedavg",)}},
}


BY_SETTINGS = {"histogram": {"search.losses-found"}}
"""What the settings of a run let its server learn."""


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)


def played_again(path, **options):
    """What is found in a run, of which all rounds must be played again."""
    report = audit(path, Options(truth=path / "truth.sqlite", **options))
    rounds = [
        check.detail for check in report.checks if check.name in (ServerAgain.name, RunAgain.name)
    ]
    devices = [check.detail for check in report.checks if check.name == DevicesAgain.name]
    assert len(devices) == 1
    assert all(one.endswith(f" in {report.rounds} rounds") for one in devices)
    assert [one.startswith(f"{report.rounds} of {report.rounds} ") for one in rounds] == [True] * 2
    return serious(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_found_and_everybody_is_played_again(name, tmp_path):
    sections = dict(RUNS[name])
    sections["privacy"] = {"truth": True, **sections.get("privacy", {})}
    is_finished = leave(tmp_path / "run", **sections)
    found = played_again(tmp_path / "run")
    allowed = BY_SETTINGS.get(name, set()) | (set() if is_finished else {"record.unfinished"})
    assert found <= allowed
    report = audit(tmp_path / "run", Options())
    assert serious(report) <= found
    assert "run.rounding" not in {one.rule for one in report.findings}
    bare = audit(tmp_path / "run" / "record.sqlite", Options())
    assert not {f.rule for f in bare.findings} & {*ServerAgain.rules, "parameters.changed"}


@pytest.mark.slow
def test_sums_without_messages_are_played_again(tmp_path):
    assert leave(tmp_path / "run", privacy={"sums": "ideal"})
    assert serious(audit(tmp_path / "run", Options())) == {"record.no-messages"}


@pytest.mark.slow
def test_a_run_in_clear_is_told_what_it_is(tmp_path):
    assert leave(tmp_path / "run", federation={"algorithm": "delta-fl", "rounds": 1})
    assert serious(audit(tmp_path / "run", Options())) == {"clear.by-design"}


def own_data(folder):
    """A file of data, and settings that name it."""
    generator = np.random.default_rng(1)
    users = np.repeat(np.arange(24), 6)
    x = generator.normal(size=(len(users), 3)).astype(np.float32)
    np.savez(folder / "own.npz", x=x, y=np.arange(len(users)) % 2, user=users)
    return {
        "data": {"source": str(folder / "own.npz"), "num_devices": 0},
        "model": LINEAR,
        "privacy": {"truth": True},
    }


@pytest.mark.slow
def test_no_file_is_opened_because_a_record_names_it(tmp_path, monkeypatch):
    """Everything else is compared; with the data, evaluations are, too."""
    settings, path = own_data(tmp_path), tmp_path / "run"
    assert leave(path, **settings)
    assert played_again(path, data=tmp_path / "own.npz") == set()
    record = RunDirectory(path).record
    records.change_record(record, "UPDATE evaluations SET loss = 0.5 WHERE number = 1")
    records.write_rows(record, records.rows_of(record))
    (tmp_path / "own.npz").rename(tmp_path / "moved.npz")
    given = audit(path, Options(data=tmp_path / "moved.npz"))
    assert any("[0].train[0].loss = 0.5" in one.detail for one in given.findings)
    monkeypatch.setattr(run_replay, "subject_of", None)
    report = audit(path, Options())
    assert any("own.npz', and no file is opened" in one for one in report.not_checked)
    assert not any("train[0].loss" in one.detail for one in report.findings)
    (rounds,) = (one.detail for one in report.checks if one.name == RunAgain.name)
    assert rounds.startswith("3 of 3 ")


@pytest.mark.slow
def test_a_record_of_sums_alone_accuses_nobody(tmp_path):
    assert leave(tmp_path / "run", privacy={"transcript": "sums"})
    assert serious(audit(tmp_path / "run", Options())) == set()


class StopAfterFirst(Silent):
    """Kills the run after its first round."""

    def played(self, event):
        if event["round"] == 1:
            raise Killed


@pytest.mark.slow
def test_nothing_is_found_in_a_run_that_was_stopped_and_went_on(tmp_path):
    told = {"privacy": {"truth": True}}
    with pytest.raises(Killed):
        leave(tmp_path / "run", progress=StopAfterFirst(), **told)
    assert played_again(tmp_path / "run") == {"record.unfinished"}
    assert leave(tmp_path / "run", resume=True, **told)
    assert played_again(tmp_path / "run") == set()


@pytest.fixture(scope="module")
def points_of(tmp_path_factory):
    """What an audit finds, with and without its truth, of a run that ended at some point."""

    def found(when):
        path = tmp_path_factory.mktemp("killed") / "run"
        with when, pytest.raises(Killed):
            leave(path, privacy={"truth": True})
        truth = path / "truth.sqlite"
        return [serious(audit(path, Options(truth=one))) for one in (None, truth)]

    return found


def killing(monkeypatch, owner, name, count, *, after=False):
    """End the run at the call of this number, counted from 1, before it or after it."""
    own, calls = getattr(owner, name), []

    @contextmanager
    def patched():
        def counted(*args, **kwargs):
            calls.append(name)
            if len(calls) == count and not after:
                raise Killed
            result = own(*args, **kwargs)
            if len(calls) == count:
                raise Killed
            return result

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, counted)
            yield

    return patched()


@pytest.mark.parametrize("count", [2, 3])
def test_nothing_is_found_between_a_checkpoint_and_its_evaluation(monkeypatch, points_of, count):
    """The evaluations are those of rounds 0, 2 and 3, of which the first precedes its state."""
    when = killing(monkeypatch, engine, "write_evaluation", count)
    last = {"record.unfinished"} if count == 2 else {"run.unfinished"}
    assert points_of(when) == [last, last]


@pytest.mark.parametrize(("name", "after"), [("end_round", True), ("finish", True)])
@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_found_between_the_last_records_and_the_event(
    monkeypatch, points_of, name, after, count
):
    number = 1 if name == "finish" else count
    when = killing(monkeypatch, TranscriptWriter, name, number, after=after)
    assert points_of(when) == [{"record.unfinished"}] * 2


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5])
def test_nothing_is_found_before_a_sum_is_recorded(monkeypatch, points_of, count):
    """All its vectors, or shares, have come; the first sums, and the first of the updates."""
    when = killing(monkeypatch, TranscriptWriter, "revealed", count)
    assert points_of(when) == [{"record.unfinished"}] * 2


@pytest.mark.slow
def test_these_runs_are_followed_and_not_just_passed_over(tmp_path):
    """Control: another seed in the settings is found in one of them."""
    assert leave(tmp_path / "run", **RUNS["levels, some lost"])
    text = records.toml_of(tmp_path / "run")
    records.note(tmp_path / "run", "settings", text.replace("seed = 1\n", "seed = 2\n"))
    assert "record.disagrees" in serious(audit(tmp_path / "run", Options()))
