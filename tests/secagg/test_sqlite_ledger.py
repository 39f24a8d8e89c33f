"""A ledger in a file: its twin in memory, kill -9, races, and files that are none."""

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from fresh_python import ROOT, run_python
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ledger_child import PROGRAM, numbered, pair
from ledgers import ENTRIES, Model, capacities, histories, play
from parties import Parties, make_params

from deltafl.secagg import ledger as ledger_file
from deltafl.secagg.errors import LedgerError, Refusal, UsageError
from deltafl.secagg.ledger import APPLICATION_ID, VERSION, MemoryLedger, SqliteLedger, _create
from deltafl.secagg.states import ClientState

A, B, C, D, *_ = ENTRIES


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


def known(path):
    """Which entries a file remembers, of those that tests use."""
    with SqliteLedger(path) as ledger:
        return [entry for entry in ENTRIES if ledger.knows(entry)]


def begun(path, entries=(A, B)):
    """A file that has admitted some entries."""
    with SqliteLedger(path) as ledger:
        assert all(ledger.admit([entry]) for entry in entries)
    return path


# --- what every ledger does -----------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=40)
@given(history=histories, capacity=capacities)
def test_it_does_what_its_twin_in_memory_does(history, capacity, tmp_path_factory):
    path = tmp_path_factory.mktemp("twins") / "ledger"

    def reopened(ledger):
        ledger.close()
        return SqliteLedger(path, capacity)

    answers = play(history, SqliteLedger(path, capacity), reopened)
    assert answers == play(history, MemoryLedger(capacity)) == play(history, Model(capacity))


def test_two_that_have_one_file_are_one_ledger(path):
    with SqliteLedger(path) as first, SqliteLedger(path) as second:
        assert first.admit([A])
        assert second.knows(A)
        assert not second.admit([B, A])
        assert not first.knows(B)
        assert second.admit([B])
        assert not first.admit([B])


def test_what_was_admitted_is_known_when_it_is_opened_again(path):
    begun(path)
    assert known(path) == [A, B]
    with SqliteLedger(path) as ledger:
        assert not ledger.admit([A])
        assert ledger.admit([C])


def test_a_full_ledger_forgets_nothing_and_admits_nothing(path):
    with SqliteLedger(path, capacity=2) as ledger:
        assert ledger.admit([A])
        with pytest.raises(LedgerError, match="2 more entries after 1 exceed its capacity of 2"):
            ledger.admit([C, B])
        assert ledger.admit([B])
        with pytest.raises(LedgerError, match="larger capacity"):
            ledger.admit([C])
        assert not ledger.admit([C, A])
    assert known(path) == [A, B]
    with SqliteLedger(path, capacity=3) as ledger:
        assert ledger.admit([C])
    assert known(path) == [A, B, C]


def test_a_smaller_capacity_forgets_nothing(path):
    begun(path, [A, B, C])
    with SqliteLedger(path, capacity=2) as ledger:
        assert ledger.knows(A)
        with pytest.raises(LedgerError, match="1 more entries after 3"):
            ledger.admit([D])
    assert known(path) == [A, B, C]


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_ledger_remembers_something(path, capacity):
    with pytest.raises(UsageError, match=str(capacity)):
        SqliteLedger(path, capacity)
    assert not path.exists()


@pytest.mark.parametrize("wrong", [b"", bytes(31), bytes(33), "a" * 32, bytearray(32)])
def test_only_32_bytes_are_an_entry(path, wrong):
    with SqliteLedger(path) as ledger:
        with pytest.raises(UsageError, match="32 bytes"):
            ledger.admit([A, wrong])
        with pytest.raises(UsageError, match="32 bytes"):
            ledger.knows(wrong)
    assert known(path) == []


# --- durability ----------------------------------------------------------------------------------


def test_a_write_is_on_disk_before_it_counts(path):
    """What no test here can show: only a loss of power could."""
    ledger = SqliteLedger(path)
    settings = {
        name: ledger._connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("synchronous", "journal_mode", "fullfsync")
    }
    ledger.close()
    assert settings == {"synchronous": 3, "journal_mode": "delete", "fullfsync": 1}


def test_one_file_holds_everything(path):
    ledger = SqliteLedger(path)
    assert ledger.admit([A, B])
    assert os.listdir(path.parent) == [path.name]
    # A copy that is made meanwhile has it too.
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    ledger.close()
    assert known(copy) == [A, B]


def take_part(path, kind="sqlite", when="never"):
    """How a device's process ends, and what it says in a session that is always the same."""
    done = run_python(PROGRAM, "session", kind, str(path), when)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout.strip()


REFUSED = Refusal.SESSION_REPEATED.name


@pytest.mark.slow
def test_a_device_that_was_killed_before_it_could_answer_does_not_answer_again(path):
    assert take_part(path, when="after") == (-signal.SIGKILL, "")
    assert take_part(path) == (0, REFUSED)


@pytest.mark.slow
def test_a_device_that_was_killed_before_the_write_answers(path):
    assert take_part(path, when="before") == (-signal.SIGKILL, "")
    assert take_part(path) == (0, "answered")
    assert take_part(path) == (0, REFUSED)


@pytest.mark.slow
def test_a_ledger_that_writes_later_is_found_out(path):
    """It does as well as any until the device is killed."""
    assert take_part(path.with_name("honest"), "deferred") == (0, "answered")
    assert take_part(path.with_name("honest"), "deferred") == (0, REFUSED)
    assert take_part(path, "deferred", when="after") == (-signal.SIGKILL, "")
    assert take_part(path, "deferred") == (0, "answered")


def lost_by_killing(kind, path, times):
    """Kill a process that admits pairs, many times, at any moment.

    Returns:
        How many pairs it said were admitted, which of them are not known afterwards, and those of
        which only one half is known.
    """
    delays = np.random.default_rng(0)
    said, lost, halves = 0, [], []
    for name in map(str, range(times)):
        with subprocess.Popen(  # noqa: S603 our own interpreter, our own script
            [sys.executable, PROGRAM, "loop", kind, path, name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            first = child.stdout.readline()
            time.sleep(delays.uniform(0.0, 0.03))
            child.kill()
            lines = (first + child.stdout.read()).split("\n")[:-1]
        assert child.returncode == -signal.SIGKILL
        said += len(lines)
        with SqliteLedger(path) as ledger:
            # One more than was said may have been admitted.
            knows = [
                [ledger.knows(half) for half in pair(name, number)]
                for number in range(len(lines) + 1)
            ]
        lost += [
            (name, number) for number, pair_known in enumerate(knows[:-1]) if not any(pair_known)
        ]
        halves += [(name, number) for number, (a, b) in enumerate(knows) if a != b]
    return said, lost, halves


@pytest.mark.slow
def test_whenever_it_is_killed_it_knows_what_it_admitted(path):
    said, lost, halves = lost_by_killing("sqlite", path, times=20)
    assert said >= 20
    assert lost == halves == []


@pytest.mark.slow
def test_killing_finds_what_was_not_written(path):
    said, lost, _ = lost_by_killing("deferred", path, times=1)
    assert len(lost) == said >= 1


# --- at once -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_processes_that_race_one_wins_each_entry(path):
    """They also race for who makes the file."""
    racers = [
        subprocess.Popen(  # noqa: S603 our own interpreter, our own script
            [sys.executable, PROGRAM, "race", path, "40"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [int(number) for racer in racers for number in racer.communicate()[0].split()]
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert sorted(won) == list(range(40))
    with SqliteLedger(path) as ledger:
        assert all(ledger.knows(numbered(number)) for number in range(40))
    assert os.listdir(path.parent) == [path.name]


def test_who_comes_second_leaves_the_first_ones_alone(path):
    begun(path)
    _create(path)
    assert os.listdir(path.parent) == [path.name]
    assert known(path) == [A, B]


def test_of_threads_that_race_one_wins_each_entry(path):
    with SqliteLedger(path) as ledger, ThreadPoolExecutor(4) as threads:
        won = list(threads.map(ledger.admit, [[entry] for entry in ENTRIES] * 4))
    assert sum(won) == len(ENTRIES)


def test_who_looks_while_another_process_admits_waits_for_it(path, monkeypatch):
    with SqliteLedger(path) as ledger, SqliteLedger(path) as other, ThreadPoolExecutor(1) as thread:
        others, sqlite_look = [], ledger_file._knows

        def look(connection, entry):
            known = sqlite_look(connection, entry)
            if connection is ledger._connection:
                others.append(thread.submit(other.admit, [A]))
                wait(others, timeout=0.2)  # it has begun, and cannot look yet
            return known

        monkeypatch.setattr(ledger_file, "_knows", look)
        assert ledger.admit([A])
        assert [found.result() for found in others] == [False]


def test_a_file_that_is_held_for_too_long_is_an_error(path, monkeypatch):
    monkeypatch.setattr("deltafl.secagg.ledger.PATIENCE_S", 0.01)
    with SqliteLedger(path) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="another process"):
            ledger.admit([A])
        other.execute("ROLLBACK")
        other.close()
        assert not ledger.knows(A)
        assert ledger.admit([A])


# --- files that will not do ----------------------------------------------------------------------


def test_nobody_else_may_read_it(path):
    before = os.umask(0)
    try:
        begun(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def refusal(path):
    """What is said of a file that is no good; it is left as it is."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(LedgerError) as refused:
        SqliteLedger(path)
    assert str(path) in str(refused.value)
    assert before is None or path.read_bytes() == before
    return str(refused.value)


def execute(path, *statements):
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_file_of_something_else_is_refused(path):
    path.write_text("what I did today\n" * 100)
    assert "not a database" in refusal(path)


def test_another_programs_database_is_refused(path):
    execute(path, "CREATE TABLE entries (entry BLOB)")
    assert f"its application id is 0, and a ledger's is {APPLICATION_ID}" in refusal(path)


def test_a_ledger_of_another_version_is_refused(path):
    execute(begun(path), f"PRAGMA user_version = {VERSION + 1}")
    assert f"a ledger of version {VERSION + 1}, not {VERSION}" in refusal(path)


@pytest.mark.parametrize(
    "more",
    [
        ["CREATE TRIGGER forget AFTER INSERT ON entries BEGIN DELETE FROM entries; END"],
        ["CREATE INDEX again ON entries (entry)"],
        ["CREATE TABLE beside (a)"],
        ["ALTER TABLE entries RENAME TO old", "CREATE VIEW entries AS SELECT * FROM old LIMIT 0"],
    ],
)
def test_a_ledger_with_more_in_it_is_refused(path, more):
    execute(begun(path), *more)
    assert more[-1].partition("entries")[0] in refusal(path)


@pytest.mark.parametrize("column", ["entry BLOB", "entry BLOB NOT NULL UNIQUE"])
def test_a_ledger_with_another_table_is_refused(path, column):
    execute(
        begun(path),
        "DROP TABLE entries",
        f"CREATE TABLE entries (position INTEGER PRIMARY KEY, {column})",
    )
    assert "has other tables than a ledger" in refusal(path)


def inserted(position, value):
    return f"INSERT INTO entries (position, entry) VALUES ({position}, {value})"  # noqa: S608 ours


MISSING = "entries are missing"


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        pytest.param([inserted(2**63 - 1, "randomblob(32)")], MISSING, id="a last position"),
        pytest.param([inserted(10**7, "randomblob(32)")], MISSING, id="a gap"),
        pytest.param([inserted(4, "randomblob(32)")], MISSING, id="a gap of one"),
        pytest.param([inserted(0, "randomblob(32)")], MISSING, id="a zeroth position"),
        pytest.param([inserted(-1, "randomblob(32)")], MISSING, id="a negative position"),
        pytest.param(["DELETE FROM entries WHERE position = 1"], MISSING, id="the first lost"),
        pytest.param(["UPDATE entries SET position = -1 WHERE position = 1"], MISSING, id="moved"),
        pytest.param([inserted(3, "x'00'")], "CHECK", id="a short entry"),
        pytest.param([inserted(3, "zeroblob(33)")], "CHECK", id="a long entry"),
        pytest.param([inserted(3, f"'{'a' * 32}'")], "CHECK", id="a text"),
    ],
)
def test_a_ledger_whose_entries_cannot_be_its_own_is_refused(path, statements, found):
    """Controls: the same by hand, but in the place and of the form that are right."""
    execute(begun(path), "PRAGMA ignore_check_constraints = ON", *statements)
    told = refusal(path)
    assert f"is damaged ({found}" in told
    assert "new identity" in told
    right = path.with_name("right")
    execute(begun(right), inserted(3, f"x'{C.hex()}'"))
    assert known(right) == [A, B, C]


def test_an_entry_that_is_there_twice_is_damage(path):
    data = begun(path).read_bytes()
    path.write_bytes(data.replace(B, A))
    assert "is damaged (non-unique entry" in refusal(path)


def test_a_table_that_lost_its_index_is_damage(path):
    lost = "DELETE FROM sqlite_master WHERE name LIKE 'sqlite_autoindex%'"
    execute(begun(path), "PRAGMA writable_schema = ON", lost)
    assert "new identity" in refusal(path)


def logged(path):
    """The write-ahead log of a ledger that somebody has turned into one that has a log."""
    connection = sqlite3.connect(begun(path), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(inserted(3, f"x'{C.hex()}'"))
    log = path.with_name("ledger-wal").read_bytes()
    whole = path.read_bytes()
    connection.close()
    for left in path.parent.iterdir():
        left.unlink()
    return whole, log


def test_a_ledger_that_has_or_had_a_write_ahead_log_is_refused(path):
    """SQLite would open the first without C, and copy older pages over newer ones in the last."""
    whole, log = logged(path)
    beside = path.with_name("ledger-wal")
    path.write_bytes(whole)
    assert "may have newer entries" in refusal(path)
    beside.write_bytes(log)
    assert "may have newer entries" in refusal(path)
    for left in (path, beside):
        left.unlink()
    begun(path)
    for left in (log, b"", b"anything"):
        beside.write_bytes(left)
        assert f"has a write-ahead log, {beside}" in refusal(path)
        assert beside.read_bytes() == left
    link = path.with_name("link")
    link.symlink_to(path)
    assert f"has a write-ahead log, {beside}" in refusal(link)
    beside.unlink()
    assert known(link) == [A, B]


def test_a_file_that_was_cut_off_is_refused(path):
    whole = begun(path).read_bytes()
    for size in (4096, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "new identity" in refusal(path)


def test_an_empty_file_is_no_new_ledger(path):
    begun(path).write_bytes(b"")
    assert "is empty" in refusal(path)


def test_a_pipe_is_no_ledger_whoever_writes_into_it(path):
    valid = begun(path).read_bytes()
    path.unlink()
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)  # so that not even a reader that opens it would wait
    os.write(end, valid[:100])
    assert "is no regular file" in refusal(path)
    os.close(end)


def test_an_entry_that_cannot_be_found_any_more_is_damage(path):
    """One bit of the index: the entry is in the file, but no search would find it."""
    data = begun(path).read_bytes()
    place = data.rindex(A)
    assert data.count(A) == 2
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    assert "is damaged" in refusal(path)


@pytest.mark.slow
@settings(max_examples=100)
@given(place=st.integers(0, 3 * 4096 - 1), bits=st.integers(1, 255))
@example(place=3887, bits=1)  # the type of the table's definition
@example(place=3896, bits=128)  # its text is not UTF-8 any more
def test_a_damaged_byte_is_found_or_does_no_harm(place, bits, tmp_path_factory):
    path = begun(tmp_path_factory.mktemp("damaged") / "ledger")
    data = bytearray(path.read_bytes())
    data[place] ^= bits
    path.write_bytes(data)
    with suppress(LedgerError):
        assert known(path) == [A, B]
        with SqliteLedger(path) as ledger:
            assert not ledger.admit([A])
            assert ledger.admit([C])
        assert known(path) == [A, B, C]


def test_a_journal_without_its_ledger_is_refused(path):
    """It would be played back into the new one."""
    journal = path.with_name("ledger-journal")
    journal.write_bytes(b"left behind")
    assert f"{journal} was left" in refusal(path)
    assert not path.exists()
    journal.unlink()
    assert begun(path).exists()


def test_a_folder_is_no_ledger(path):
    path.mkdir()
    refusal(path)


def test_a_folder_that_is_not_there_is_named(path):
    assert "folder must exist" in refusal(path / "ledger")


@contextmanager
def as_nobody():
    """Without the rights of the superuser, who may write everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o666, 0o555)])
def test_what_cannot_be_written_is_refused_at_once(file_mode, folder_mode):
    """Also a folder in which there can be no journal."""
    # Not in pytest's own folder, which is closed to others.
    with tempfile.TemporaryDirectory() as name:
        path = begun(Path(name) / "ledger")
        try:
            path.chmod(file_mode)
            path.parent.chmod(folder_mode)
            with as_nobody():
                assert "allowed to write" in refusal(path)
        finally:
            path.parent.chmod(0o700)
        assert known(path) == [A, B]


@contextmanager
def files_limited_to(size):
    """Writes beyond a file's size fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def admit_until_it_fails(ledger):
    """Which entries were admitted before an error came, and what it said."""
    admitted = list[bytes]()
    for number in range(1000):
        try:
            assert ledger.admit(eight(number))
        except LedgerError as failed:
            return admitted, str(failed)
        admitted += eight(number)
    raise AssertionError("nothing failed")


def eight(number):
    """Entries that are admitted together."""
    return [numbered(n) for n in range(8 * number, 8 * number + 8)]


def check_after_failure(path, ledger, admitted):
    """Everything admitted is known, here and on disk; what failed is not, and may come again."""
    failed = eight(len(admitted) // 8)
    with SqliteLedger(path) as other:
        for one in (ledger, other):
            assert all(map(one.knows, admitted))
            assert not any(map(one.knows, failed))
        assert ledger.admit(failed)
        assert not other.admit(failed)


def test_a_full_disk_admits_nothing(path):
    with SqliteLedger(path) as ledger:
        ledger._connection.execute("PRAGMA max_page_count = 8")
        admitted, message = admit_until_it_fails(ledger)
        assert "make room" in message
        assert len(admitted) >= 1
        ledger._connection.execute("PRAGMA max_page_count = 1000")
        check_after_failure(path, ledger, admitted)


def test_writes_that_fail_admit_nothing(path):
    with SqliteLedger(path) as ledger:
        with files_limited_to(8 * 4096):
            admitted, message = admit_until_it_fails(ledger)
        assert "disk" in message
        assert len(admitted) >= 1
        check_after_failure(path, ledger, admitted)


def test_a_closed_ledger_says_so(path):
    ledger = SqliteLedger(path)
    ledger.close()
    ledger.close()
    for use in (ledger.admit, ledger.knows):
        with pytest.raises(LedgerError, match="closed"):
            use([A] if use == ledger.admit else A)


def test_a_device_whose_ledger_fails_says_nothing_and_may_try_again(path):
    parties = Parties(make_params(6, threshold=3))
    client = parties.ids[0]
    device = parties.clients[client]
    unreadable = SqliteLedger(path)
    unreadable.close()
    opening = parties.server.start()[client]
    device._ledger = unreadable
    with pytest.raises(LedgerError):
        device.receive(opening)
    assert device.state is ClientState.IDLE
    with SqliteLedger(path) as ledger:
        device._ledger = ledger
        parties.advance(ClientState.OPENED)
        ledger._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(LedgerError):
            parties.contribute(client)
        assert device.state is ClientState.OPENED
        ledger._connection.execute("PRAGMA query_only = OFF")
        assert parties.contribute(client)
        assert ledger.knows(parties.params.context)
