import json
import sys

import pytest

from deltafl.sim.cli import main
from deltafl.sim.doctor import cli
from deltafl.sim.doctor.cli import as_text, verdict, works
from deltafl.sim.doctor.findings import Finding, State, good

FAULT = Finding("sum", State.FAILED, "it is wrong", "reinstall")
SLOW = Finding("cores", State.WARNING, "few", "more")


def test_the_doctor_finds_this_machine_well(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["works"] is True
    topics = {one["topic"] for group in report["groups"].values() for one in group}
    assert {"Python", "core", "extra sim", "cores", "memory", "torch", "numpy", "GPU"} <= topics
    assert {"backend", "masks", "secure sum"} <= topics


def test_what_does_not_work_is_the_exit_code(capsys, monkeypatch):
    monkeypatch.setattr(cli, "examine", lambda: {"trial": [good("a", "b"), FAULT]})
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED   sum  it is wrong" in printed
    assert "→ reinstall" in printed
    assert printed.endswith("1 thing that must work failed; no warnings.\n")


def test_a_package_that_is_missing_is_a_finding_and_no_crash(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found = cli._found("libraries", "machine", "libraries")
    assert [one.state for one in found] == [State.FAILED]
    assert "torch" in found[0].text


def test_whatever_breaks_is_a_finding(monkeypatch):
    def look():
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("deltafl.sim.doctor.trial.used", look)
    (found,) = cli._found("trial", "trial", "used")
    assert (found.state, found.text) == (State.FAILED, "RuntimeError: no such kernel")


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([good("a", "b")], "Everything needed works; no warnings."),
        ([SLOW, SLOW], "Everything needed works; 2 warnings."),
        ([SLOW, FAULT], "1 thing that must work failed; 1 warning."),
        ([FAULT, FAULT], "2 things that must work failed; no warnings."),
    ],
)
def test_the_verdict_counts(findings, expected):
    assert verdict(findings) == expected
    assert works(findings) is (FAULT not in findings)


def test_lines_fit_the_terminal_and_long_names_are_not_cut():
    text = as_text({"folders": [good("here", "/a" * 60 + " and more words " * 10)]}, 60)
    assert [line for line in text.splitlines() if len(line) > 60 and "/a/a" not in line] == []
    assert "/a" * 60 in text
