"""Run directories of honest runs of many kinds: nothing is found, and every round is followed."""

import pytest
from doubles import Killed, Silent
from real_runs import leave
from reports import serious

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.checks.account import Account
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.rundir import RunDirectory

LOSSY = {"expected_dropout": 0.3, "colluding": 0.0}
NEAR = {"min_difference": 0, "max_pivots": 1024}  # for levels of six devices
RUNS = {
    "steep": {"quantile": {"method": "mm"}},
    "headers": {"privacy": {"transcript": "headers"}},
    "every second": {"privacy": {"transcript": "every=2"}},
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
    "active": {"privacy": {"adversary": "active"}, "quantile": {"method": "mm"}},
    "signed, some lost": {
        "privacy": {"signed": True, "expected_dropout": 0.2, "colluding": 0.0},
        "faults": {"dropout": 0.15},
    },
    "levels": {
        "federation": {"levels": ("1", "0.8", "0.5")},
        "quantile": {"method": "histogram"},
        "policy": NEAR,
    },
    "levels, some lost": {
        "federation": {"levels": ("0.8", "0.5"), "rounds": 5, "cohort_size": 10},
        "faults": {"dropout": 0.15},
        "privacy": LOSSY,
        "policy": NEAR,
    },
    "q-ffl": {"federation": {"algorithm": "private-q-ffl", "rounds": 4}},
    "tilted": {
        "federation": {"algorithm": "private-tilted-erm"},
        "faults": {"dropout": 0.1},
        "privacy": LOSSY,
    },
    "noisy": {"quantile": {"method": "noisy", "weights": "equal", "noise": "2", "max_queries": 0}},
    "adam": {
        "strategy": {"server_optimizer": "adam", "server_learning_rate": 0.01},
        "faults": {"dropout": 0.2},
        "privacy": LOSSY,
    },
    "momentum, every second": {
        "strategy": {"server_optimizer": "momentum"},
        "privacy": {"transcript": "every=2"},
    },
    "averaging": {"federation": {"theta": "1"}},
    "nearly all": {"federation": {"theta": "0.99"}},
    "the worst": {"federation": {"theta": "0.02"}, "policy": {"min_expected_tail": 1}},
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
BY_DESIGN = {"sums.small-tail", "record.no-messages"}
"""Facts of a small cohort, or of sums without messages; none says that somebody lied."""


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr("deltafl.sim.run.plots.write_plots", lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_found(name, tmp_path):
    is_finished = leave(tmp_path / "run", **RUNS[name])
    report = audit(tmp_path / "run", Options(min_tail=1))
    found = serious(report) - BY_DESIGN - (set() if is_finished else {"record.unfinished"})
    assert found == set(), [f.detail for f in report.findings if f.rule in found]
    bare = audit(tmp_path / "run" / "transcript.bin", Options(min_tail=1))
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
    assert serious(audit(tmp_path / "run", Options(min_tail=1))) == {"record.unfinished"}
    assert leave(tmp_path / "run", resume=True)
    assert serious(audit(tmp_path / "run", Options(min_tail=1))) == set()


@pytest.mark.slow
def test_these_runs_are_followed_and_not_just_passed_over(tmp_path):
    """Control: another seed in the settings is found in one of them."""
    assert leave(tmp_path / "run", **RUNS["levels, some lost"])
    config = RunDirectory(tmp_path / "run").config
    config.write_text(config.read_text().replace("seed = 1", "seed = 2"))
    assert "record.disagrees" in serious(audit(tmp_path / "run", Options(min_tail=1)))
