"""The command `deltafl audit` at a terminal: what it prints, writes, refuses, and how it ends."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from honest_runs import play_honestly

from deltafl.protocol.policy import RoundPolicy
from deltafl.sim.cli import main
from deltafl.sim.inspect.audit import cli
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.preface import LIMITS

SETTINGS = {"federation": {"cohort_size": 6, "theta": 1}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a run's place")
    return play_honestly(folder, rounds=1, length=5, **SETTINGS)


@pytest.fixture
def transcript(run):
    return str(run.transcript)


def said(capsys, *arguments, code):
    assert main(["audit", "--min-cohort", "5", *map(str, arguments)]) == code  # the run has five
    return capsys.readouterr()


def test_a_clean_run_is_told_in_a_few_lines(capsys, transcript):
    out = said(capsys, transcript, code=0).out
    assert len(out.splitlines()) < 60
    assert transcript in out
    assert "1 rounds" in out or "1 round" in out
    assert "passed" in out
    assert "FAILED" not in out
    assert "Nothing was found in what was checked. Not everything was checked." in out
    assert "a record alone has no settings" in out[out.index("Not checked:") :]
    assert "clean" not in out.lower()


def test_what_no_audit_shows_is_printed(capsys, transcript):
    out = said(capsys, transcript, code=0).out
    _, _, shown = out.partition("What no audit shows")
    lines = [line.removeprefix("  - ") for line in shown.splitlines()[1:]]
    assert lines == list(LIMITS)


def test_the_verdict_is_in_a_box_at_the_top(capsys, transcript):
    lines = said(capsys, transcript, "--min-cohort", 9, code=1).out.splitlines()
    box = lines[: lines.index("└" + "─" * 96) + 1]
    assert box[0].startswith("┌")
    assert all(line.startswith("│ ") for line in box[1:-1])
    assert "HIGH. " in " ".join(box)
    assert "checks made in full" in " ".join(line.removeprefix("│ ") for line in box)
    assert lines.index("A guarantee was broken for some device:") > len(box)


def test_what_devices_hid_is_said_not_to_be_checked_without_a_truth(capsys, run, transcript):
    bare = said(capsys, transcript, code=0).out
    assert bare.count("no truth file was given") == 1
    assert "no truth file" not in said(capsys, transcript, "--truth", run.truth, code=0).out


def test_what_is_printed_is_in_lines_that_others_cannot_end(capsys, monkeypatch, transcript):
    with_findings(
        monkeypatch,
        RULES.found("retry.aborted", "seen\n┌ all is well\x1b[2J", [Evidence(1)]),
    )
    out = said(capsys, transcript, code=0).out
    assert r"seen\n┌ all is well\x1b[2J" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("quiet", [True, False])
def test_what_is_printed_for_programs_is_nothing_but_json(capsys, transcript, quiet):
    captured = said(capsys, transcript, "--json", *["--quiet"] * quiet, code=0)
    report = json.loads(captured.out)
    assert (report["rounds"], report["version"]) == (1, 4)
    assert captured.err == ""


def test_a_page_is_written_beside_what_is_printed(capsys, transcript, tmp_path):
    page = tmp_path / "a report.html"
    assert str(page) in said(capsys, transcript, "--html", page, "--quiet", code=0).out
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    captured = said(capsys, transcript, "--html", page, "--json", code=0)
    assert json.loads(captured.out)["rounds"] == 1


def test_findings_are_written_as_sarif_and_replace_nothing(capsys, transcript, tmp_path):
    path = tmp_path / "findings.sarif"
    out = said(capsys, transcript, "--min-cohort", 9, "--sarif", path, "--quiet", code=1).out
    assert str(path) in out
    (run,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert run["results"][0]["ruleId"] in out
    assert run["artifacts"][0]["location"]["uri"].endswith("record.sqlite")
    captured = said(capsys, transcript, "--sarif", transcript, "--quiet", code=2)
    assert "choose another file" in captured.err


@pytest.mark.parametrize(
    "name", ["record.sqlite", "truth.sqlite", "arms/a/record.sqlite", "linked"]
)
def test_a_page_replaces_nothing_that_is_audited(capsys, transcript, tmp_path, name):
    """Nor any other file of a run directory; beside them there may be a report."""
    run = tmp_path / "run"
    (run / "arms" / "a").mkdir(parents=True)
    for folder in (run, run / "arms" / "a"):
        (folder / "record.sqlite").write_bytes(Path(transcript).read_bytes())
    (run / "linked").symlink_to("record.sqlite")
    source = run / "record.sqlite"
    (sentence,) = said(capsys, source, "--html", run / name, "--quiet", code=2).err.splitlines()
    assert "choose another file" in sentence
    assert source.read_bytes() == Path(transcript).read_bytes()
    assert (run / "linked").is_symlink()
    for page in (run / "report.html", run / "arms" / "a" / "report.html"):
        said(capsys, source, "--html", page, "--quiet", code=0)
        assert page.exists()


def test_a_page_does_not_replace_a_transcript_alone_or_its_truth(capsys, transcript, tmp_path):
    source, truth = tmp_path / "seen", tmp_path / "told"
    for path in (source, truth):
        path.write_bytes(Path(transcript).read_bytes())
    for path in (source, truth):
        captured = said(capsys, source, "--truth", truth, "--html", path, "--quiet", code=2)
        assert captured.err == f"deltafl: {path} is what is read: choose another file to write to\n"
        assert path.read_bytes() == Path(transcript).read_bytes()


def test_a_page_is_not_written_in_the_place_of_a_folder(capsys, transcript, tmp_path):
    captured = said(capsys, transcript, "--html", tmp_path, "--quiet", code=2)
    assert captured.err == f"deltafl: {tmp_path} is a folder: name a file in it to write to\n"


def test_a_page_that_cannot_be_written_is_said_in_one_sentence(capsys, transcript, tmp_path):
    captured = said(capsys, transcript, "--html", tmp_path / "no" / "r.html", "--quiet", code=2)
    assert captured.out == ""
    (sentence,) = captured.err.splitlines()
    assert "no" in sentence


@pytest.mark.parametrize(
    ("arguments", "limits"),
    [
        ([], Options()),
        (["--adversary", "active"], Options(adversary="active")),
        (["--colluding", "0.25"], Options(colluding=0.25)),
        (["--min-cohort", "9"], Options(min_cohort=9)),
        (["--min-difference", "5"], Options(min_difference=5)),
        (["--min-honest-tail", "6"], Options(min_honest_tail=6)),
        (["--false-alarms", "0.01"], Options(false_alarm_rate=0.01)),
        (["--head", "ab" * 32], Options(head=b"\xab" * 32)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_flag_reaches_the_audit(monkeypatch, transcript, run, arguments, limits):
    seen = []

    def remember(path, options, progress):
        seen.append((str(path), options))
        return audit(path, Options())

    monkeypatch.setattr(cli, "audit", remember)
    main(["audit", transcript, "--quiet", *arguments])
    assert seen == [(transcript, limits)]


def test_help_tells_the_fewest_devices_of_a_transcript_alone(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["audit", "--help"])
    told = f"else {RoundPolicy().min_cohort})"
    assert told in " ".join(capsys.readouterr().out.split())


def test_the_truth_is_read_where_it_is_given(capsys, transcript, run):
    report = json.loads(said(capsys, transcript, "--truth", run.truth, "--json", code=0).out)
    assert report["has_truth"] is True


def test_the_command_that_a_report_names_makes_the_same_report(capsys, transcript, run):
    """However its paths are written: the folder here has a blank and an apostrophe in it."""
    flags = ["--truth", str(run.truth), "--min-cohort", "5", "--colluding", "0.05"]
    flags += ["--adversary", "curious", "--head", run.mark.digest.hex()]
    flags += ["--min-honest-tail", "1", "--min-difference", "4", "--false-alarms", "1e-5"]
    first = json.loads(said(capsys, transcript, *flags, "--json", code=0).out)
    commands = [shlex.split(command) for command in first["reproduce"]]
    assert {words[0] for words in commands} == {"deltafl"}
    (again,) = commands
    assert json.loads(said(capsys, *again[2:], "--json", code=0).out) == first


def test_an_interruption_ends_it_without_a_trace(monkeypatch, capsys, transcript):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "audit", interrupt)
    captured = said(capsys, transcript, code=130)
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == "deltafl: interrupted"


def with_findings(monkeypatch, *findings):
    def report(path, options, progress):
        return replace(audit(path, options), findings=findings)

    monkeypatch.setattr(cli, "audit", report)


@pytest.mark.parametrize("worst", list(Severity))
@pytest.mark.parametrize("limit", list(Severity))
def test_the_exit_code_is_1_from_the_severity_that_was_asked_for(
    monkeypatch, capsys, transcript, worst, limit
):
    with_findings(monkeypatch, RULES.found("retry.aborted", "seen", [Evidence(1)], worst))
    code = 1 if worst >= limit else 0
    said(capsys, transcript, "--quiet", "--fail-on", limit.name.lower(), code=code)


def test_medium_is_what_fails_by_default(monkeypatch, capsys, transcript):
    for severity, code in ((Severity.LOW, 0), (Severity.MEDIUM, 1)):
        with_findings(monkeypatch, RULES.found("retry.aborted", "seen", [Evidence(1)], severity))
        said(capsys, transcript, "--quiet", code=code)


def test_a_finding_is_told_with_all_that_one_needs(monkeypatch, capsys, transcript):
    places = [Evidence(3, 70), Evidence(4, 90), Evidence()]
    with_findings(monkeypatch, RULES.found("clear.values", "a loss of 1.5", places))
    out, rule = said(capsys, transcript, "--quiet", code=1).out, RULES["clear.values"]
    for text in (
        "CRITICAL",
        "clear.values",
        "a loss of 1.5",
        rule.title,
        rule.consequence,
        rule.remedy,
    ):
        assert text in out
    assert "(round 3, record 70; round 4, record 90; the whole run)" in out
    assert "(3 places)" in out


def test_of_many_findings_the_first_are_told_and_the_others_counted(
    monkeypatch, capsys, transcript
):
    with_findings(
        monkeypatch, *[RULES.found("input.late", f"n{i}.", [Evidence(1)]) for i in range(31)]
    )
    out = said(capsys, transcript, "--quiet", code=0).out
    assert "n19." in out
    assert "n20." not in out
    assert "11 more" in out


def test_the_bar_is_drawn_where_it_can_be_seen(monkeypatch, transcript, run):
    drawn = []

    class Bar:
        n, total = 0, None

        def __init__(self, **settings):
            drawn.append(settings["quiet"])

        def __enter__(self):
            return self

        def __exit__(self, *_):
            drawn.append((self.n, self.total))

        def set_postfix_str(self, text, **_):
            assert text in ("round 0", "round 1")

        def update(self, step):
            self.n += step

    monkeypatch.setattr(cli, "Bar", Bar)
    for flags, quiet in (([], False), (["--quiet"], True), (["--json"], True)):
        drawn.clear()
        main(["audit", transcript, *flags])
        rows = run.mark.num_frames
        assert drawn == [quiet, (rows, rows)]


def test_help_names_exit_codes_and_examples(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["audit", "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for text in ("exit codes", "--fail-on", "--truth", "deltafl audit runs/quickstart"):
        assert text in shown
