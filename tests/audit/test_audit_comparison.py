"""One command audits a comparison: the private run, its other seeds, and its baselines in clear."""

import json
import shutil

import pytest
from doubles import run

from deltafl.sim.cli import main
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.settings.config_io import build_config

SETTINGS = {
    "data": {"source": "digits", "num_devices": 20},
    "federation": {"algorithm": "private-delta-fl", "rounds": 2, "cohort_size": 8},
    "privacy": {"min_cohort": 5, "transcript": "full", "expected_dropout": 0},
    "experiment": {"baselines": ["fedavg"]},
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    path = tmp_path_factory.mktemp("compared") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        run(build_config([SETTINGS]), path)
    return path


@pytest.fixture
def copy(compared, tmp_path):
    shutil.copytree(compared, tmp_path / "run")
    return tmp_path / "run"


def told(capsys, *words):
    code = main(["audit", *map(str, words), "--quiet"])
    return code, capsys.readouterr().out


def baseline(path):
    return path / "arms" / "fedavg-seed-1"


def test_the_baseline_is_audited_with_the_run_and_there_is_one_verdict(compared, capsys):
    code, out = told(capsys, compared)
    assert code == 0
    assert "The 1 further run of this experiment:" in out
    assert f"{baseline(compared)}: Nothing was found in what was checked." in out
    assert out.splitlines()[-1].startswith("Verdict on all 2 runs: ")
    assert "not audited" not in out
    (arm,) = json.loads(told(capsys, compared, "--json")[1])["arms"]
    assert arm["source"] == str(baseline(compared))


def test_by_itself_a_run_in_clear_is_told_what_its_server_sees(compared, capsys):
    code, out = told(capsys, baseline(compared))
    assert code == 1
    assert "clear.by-design: the server sees what each device sends" in out
    assert "the run's algorithm is fedavg, which has no masks" in out
    assert "passed the filter" not in out  # there is none


def edit_summary(path):
    file = path / "summary.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    found["seeds"]["fedavg"]["1"]["test_error"]["p90"] = 0.999
    file.write_text(json.dumps(found), encoding="utf-8")


def edit_model(path):
    shutil.copy(path.parent.parent / "bundle.npz", path / "bundle.npz")


def drop_evaluation(path):
    next(path.glob("metrics/round-*.csv")).unlink()


def drop_event(path):
    lines = (path / "events.jsonl").read_bytes().splitlines(keepends=True)
    (path / "events.jsonl").write_bytes(lines[0])


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (edit_summary, "seeds.fedavg.1.test_error.p90 is 0.999 in the summary, but 0."),
        (edit_model, "bundle.npz says that its algorithm is 'private-delta-fl'"),
        (drop_evaluation, "are not those that are due: see rounds 0"),
        (drop_event, "the events are not those of 2 rounds: see round 2"),
    ],
)
def test_a_baseline_that_was_edited_fails_the_audit_of_the_whole(copy, capsys, edit, said):
    edit(baseline(copy))
    code, out = told(capsys, copy)
    assert code == 1
    assert "record.disagrees: what the run says of itself does not fit together" in out
    assert said in out
    assert "Verdict on all 2 runs: " in out
    assert "high finding" in out.splitlines()[-1]


def test_a_check_of_nothing_does_not_count_as_passed(compared):
    report = audit(compared)
    of_nothing = {one.name for one in report.checks if one.outcome is Outcome.EMPTY}
    assert {"proofs of sums", "noise in sums", "nonces of signatures"} <= of_nothing
    made = len(report.checks) - len(of_nothing)
    coverage = verdict(report).coverage
    assert f" of {made} checks made in full" in coverage
    assert f"{len(of_nothing)} more had nothing to check" in coverage
