"""The devices' tables: one CSV or Parquet file with a column that says whose each row is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from deltafl.fl.data.tables import Columns, Rows, Texts, read_csv_table, read_parquet_table
from deltafl.sim.analyse.question import Values
from deltafl.sim.errors import UserError

_TRUTH: Final = {"false": 0.0, "true": 1.0}  # CSV and Parquet files spell them differently

Selection: TypeAlias = tuple[str, str]
"""A column, and the value that a row must have in it."""


def read_tables(
    path: Path, user: str, column: str, where: Selection | None = None
) -> Mapping[str, Values]:
    """Each device's values of a column, in the order of its rows.

    Args:
        path: a .csv or .parquet file.
        user: the column that names the device of a row.
        column: the column of the values.
        where: only rows of this column and value; a device without any has an empty array. Numbers
            are the same however they are written, and true and false are 1 and 0.

    Raises:
        DataError: the file cannot be read, lacks a column, or a row has nothing in one.
        UserError: the column has texts, is named twice, or the file is of neither kind.
    """
    if column in (user, where and where[0]):
        raise UserError(
            f"{path}: column {column!r:.200} has the values, so it can neither name the devices "
            "nor choose rows; choose values by the range"
        )
    rows = _read(path, user, column)
    values = rows.labels
    if isinstance(values, Texts):
        shown = ", ".join(f"{name!r:.40}" for name in values.names[:3])
        raise UserError(f"{path}: column {column!r:.200} has {shown}: must have finite numbers")
    kept = np.ones(len(values), dtype=np.bool_)
    if where is not None:
        name, wanted = where
        chosen = _read(path, name, column).users
        same = [meant(other) == meant(wanted) for other in chosen.names]
        if not any(same):
            raise UserError(f"{path}: no row has {wanted!r:.40} in column {name!r:.200}")
        kept = np.array(same)[chosen.codes]
    codes = rows.users.codes
    order = np.argsort(codes[kept], kind="stable")
    counts = np.bincount(codes[kept], minlength=len(rows.users.names))
    parts = np.split(values[kept][order], np.cumsum(counts)[:-1])
    return dict(zip(rows.users.names, parts, strict=True))


def meant(text: str) -> str | float:
    """A value of a column to select by: the number that a text is, or else the text.

    >>> meant("1.0") == meant("true"), meant("one")
    (True, 'one')
    """
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    try:
        return float(text)
    except ValueError:
        return text


def _read(path: Path, user: str, column: str) -> Rows:
    columns = Columns(user, (column,), None)
    if path.suffix == ".csv":
        return read_csv_table(path, columns)
    if path.suffix == ".parquet":
        return read_parquet_table(path, columns)
    raise UserError(f"{path}: must be a .csv or a .parquet file")
