"""A file of SQLite that a run writes: how it is made, and how it is opened, by whomever it is.

While it is written, the file has a journal beside it (`-wal`), and others read it meanwhile. A
clean end leaves one file. After any other end, the journal is part of it: the next to open the file
to write takes it in. A file that says that it has a journal, and lies there without, is a copy of
half of it, and is refused.

A file may come from a stranger. It is opened to read alone, and nothing is asked of it before its
schema, text by text, is the one that a run makes. So it has no views, no triggers, no virtual
tables, no columns that are computed, and no index of its own making. SQLite is told to trust no
schema, to check the sizes of cells, to map nothing into memory, and to attach nothing. What Python
3.11 cannot set is in docs/record.md.
"""

import errno
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from deltafl.fl.read.regular import open_regular
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.own_files import check_file, sync_folder

MAX_VALUE: Final = 1_000_000_000
"""The largest text or blob, in bytes: what SQLite is built for."""

_PAGE: Final = 1 << 14  # large values are written as fast as to a bare file
_TRIES: Final = 100
_PAUSE_S: Final = 0.05
_MAGIC: Final = b"SQLite format 3\0"
_WITH_JOURNAL: Final = b"\2\2"  # of the header, where the file has one
_AT_JOURNAL: Final = slice(18, 20)
_AT_NUMBER: Final = slice(68, 72)  # the application id
_SWITCH: Final = "PRAGMA journal_mode = MEMORY"
"""Leaves one file. A switch writes one page; half of it is no harm, but its journal would be."""
_MEND: Final = (
    "whoever copies it while its run goes on, or after that was killed, has to copy both; if "
    "another program has taken it in, nothing is missing: `PRAGMA journal_mode = DELETE` says so"
)
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 32,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 16,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of file.

    Attributes:
        name: what it is called.
        number: its application id, by which it is known.
        version: the only version that is read.
        tables: the columns of its tables, as SQL declares them.
    """

    name: str
    number: int
    version: int
    tables: Mapping[str, str]

    @property
    def schema(self) -> set[tuple[object, ...]]:
        """What such a file says of its tables."""
        with closing(sqlite3.connect(":memory:")) as made:
            self.make(made)
            return _schema(made)

    def make(self, db: sqlite3.Connection) -> None:
        """Make the tables of an empty file."""
        for name, columns in self.tables.items():
            db.execute(f"CREATE TABLE {name} ({columns})")
        db.execute(f"PRAGMA application_id = {self.number}")
        db.execute(f"PRAGMA user_version = {self.version}")


def with_journals(path: Path) -> tuple[Path, Path, Path, Path]:
    """A file and the journals that it may have: `-wal`, `-shm` and `-journal`."""
    wal, shm, journal = (path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))
    return path, wal, shm, journal


def open_to_write(path: Path, form: Form) -> sqlite3.Connection:
    """Open a file that this process alone writes; made, with its tables, where it is not there.

    Raises:
        RunDirectoryError: a link, or anything but a regular file, has its name.
        ChainError: it is another file, or damaged.
    """
    _check_files(path)
    with faults(path):
        db = _connect(path, "mode=rwc")
        try:
            db.execute(f"PRAGMA page_size = {_PAGE}")
            db.execute(_SWITCH)
            db.execute("PRAGMA journal_mode = WAL")
            if not _schema(db):
                db.execute("BEGIN IMMEDIATE")
                form.make(db)
                db.execute("COMMIT")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the file itself says what it is
            _check(db, path, form)
            db.isolation_level = "IMMEDIATE"  # the first change begins a transaction
        except BaseException:
            db.close()
            raise
    sync_folder(path.parent)  # it may be new
    return db


def close_written(db: sqlite3.Connection) -> None:
    """Close a file that was written: what no transaction has ended is undone, and one file is left.

    Where somebody reads it all the time, its journal stays, as after any other end.
    """
    with closing(db):
        if db.in_transaction:
            db.execute("ROLLBACK")
        for _ in range(_TRIES):
            try:
                db.execute(_SWITCH)
            except sqlite3.OperationalError:  # somebody reads it
                time.sleep(_PAUSE_S)
            else:
                return


@contextmanager
def reading(path: Path, form: Form) -> Iterator[sqlite3.Connection]:
    """Open a file to read one state of it, whoever may write it meanwhile, or have written it.

    Raises:
        ChainError: it is no such file, damaged, or without its journal.
        RunDirectoryError: it, or its journal, is no regular file.
        OSError: it is not there, or cannot be read.
    """
    _check_files(Path(os.path.realpath(path, strict=True)))  # a link to the file itself is followed
    how, (_, wal, _, journal) = "mode=ro", with_journals(path)
    if not (wal.exists() or journal.exists()):
        _check_header(path)
        how += "&immutable=1"  # leaves nothing beside it
    with faults(path), closing(_connect(path, how)) as db:
        db.execute("BEGIN")
        _check(db, path, form)
        yield db


@contextmanager
def faults(path: Path) -> Iterator[None]:
    """Turn what SQLite says of a file into a sentence.

    Raises:
        ChainError: SQLite cannot read it.
        OSError: the disk is full, or fails.
    """
    try:
        yield
    except (sqlite3.Error, OverflowError, MemoryError) as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_FULL or code & 0xFF == sqlite3.SQLITE_IOERR:
            raise OSError(errno.ENOSPC, str(error), str(path)) from error
        if code == sqlite3.SQLITE_NOTADB:
            raise ChainError(path, 0, Damage.FOREIGN, "it is no file of SQLite") from error
        raise ChainError(path, 0, Damage.FOREIGN, f"SQLite says: {error}") from error


def _check_files(path: Path) -> None:
    for one in with_journals(path):
        check_file(one)  # a pipe would wait for ever


def _connect(path: Path, how: str) -> sqlite3.Connection:
    place = f"file:{quote(str(path.absolute()))}?{how}"
    db = sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False)
    for limit, most in _LIMITS.items():
        db.setlimit(limit, most)
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        db.execute(f"PRAGMA {setting}")
    return db


def _check(db: sqlite3.Connection, path: Path, form: Form) -> None:
    """Check that a file is of a form, before anything else is asked of it."""
    asked = (f"PRAGMA {name}" for name in ("application_id", "user_version"))
    number, version = (db.execute(query).fetchone()[0] for query in asked)
    if not number and not version and not _schema(db):
        raise ChainError(path, 0, Damage.EMPTY, "it has no tables yet")
    if number != form.number:
        raise ChainError(path, 0, Damage.FOREIGN, f"it is no {form.name} of a run")
    if version != form.version:
        problem = f"it has version {version} of the format, and this program reads {form.version}"
        raise ChainError(path, 0, Damage.VERSION, f"{problem}: use the release that wrote it")
    if _schema(db) != form.schema:
        raise ChainError(path, 0, Damage.FOREIGN, "its tables are not those that a run makes")


def _schema(db: sqlite3.Connection) -> set[tuple[object, ...]]:
    return set(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 100"))


def _check_header(path: Path) -> None:
    with open_regular(path) as file:
        head = file.read(100)
    if not head:
        raise ChainError(path, 0, Damage.EMPTY, "the file is empty")
    if head.startswith(_MAGIC) and head[_AT_JOURNAL] == _WITH_JOURNAL:
        if not any(head[_AT_NUMBER]):  # its process ended before it had a journal
            raise ChainError(path, 0, Damage.EMPTY, "it has no tables yet")
        raise ChainError(path, 0, Damage.CUT, f"its journal {path.name}-wal is missing: {_MEND}")
