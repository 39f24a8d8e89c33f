"""A CSV file with a row for each sample, whose first row names the columns.

Users and labels may be texts; all other columns that are used are numbers.
"""

from array import array
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.data.delimited import number, read_rows
from deltafl.fl.data.rows import Columns, Rows, TextsBuilder, rows_of, table_format
from deltafl.fl.errors import DataError

MAX_BYTES: Final = 1 << 30
"""The largest file that is read; for larger ones, Parquet takes less room and time."""

_MEND: Final = "correct the line; the file must be UTF-8 with commas between its columns"


def read_csv_table(path: Path, columns: Columns) -> Rows:
    """Read a file.

    Args:
        path: the file: UTF-8, commas, quotes as in RFC 4180.
        columns: which column is what.

    Raises:
        DataError: the file is missing, too large or no such text, a column is missing, or a value
            is no number; it says in which line.
    """
    rows = read_rows(path, num_columns=None, max_bytes=MAX_BYTES, encoding="utf-8-sig", mend=_MEND)
    try:
        _, names = next(rows)
    except StopIteration:
        raise DataError(f"{path}: it is empty: its first row must name the columns") from None
    _check_commas(path, names)
    found = columns.found_in(str(path), names)
    user = names.index(found.user)
    labels = [names.index(name) for name in found.labels]
    features = [(name, names.index(name)) for name in found.features]
    users, told, x, targets = TextsBuilder(), TextsBuilder(), array("f"), array("d")
    for line, fields in rows:
        if not fields[user]:
            raise DataError(f"{path}: line {line} has nothing in column {found.user!r:.200}")
        users.add(fields[user])
        if len(labels) > 1:
            targets.extend(number(path, line, names[one], fields[one]) for one in labels)
        elif not fields[labels[0]]:
            raise DataError(f"{path}: line {line} has nothing in column {found.labels[0]!r:.200}")
        else:
            told.add(fields[labels[0]])
        x.extend(number(path, line, name, fields[place]) for name, place in features)
    return rows_of(
        str(path),
        found,
        users.built(),
        np.array(x, np.float32).reshape(len(users), len(features)),
        np.array(targets, np.float64).reshape(len(users), len(labels))
        if len(labels) > 1
        else told.built(),
    )


def _check_commas(path: Path, names: list[str]) -> None:
    """Refuse a first row that another program has divided by something else than commas."""
    for divider, said in (";", "semicolons"), ("\t", "tabs"), ("|", "bars"):
        if len(names) == 1 and divider in names[0]:
            raise DataError(
                f"{path}: its first row has {said} and no commas: write it anew with commas, or "
                f"read it in Python (Federation.from_pandas(pd.read_csv(path, sep={divider!r}), …))"
            )


FORMAT: Final = table_format(
    "csv",
    "a CSV file with a row for each sample",
    "a .csv file whose first row names the columns",
    read_csv_table,
)
