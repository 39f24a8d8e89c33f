"""A run of two rounds, in whose record a value is replaced before it is read and audited."""

import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from doubles import run
from records import rows_of, write_rows

from deltafl.sim.record.record import HAPPENED
from deltafl.sim.record.transcript import read_transcript
from deltafl.sim.settings.config_io import build_config

_FILES = ("record.sqlite", "truth.sqlite", "bundle.npz")
_SETTINGS = {
    "data": {"num_devices": 60},
    "federation": {
        "algorithm": "private-delta-fl",
        "rounds": 2,
        "cohort_size": 5,
        "evaluate_every": 1,
    },
    "training": {"batch_size": 64, "device": "cpu"},
    "quantile": {"resolution_bits": 8, "loss_bound": 8, "method": "bracketed"},
    "privacy": {"min_cohort": 5, "transcript": "full", "truth": True},
}


def files() -> tuple[bytes, bytes]:
    """The record and the truth."""
    played = _played()
    return (played / _FILES[0]).read_bytes(), (played / _FILES[1]).read_bytes()


@cache
def run_id() -> bytes:
    """Of the run."""
    return next(read_transcript(_played() / _FILES[0])).run_id


def with_value(folder: Path, table: str, column: str, value: bytes) -> bool:
    """Copy the run, with a value in a column of its record, under a chain that is right.

    Args:
        folder: An empty one.
        table: Of the record.
        column: Of the table; of the last row it is changed, and of all if nothing is covered.
        value: As text, where it is some; nothing changes nothing.

    Returns:
        Whether there is such a column.
    """
    for name in _FILES:
        shutil.copy(_played() / name, folder / name)
    path = folder / _FILES[0]
    try:
        written: object = value.decode()
    except UnicodeDecodeError:
        written = value
    with closing(sqlite3.connect(path)) as db:
        known = {row[1] for row in db.execute("SELECT * FROM pragma_table_info(?)", (table,))}
        if column not in known:
            return False
        if value:
            db.execute(f'UPDATE "{table}" SET "{column}" = ?', (written,))  # noqa: S608 (known)
            db.commit()
    if table in HAPPENED and column not in ("number", "digest"):
        write_rows(path, rows_of(path))
    return True


@cache
def _played() -> Path:
    folder = tempfile.mkdtemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        path = Path(folder) / "run"
        run(build_config([_SETTINGS]), path)
    return path
