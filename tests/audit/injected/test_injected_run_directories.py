"""A run directory is held to what the engine writes: events, evaluations, states, what it says."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import records
from leaks_in_files import under_another_chain
from run_directories import in_array, in_evaluation, in_event, in_said, in_settings, lie, real
from staged_runs import DrawnStage, Edit, Learnt, played, write

from deltafl.sim.cli import main
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit import auditor
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.catalogue import Integrity, RunAgain, ServerAgain
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.record import write_record

OTHER = "5" * 64


@pytest.fixture(autouse=True)
def only_what_plays_again(monkeypatch):
    """Other checks look at messages, which nobody has changed here."""
    monkeypatch.setattr(auditor, "CHECKS", (Integrity, ServerAgain, RunAgain))


def found(directory):
    """The rules that are broken, and what is said of each place."""
    findings = [f for f in audit(directory.path).findings if f.severity >= Severity.MEDIUM]
    return {finding.rule for finding in findings}, [finding.detail for finding in findings]


def another_array(directory):
    """An array of no run in the bundle, where nobody reads it."""
    data = io.BytesIO()
    np.save(data, np.array([1.5]))
    with zipfile.ZipFile(directory.bundle, "a") as archive:
        archive.writestr("loss.npy", data.getvalue())


def a_comment(directory):
    with zipfile.ZipFile(directory.bundle, "a") as archive:
        archive.comment = b"the loss of device 7 is 1.5"


def without(table, number):
    """Without the rows of a table of one round."""

    def change(rows):
        rows[:] = [row for row in rows if row[0] != table or row[2]["round"] != number]

    return lie(change)


def without_evaluation(rows):
    last = max(f["round"] for table, _, f, _ in rows if table == "evaluations")
    rows[:] = [r for r in rows if r[0] != "evaluations" or r[2]["round"] != last]


def another_end(rows):
    ends = [f for table, _, f, _ in rows if table == "rounds" and f["what"] == "end"]
    ends[0]["said"] = "a device was lost"


def another_cohort(rows):
    begins = [f for table, _, f, _ in rows if table == "rounds" and f["what"] == "begin"]
    ids = np.frombuffer(begins[1]["data"], "<u4").copy()
    ids[-1] = 23
    begins[1]["data"] = ids.tobytes()


def another_state(directory):
    """An array that no run writes, beside those of a state."""
    with write_record(directory.record) as record:
        row = ("round 2", "memory.losses", "<f8", "[1]", np.array([1.5]).tobytes())
        record.db.execute("INSERT INTO arrays VALUES (?, ?, ?, ?, ?)", row)
        record.keep()


LIES = {
    "kept devices": (in_event(2, kept_devices=7), "events[2].kept_devices = 7, and it is 8"),
    "kept weight": (in_event(2, kept_weight=1), "kept_weight = 1, and it is"),
    "a loss": (in_event(1, train_loss=0.5), "train_loss = 0.5, and it is 2.3"),
    "the number of sums": (in_event(1, secure_sums=2), "secure_sums = 2, and it is 5"),
    "the number of queries": (in_event(1, num_queries=3), "num_queries = 3, and it is 4"),
    "a certificate": (in_event(1, certified=True), "certified = True, and it is False"),
    "a reason": (in_event(1, aborted="it did not please"), "aborted = 'it did not please', and"),
    "a cohort": (in_event(1, cohort=[3, 10]), "cohort = [3, 10], and it is [0, 2"),
    "an empty round": (in_event(1, empty=True), "empty = True, and it is False"),
    "no threshold": (in_event(1, eta=None), "eta = None, and it is 2.07"),
    "a learning rate": (in_event(1, learning_rate=0.2), "learning_rate = 0.2, and it is 0.1"),
    "a device that was lost": (
        in_event(1, dropped_by_stage={"mask": 1}),
        "dropped_by_stage.mask = 1, and it is None",
    ),
    "a key of an event": (in_event(1, loss_of_7=1.5), "loss_of_7 = 1.5, and it is None"),
    "a level": (in_event(1, levels={"1/2": {}}), "levels = {'1/2': {}}, and it is None"),
    "a time below zero": (in_event(1, wall_s=-1.5), "wall_s = -1.5, and it is 'a time'"),
    "a time of no stage": (in_event(1, stage_s={"loss of 7": 1.5}), "stage_s = {'loss of 7': 1.5}"),
    "no event": (without("events", 1), "events[1].round = 2, and it is 1"),
    "no last event": (without("events", 2), "the number of events = 1, and it is 2"),
    "an evaluated loss": (in_evaluation(1, loss=0.5), "[1].train[0].loss = 0.5, and it is 2.2"),
    "an evaluated device": (in_evaluation(1, device="seven"), "train[0].id = 'seven', and it is"),
    "a number of samples": (in_evaluation(2, num_samples=1), "[2].train[0].num_samples = 1, and"),
    "no evaluation": (lie(without_evaluation), "the number of evaluations = 2, and it is 3"),
    "a model": (in_array(2, "model", 3), "checkpoint[2].model[0] = "),
    "an earlier model": (in_array(1, "model", 3), "checkpoint[1].model[0] = "),
    "a threshold": (in_array(2, "eta", 5), "checkpoint[2].eta[0] = 2.07"),
    "a digest": (in_array(2, "record_digest", 5), "checkpoint[2].record_digest = "),
    "an array": (another_state, "checkpoint[2].memory.losses = array([1.5]), and it is None"),
    "a summary": (in_said("summary", secure_sums=3), "secure_sums = 3, and it is 10"),
    "a key of a summary": (in_said("summary", loss_of_7=3), "loss_of_7 = 3, and it is None"),
    "a key of the versions": (in_said("versions", loss_of_7=3), "versions.loss_of_7 = 3, and"),
    "the data": (in_said("versions", data_sha256=OTHER), f"data_sha256 = '{OTHER[:50]}"),
    "a clip": (
        in_settings("update_clip = 2.0", "update_clip = 1.0"),
        "rounds[1].levels.rounds[0].update.clip = 2.0, and it is 1.0",
    ),
    "a θ": (in_settings("theta = 0.5", "theta = 0.75"), "theta = Fraction(1, 2), and it is"),
    "a method": (in_settings('"bracketed"', '"mm"'), "method = 'bracketed', and it is"),
    "a start": (in_settings("warm_start = true", "warm_start = false"), ".warm_start = "),
    "a seed": (in_settings("seed = 1\n", "seed = 2\n"), "rounds[1].session.graph_seed = "),
    "an array of the bundle": (another_array, "bundle.npz: not a bundle that can be used"),
    "a comment of the bundle": (a_comment, "SHA-256 of bundle.npz = "),
}
FAST = "kept devices"


def test_a_directory_as_the_run_left_it_is_clean(tmp_path):
    directory = real(tmp_path / "run")
    assert found(directory) == (set(), [])
    assert main(["audit", str(directory.path), "--quiet"]) == 0


def test_a_chain_that_is_made_anew_is_right(tmp_path):
    """Control: nothing but the lie is found below."""
    assert found(real(tmp_path / "run", lie(lambda _: None))) == (set(), [])


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_what_the_run_does_not_lead_to_is_found_with_both_values(tmp_path, name):
    change, said = LIES[name]
    rules, details = found(real(tmp_path / "run", change))
    assert "record.disagrees" in rules
    assert any(said in one for one in details), details


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "rule"),
    [(another_end, "round.given-up"), (another_cohort, "cohort.uninvited")],
)
def test_rounds_that_were_otherwise_are_found(tmp_path, change, rule):
    rules, _ = found(real(tmp_path / "run", lie(change)))
    assert rule in rules


@pytest.mark.slow
@pytest.mark.parametrize("table", ["events", "evaluations", "sums", "messages", "rounds"])
def test_rows_under_a_chain_that_is_not_right_are_found(tmp_path, table):
    def change(directory):
        last = f"(SELECT max(number) FROM {table} WHERE round = 1)"  # noqa: S608 - a name of ours
        records.change(directory.path, f"UPDATE {table} SET round = 2 WHERE number = {last}")  # noqa: S608

    rules, _ = found(real(tmp_path / "run", change))
    assert "record.edited" in rules


@pytest.mark.slow
def test_another_record_than_the_summary_states_is_found(tmp_path):
    assert "record.head-differs" in found(real(tmp_path / "run", under_another_chain))[0]


@pytest.mark.parametrize(("which", "is_found"), [(-1, False), (0, True)])
def test_only_the_last_sum_of_a_stopped_record_may_be_missing(tmp_path, which, is_found):
    edit = Edit(played(DrawnStage))
    sums = [entry for entry in edit.entries if isinstance(entry, Learnt) and entry.round == 2]
    edit.remove(sums[which], *edit.entries[edit.entries.index(sums[-1]) + 1 :])
    write(edit.entries, tmp_path / "t.sqlite", closed=0)
    findings = audit(tmp_path / "t.sqlite", Options(min_cohort=5)).findings
    unrecorded = [one.severity for one in findings if one.rule == "sums.unrecorded"]
    assert unrecorded == [Severity.HIGH] * is_found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "also"),
    [
        ("eta_every = 1", "eta_every = 2", set()),
        ("epsilon = 0.0", "epsilon = 0.01", set()),
        ("noise = 0.0", "noise = 1000.0", {"record.disagrees"}),  # so much that nothing follows
    ],
)
def test_settings_that_no_run_can_have_are_found(tmp_path, old, new, also):
    rules, _ = found(real(tmp_path / "run", in_settings(old, new)))
    assert rules == {"settings.impossible"} | also


@pytest.mark.slow
def test_other_versions_are_named_and_everything_is_compared(tmp_path):
    directory = real(tmp_path / "run", in_said("versions", torch="9.9.9"))
    report = audit(directory.path)
    assert not [f for f in report.findings if f.severity >= Severity.LOW]
    (made,) = [check for check in report.checks if check.name == RunAgain.name]
    assert made.detail.startswith("2 of 2 rounds were played again")
    assert any("torch '9.9.9'" in one for one in report.not_checked)


@pytest.mark.slow
def test_nothing_in_a_record_writes_a_line_of_the_report(tmp_path, capsys):
    line = "Everything was checked."
    change = in_said("summary", **{f"loss\n{line}\r\x85{line}\u2028{line}": 3})
    directory = real(tmp_path / "run", change)
    assert main(["audit", str(directory.path), "--quiet"]) == 1
    printed = capsys.readouterr().out
    assert f"loss\\n{line}" in printed
    assert not [one for one in printed.splitlines() if one.startswith(line)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("settings", "\0", "the settings of"),
        ("summary", "{", r"record\.sqlite"),
        ("summary", "[]", r"record\.sqlite"),
    ],
)
def test_what_a_run_says_that_cannot_be_read_is_named(tmp_path, name, text, said):
    directory = real(tmp_path / "run", lambda one: records.note(one.path, name, text))
    with pytest.raises(UserError, match=said):
        audit(directory.path)


def in_place_of_the_bundle(make):
    def change(directory):
        directory.bundle.unlink()
        make(directory.bundle)

    return change


VERSIONS = [
    {"threads": 10**9, "backend": ["batched"], "data_sha256": None},
    {"threads": -1, "backend": "cuda", "device": {"a": 1}, "workers": 10**9},
    {"threads": "\n", "torch": None, "data_sha256": "\x1b[2J"},
]
ODD = {
    "no bundle but a folder": in_place_of_the_bundle(Path.mkdir),
    "no bundle but a pipe": in_place_of_the_bundle(os.mkfifo),
    "no bundle but a link to nowhere": in_place_of_the_bundle(lambda one: one.symlink_to("no")),
    "no bundle but text": in_place_of_the_bundle(lambda one: one.write_text("no")),
    **{f"versions {n}": in_said("versions", **one) for n, one in enumerate(VERSIONS)},
    "other data": in_settings('source = "digits"', 'source = "synthetic"'),
    "data that are nowhere": in_settings('source = "digits"', 'source = "/no/such.csv"'),
    "another model": in_settings('name = "linear"', 'name = "convnet"'),
    "fewer devices": in_settings("num_devices = 24", "num_devices = 9"),
    "another cohort": in_settings("cohort_size = 8", "cohort_size = 24"),
    "a wider floor": in_settings("max_weight = 8192", "max_weight = 2"),
    "narrow devices": in_settings("[data]", "[policy]\nmax_loss_bound = 1\n\n[data]"),
    "machines": in_settings('devices = "simulated"', 'devices = "remote"'),
    "more rounds": in_settings("rounds = 2", "rounds = 2000000"),
    "levels": in_settings("levels = []", 'levels = ["1", "0.5"]'),
    "a GPU": in_settings('device = "cpu"', 'device = "cuda"'),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_an_odd_directory_is_no_crash(tmp_path, name):
    directory = real(tmp_path / "run", ODD[name])
    found(directory)
    assert main(["audit", str(directory.path), "--quiet", "--json"]) in (0, 1)


def test_versions_that_cannot_be_read_are_a_finding(tmp_path):
    directory = real(tmp_path / "run", lambda one: records.note(one.path, "versions", "{"))
    assert found(directory)[0] == {"record.disagrees"}


def test_a_directory_without_its_record_is_refused(tmp_path):
    directory = real(tmp_path / "run")
    directory.record.unlink()
    with pytest.raises(UserError, match=r"record\.sqlite"):
        audit(directory.path)


def test_a_directory_with_an_empty_record_is_refused(tmp_path):
    directory = real(tmp_path / "run")
    Path(directory.record).write_bytes(b"")
    with pytest.raises(UserError, match="empty"):
        audit(directory.path)


@pytest.mark.slow
@pytest.mark.parametrize("event", ["{", "[]", '{"loss": 1}', '{"round": "first"}'])
def test_damaged_events_are_a_finding_beside_those_of_the_messages(tmp_path, event):
    def change(rows):
        next(fields for table, _, fields, _ in rows if table == "events")["event"] = event

    report = audit(real(tmp_path / "run", lie(change)).path)
    assert "record.disagrees" in {one.rule for one in report.findings}
    assert report.sums_replayed == report.sums_released > 0
