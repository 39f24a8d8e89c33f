"""One command audits a comparison: the private run, its other seeds, and its baselines in clear."""

import json
import shutil

import pytest
import real_runs
import records
import run_directories
from html_pages import faults

from deltafl.sim.cli import main
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.record.labels import write_comparison
from deltafl.sim.record.record import SUMMARY
from deltafl.sim.record.rundir import RunDirectory


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    path = tmp_path_factory.mktemp("compared") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        real_runs.leave(path, federation={"rounds": 1}, experiment={"baselines": ["fedavg"]})
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


def test_the_baseline_is_audited_with_the_run_and_there_is_one_verdict(compared, capsys, tmp_path):
    page, log = tmp_path / "r.html", tmp_path / "r.sarif"
    code, out = told(capsys, compared, "--html", page, "--sarif", log)
    assert code == 0
    assert "2 runs. " in out[: out.index("└")]
    assert f"  {baseline(compared)}: Nothing was found in what was checked." in out
    assert "INFO     clear.by-design" in out
    assert f"{compared}: " in out
    assert str(baseline(compared)) in page.read_text(encoding="utf-8")
    assert faults(page.read_text(encoding="utf-8")) == []
    assert len(json.loads(log.read_text(encoding="utf-8"))["runs"]) == 2


def test_programs_get_all_runs_under_one_verdict(compared, capsys):
    report = json.loads(told(capsys, compared, "--json")[1])
    assert [one["source"] for one in report["runs"]] == [str(compared), str(baseline(compared))]
    assert report["verdict"]["level"] == report["runs"][0]["verdict"]["level"] == "low"
    assert report["runs"][1]["verdict"]["level"] == "open"
    for one in report["runs"]:  # the command of the whole
        assert one["reproduce"][0] == f"deltafl audit {compared}"


def test_by_itself_a_run_in_clear_is_told_what_its_server_sees(compared, capsys):
    code, out = told(capsys, baseline(compared))
    assert code == 1
    assert "CRITICAL clear.by-design: the server sees what each device sends" in out
    assert "the run's algorithm is fedavg, which has no masks" in out
    assert "passed the filter" not in out  # there is none


@pytest.fixture
def folder(compared, tmp_path):
    """Two runs as `deltafl.compare` leaves them, the baseline in clear."""
    write_comparison(tmp_path / "all", {"ours": "private", "theirs": "FedAvg"})
    shutil.copytree(compared, tmp_path / "all" / "ours", ignore=shutil.ignore_patterns("arms"))
    shutil.copytree(baseline(compared), tmp_path / "all" / "theirs")
    (tmp_path / "all" / "ours" / "arms").mkdir()
    return tmp_path / "all"


@pytest.mark.slow
def test_all_runs_of_a_folder_are_audited(folder, capsys):
    code, out = told(capsys, folder)
    assert "2 runs. " in out[: out.index("└")]
    assert f"  {folder / 'theirs'}: Nothing was found in what was checked." in out
    assert code == 1  # the other runs of `ours`, whose numbers its summary has, are not there
    assert "arms" in out
    shutil.rmtree(folder / "ours")
    shutil.copytree(folder / "theirs", folder / "ours")
    assert "CRITICAL clear.by-design" in told(capsys, folder)[1]  # of no private run, no baseline


@pytest.mark.parametrize("flag", ["--truth", "--head"])
def test_what_is_of_one_run_is_refused_of_a_folder(folder, capsys, flag):
    value = folder / "ours" / "record.sqlite" if flag == "--truth" else "ab" * 32
    assert main(["audit", str(folder), flag, str(value), "--quiet"]) == 2
    assert "are of one run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_digest_is_that_of_the_first_run_alone(compared, capsys):
    """And not of its baselines, which have digests of their own."""
    with RunDirectory(compared).read() as record:
        head = record.chain.mark.digest.hex()
    assert told(capsys, compared, "--head", head)[0] == 0
    assert told(capsys, compared, "--head", "ab" * 32)[0] == 1


def in_last_evaluation(split):
    """Change an error in the last evaluation; what is around it is right again."""

    def change(rows):
        every = [fields for table, _, fields, _ in rows if table == "evaluations"]
        last = max(fields["round"] for fields in every)
        next(f for f in every if (f["round"], f["split"]) == (last, split))["error"] = 0.999

    return run_directories.lie(change)


def in_summary(directory):
    seeds = json.loads(json.dumps(records.said_of(directory.path, SUMMARY)["seeds"]))
    seeds["fedavg"]["1"]["test_error"]["p90"] = 0.999
    run_directories.in_said(SUMMARY, seeds=seeds)(directory)


def by_hand(directory):
    records.change(directory.path, "UPDATE evaluations SET error = 0.999 WHERE round = 1")


P90 = "summary.seeds.fedavg.1.test_error.p90 = "
DIGEST = "summary.records.fedavg, seed 1 = "


@pytest.mark.parametrize(
    ("edit", "rule", "said"),
    [
        (in_summary, "record.disagrees", f"it says {P90}0.999, and it is 0."),
        (in_last_evaluation("test"), "record.disagrees", f"it says {P90}0."),
        (in_last_evaluation("train"), "record.disagrees", f"it says {DIGEST}'"),
        (run_directories.in_event(1, train_cpu_s=0.5), "record.disagrees", f"says {DIGEST}'"),
        (by_hand, "record.edited", "(table evaluations)"),
    ],
    ids=["summary", "test", "train", "event", "by-hand"],
)
def test_a_baseline_that_was_edited_fails_the_audit_of_the_whole(copy, capsys, edit, rule, said):
    edit(RunDirectory(baseline(copy)))
    code, out = told(capsys, copy)
    assert code == 1
    assert "HIGH. " in out[: out.index("└")]
    assert f"HIGH     {rule}: " in out
    assert said in out
    (line,) = {one for one in out.splitlines() if said in one}
    assert ", and it is " in line or rule == "record.edited"


def test_a_check_of_nothing_does_not_count_as_passed(compared):
    report = audit(compared)
    of_nothing = {one.name for one in report.checks if one.outcome is Outcome.EMPTY}
    assert "noise in sums" in of_nothing
    made = len(report.checks) - len(of_nothing)
    assert f" of {made} checks made in full" in verdict(report).coverage
