"""Run directories: of the staged run under settings, and what a small run of the program leaves.

What a run has left is changed as by somebody who makes its chain, its checkpoints and its summary
right again (`lie`), or as by somebody who does not (`records.change`).
"""

import functools
import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from unittest import mock

import msgpack
import real_runs
import records
from staged_runs import SEED, write

from deltafl.sim.record.record import SUMMARY, write_record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.truth import TRUE
from deltafl.sim.settings.config import (
    ExperimentConfig,
    FederationConfig,
    PrivacyConfig,
    QuantileConfig,
    RunConfig,
)

CONFIG = RunConfig(
    federation=FederationConfig(
        algorithm="private-own",  # so nobody plays the run again
        rounds=2,
        cohort_size=7,
        theta=Fraction(3, 4),
    ),
    quantile=QuantileConfig(method="bracketed", max_queries=2, resolution_bits=10, loss_bound=8),
    privacy=PrivacyConfig(min_cohort=5, max_weight=512, transcript="full"),
    experiment=ExperimentConfig(seed=SEED),
)
"""Settings of the staged run."""

SMALL = {"federation": {"rounds": 2, "cohort_size": 8, "evaluate_every": 1}}
"""What is otherwise in a small run than in `real_runs`."""
Change = Callable[[RunDirectory], object]


def directory_of(path: Path, entries) -> RunDirectory:
    """A directory of the staged run, which says nothing of itself but its settings."""
    directory = RunDirectory(path)
    path.mkdir()
    write(entries, directory.record)
    with write_record(directory.record) as record:
        record.note_settings(CONFIG)
        record.keep()
    return directory


@functools.cache
def _left(patched: Callable[[], object] | None, sections: str) -> dict[str, bytes]:
    """All files of a small run, which is played once."""
    with tempfile.TemporaryDirectory() as folder, (patched or mock.MagicMock)():
        path = Path(folder) / "run"
        with mock.patch("deltafl.sim.charts.files.write_figures"):
            real_runs.leave(path, **{**SMALL, **json.loads(sections)})
        return {one.name: one.read_bytes() for one in path.iterdir() if one.is_file()}


def real(path: Path, change: Change | None = None, patched=None, **sections) -> RunDirectory:
    """What a small run has left, changed.

    Args:
        path: Where to put it.
        change: Changes it.
        patched: Makes what is entered while the run is played.
        sections: Of its settings, beside the usual ones.
    """
    path.mkdir()
    for name, data in _left(patched, json.dumps(sections)).items():
        (path / name).write_bytes(data)
    directory = RunDirectory(path)
    if change is not None:
        change(directory)
    return directory


def lie(change: Callable[[list], object]) -> Change:
    """Change the rows of a record; chain, checkpoints and summary are right again.

    Args:
        change: Given the rows as of `records.rows_of`, changes them.
    """

    def changed(directory: RunDirectory) -> None:
        rows = records.rows_of(directory.record)
        change(rows)
        digest = records.write_rows(directory.record, rows)
        with write_record(directory.record) as record:
            if (summary := record.json(SUMMARY)) is not None:
                said = json.dumps(summary).replace(summary["record_sha256"], digest.hex())
                record.note(SUMMARY, json.loads(said))
            query = "SELECT owner, data FROM arrays WHERE name = 'record_rows'"
            for owner, data in record.db.execute(query).fetchall():
                mark = record.chain.mark_at(int.from_bytes(data, "little"))
                record.db.execute(
                    "UPDATE arrays SET data = ? WHERE owner = ? AND name = 'record_digest'",
                    (mark.digest, owner),
                )
            record.keep()

    return changed


def lie_in_truth(*statements) -> Change:
    """Run SQL on the truth; its chain is right again."""

    def changed(directory: RunDirectory) -> None:
        records.change_record(directory.truth, *statements)
        with closing(sqlite3.connect(directory.truth)) as db:
            rows = sorted(
                (row[0], table, row[2:])
                for table in TRUE
                for row in db.execute(f"SELECT * FROM {table}")  # noqa: S608
            )
            digest = hashlib.sha256(b"deltafl truth 1").digest()
            for number, table, values in rows:
                packed = msgpack.packb((table, number, *values))
                digest = hashlib.sha256(digest + packed).digest()
                query = f"UPDATE {table} SET digest = ? WHERE number = ?"  # noqa: S608
                db.execute(query, (digest, number))
            db.commit()

    return changed


def in_event(number: int, **values) -> Change:
    """Change what the event of a round says."""

    def change(rows):
        (fields,) = [f for table, _, f, _ in rows if table == "events" and f["round"] == number]
        fields["event"] = json.dumps({**json.loads(fields["event"]), **values})

    return lie(change)


def in_evaluation(number: int, **values) -> Change:
    """Change the first row of the evaluation after a round."""

    def change(rows):
        next(
            f for table, _, f, _ in rows if table == "evaluations" and f["round"] == number
        ).update(values)

    return lie(change)


def in_said(name: str, **values) -> Change:
    """Change what a run says under a name."""

    def change(directory: RunDirectory) -> None:
        records.note(directory.path, name, {**records.said_of(directory.path, name), **values})

    return change


def in_settings(old: str, new: str) -> Change:
    """Change the text of the settings."""

    def change(directory: RunDirectory) -> None:
        text = records.toml_of(directory.path)
        assert old in text
        records.note(directory.path, "settings", text.replace(old, new))

    return change


def in_array(number: int, name: str, at: int, byte: int = 1) -> Change:
    """Change a byte of an array of the checkpoint of a round."""

    def change(directory: RunDirectory) -> None:
        where = f"round {number}", name
        with write_record(directory.record) as record:
            query = "SELECT data FROM arrays WHERE owner = ? AND name = ?"
            ((data,),) = record.db.execute(query, where).fetchall()
            other = bytearray(data)
            other[at] ^= byte
            update = "UPDATE arrays SET data = ? WHERE owner = ? AND name = ?"
            record.db.execute(update, (bytes(other), *where))
            record.keep()

    return change
