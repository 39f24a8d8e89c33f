"""Run directories of honest runs of many kinds: nothing is found, and every round is followed."""

from contextlib import contextmanager

import pytest
from doubles import Killed, Silent
from real_runs import leave
from reports import serious

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.checks.account import Account
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import TranscriptWriter
from deltafl.sim.run import engine

LOSSY = {"expected_dropout": 0.3, "colluding": 0.0}
BY_MM = {"max_mm_pivots_per_device": 10}
NEAR = {"max_pivots": 1024}
FEW = {"min_honest_tail": 0}  # for levels of six devices
RUNS = {
    "steep": {"quantile": {"method": "mm"}, "policy": BY_MM},
    "headers": {"privacy": {"transcript": "sums"}},
    "every second": {"privacy": {"transcript": "full"}},
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
    "signed, some lost": {
        "privacy": {"signed": True, "expected_dropout": 0.2, "colluding": 0.0},
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
    "momentum, every second": {
        "strategy": {"server_optimizer": "momentum"},
        "privacy": {"transcript": "full"},
    },
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
    "ideal": {"privacy": {"sums": "ideal"}},
    "several seeds": {"experiment": {"num_seeds": 2, "baselines": ("private-fedavg",)}},
}
BY_DESIGN = {"record.no-messages"}
"""A fact of sums without messages, which does not say that somebody lied."""


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_found(name, tmp_path):
    is_finished = leave(tmp_path / "run", **RUNS[name])
    report = audit(tmp_path / "run", Options())
    found = serious(report) - BY_DESIGN - (set() if is_finished else {"record.unfinished"})
    assert found == set(), [f.detail for f in report.findings if f.rule in found]
    bare = audit(tmp_path / "run" / "record.sqlite", Options())
    assert not {f.rule for f in bare.findings} & {"answers.ignored", "answers.invented"}
    assert not {f.rule for f in bare.findings} & {"cohort.grown", "cohort.uninvited"}
    assert not {f.rule for f in bare.findings} & {"parameters.changed", "parameters.unfitting"}
    assert report.not_checked
    if name != "ideal":
        (account,) = (check for check in report.checks if check.name == Account.name)
        assert account.detail.startswith(f"{report.rounds} of {report.rounds} rounds")


class StopAfterFirst(Silent):
    """Kills the run after its first round."""

    def played(self, event):
        if event["round"] == 1:
            raise Killed


@pytest.mark.slow
def test_nothing_is_found_in_a_run_that_was_stopped_and_went_on(tmp_path):
    with pytest.raises(Killed):
        leave(tmp_path / "run", progress=StopAfterFirst())
    assert serious(audit(tmp_path / "run", Options())) == {"record.unfinished"}
    assert leave(tmp_path / "run", resume=True)
    assert serious(audit(tmp_path / "run", Options())) == set()


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
    last = {"run.unfinished"} if name == "finish" else {"record.unfinished"}
    assert points_of(when) == [last, last]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5])
def test_nothing_is_found_before_a_sum_is_recorded(monkeypatch, points_of, count):
    """All its vectors, or shares, have come; the first sums, and the first of the updates."""
    when = killing(monkeypatch, TranscriptWriter, "revealed", count)
    assert points_of(when) == [{"record.unfinished"}] * 2


@pytest.mark.slow
def test_what_a_stopped_run_may_lack_is_no_more_than_that(monkeypatch, tmp_path):
    """Control: an evaluation, or an event, of before the last checkpoint."""
    with killing(monkeypatch, engine, "save_checkpoint", 4, after=True), pytest.raises(Killed):
        leave(tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    (evaluation,) = directory.metrics.glob("*2.csv")
    kept = evaluation.read_bytes()
    evaluation.unlink()
    assert "record.disagrees" in serious(audit(directory.path, Options()))
    evaluation.write_bytes(kept)
    assert serious(audit(directory.path, Options())) == {"run.unfinished"}
    lines = directory.events.read_bytes().splitlines(keepends=True)
    directory.events.write_bytes(b"".join(lines[:1]))
    assert "record.disagrees" in serious(audit(directory.path, Options()))


@pytest.mark.parametrize(
    ("name", "rule"), [("summary", "run.unfinished"), ("versions", "record.disagrees")]
)
def test_a_finished_run_without_a_file_is_no_finished_run(tmp_path, name, rule):
    assert leave(tmp_path / "run", federation={"rounds": 1})
    directory = RunDirectory(tmp_path / "run")
    assert serious(audit(directory.path, Options())) == set()
    getattr(directory, name).unlink()
    assert serious(audit(directory.path, Options())) == {rule}


@pytest.mark.slow
def test_these_runs_are_followed_and_not_just_passed_over(tmp_path):
    """Control: another seed in the settings is found in one of them."""
    assert leave(tmp_path / "run", **RUNS["levels, some lost"])
    config = RunDirectory(tmp_path / "run").config
    config.write_text(config.read_text().replace("seed = 1", "seed = 2"))
    assert "record.disagrees" in serious(audit(tmp_path / "run", Options()))
