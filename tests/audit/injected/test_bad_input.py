"""Damaged, foreign and invented records: a clear answer, no crash, and never "clean"."""

import hashlib
import shutil

import pytest
import records
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import serious
from staged_runs import (
    Edit,
    Kind,
    OneQuestionStage,
    Said,
    TinyStage,
    played,
    write,
    write_truth,
)

from deltafl.sim.errors import ChainError, Damage, UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.catalogue import RunAgain
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.options import Options

AT = 20  # a message in the middle
END = 59  # the closing row


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The record of an honest round, which nobody changes."""
    path = tmp_path_factory.mktemp("tiny") / "t.sqlite"
    write(played(TinyStage).entries, path)
    return path


@pytest.fixture
def copy(tiny, tmp_path):
    """Another one, to be changed."""
    return shutil.copy(tiny, tmp_path / "t.sqlite")


def places(report, rule):
    return [place.record for f in report.findings if f.rule == rule for place in f.evidence]


def rewritten(path, change):
    """Change the rows of a record under a right chain; the last digest."""
    rows = records.rows_of(path)
    change(rows)
    return records.write_rows(path, rows)


def test_the_record_is_clean_as_it_was_written(tiny, copy):
    assert serious(audit(tiny)) == set()
    rewritten(copy, lambda _: None)
    assert serious(audit(copy)) == set()


def test_checks_of_a_record_that_is_damaged_are_partial(tiny, copy):
    records.change_record(copy, "DELETE FROM messages WHERE number = 50")
    whole, cut = audit(tiny), audit(copy)
    done = {check.outcome for check in whole.checks if check.name != RunAgain.name}
    assert done == {Outcome.PASSED, Outcome.EMPTY}
    failed, *others = (check for check in cut.checks if check.name != RunAgain.name)
    assert failed.outcome is Outcome.FAILED
    assert {check.outcome for check in others} <= {Outcome.PARTIAL, Outcome.EMPTY, Outcome.SKIPPED}
    assert any("what follows the damage" in one for one in cut.not_checked)
    assert not any("what follows the damage" in one for one in whole.not_checked)


@pytest.mark.parametrize("kept", [1, 2, 3, 20, 48, 57, END])
def test_a_record_without_its_last_rows_is_unfinished(copy, kept):
    for table in ("rounds", "messages", "sums"):
        records.change_record(copy, (f"DELETE FROM {table} WHERE number >= ?", (kept,)))  # noqa: S608 - names of ours
    assert "record.unfinished" in serious(audit(copy))


def test_a_digest_from_elsewhere_tells_what_was_cut(tiny, copy):
    head = rewritten(copy, lambda _: None)
    assert serious(audit(tiny, Options(head=head))) == set()
    records.change_record(copy, ("DELETE FROM rounds WHERE number = ?", (END,)))
    assert "record.head-differs" in serious(audit(copy, Options(head=head)))
    assert "record.head-differs" in serious(audit(tiny, Options(head=bytes(32))))


EDITED = {
    "a peer": "UPDATE messages SET peer = peer + 1 WHERE number = 20",
    "a digest": "UPDATE messages SET digest = zeroblob(32) WHERE number = 20",
    "a text for a number": "UPDATE messages SET size = 'many' WHERE number = 20",
    "a digest of a message": "UPDATE messages SET sha256 = zeroblob(32) WHERE number = 20",
}


@pytest.mark.parametrize("statement", EDITED.values(), ids=EDITED)
def test_an_edited_row_is_found_in_its_place(copy, statement):
    records.change_record(copy, statement)
    report = audit(copy)
    assert "record.edited" in serious(report)
    assert places(report, "record.edited") == [AT]


def test_an_edited_body_is_found_in_its_place(copy):
    records.change_record(copy, ("UPDATE bodies SET data = zeroblob(7) WHERE number = ?", (AT,)))
    report = audit(copy)
    assert {"record.edited", "record.malformed"} & serious(report)


def test_damage_hides_nothing_that_came_before(tmp_path):
    run, path = played(TinyStage), tmp_path / "t.sqlite"
    write([*run.entries[:40], Said(1, False, 3, b'{"loss": 1.25}'), *run.entries[40:]], path)
    records.change_record(path, "DELETE FROM messages WHERE number = 50")
    assert {"clear.values", "record.missing"} <= serious(audit(path))


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b"", Damage.EMPTY),
        (b"SQLite", Damage.FOREIGN),
        (b"\x89PNG\r\n\x1a\n" + bytes(500), Damage.FOREIGN),
        (b"x" * 10_000, Damage.FOREIGN),
    ],
    ids=["empty", "cut magic", "picture", "text"],
)
def test_what_is_no_record_is_refused(tmp_path, content, damage):
    (tmp_path / "t.sqlite").write_bytes(content)
    with pytest.raises(ChainError) as caught:
        audit(tmp_path / "t.sqlite")
    assert caught.value.damage is damage
    assert str(tmp_path / "t.sqlite") in str(caught.value)


@pytest.mark.parametrize("size", [100, 5000, 20_000])
def test_a_record_that_was_cut_as_a_file_is_refused_or_found(tiny, tmp_path, size):
    (tmp_path / "t.sqlite").write_bytes(tiny.read_bytes()[:size])
    try:
        report = audit(tmp_path / "t.sqlite")
    except UserError:
        return
    assert serious(report)


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        audit(tmp_path / "nowhere", Options())


def test_a_directory_that_is_no_run_is_named(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        audit(tmp_path, Options())


def test_the_truth_of_another_run_is_refused(tiny, tmp_path):
    write_truth(played(TinyStage), tmp_path / "truth.sqlite", run_id=b"another runs id.")
    with pytest.raises(UserError, match=b"another runs id.".hex()):
        audit(tiny, Options(truth=tmp_path / "truth.sqlite"))


def test_a_damaged_truth_file_is_refused(tiny, tmp_path):
    truth = tmp_path / "truth.sqlite"
    write_truth(played(TinyStage), truth)
    records.change_record(truth, "UPDATE devices SET weight = 1 WHERE number = 3")
    with pytest.raises(UserError, match=r"truth\.sqlite"):
        audit(tiny, Options(truth=truth))
    truth.write_bytes(tiny.read_bytes())
    with pytest.raises(UserError, match=r"truth\.sqlite"):
        audit(tiny, Options(truth=truth))


def test_a_truth_file_that_is_not_there_is_named(tiny, tmp_path):
    with pytest.raises((UserError, FileNotFoundError), match=r"truth\.sqlite"):
        audit(tiny, Options(truth=tmp_path / "truth.sqlite"))


# What a program that writes other rows than ours makes of the format, under a chain that is right.

SUM = {"round": 1, "slot": 0, "length": 0, "sha256": hashlib.sha256().digest()}
SUM = SUM | {"contributors": b"", "words": b""}
MALFORMED = {
    "a row of no known kind": ("rounds", {"what": "hello"}),
    "a negative size": ("messages", {"size": -1}),
    "a digest of the wrong size": ("messages", {"sha256": bytes(31)}),
    "a negative round": ("messages", {"round": -1}),
    "a negative device": ("messages", {"peer": -1}),
    "a text for a device": ("messages", {"peer": "seven"}),
    "nothing for a device": ("messages", {"peer": None}),
    "a sum of half a word": ("sums", {"words": bytes(7)}),
    "a sum of half a device": ("sums", {"contributors": b"abc"}),
    "a sum of a negative slot": ("sums", {"slot": -1}),
    "a begin with half a device": ("rounds", {"what": "begin", "data": b"abc"}),
}


@pytest.mark.parametrize(("table", "values"), MALFORMED.values(), ids=MALFORMED)
def test_garbage_under_a_right_chain_is_malformed(copy, table, values):
    def change(rows):
        next(row for row in rows[5:] if row[0] == table)[2].update(values)

    rewritten(copy, change)
    assert {"record.malformed", "record.edited"} & serious(audit(copy))


@pytest.mark.parametrize("mode", ["", "nothing", "headers", "every=2", None])
def test_an_opening_of_no_mode_is_malformed(copy, mode):
    rewritten(copy, lambda rows: rows[0][2].update(said=mode))
    assert places(audit(copy), "record.malformed") == [0]


def test_a_record_without_an_opening_is_malformed(copy):
    rewritten(copy, lambda rows: rows.pop(0))
    assert "record.malformed" in serious(audit(copy))


STRANGE = {
    "a device that nobody knows": ["messages", 0, {"peer": 2**32 - 1}],
    "a message of a round that never was": ["messages", 0, {"round": 2**40}],
    "a message of a trip that never was": ["messages", 0, {"trip": 77}],
    "an empty sum": ["sums", 0, SUM],
    "a sum of a slot that there is not": ["sums", 0, {**SUM, "slot": 10**6}],
    "a sum of a round that never was": ["sums", 0, {**SUM, "round": 77}],
    "a sum over one device twice": ["sums", 0, {**SUM, "contributors": bytes(8)}],
}


@pytest.mark.slow
@pytest.mark.parametrize("at", [2, 20, 51])
@pytest.mark.parametrize("name", STRANGE)
def test_rows_that_make_no_sense_are_found(copy, name, at):
    table, _, values = STRANGE[name]

    def change(rows):
        _, number, fields, body = next(row for row in rows if row[0] == table)
        rows.insert(at, [table, number, {**fields, **values}, body])

    rewritten(copy, change)
    assert serious(audit(copy))


def test_a_roster_that_is_not_recorded_hides_nothing_else(tmp_path):
    run = played(TinyStage)
    *_, last = Edit(run).find(1, Kind.ROSTER)
    write([entry for entry in run.entries if entry is not last], tmp_path / "t.sqlite")
    assert {"messages.missing", "spec.answers"} <= serious(audit(tmp_path / "t.sqlite"))


def test_a_device_that_sends_what_servers_send_does_not_make_them_liars(tmp_path):
    edit = Edit(played(TinyStage))
    told = edit.find(1, Kind.ROSTER)[0]
    own = Said(1, sent=False, peer=told.peer, data=edit.envelope(told).session)
    edit.entries.insert(edit.place(told), own)
    write(edit.entries, tmp_path / "t.sqlite")
    found = serious(audit(tmp_path / "t.sqlite"))
    assert [one for one in found if one.startswith(("clear", "spec"))] == ["clear.values"]


@pytest.mark.parametrize("at", [20, END])
def test_a_second_closing_is_found(copy, at):
    rewritten(copy, lambda rows: rows.insert(at, rows[-1]))
    assert serious(audit(copy))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60)
def test_no_bit_of_a_message_is_of_no_importance(tmp_path_factory, data):
    """A message is changed as by its sender; whatever is not needed is left out of account."""
    run = played(OneQuestionStage)
    free = Edit(run).find(1, Kind.SHARES)[3:] + Edit(run).find(2, Kind.SHARES)[3:]
    said = [entry for entry in run.entries if isinstance(entry, Said) and entry not in free]
    entry = data.draw(st.sampled_from(said))
    changed = bytearray(entry.data)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    entries = [
        Said(e.round, e.sent, e.peer, bytes(changed)) if e is entry else e for e in run.entries
    ]
    path = tmp_path_factory.mktemp("changed") / "t.sqlite"
    write(entries, path)
    assert {f.rule for f in audit(path).findings} - {"search.narrow"}


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60)
def test_no_order_of_rows_is_a_crash(tiny, tmp_path_factory, data):
    """Rows are left out, repeated and moved as if by chance, under a chain that is right."""
    first, *rows, last = records.rows_of(tiny)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(rows) - 1))
        table, number, fields, body = rows[at]
        match data.draw(st.sampled_from(["drop", "repeat", "move", "rename", "round"])):
            case "drop":
                del rows[at]
            case "repeat":
                rows.insert(data.draw(st.integers(0, len(rows))), rows[at])
            case "move":
                rows.insert(data.draw(st.integers(0, len(rows) - 1)), rows.pop(at))
            case "rename" if table == "messages":
                fields = {**fields, "peer": data.draw(st.integers(0, 40))}
                rows[at] = [table, number, fields, body]
            case _:
                fields = {**fields, "round": data.draw(st.integers(0, 3))}
                rows[at] = [table, number, fields, body]
    path = tmp_path_factory.mktemp("moved") / "t.sqlite"
    shutil.copy(tiny, path)
    records.write_rows(path, [first, *rows, last])
    audit(path)
