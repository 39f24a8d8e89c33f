"""What `deltafl audit` says to a script: exit codes, JSON, and one sentence where it cannot."""

import json
import shlex
import shutil

import leaks_behind_covers
import leaks_by_devices
import leaks_by_servers
import pytest
import records
from staged_runs import Edit, Stage, TinyStage, played, write, write_truth

from deltafl.sim.cli import main

CODES = {"clean": 0, "found": 1, "refused": 2}


@pytest.fixture(scope="session")
def clean(tmp_path_factory):
    path = tmp_path_factory.mktemp("exit") / "clean.sqlite"
    write(played(TinyStage).entries, path)
    return path


def injected(path, lie, stage=Stage):
    edit = Edit(played(stage))
    lie(edit)
    write(edit.entries, path)
    return path


def audit(*arguments):
    return main(["audit", "--min-cohort", "5", *map(str, arguments), "--quiet"])


def test_nothing_found_is_0(clean, capsys):
    assert audit(clean) == CODES["clean"]
    out = capsys.readouterr().out
    assert "Nothing was found in what was checked." in out
    assert "Not checked:" in out


def test_limits_of_devices_are_the_usual_ones_or_given(tmp_path, capsys):
    clean = injected(tmp_path / "t.sqlite", lambda _: None)
    assert main(["audit", str(clean), "--quiet"]) == CODES["found"]
    assert "below the device's min_cohort=10" in capsys.readouterr().out
    given = ["--min-cohort", "5"]
    assert main(["audit", str(clean), "--json", *given]) == CODES["clean"]
    assert shlex.join(given) in json.loads(capsys.readouterr().out)["reproduce"][0]
    given += ["--set", "policy.max_pivots=99", "--set", "policy.min_update_clip=3"]
    assert main(["audit", str(clean), "--quiet", *given]) == CODES["found"]
    assert "update_clip=2 is below min_update_clip=3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("federation.rounds=3", "only limits, of section policy"),
        ("policy.max_pivot=3", "max_pivots"),
        ("policy.max_pivots=-1", "-1"),
        ("max_pivots=3", "section.key=value"),
    ],
)
def test_limits_that_are_none_are_refused(text, said, clean, capsys):
    assert audit(clean, "--set", text) == CODES["refused"]
    assert said in capsys.readouterr().err


def test_a_finding_is_1_and_named(tmp_path, capsys):
    path = injected(tmp_path / "t.sqlite", leaks_by_devices.telemetry_in_json)
    assert audit(path) == CODES["found"]
    said = capsys.readouterr().out
    assert "clear.values" in said
    assert "record 84" in said


def test_damage_is_1_and_named(clean, tmp_path, capsys):
    shutil.copy(clean, tmp_path / "t.sqlite")
    records.change_record(tmp_path / "t.sqlite", "DELETE FROM messages WHERE number = 30")
    assert audit(tmp_path / "t.sqlite") == CODES["found"]
    said = capsys.readouterr().out
    assert "record.missing" in said
    assert "Clean" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "lie", "stage", "code"),
    [
        ("critical", leaks_by_devices.telemetry_in_json, Stage, 1),
        ("critical", leaks_by_servers.another_model_for_one_device, Stage, 0),
        ("high", leaks_by_servers.another_model_for_one_device, Stage, 1),
        ("high", leaks_behind_covers.a_receipt_that_comes_again_late, Stage, 0),
        ("medium", leaks_behind_covers.a_receipt_that_comes_again_late, Stage, 1),
        ("medium", leaks_by_devices.an_update_that_comes_late, leaks_by_devices.LateStage, 0),
        ("low", leaks_by_devices.an_update_that_comes_late, leaks_by_devices.LateStage, 1),
        ("low", lambda _: None, Stage, 0),
        ("info", lambda _: None, Stage, 1),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_code_follows_the_severity_asked_for(tmp_path, level, lie, stage, code):
    assert audit(injected(tmp_path / "t.sqlite", lie, stage), "--fail-on", level) == code


def test_json_has_every_finding_with_its_place(tmp_path, capsys):
    path = injected(tmp_path / "t.sqlite", leaks_by_devices.two_vectors_under_one_mask)
    assert audit(path, "--json") == CODES["found"]
    report = json.loads(capsys.readouterr().out)
    (found,) = [f for f in report["findings"] if f["rule"] == "spec.answers"]
    assert found["severity"] == "high"
    assert [place["record"] for place in found["evidence"]] == [100]


@pytest.mark.slow
def test_the_page_is_written_whatever_was_found(tmp_path, capsys):
    path = injected(tmp_path / "t.sqlite", leaks_by_devices.telemetry_in_json)
    assert audit(path, "--html", tmp_path / "r.html") == CODES["found"]
    assert "clear.values" in (tmp_path / "r.html").read_text()


def refused(capsys, *arguments):
    """The one sentence on stderr."""
    assert audit(*arguments) == CODES["refused"]
    captured = capsys.readouterr()
    assert captured.out == ""
    (sentence,) = [line for line in captured.err.splitlines() if "is given twice" not in line]
    return sentence


def test_what_cannot_be_audited_is_2_and_one_sentence(clean, tmp_path, capsys):
    for name in ("newer", "foreign"):
        shutil.copy(clean, tmp_path / name)
    records.change_record(tmp_path / "newer", "PRAGMA user_version = 9")
    records.change_record(tmp_path / "foreign", "PRAGMA application_id = 9")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "other").write_bytes(b"PK\x03\x04" + bytes(100))
    write_truth(played(TinyStage), tmp_path / "truth", run_id=bytes(16))
    assert "empty" in refused(capsys, tmp_path / "empty")
    assert "not a database" in refused(capsys, tmp_path / "other")
    assert "no record of a run" in refused(capsys, tmp_path / "foreign")
    assert "version 9" in refused(capsys, tmp_path / "newer")
    assert "nowhere" in refused(capsys, tmp_path / "nowhere")
    assert "not a run directory" in refused(capsys, tmp_path)
    assert "truth of run" in refused(capsys, clean, "--truth", tmp_path / "truth")
    assert "nowhere" in refused(capsys, clean, "--truth", tmp_path / "nowhere")


def told_of(clean, capsys, *wrong):
    """What is said of arguments that are none."""
    with pytest.raises(SystemExit) as caught:
        audit(clean, *wrong)
    assert caught.value.code == CODES["refused"]
    said = capsys.readouterr().err
    assert wrong[0] in said
    return said


@pytest.mark.parametrize("head", ["", "00", "zz" * 32, "0" * 63, " " + "0" * 63, "00 " * 21 + "0"])
def test_a_digest_that_is_none_is_refused(clean, capsys, head):
    assert "64 hex digits" in told_of(clean, capsys, "--head", head)


@pytest.mark.parametrize(
    "wrong",
    [
        ("--fail-on", "never"),
        ("--adversary", "nice"),
        ("--min-cohort", "many"),
        ("--min-cohort", "1"),
        ("--min-honest-tail", "-1"),
        ("--min-difference", "0"),
        ("--colluding", "1"),
        ("--colluding", "nan"),
        ("--false-alarms", "0"),
        ("--false-alarms", "nan"),
    ],
    ids="=".join,
)
def test_limits_out_of_their_range_are_refused(clean, capsys, wrong):
    told_of(clean, capsys, *wrong)
