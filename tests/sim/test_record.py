import ctypes
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import numpy as np
import pytest
from fresh_python import run_python
from hypothesis import given, settings
from hypothesis import strategies as st
from records import rows_of, write_rows

from deltafl.secagg import SlotSum
from deltafl.sim.errors import ChainError, Damage, RunDirectoryError
from deltafl.sim.record.chain import ascending
from deltafl.sim.record.record import HAPPENED, open_record, write_record
from deltafl.sim.record.transcript import (
    SUM_WORDS,
    Begin,
    Closed,
    Closing,
    Message,
    Opening,
    Resumed,
    RoundEnd,
    Sum,
    TranscriptWriter,
    read_beyond,
    read_rows,
    read_transcript,
    read_with_digests,
    sum_sha256,
    with_bytes,
)

LONG = bytes(range(256)) * 20
MESSAGES = [
    (True, 3, b"roster"),
    (True, 4, b"roster"),
    (False, 3, b""),
    (False, 4, LONG),
    (True, 4, LONG),
]
TOTAL = SlotSum(1, np.arange(300, dtype=np.uint32), (3, 4), (4,))
COHORT = (3, 4)


def play_round(writer, number, aborted=None):
    writer.begin_round(number, COHORT)
    for sent, peer, data in MESSAGES:
        writer.message(sent=sent, peer=peer, data=data)
    writer.closed()
    writer.revealed(TOTAL)
    writer.end_round(aborted)


def write(path, *, mode="full", rounds=2, finish=True):
    with write_record(path) as record:
        writer = TranscriptWriter(record, mode)
        for number in range(1, rounds + 1):
            play_round(writer, number, None if number == 1 else "nobody was left")
            record.keep()
        if finish:
            writer.finish(rounds)
            record.keep()
        return record.chain.mark


def change(path, *statements):
    with closing(sqlite3.connect(path)) as db:
        for one in statements:
            db.execute(*one) if isinstance(one, tuple) else db.execute(one)
        db.commit()


def damage(path):
    read = []
    with pytest.raises(ChainError) as caught:
        read.extend(one.number for one in read_transcript(path))
    assert read == [*range(len(read))]
    return caught.value.frame, caught.value.damage


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "record.sqlite"
    return path, write(path)


@pytest.fixture
def path(written, tmp_path):
    return shutil.copy(written[0], tmp_path / "record.sqlite")


def test_what_is_read_is_what_was_written(path):
    opening, begin, *rows = read_transcript(path)
    assert (type(opening), opening.mode, len(opening.run_id)) == (Opening, "full", 16)
    assert (type(begin), begin.round, begin.cohort) == (Begin, 1, COHORT)
    messages, (closed, total, end) = rows[:5], rows[5:8]
    assert [(one.sent, one.peer) for one in messages] == [one[:2] for one in MESSAGES]
    assert [one.head for one in messages] == [one[2] for one in MESSAGES]
    assert all(one.is_whole for one in messages)
    assert [one.trip for one in messages] == [0] * 5
    assert closed == Closed(7, 1)
    assert isinstance(total, Sum)
    assert (total.slot, total.length, total.contributors.tolist()) == (1, 300, [3, 4])
    assert total.words.tolist() == TOTAL.vector[-SUM_WORDS:].tolist()
    assert total.sha256 == sum_sha256(TOTAL.vector)
    assert end == RoundEnd(9, 1, "")
    assert rows[-2:] == [RoundEnd(18, 2, "nobody was left"), Closing(19, 2)]


def test_a_broadcast_is_kept_once_a_round(path):
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT number FROM bodies").fetchall() == [
            (number,) for number in (2, 4, 5, 6, 11, 13, 14, 15)
        ]


def test_a_clean_end_leaves_one_file(tmp_path):
    write(tmp_path / "record.sqlite")
    assert [one.name for one in tmp_path.iterdir()] == ["record.sqlite"]


def test_sums_has_every_message_and_none_of_its_bytes(tmp_path):
    write(tmp_path / "full.sqlite")
    write(tmp_path / "sums.sqlite", mode="sums")
    full = list(read_transcript(tmp_path / "full.sqlite"))
    sums = list(read_transcript(tmp_path / "sums.sqlite"))
    assert [type(one) for one in sums] == [type(one) for one in full]
    told = [(one.size, one.sha256) for one in sums if isinstance(one, Message)]
    assert told == [(one.size, one.sha256) for one in full if isinstance(one, Message)]
    assert not any(one.head for one in sums if isinstance(one, Message))
    assert not any(one.is_whole for one in sums if isinstance(one, Message) and one.size)


@pytest.mark.parametrize("keeps_open", [False, True])
def test_no_bytes_of_a_message_are_left_in_sums(tmp_path, keeps_open):
    """Not in free pages either, where deleted rows may stay."""
    path, word = tmp_path / "record.sqlite", b"the bytes of a message " * 3000
    with write_record(path) as record:
        writer = TranscriptWriter(record, "sums", keeps_open=keeps_open)
        writer.begin_round(1, COHORT)
        writer.message(sent=False, peer=3, data=word)
        writer.closed()
        assert (next(iter(read_bodies(path)), None) == word) == keeps_open
        writer.end_round(None)
        record.keep()
    assert read_bodies(path) == []
    assert word[:23] not in path.read_bytes()


def read_bodies(path):
    with open_record(path) as record:
        return [data for (data,) in record.db.execute("SELECT data FROM bodies")]


@given(st.integers(0, 19), st.sampled_from(["round", "digest"]))
@settings(max_examples=25, deadline=None)
def test_an_edit_is_found_where_it_begins(written, tmp_path_factory, number, column):
    path = shutil.copy(written[0], tmp_path_factory.mktemp("edited") / "record.sqlite")
    for table in HAPPENED:
        change(path, (f"UPDATE {table} SET {column} = 77 WHERE number = ?", (number,)))  # noqa: S608
    assert damage(path) == (number, Damage.EDITED)


@given(st.integers(0, 18))
@settings(max_examples=19, deadline=None)
def test_rows_that_were_taken_out_are_missed(written, tmp_path_factory, number):
    path = shutil.copy(written[0], tmp_path_factory.mktemp("cut") / "record.sqlite")
    for table in HAPPENED:
        change(path, (f"DELETE FROM {table} WHERE number = ?", (number,)))  # noqa: S608
    assert damage(path) == (number, Damage.MISSING)


def test_rows_that_change_places_are_found(path):
    change(
        path,
        "UPDATE messages SET number = 99 WHERE number = 4",
        "UPDATE messages SET number = 4 WHERE number = 5",
        "UPDATE messages SET number = 5 WHERE number = 99",
    )
    assert damage(path) == (4, Damage.EDITED)


def test_a_number_that_is_there_twice_is_found(path):
    change(path, "INSERT INTO sums SELECT 5, digest, 1, 1, 0, x'', x'', x'' FROM sums LIMIT 1")
    assert damage(path)[1] in (Damage.EDITED, Damage.REORDERED)


def test_an_end_that_was_cut_off_shows_by_the_head(written, path):
    *_, (last, head) = read_with_digests(path)
    assert (last.number, head) == (19, written[1].digest)
    change(path, "DELETE FROM rounds WHERE number = 19")
    *_, (last, digest) = read_with_digests(path)
    assert (last.number, digest != head) == (18, True)


def test_rows_that_are_there_twice_end_the_reading(path):
    """As where pages of a hostile file are in several places."""
    rows = [(3, "one"), (4, "other")]
    assert list(ascending(path, rows)) == rows
    with pytest.raises(ChainError, match="row 3 is there twice"):
        list(ascending(path, rows * 2))


def test_bytes_that_were_changed_are_found(path):
    change(path, "UPDATE bodies SET data = x'00' WHERE number = 5")
    assert damage(path) == (5, Damage.EDITED)


def test_bytes_that_were_taken_out_leave_a_message_that_is_not_whole(path):
    change(path, "DELETE FROM bodies WHERE number = 5")
    (without,) = (one for one in read_transcript(path) if one.number == 5)
    assert (without.head, without.is_whole, without.size) == (b"", False, len(LONG))


def test_a_message_has_no_bytes_of_another(path):
    change(path, "UPDATE messages SET body = 2 WHERE number = 5")
    assert damage(path) == (5, Damage.EDITED)


def rewritten(path, table, number, **fields):
    """Change fields of a row, and all digests after it: the chain is right."""
    rows = rows_of(path)
    assert rows[number][0] == table
    rows[number][2].update(fields)
    write_rows(path, rows)
    return path


def test_who_can_rewrite_all_digests_is_not_found_by_them(path):
    rewritten(path, "rounds", 18, said="something else")
    assert list(read_transcript(path))[-2] == RoundEnd(18, 2, "something else")


@pytest.mark.parametrize(
    ("table", "number", "fields"),
    [
        ("rounds", 0, {"what": "begin"}),
        ("rounds", 0, {"said": "some"}),
        ("rounds", 0, {"data": b"short"}),
        ("rounds", 0, {"round": 1}),
        ("rounds", 1, {"round": -1}),
        ("rounds", 1, {"data": bytes(3)}),
        ("rounds", 1, {"data": bytes(8)}),  # twice the same device
        ("rounds", 1, {"data": "text"}),
        ("rounds", 1, {"what": "opening"}),
        ("rounds", 1, {"what": "begins"}),
        ("rounds", 9, {"said": None}),
        ("rounds", 9, {"data": b"short"}),
        ("rounds", 19, {"said": "more"}),
        ("messages", 2, {"sent": 2}),
        ("messages", 2, {"peer": 1 << 32}),
        ("messages", 2, {"size": -1}),
        ("messages", 2, {"sha256": b"short"}),
        ("messages", 2, {"trip": "first"}),
        ("sums", 8, {"length": 3}),
        ("sums", 8, {"length": 256}),
        ("sums", 8, {"words": bytes(7)}),
        ("sums", 8, {"contributors": 3}),
    ],
)
def test_a_row_that_no_run_writes_is_refused(path, table, number, fields):
    assert damage(rewritten(path, table, number, **fields)) == (number, Damage.MALFORMED)


def test_single_messages_are_read_again(path):
    with open_record(path) as record:
        (row,) = (one for one in read_rows(record) if one.number == 5)
        assert row.head == b""
        assert with_bytes(record, row).head == LONG


# --- who may have written it


def refusal(path):
    with pytest.raises(ChainError) as caught, open_record(path) as record:
        record.text("settings")
    return caught.value.damage, str(caught.value)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "record.sqlite").write_bytes(b"")
    assert refusal(tmp_path / "record.sqlite")[0] is Damage.EMPTY


def test_another_file_is_refused(tmp_path):
    (tmp_path / "record.sqlite").write_bytes(b"something else entirely" * 100)
    assert refusal(tmp_path / "record.sqlite")[0] is Damage.FOREIGN


def test_another_database_is_refused(tmp_path):
    change(tmp_path / "record.sqlite", "CREATE TABLE rounds (number)")
    assert refusal(tmp_path / "record.sqlite")[0] is Damage.FOREIGN


def test_another_version_is_refused(path):
    change(path, "PRAGMA user_version = 2")
    found, said = refusal(path)
    assert found is Damage.VERSION
    assert "version 2" in said


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW more AS SELECT 1",
        "CREATE TABLE more (x)",
        "CREATE TRIGGER more AFTER INSERT ON about BEGIN DELETE FROM rounds; END",
        "CREATE INDEX more ON messages (round)",
        "ALTER TABLE messages ADD COLUMN more",
        "CREATE VIRTUAL TABLE more USING fts5(x)",
        "DROP TABLE attackers",
    ],
)
def test_a_schema_that_no_run_makes_is_refused(path, statement):
    change(path, statement)
    assert refusal(path)[0] is Damage.FOREIGN


def test_a_view_in_place_of_a_table_is_not_asked(path):
    change(
        path,
        "ALTER TABLE about RENAME TO hidden",
        "CREATE VIEW about AS SELECT name, CAST(zeroblob(500000000) AS TEXT) AS value FROM hidden",
    )
    assert refusal(path)[0] is Damage.FOREIGN


def test_a_link_a_pipe_and_a_folder_are_refused(path, tmp_path):
    pipe, folder = tmp_path / "pipe.sqlite", tmp_path / "folder.sqlite"
    os.mkfifo(pipe)
    folder.mkdir()
    for one in (pipe, folder):
        with pytest.raises(RunDirectoryError, match="not a regular file"), open_record(one):
            pass
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    with pytest.raises(RunDirectoryError, match="a link"), write_record(link):
        pass
    os.mkfifo(tmp_path / "record.sqlite-wal")
    with pytest.raises(RunDirectoryError, match="not a regular file"), open_record(path):
        pass


def test_reading_leaves_nothing_behind(path, tmp_path):
    list(read_transcript(path))
    assert [one.name for one in tmp_path.iterdir()] == ["record.sqlite"]


def test_nothing_is_attached_and_nothing_is_written(path):
    with open_record(path) as record:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            record.db.execute("DELETE FROM about")
        with pytest.raises(sqlite3.OperationalError, match="attached"):
            record.db.execute("ATTACH ':memory:' AS other")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_are_sentences(written, tmp_path_factory, data):
    content = bytearray(written[0].read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(content), len(content) // 2, 16384, 100]))
    path = tmp_path_factory.mktemp("fuzzed") / "record.sqlite"
    path.write_bytes(content[:cut])
    said = str(path)
    try:
        list(read_transcript(path))
    except ChainError as error:
        said = str(error)
    assert said.startswith(str(path))


# --- how it is written


def test_what_is_not_kept_is_undone(tmp_path):
    path = tmp_path / "record.sqlite"
    write(path, rounds=1, finish=False)
    with write_record(path) as record:
        writer = TranscriptWriter(record, "full")
        writer.begin_round(2, COHORT)
        writer.message(sent=True, peer=3, data=b"lost with its trip")
    assert list(read_transcript(path))[-1] == Begin(10, 2, COHORT)


def test_a_round_that_no_device_answers_leaves_nothing(tmp_path):
    path = tmp_path / "record.sqlite"
    with write_record(path) as record:
        writer = TranscriptWriter(record, "full", is_durable=False)
        writer.begin_round(1, COHORT)
        writer.closed()
    assert [type(one) for one in read_transcript(path)] == [Opening]


def test_a_begin_is_synchronised_and_a_trip_is_not(tmp_path):
    with write_record(tmp_path / "record.sqlite") as record:
        levels = []

        def level():
            levels.append(record.db.execute("PRAGMA synchronous").fetchone()[0])

        writer = TranscriptWriter(record, "full")
        level()
        writer.begin_round(1, COHORT)
        level()
        writer.end_round(None)
        level()
    assert levels == [2, 1, 2]  # FULL, NORMAL, FULL


def test_a_record_is_read_while_it_is_written(tmp_path):
    path = tmp_path / "record.sqlite"
    with write_record(path) as record:
        writer = TranscriptWriter(record, "full")
        play_round(writer, 1)
        with open_record(path) as seen:
            assert seen.chain.mark.num_frames == 9  # but for the end, which is not kept yet
            record.keep()
            play_round(writer, 2)
            record.keep()
            assert seen.chain.mark_at().num_frames == 9  # one state, however long it is read
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                seen.db.execute("DELETE FROM about")
        with open_record(path) as seen:
            assert seen.chain.mark == record.chain.mark


def test_a_copy_without_its_journal_is_noticed(tmp_path):
    path, copy = tmp_path / "record.sqlite", tmp_path / "copy.sqlite"
    with write_record(path) as record:
        play_round(TranscriptWriter(record, "full"), 1)
        record.keep()
        shutil.copy(path, copy)
        found, said = refusal(copy)
        assert found is Damage.CUT
        assert "copy.sqlite-wal" in said
        shutil.copy(f"{path}-wal", f"{copy}-wal")
        mark = record.chain.mark
    with open_record(copy) as seen:
        assert seen.chain.mark == mark


def made_in(folder, doing):
    """The names of the files that are made in a folder meanwhile, even if they go again."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init()
    assert libc.inotify_add_watch(watch, bytes(folder), 0x100) > 0  # IN_CREATE
    doing()
    events = os.read(watch, 1 << 16)
    os.close(watch)
    return {part for part in events.replace(b"\0", b" ").decode("ascii", "ignore").split()}


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "inotify_init"), reason="needs inotify")
def test_no_rollback_journal_is_ever_made_as_a_reader_could_not_take_it_in(tmp_path):
    def written():
        with write_record(tmp_path / "record.sqlite") as record:
            play_round(TranscriptWriter(record, "full"), 1)
            record.keep()

    def control():
        change(tmp_path / "record.sqlite", "DELETE FROM about")

    names = made_in(tmp_path, written) | made_in(tmp_path, written)
    assert "record.sqlite-wal" in names
    assert "record.sqlite-journal" not in names
    assert "record.sqlite-journal" in made_in(tmp_path, control)


def test_a_file_whose_journal_was_taken_in_is_whole(tmp_path):
    """As a process leaves it that is killed while it switches to or from a journal."""
    path = tmp_path / "record.sqlite"
    with write_record(path) as record:
        play_round(TranscriptWriter(record, "full"), 1)
        record.keep()
        mark = record.chain.mark
    data = bytearray(path.read_bytes())
    data[18:20] = b"\2\2"
    path.write_bytes(data)
    with open_record(path) as seen:
        assert seen.chain.mark == mark
    with write_record(path) as record:
        assert record.chain.mark == mark


def test_what_somebody_reads_for_long_keeps_its_journal(tmp_path, monkeypatch):
    monkeypatch.setattr("deltafl.sim.record.database._TRIES", 1)
    path = tmp_path / "record.sqlite"
    with write_record(path) as record:
        TranscriptWriter(record, "full")
        reader = open_record(path)
        reader.__enter__()
    assert (tmp_path / "record.sqlite-wal").exists()
    with write_record(path) as record:  # and a run goes on beside it
        record.keep()
    reader.__exit__(None, None, None)
    with write_record(path):
        pass
    assert [one.name for one in tmp_path.iterdir()] == ["record.sqlite"]


KILLED_WHILE_IT_IS_MADE = """
import itertools, os, signal, sqlite3, sys
from pathlib import Path
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config import RunConfig

connect, config = sqlite3.connect, RunConfig()

class Killing(sqlite3.Connection):
    def execute(self, *arguments):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(*arguments)

def begin(directory):
    with directory.claim(config, resume=True) as record:
        record.keep()

for number in itertools.count(1):
    directory = RunDirectory(Path(sys.argv[1]) / str(number))
    if not os.fork():
        left = number
        sqlite3.connect = lambda *a, **more: connect(*a, factory=Killing, **more)
        begin(directory)
        os._exit(0)
    if not os.wait()[1]:
        break
    begun = directory.is_run
    begin(directory)
    assert directory.is_run and directory.config() == config
    print(number, begun)
"""


def test_a_run_goes_on_wherever_the_making_of_its_record_was_cut_short(tmp_path):
    done = run_python("-c", KILLED_WHILE_IT_IS_MADE, str(tmp_path))
    assert done.returncode == 0, done.stderr
    begun = [line.split()[1] for line in done.stdout.splitlines()]
    assert begun == sorted(begun)
    assert set(begun) == {"False", "True"}
    assert len(begun) > 20


KILLED = """
import os, signal, sys
from pathlib import Path
from deltafl.sim.record.record import write_record
from deltafl.sim.record.transcript import TranscriptWriter
with write_record(Path(sys.argv[1])) as record:
    writer = TranscriptWriter(record, "full")
    number = 0
    print("begun", flush=True)
    while True:
        number += 1
        writer.begin_round(number, (3, 4))
        for trip in range(3):
            for peer in (3, 4):
                writer.message(sent=True, peer=peer, data=bytes(20_000))
                writer.message(sent=False, peer=peer, data=os.urandom(20_000))
            writer.closed()
        writer.end_round(None)
        record.keep()
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_killed_writer_leaves_whole_trips(tmp_path, seed):
    path = tmp_path / "record.sqlite"
    process = subprocess.Popen(  # noqa: S603 (ourselves)
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    threading.Event().wait(0.05 + 0.07 * seed)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    rows = list(read_transcript(path))
    if isinstance(rows[-1], Message):  # its trip is over, and was not closed yet
        trips = [(one.round, one.trip) for one in rows if isinstance(one, Message)]
        assert trips.count(trips[-1]) == 4
    else:
        assert isinstance(rows[-1], Opening | Begin | Closed | RoundEnd)
    with write_record(path) as record:
        writer = TranscriptWriter(record, "full")
        writer.resume(0)
        play_round(writer, 1 + sum(isinstance(one, Begin) for one in rows))
        record.keep()
    again = list(read_transcript(path))
    assert again[: len(rows)] == rows or [type(one) for one in again[: len(rows)]] == [
        type(one) for one in rows
    ]
    assert isinstance(again[len(rows)], Resumed)


# --- going on


def test_what_lies_beyond_a_checkpoint(tmp_path):
    path = tmp_path / "record.sqlite"
    with write_record(path) as record:
        writer = TranscriptWriter(record, "full")
        play_round(writer, 1)
        record.keep()
        mark = record.chain.mark
        assert read_beyond(record, mark) is None
        play_round(writer, 2)
        assert read_beyond(record, mark) == (2, COHORT, mark, (1,))
        writer.begin_round(3, (4,))
        with pytest.raises(ChainError, match="a second round begins"):
            read_beyond(record, mark)


def test_a_round_that_goes_on_makes_the_same_rows_again(tmp_path):
    path = tmp_path / "record.sqlite"
    with write_record(path) as record:
        writer = TranscriptWriter(record, "full")
        writer.begin_round(1, COHORT)
        for sent, peer, data in MESSAGES:
            writer.message(sent=sent, peer=peer, data=data)
        record.keep()
    whole = tmp_path / "whole.sqlite"
    shutil.copy(path, whole)
    with write_record(path) as record:
        begun = read_beyond(record, record.chain.start)
        writer = TranscriptWriter(record, "full")
        writer.begin_round(1, COHORT, begun.before)
        for sent, peer, data in MESSAGES:
            writer.message(sent=sent, peer=peer, data=data)
        assert record.db.total_changes == 0
        writer.message(sent=False, peer=4, data=b"more")
        record.keep()
    assert [one.number for one in read_transcript(path)] == list(range(8))
    with write_record(whole) as record:
        writer = TranscriptWriter(record, "full")
        writer.begin_round(1, COHORT, begun.before)
        with pytest.raises(ChainError, match="not what comes of"):
            writer.message(sent=True, peer=3, data=b"another")


def test_a_trip_that_an_answer_names_is_noted(tmp_path):
    path = tmp_path / "record.sqlite"
    with write_record(path) as record:
        writer = TranscriptWriter(record, "full")
        writer.begin_round(1, COHORT)
        writer.closed()
        writer.answers = 0
        writer.message(sent=False, peer=3, data=b"late")
        writer.message(sent=False, peer=4, data=b"in time")
        record.keep()
    assert [one.trip for one in read_transcript(path) if isinstance(one, Message)] == [0, 1]


def test_marks_are_of_rows(path):
    with open_record(path) as record:
        assert record.chain.mark_at(0) == record.chain.start
        assert record.chain.mark_at(20) == record.chain.mark
