"""The record of a run: one file, which the run writes and everybody else reads.

What a run has written is kept by transactions. Those in which a round begins or ends are on the
disk when they are over. In between, the end of the process loses at most the trip under way, and
the end of the machine what came after the round's begin.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deltafl.fl.read.strict_json import parse_json
from deltafl.sim.errors import RunDirectoryError, damaged
from deltafl.sim.record.chain import Chain, ascending
from deltafl.sim.record.database import Form, reading, writing
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import build_config, merge, read_table, to_toml

HAPPENED: Final = {
    "rounds": "round INTEGER, what TEXT, said TEXT NULL, data BLOB NULL",
    "messages": "round INTEGER, trip INTEGER, sent INTEGER, peer INTEGER, size INTEGER,"
    " sha256 BLOB; body INTEGER",
    "sums": "round INTEGER, slot INTEGER, length INTEGER, sha256 BLOB, contributors BLOB,"
    " words BLOB",
    "events": "round INTEGER, event TEXT",
    "evaluations": "round INTEGER, theta TEXT, split TEXT, device TEXT, num_samples INTEGER,"
    " loss REAL, error REAL",
}
"""The tables of the record's chain. It does not cover where the bytes of a message are."""

_DERIVED: Final = {
    "bodies": "number INTEGER PRIMARY KEY, data BLOB",
    "about": "name TEXT PRIMARY KEY, value TEXT",
    "arrays": "owner TEXT, name TEXT, dtype TEXT, shape TEXT, data BLOB, PRIMARY KEY (owner, name)",
    "measured": "round INTEGER, level INTEGER, result TEXT, PRIMARY KEY (round, level)",
    "attackers": "number INTEGER PRIMARY KEY, round INTEGER, what TEXT, share REAL",
}

RECORD: Final = Form("record", 0x64464C52, 1, HAPPENED, _DERIVED)
_SETTINGS: Final = "settings"
VERSIONS: Final = "versions"
SUMMARY: Final = "summary"
OF_STATE: Final = "round "
"""Of a state's arrays, how their owner begins; its round follows."""
MOST_ARRAYS: Final = 10_000
_SAVED: Final = (
    "SELECT DISTINCT CAST(substr(owner, 7) AS INTEGER) AS number FROM arrays"
    " WHERE owner = 'round ' || number AND number >= 0 ORDER BY number LIMIT ?"
)


class Record:
    """An open record.

    Args:
        path: where it is.
        db: the same, open.

    Attributes:
        chain: of what has happened.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path, self.db = path, db
        self.chain = Chain(path, db, RECORD)

    def text(self, name: str) -> str | None:
        """What the run says about itself under a name; None if nothing."""
        query = "SELECT value FROM about WHERE name = ?"
        (value,) = self.db.execute(query, (name,)).fetchone() or (None,)
        if not isinstance(value, str | None):
            raise damaged(self.path, f"{name} is no text")
        return value

    def json(self, name: str) -> dict[str, object] | None:
        """The same of a JSON object.

        Raises:
            RunDirectoryError: it is none.
        """
        text = self.text(name)
        return None if text is None else json_object(self.path, text)

    def note(self, name: str, value: str | Mapping[str, object] | None) -> None:
        """Say something under a name, in place of what was said before; None takes it back."""
        self.db.execute("DELETE FROM about WHERE name = ?", (name,))
        if value is not None:
            text = value if isinstance(value, str) else as_json(value)
            self.db.execute("INSERT INTO about VALUES (?, ?)", (name, text))

    @property
    def settings(self) -> str:
        """The settings, TOML.

        Raises:
            RunDirectoryError: it has none.
        """
        if (found := self.text(_SETTINGS)) is None:
            raise RunDirectoryError(f"{self.path} has no settings: the run has not begun")
        return found

    def config(self, *, checked: bool = True) -> RunConfig:
        """The settings; unless told otherwise, checked together.

        Raises:
            ConfigError: they are none.
        """
        table = read_table(self.settings, f"the settings of {self.path}")
        return build_config([table]) if checked else merge([table])

    def has_begun(self) -> bool:
        """Whether it has settings."""
        return self.text(_SETTINGS) is not None

    def note_settings(self, config: RunConfig) -> None:
        """Say which settings the run has."""
        self.note(_SETTINGS, to_toml(config))

    def keep(self) -> None:
        """End the transaction under way, so that the end of the process does not undo it."""
        self.db.commit()

    def keep_durably(self, *, from_now: bool) -> None:
        """End it; choose whether transactions are on the disk from now on when they end."""
        self.db.commit()
        self.db.execute(f"PRAGMA synchronous = {'FULL' if from_now else 'NORMAL'}")


def note_measured(
    record: Record, round_number: int, level: int, result: Mapping[str, object]
) -> None:
    """Say what the devices of a federation have measured together of a level's model."""
    row = round_number, level, as_json(result)
    record.db.execute("INSERT OR REPLACE INTO measured VALUES (?, ?, ?)", row)


def read_measured(record: Record) -> Iterator[tuple[int, dict[str, object]]]:
    """What they have measured, by round: the number of the level, and the result.

    Raises:
        RunDirectoryError: a result is no JSON object.
    """
    rows = record.db.execute("SELECT rowid, level, result FROM measured ORDER BY rowid")
    for _, level, text in ascending(record.path, rows):
        yield level, json_object(record.path, text)


def as_json(document: Mapping[str, object]) -> str:
    """A JSON object for people to read."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def json_object(path: Path, text: object) -> dict[str, object]:
    """A JSON object that a record holds.

    Raises:
        RunDirectoryError: it is none.
    """
    try:
        document = parse_json(text.encode()) if isinstance(text, str) else None
    except ValueError as error:
        raise damaged(path, error) from error
    if not isinstance(document, dict):
        raise damaged(path, "it does not contain a JSON object")
    return document


@contextmanager
def open_record(path: Path) -> Iterator[Record]:
    """Open a record to read one state of it.

    Raises:
        ChainError: it is none, or damaged.
        RunDirectoryError: it is no regular file.
        OSError: it is not there, or cannot be read.
    """
    with reading(path, RECORD) as db:
        yield Record(path, db)


@contextmanager
def write_record(path: Path) -> Iterator[Record]:
    """Open a record to go on with it, or make it; what is not kept by then is undone in the end.

    Raises:
        ChainError: it is none, or damaged.
        RunDirectoryError: it is no regular file.
    """
    with writing(path, RECORD) as db:
        yield Record(path, db)


def saved_rounds(record: Record) -> list[int]:
    """The rounds of the states that are saved, ascending."""
    return [number for (number,) in record.db.execute(_SAVED, (MOST_ARRAYS,))]
