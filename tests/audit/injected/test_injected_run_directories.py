"""A run directory is held to what the run says of itself: events, checkpoint, summary, settings."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import leaks_by_servers
import pytest
from frames import MAGIC, whole_frames
from run_directories import CONFIG, bundle_of, directory_of, followed, save
from staged_runs import DrawnStage, Edit, Learnt, played, write

from deltafl.sim.cli import main
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.options import Options, expected_of
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.record.checkpoint import read_checkpoint
from deltafl.sim.record.own_files import write_file


def serious(directory):
    findings = audit(directory.path).findings
    return {finding.rule for finding in findings if finding.severity >= Severity.MEDIUM}


@pytest.mark.slow
def test_a_directory_as_the_run_left_it_is_clean(tmp_path):
    directory = directory_of(tmp_path / "run")
    assert serious(directory) == set()
    assert main(["audit", str(directory.path), "--quiet"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kept_devices", 7),
        ("kept_weight", 1),
        ("train_loss", 0.5),
        ("secure_sums", 2),
        ("num_queries", 3),
        ("certified", "nearly"),
        ("clipped", 1),
        ("aborted", "it did not please the server"),
    ],
)
def test_an_event_that_does_not_follow_from_the_sums_is_found(tmp_path, key, value):
    directory = directory_of(tmp_path / "run", change=lambda events: events[1].update({key: value}))
    assert "record.disagrees" in serious(directory)
    places = [
        place.round
        for finding in audit(directory.path).findings
        if finding.rule == "record.disagrees"
        for place in finding.evidence
    ]
    assert places == [2]


@pytest.mark.slow
def test_a_round_of_the_events_that_no_message_knows_of_is_found(tmp_path):
    entries = [entry for entry in played(DrawnStage).entries if entry.round == 1]
    assert "record.disagrees" in serious(directory_of(tmp_path / "run", entries=entries))


@pytest.mark.slow
def test_another_run_s_transcript_is_found(tmp_path):
    directory = directory_of(tmp_path / "run")
    other = Edit(played(DrawnStage))
    leaks_by_servers.a_round_given_up_by_a_server_that_had_its_sums(other)
    write(other.entries, directory.transcript)
    assert "record.head-differs" in serious(directory)


@pytest.mark.slow
def test_records_that_the_checkpoint_knows_of_are_missed(tmp_path):
    directory = directory_of(tmp_path / "run")
    whole = whole_frames(directory.transcript)
    directory.transcript.write_bytes(MAGIC + b"".join(whole[:-20]))
    assert "record.cut" in serious(directory)


@pytest.mark.slow
def test_what_came_after_the_last_checkpoint_is_no_forgery(tmp_path):
    """A run that was killed leaves more than its checkpoint knows of."""
    directory = directory_of(tmp_path / "run", closed=0, finished=False)
    first = [entry for entry in played(DrawnStage).entries if entry.round == 1]
    mark = write(first, tmp_path / "first.bin", closed=0)
    for old in directory.checkpoints.iterdir():
        old.unlink()
    _, (state, _) = followed(played(DrawnStage))
    lines = directory.events.read_bytes().split(b"\n")
    save(directory, mark, len(lines[0]) + 1, state)
    assert serious(directory) <= {"record.unfinished"}


@pytest.mark.slow
def test_the_directory_s_settings_are_the_policy(tmp_path):
    active = replace(CONFIG, privacy=replace(CONFIG.privacy, adversary="active"))
    assert "keys.unsigned" in serious(directory_of(tmp_path / "active", config=active))
    large = replace(
        CONFIG,
        federation=replace(CONFIG.federation, cohort_size=8),
        privacy=replace(CONFIG.privacy, min_cohort=8),
    )
    assert "cohort.below-floor" in serious(directory_of(tmp_path / "large", config=large))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("federation", "theta", Fraction(1, 2)),
        ("federation", "levels", ("0.75", "0.5")),
        ("quantile", "method", "mm"),
        ("quantile", "max_queries", 3),
        ("quantile", "resolution_bits", 9),
        ("quantile", "weights", "equal"),
        ("quantile", "warm_start", False),
        ("privacy", "update_clip", 1.0),
        ("privacy", "max_weight", 256),
        ("privacy", "signed", True),
    ],
)
def test_other_settings_than_were_announced_are_found(tmp_path, section, key, value):
    said = replace(CONFIG, **{section: replace(getattr(CONFIG, section), **{key: value})})
    assert serious(directory_of(tmp_path / "run", config=said)) == {"record.disagrees"}


@pytest.mark.parametrize(("which", "is_found"), [(-1, False), (0, True)])
def test_only_the_last_sum_of_a_stopped_record_may_be_missing(tmp_path, which, is_found):
    edit = Edit(played(DrawnStage))
    sums = [entry for entry in edit.entries if isinstance(entry, Learnt) and entry.round == 2]
    edit.remove(sums[which], *edit.entries[edit.entries.index(sums[-1]) + 1 :])
    write(edit.entries, tmp_path / "t.bin", closed=0)
    findings = audit(tmp_path / "t.bin", Options(min_cohort=5)).findings
    unrecorded = [one.severity for one in findings if one.rule == "sums.unrecorded"]
    assert unrecorded == [Severity.HIGH if is_found else Severity.LOW]


def test_events_of_a_stopped_run_are_due_up_to_its_checkpoint(tmp_path):
    """Without its closing record as without its summary; the checkpoint is that of round 2."""
    stopped = {"closed": 0, "finished": False}
    assert serious(directory_of(tmp_path / "all", **stopped)) == {"record.unfinished"}
    directory = directory_of(tmp_path / "one", **stopped, change=lambda events: events.pop(0))
    details = {finding.detail for finding in audit(directory.path).findings}
    assert "round 1 is not in the run's events" in details


IMPOSSIBLE = [("strategy", "eta_every", 2), ("quantile", "epsilon", 0.01)]


def impossible(section, key, value):
    return replace(CONFIG, **{section: replace(getattr(CONFIG, section), **{key: value})})


@pytest.mark.parametrize("setting", IMPOSSIBLE)
def test_settings_that_no_run_can_have_are_found(tmp_path, setting):
    """And nothing else: the rest is as the run left it."""
    directory = directory_of(tmp_path / "run", config=impossible(*setting))
    assert serious(directory) == {"settings.impossible"}
    report = audit(directory.path)
    assert any("not followed to its end" in one for one in report.not_checked)
    assert not any(one.startswith("final model") for one in report.not_checked)


@pytest.mark.parametrize("setting", IMPOSSIBLE)
@pytest.mark.parametrize("what", ["checkpoint", "bundle"])
def test_the_final_model_is_compared_whatever_the_settings_are(tmp_path, setting, what):
    directory = directory_of(tmp_path / "run", config=impossible(*setting))
    (path,) = directory.checkpoints.iterdir()
    kept = read_checkpoint(path)
    other = replace(kept.state, model=kept.state.model * 2)
    if what == "checkpoint":
        save(directory, kept.transcript, kept.events_size, other)
    else:
        write_file(directory.bundle, bundle_of(other).to_bytes())
    assert serious(directory) == {"settings.impossible", "record.disagrees"}
    details = {finding.detail for finding in audit(directory.path).findings}
    of_sums = {one for one in details if "the sums" in one}
    said = "the models of bundle.npz are not those of the sums"
    if what == "checkpoint":
        said = "the checkpoint of round 2 does not follow from the sums: its model differs"
    assert said in of_sums


def test_a_model_that_the_record_does_not_lead_to_is_said_to_be_so(tmp_path):
    """By headers, because the sums are not whole; whole, because a round cannot be played."""
    by_headers = directory_of(tmp_path / "headers", mode="headers")
    (said,) = (one for one in audit(by_headers.path).not_checked if one.startswith("final model"))
    assert "not recorded whole" in said
    edit = Edit(played(DrawnStage))
    sums = [entry for entry in edit.entries if isinstance(entry, Learnt) and entry.round == 2]
    edit.remove(sums[0])
    without_sum = directory_of(tmp_path / "whole", entries=edit.entries)
    (said,) = (one for one in audit(without_sum.path).not_checked if one.startswith("final model"))
    assert "the record does not lead to it" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_a_round_that_the_events_do_not_mention_is_found(tmp_path, number):
    directory = directory_of(tmp_path / "run", change=lambda events: events.pop(number - 1))
    assert "record.disagrees" in serious(directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [("cohort", [3, 10]), ("empty", True), ("search_ended", "shrank"), ("eta", None)],
)
def test_further_fields_of_an_event_are_compared(tmp_path, key, value):
    directory = directory_of(tmp_path / "run", change=lambda events: events[0].update({key: value}))
    assert serious(directory) == {"record.disagrees"}


@pytest.mark.slow
def test_a_finished_round_that_is_said_to_have_been_given_up_is_found(tmp_path):
    edit = Edit(played(DrawnStage))
    edit.put(edit.end(1), replace(edit.end(1), aborted="a device was lost"))
    directory = directory_of(
        tmp_path / "run",
        entries=edit.entries,
        change=lambda events: events[0].update({"aborted": "a device was lost"}),
    )
    assert "record.disagrees" in serious(directory)


def test_the_smallest_tail_is_that_of_the_settings():
    strict = replace(CONFIG, privacy=replace(CONFIG.privacy, min_honest_tail=4))
    source = Source(Path("run"), Path("t.bin"), strict)
    assert expected_of(source, Options()).policy.min_honest_tail == 4


@pytest.mark.parametrize("algorithm", ["delta-fl", "fedavg"])
def test_a_run_in_clear_is_in_clear(tmp_path, algorithm):
    config = replace(CONFIG, federation=replace(CONFIG.federation, algorithm=algorithm))
    directory = directory_of(tmp_path / "run", config=config)
    assert serious(directory) == {"clear.by-design"}
    assert main(["audit", str(directory.path), "--quiet"]) == 1


def test_a_run_without_messages_shows_nothing(tmp_path):
    ends = [played(DrawnStage).entries[-1]]
    run = replace(CONFIG, federation=replace(CONFIG.federation, rounds=1))
    directory = directory_of(tmp_path / "run", config=run, entries=ends)
    assert "record.no-messages" in serious(directory)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", b"\xff\xfe"),
        ("summary.json", b"{"),
        ("summary.json", b"[]"),
        ("summary.json", b'{"transcript_sha256": "none"}'),
        ("checkpoints/round-000002.npz", b"PK"),
    ],
)
def test_a_file_of_the_directory_that_is_damaged_is_named(tmp_path, capsys, name, content):
    directory = directory_of(tmp_path / "run")
    (directory.path / name).write_bytes(content)
    with pytest.raises(UserError, match=name.partition("/")[0]):
        audit(directory.path)
    assert main(["audit", str(directory.path), "--quiet"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_directory_without_its_transcript_is_refused(tmp_path):
    directory = directory_of(tmp_path / "run")
    directory.transcript.unlink()
    with pytest.raises(UserError, match=r"transcript\.bin"):
        audit(directory.path)


def test_a_directory_with_an_empty_transcript_is_refused(tmp_path):
    directory = directory_of(tmp_path / "run")
    directory.transcript.write_bytes(b"")
    with pytest.raises(UserError, match="empty"):
        audit(directory.path)


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"{\n", b"[]\n", b'{"loss": 1}\n', b'{"round": "first"}\n'])
def test_damaged_events_are_a_finding_beside_the_transcript_s(tmp_path, content):
    directory = directory_of(tmp_path / "run")
    directory.events.write_bytes(content)
    report = audit(directory.path)
    assert any("events.jsonl is damaged" in one.detail for one in report.findings)
    assert report.sums_replayed == report.sums_released > 0


def test_damaged_events_of_a_run_without_a_transcript_leave_nothing_to_audit(tmp_path):
    config = replace(CONFIG, federation=replace(CONFIG.federation, algorithm="fedavg"))
    directory = directory_of(tmp_path / "run", config=config)
    directory.events.write_bytes(b"{\n")
    with pytest.raises(UserError, match=r"events\.jsonl is damaged"):
        audit(directory.path)
