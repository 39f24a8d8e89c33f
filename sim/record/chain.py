"""Rows of several tables in one chain of digests: an edit, a swap or a gap shows where it begins.

Each row has a number, counted from 0 over all tables of the chain, and a digest:
digest_i = SHA-256(digest_{i−1} ‖ row_i), and row_i is the msgpack array of the table's name, the
number, and the fields that the chain covers. digest_{−1} is SHA-256 of the chain's name. Rows that
are missing at the end show only if the last digest is known from elsewhere, or if the row that
closes the record is missing.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.database import Form

Value: TypeAlias = int | bytes | str | float | None

_KINDS: Final = {"INTEGER": int, "TEXT": str, "BLOB": bytes, "REAL": float}

DIGEST_BYTES: Final = 32
"""Length of a digest of the chain."""

_MOST_ROWS: Final = 1 << 62


class Mark(NamedTuple):
    """How far a chain goes.

    Attributes:
        num_frames: number of its rows.
        digest: after the last of them, 32 bytes.
    """

    num_frames: int
    digest: bytes


class Link(NamedTuple):
    """A row in its place.

    Attributes:
        number: counts the rows of the chain from 0.
        table: where it is.
        fields: what the chain covers of it, of the types of the table once that is checked.
        digest: the chain's digest after it, 32 bytes.
    """

    number: int
    table: str
    fields: Sequence[Any]
    digest: bytes

    @property
    def mark(self) -> Mark:
        """How far a chain goes whose last row it is."""
        return Mark(self.number + 1, self.digest)


class Chain:
    """A chain in a file.

    Args:
        path: the file, for messages.
        db: the same, open.
        form: of the file.

    Attributes:
        start: where it begins.
        mark: how far it goes, as far as it was written or read here; at first, all that is there,
            whose digests are taken for granted.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, form: Form) -> None:
        self.path, self.db = path, db
        self._columns = {
            table: [one.split() for one in declared.partition(";")[0].split(",")]
            for table, declared in form.chained.items()
        }
        name = f"deltafl {form.name} {form.version}"
        self.start = Mark(0, hashlib.sha256(name.encode()).digest())
        self._again: Iterator[Link] = iter(())
        self.mark = self.mark_at()

    def mark_at(self, number: int = _MOST_ROWS) -> Mark:
        """How far it goes with its first rows, as many as there are; taken for granted.

        Args:
            number: how many rows.
        """
        last = "SELECT number, digest FROM {} WHERE number < ? ORDER BY number DESC LIMIT 1"
        ends = [self.db.execute(last.format(table), (number,)) for table in self._columns]
        found = [row for end in ends for row in end]
        if not found:
            return self.start
        newest, digest = max(found, key=itemgetter(0))
        if not isinstance(digest, bytes):
            raise ChainError(self.path, newest, Damage.EDITED, "its digest is none")
        return Mark(newest + 1, digest)

    def append(self, table: str, *fields: Value, **uncovered: Value) -> bool:
        """Append a row; whether it was not there yet.

        Args:
            table: where.
            fields: what the chain covers.
            uncovered: further columns.

        Raises:
            ChainError: rows are made once more, and this is another one than is there.
        """
        number = self.mark.num_frames
        digest = _digest(self.mark.digest, table, number, fields)
        there = next(self._again, None)
        if there is None:
            row = (number, digest, *fields, *uncovered.values())
            self.db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        elif there.digest != digest:
            problem = "it is not what comes of all that was received before"
            raise ChainError(self.path, number, Damage.EDITED, problem)
        self.mark = Mark(number + 1, digest)
        return there is None

    def make_again(self, mark: Mark) -> None:
        """Have all rows after a mark made once more: what is appended must be what is there."""
        self._again, self.mark = self.read(mark), mark

    def read(self, after: Mark | None = None) -> Iterator[Link]:
        """Read and verify it row by row; never holds more than one of each table.

        Args:
            after: where to begin; by default, with the first row.

        Raises:
            ChainError: it is damaged; rows before the one that the error names are as written.
        """
        mark = after or self.start
        number = mark.num_frames
        try:
            # in no variable, which a traceback would keep, and with it the statements under way
            for link in merge(
                *(self._rows(table, "number >= ?", number) for table in self._columns),
                key=attrgetter("number"),
            ):
                self._check(mark, link)
                yield link
                mark = link.mark
        except (sqlite3.Error, OverflowError, MemoryError) as error:
            problem = f"SQLite says: {error}"
            raise ChainError(self.path, mark.num_frames, Damage.EDITED, problem) from error

    def select(self, table: str, where: str, *values: Value) -> Iterator[Link]:
        """Read rows of one table, each of its types; digests are not verified.

        Args:
            table: which.
            where: a condition, in SQL.
            values: what stands in it.

        Raises:
            ChainError: a value is of another type, or rows are there twice.
        """
        for link in self._rows(table, where, *values):
            self._check_types(link)
            yield link

    def _check(self, before: Mark, link: Link) -> None:
        expected, damage = before.num_frames, Damage.EDITED
        problem = f"it was edited, or its digest was (table {link.table})"
        if link.number > expected:
            problem = f"rows {expected} to {link.number - 1} were taken out"
            damage = Damage.MISSING
        elif link.number < expected:
            problem, damage = f"row {link.number} is there twice", Damage.REORDERED
        elif _digest(before.digest, link.table, link.number, link.fields) == link.digest:
            self._check_types(link)
            return
        raise ChainError(self.path, min(expected, link.number), damage, problem)

    def _check_types(self, link: Link) -> None:
        for (name, kind, *null), value in zip(self._columns[link.table], link.fields, strict=True):
            fits = type(value) is _KINDS[kind] or (null and value is None)
            if not fits or (isinstance(value, int) and value < 0):
                problem = f"{value!r:.40} is no {name} (table {link.table})"
                raise ChainError(self.path, link.number, Damage.MALFORMED, problem)

    def _rows(self, table: str, where: str, *values: Value) -> Iterator[Link]:
        columns = ", ".join(("number", "digest", *(name for name, *_ in self._columns[table])))
        query = f"SELECT {columns} FROM {table} WHERE {where} ORDER BY number"
        for number, digest, *fields in ascending(self.path, self.db.execute(query, values)):
            yield Link(number, table, fields, digest)


def ascending(path: Path, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Rows whose first column, a number, ascends, as it does where a sound table is read in order.

    Raises:
        ChainError: it does not: pages of the file are in several places, and give rows for ever.
    """
    before = -1
    for row in rows:
        if row[0] <= before:
            raise ChainError(path, row[0], Damage.REORDERED, f"row {row[0]} is there twice")
        before = row[0]
        yield row


def _digest(before: bytes, table: str, number: int, fields: Sequence[Value]) -> bytes:
    return hashlib.sha256(before + msgpack.packb((table, number, *fields))).digest()
