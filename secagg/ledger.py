"""What a device has done that it must never do twice, as entries of 32 bytes.

Two sessions over the same values but different devices would reveal, by subtraction, the values of
the devices that are in only one of them. So a device admits each entry once, such as the context of
a session, and remembers it before it says anything that depends on its data. What costs the server
no more than an announcement is not admitted, and nothing is ever forgotten: a ledger that is full
admits nothing more.

A ledger belongs to a device and outlives its sessions. `MemoryLedger` lasts as long as its process
and is meant for simulated devices. `SqliteLedger` is a file, which survives the process, its end by
force, and a loss of power. It is all of the package that writes to disk. What makes a device forget
lets a server learn differences of sums, so the order of writing and answering is the ledger's to
ensure.

Spec: §9.5, §12.13.
"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final, Protocol, Self

from deltafl.secagg.errors import LedgerError, UsageError

ENTRY_SIZE: Final = 32
"""Bytes of an entry."""

CAPACITY: Final = 1 << 18
"""Entries that a ledger has room for unless told otherwise. A round takes five at most."""


class Ledger(Protocol):
    """Entries, each admitted once and never forgotten."""

    def admit(self, entries: Sequence[bytes]) -> bool:
        """Whether all entries are new; if so, they are remembered, durably, before this returns.

        If one of them is known, nothing changes: all of them are admitted or none.

        Args:
            entries: 32 bytes each. One that occurs twice counts once.

        Raises:
            UsageError: an entry is not 32 bytes; nothing has changed.
            LedgerError: there is no room for all of them; nothing has changed.
        """
        ...

    def knows(self, entry: bytes) -> bool:
        """Whether the entry was admitted.

        Args:
            entry: 32 bytes.

        Raises:
            UsageError: the entry is not 32 bytes.
        """
        ...


class MemoryLedger:
    """A ledger that is lost with its process.

    Args:
        capacity: Entries that it has room for, at least 1.

    Raises:
        UsageError: the capacity is below 1.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = checked_capacity(capacity)
        self._entries = set[bytes]()

    def admit(self, entries: Sequence[bytes]) -> bool:
        """See `Ledger.admit`."""
        wanted = distinct(entries)
        if any(entry in self._entries for entry in wanted):
            return False
        check_room(len(self._entries), len(wanted), self._capacity)
        self._entries.update(wanted)
        return True

    def knows(self, entry: bytes) -> bool:
        """See `Ledger.knows`."""
        return checked_entry(entry) in self._entries


def checked_capacity(capacity: int) -> int:
    """The capacity, if a ledger may have it.

    Raises:
        UsageError: it is below 1.
    """
    if capacity < 1:
        raise UsageError(f"a ledger has no room for {capacity} entries: give at least 1")
    return capacity


def check_room(held: int, wanted: int, capacity: int) -> None:
    """Refuse to admit what there is no room for.

    Raises:
        LedgerError: there would be more entries than the capacity.
    """
    if held + wanted > capacity:
        raise LedgerError(
            f"the ledger is full: {wanted} more entries after {held} exceed its capacity of "
            f"{capacity}, and none is ever forgotten; open it with a larger capacity, or give the "
            "device a new identity and a new ledger"
        )


def checked_entry(entry: bytes) -> bytes:
    """The entry, if it is one.

    Raises:
        UsageError: it is not 32 bytes.
    """
    if not isinstance(entry, bytes):
        raise UsageError(f"an entry of a ledger is {ENTRY_SIZE} bytes, not {type(entry).__name__}")
    if len(entry) != ENTRY_SIZE:
        raise UsageError(f"an entry of a ledger is {ENTRY_SIZE} bytes, not {len(entry)}")
    return entry


def distinct(entries: Sequence[bytes]) -> list[bytes]:
    """The entries in their order, each once.

    Raises:
        UsageError: an entry is not 32 bytes.
    """
    return list(dict.fromkeys(map(checked_entry, entries)))


APPLICATION_ID: Final = int.from_bytes(b"dFLl", "big")
"""By which a ledger is told from other SQLite files."""

VERSION: Final = 1
"""The version of the schema."""

PATIENCE_S: Final = 30.0
"""How long a process waits for another that holds the file, in seconds."""

# Nothing is ever deleted, so the positions are 1, 2, … without gaps, and the last one says how many
# entries there are. Where they are not, entries are missing.
_TABLE: Final = (
    "CREATE TABLE entries (position INTEGER PRIMARY KEY, entry BLOB NOT NULL UNIQUE"
    f" CHECK (typeof(entry) = 'blob' AND length(entry) = {ENTRY_SIZE}))"
)
_KNOWN: Final = "SELECT 1 FROM entries WHERE entry = ?"
_ADD: Final = "INSERT INTO entries (entry) VALUES (?)"
_HELD: Final = "SELECT ifnull(max(position), 0) FROM entries"
_COMPLETE: Final = (
    "SELECT ifnull(min(position), 1) = 1 AND ifnull(max(position), 0) = count(*) FROM entries"
)

# A rollback journal, not a write-ahead log. With either, what is committed is on disk before COMMIT
# returns. But a log's newest entries are in a second file until they are copied, and who moves or
# restores the first file alone has lost them. With a journal, the one file is complete between any
# two calls. The device writes a few times in a session, so the log's higher speed is worth nothing.
#
# A transaction is committed when its journal is deleted. EXTRA syncs the folder after that; with
# FULL, the journal could be there again after a loss of power, and undo what had been admitted.
_SETTINGS: Final = (
    "PRAGMA synchronous = EXTRA",
    "PRAGMA fullfsync = ON",  # on macOS, fsync alone leaves data in the drive's cache
    "PRAGMA cell_size_check = ON",  # looks at each page that is read for signs of damage
    "PRAGMA trusted_schema = OFF",  # a file that is no ledger may hold anything
)

_LOGGED: Final = 2  # one of a file's bytes 18 and 19, if it has a write-ahead log

_MAX_SHOWN: Final = 1000  # characters of what a file holds that is no ledger
_WRITABLE: Final = "its folder must exist, and the device must be allowed to write both"
_DAMAGED: Final = "a device whose ledger is lost needs a new identity and a new ledger"
_ADVICE: Final = {
    sqlite3.SQLITE_READONLY: _WRITABLE,
    sqlite3.SQLITE_CANTOPEN: _WRITABLE,
    sqlite3.SQLITE_PERM: _WRITABLE,
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_IOERR: "the disk must take what is written",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_BUSY: f"another process has held it for {PATIENCE_S:.0f} s",
}
"""What would be right, by SQLite's primary error codes."""


class SqliteLedger:
    """A device's ledger in one file, which is made if there is none.

    An entry costs about 90 bytes on disk, 23 MB at the default capacity. To admit some takes five
    syncs, about 2 ms on a solid-state disk, however many are known. To open the file is to read and
    check all of it, 0.8 s when it is full. Damage is refused then; an older copy of the file cannot
    be told from the newest.

    Several processes and threads of a device may use one file at once, each process having opened
    it for itself: it must not be opened before a fork and used after it. The file has to be on a
    local disk, because locks of network file systems cannot be relied upon. Nobody but its owner
    can read it; who could would learn in which sessions the device took part.

    Spec: §9.5.

    Args:
        path: The file.
        capacity: Entries that it has room for, at least 1. A ledger that is full may be opened with
            a larger one; opened with a smaller one, it knows all its entries and admits no more.

    Raises:
        UsageError: the capacity is below 1.
        LedgerError: the file is no ledger or a damaged one, or it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], capacity: int = CAPACITY) -> None:
        self._capacity = checked_capacity(capacity)
        self._path = Path(path).absolute()
        self._lock = Lock()
        with _explained(self._path):
            if not self._path.exists():
                _create(self._path)
            _check_whole(self._path)
            self._connection = _connect(self._path)
            try:
                self._examine()
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def admit(self, entries: Sequence[bytes]) -> bool:
        """See `Ledger.admit`.

        Raises:
            UsageError: an entry is not 32 bytes.
            LedgerError: there is no room for all of them, and nothing has changed; or they could
                not be written: whether they are known is open, but they do not count as admitted.
        """
        wanted = distinct(entries)
        with self._lock, _explained(self._path), _transaction(self._connection) as connection:
            if any(_knows(connection, entry) for entry in wanted):
                return False
            held: int = connection.execute(_HELD).fetchone()[0]
            check_room(held, len(wanted), self._capacity)
            connection.executemany(_ADD, [(entry,) for entry in wanted])
        return True  # only here, after COMMIT

    def knows(self, entry: bytes) -> bool:
        """See `Ledger.knows`.

        Raises:
            UsageError: the entry is not 32 bytes.
            LedgerError: the file cannot be read.
        """
        checked_entry(entry)
        with self._lock, _explained(self._path):
            return _knows(self._connection, entry)

    def close(self) -> None:
        """Release the file; the ledger cannot be used afterwards. Closing again does nothing."""
        with self._lock:
            self._connection.close()

    def _examine(self) -> None:
        """Refuse a file that is no ledger, is damaged, or cannot be written durably."""
        path, connection = self._path, self._connection
        found = _ask(connection, "PRAGMA application_id")
        if found != APPLICATION_ID:
            raise LedgerError(
                f"{path} is not a ledger: its application id is {found}, and a ledger's is"
                f" {APPLICATION_ID}; give a ledger, or a path where no file is yet"
            )
        found = _ask(connection, "PRAGMA user_version")
        if found != VERSION:
            raise LedgerError(f"{path} is a ledger of version {found}, not {VERSION}")
        tables = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        if (statements := [sql for (sql,) in tables]) != [_TABLE]:
            # A trigger, for example, could delete what is admitted.
            raise LedgerError(
                f"{path} has other tables than a ledger: {str(statements)[:_MAX_SHOWN]}"
            )
        # Among other things, this sees whether each entry is found where it is looked up.
        damage = _ask(connection, "PRAGMA integrity_check(1)")
        if damage != "ok":
            raise LedgerError(f"{path} is damaged ({damage}): {_DAMAGED}")
        if not _ask(connection, _COMPLETE):
            raise LedgerError(f"{path} is damaged (entries are missing): {_DAMAGED}")
        # Anything that is written and undone: better to fail here than in a session.
        with suppress(_UndoError), _transaction(connection):
            connection.execute(f"PRAGMA user_version = {VERSION}")
            raise _UndoError


class _UndoError(Exception):
    """Ends a transaction that was only tried."""


def _create(path: Path) -> None:
    """Make an empty ledger where no file is; who comes second leaves the first one's alone.

    It is made under another name and linked to its own, so nobody ever sees one that is half made.

    Raises:
        LedgerError: something was left behind there by another ledger.
    """
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists() and not path.exists():
        # SQLite would write the old ledger's pages over those of the new one.
        raise LedgerError(f"{journal} was left by a ledger that is not there: bring back {path}")
    handle, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".new", dir=path.parent)
    os.close(handle)  # readable by its owner only, and so is the journal that SQLite makes for it
    draft = Path(name)
    try:
        with closing(_connect(draft)) as connection, _transaction(connection):
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute(_TABLE)
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()


def _check_whole(path: Path) -> None:
    """Refuse a file of which a part is lost, or is in a log that SQLite would copy into it.

    Raises:
        LedgerError: it is no regular file or empty, or it has a write-ahead log, which no ledger
            ever has.
    """
    if not path.is_file():  # to open a pipe would wait for who writes into it
        raise LedgerError(f"{path} is no regular file: name the file of a ledger, or a new one")
    with path.open("rb") as file:
        start = file.read(20)
    if not start:
        # A new ledger is never seen without its table (`_create`), so something was lost here.
        raise LedgerError(f"{path} is empty, and a ledger never is: {_DAMAGED}")
    real = path.resolve()  # where SQLite looks
    log = real.with_name(f"{real.name}-wal")
    if log.exists() or _LOGGED in start[18:]:
        raise LedgerError(
            f"{path} has a write-ahead log, {log}, which may have newer entries or older ones: "
            f"{_DAMAGED}"
        )


def _connect(path: Path) -> sqlite3.Connection:
    """Open a file that exists, with the settings of a ledger."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
        timeout=PATIENCE_S,
        isolation_level=None,  # transactions are begun and ended here, never by Python
        check_same_thread=False,  # the ledger has a lock
    )
    for setting in _SETTINGS:
        connection.execute(setting)
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All that is written or nothing, and no other process writes between reading and writing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # after some errors, SQLite has undone it by itself
            connection.execute("ROLLBACK")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say of errors of SQLite and of the file system what they are about."""
    try:
        yield
    except sqlite3.Error as error:
        # Errors of Python's module itself have no code; such as use after `close`.
        code = getattr(error, "sqlite_errorcode", None)
        advice = None if code is None else _ADVICE.get(code & 0xFF)
        ending = "" if advice is None else f"; {advice}"
        raise LedgerError(f"the ledger {path} cannot be used: {error}{ending}") from error
    except UnicodeDecodeError as error:  # an error message that quotes damaged bytes
        raise LedgerError(f"the ledger {path} is damaged ({error}): {_DAMAGED}") from error
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be used: {error}; {_WRITABLE}") from error


def _knows(connection: sqlite3.Connection, entry: bytes) -> bool:
    return connection.execute(_KNOWN, (entry,)).fetchone() is not None


def _ask(connection: sqlite3.Connection, question: str) -> object:
    """The first column of a question's first row."""
    row: tuple[object, ...] = connection.execute(question).fetchone()
    return row[0]
