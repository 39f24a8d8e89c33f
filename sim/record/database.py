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
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from deltafl.fl.read.regular import open_regular
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.own_files import check_file, sync_folder

_PAGE: Final = 1 << 14  # large values are written as fast as to a bare file
_TRIES: Final = 100
_PAUSE_S: Final = 0.05
_MAGIC: Final = b"SQLite format 3\0"
_WITH_JOURNAL: Final = b"\2\2"  # of the header, where the file has one
_AT_JOURNAL: Final = slice(18, 20)
_AT_NUMBER: Final = slice(68, 72)  # the application id
_SWITCH: Final = "PRAGMA journal_mode = MEMORY"
"""Leaves one file. A switch writes one page; half of it is no harm, but its journal would be."""
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000_000,  # bytes of a value, as SQLite is built
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 32,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 16,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


class Form(NamedTuple):
    """A kind of file.

    Attributes:
        name: what it is called.
        number: its application id, by which it is known; negative while its journal may have what
            it has not.
        version: the only version that is read.
        chained: the tables of its chain, each with the columns that the chain covers, as SQL
            declares them; after a semicolon, those that it does not.
        others: its other tables, each with its columns.
    """

    name: str
    number: int
    version: int
    chained: Mapping[str, str]
    others: Mapping[str, str]

    def make(self, db: sqlite3.Connection) -> None:
        """Make the tables of an empty file."""
        for name, columns in self.chained.items():
            own = columns.replace(";", ",")
            db.execute(f"CREATE TABLE {name} (number INTEGER PRIMARY KEY, digest BLOB, {own})")
        for name, columns in self.others.items():
            db.execute(f"CREATE TABLE {name} ({columns})")
        db.execute(f"PRAGMA application_id = {self.number}")
        db.execute(f"PRAGMA user_version = {self.version}")


def with_journals(path: Path) -> tuple[Path, Path, Path, Path]:
    """A file and the journals that it may have: `-wal`, `-shm` and `-journal`."""
    wal, shm, journal = (path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))
    return path, wal, shm, journal


@contextmanager
def writing(path: Path, form: Form) -> Iterator[sqlite3.Connection]:
    """Open a file that this process alone writes; made, with its tables, where it is not there.

    In the end, what no transaction has ended is undone, and one file is left. Where somebody reads
    it all the time, its journal stays, as after any other end.

    Raises:
        RunDirectoryError: a link, or anything but a regular file, has its name.
        ChainError: it is another file, or damaged.
    """
    _check_files(path)
    with faults(path), closing(_connect(path, "mode=rwc")) as db:
        db.execute(f"PRAGMA page_size = {_PAGE}")
        if db.execute("PRAGMA journal_mode").fetchone() != ("wal",):  # else somebody may read it
            db.execute(_SWITCH)
            db.execute("PRAGMA journal_mode = WAL")
        if not _schema(db):
            db.execute("BEGIN IMMEDIATE")
            form.make(db)
            db.execute("COMMIT")
        _check(db, path, form)
        _mark(db, -form.number)
        db.isolation_level = "IMMEDIATE"  # the first change begins a transaction
        sync_folder(path.parent)  # it may be new
        try:
            yield db
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
            _leave_one_file(db, form)


def _mark(db: sqlite3.Connection, number: int) -> None:
    """Set the application id in the file itself."""
    db.execute(f"PRAGMA application_id = {number}")
    db.execute("PRAGMA wal_checkpoint")  # which waits for nobody


def _leave_one_file(db: sqlite3.Connection, form: Form) -> None:
    for _ in range(_TRIES):
        try:
            _mark(db, form.number)
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
    if abs(number) != form.number:
        raise ChainError(path, 0, Damage.FOREIGN, f"it is no {form.name} of a run")
    if version != form.version:
        problem = f"it has version {version} of the format, and this program reads {form.version}"
        raise ChainError(path, 0, Damage.VERSION, f"{problem}: use the release that wrote it")
    with closing(sqlite3.connect(":memory:")) as made:
        form.make(made)
        wanted = _schema(made)
    if _schema(db) != wanted:
        raise ChainError(path, 0, Damage.FOREIGN, "its tables are not those that a run makes")


def _schema(db: sqlite3.Connection) -> set[tuple[object, ...]]:
    return set(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 100"))


def _check_header(path: Path) -> None:
    with open_regular(path) as file:
        head = file.read(100)
    # else its process ended before it had a journal, or once that was taken in
    is_open = int.from_bytes(head[_AT_NUMBER], signed=True) < 0
    if head.startswith(_MAGIC) and head[_AT_JOURNAL] == _WITH_JOURNAL and is_open:
        problem = f"its journal {path.name}-wal is missing: copy it, too; or, if another program"
        mend = "has taken it in, set `PRAGMA journal_mode = DELETE`"
        raise ChainError(path, 0, Damage.CUT, f"{problem} {mend}")
