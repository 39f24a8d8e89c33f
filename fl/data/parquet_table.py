"""A Parquet file with a row for each sample, and a column for each number.

Users and labels may be texts. (Files with an image, or a list of numbers, in one column are those
of `deltafl.fl.data.hub`.)
"""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from deltafl.fl.data.federated import MAX_NAME
from deltafl.fl.data.rows import Columns, Rows, TextsBuilder, name_of, rows_of, table_format
from deltafl.fl.errors import DataError
from deltafl.fl.read.parquet import check_pages
from deltafl.fl.read.regular import open_regular
from deltafl.fl.read.zipped import allowance

_BATCH: Final = 1 << 12  # rows that are decoded at once
_ROW_BYTES: Final = 32  # of a row's user and label, about


def read_parquet_table(path: Path, columns: Columns) -> Rows:
    """Read a file.

    Args:
        path: the file.
        columns: which column is what.

    Raises:
        DataError: the file is missing or damaged, a column is missing, empty somewhere, or has
            something else than numbers.
    """
    try:
        with open_regular(path) as opened:
            check_pages(opened)
            with pq.ParquetFile(opened) as file:
                return _rows(path, file, columns, allowance(path.stat().st_size))
    except (
        OSError,
        MemoryError,
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
        pa.ArrowException,
    ) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path}: not a readable Parquet file ({error!s:.200}): write it anew"
        ) from error


def _rows(path: Path, file: pq.ParquetFile, columns: Columns, limit: int) -> Rows:
    found = columns.found_in(str(path), file.schema_arrow.names)
    several = len(found.labels) > 1
    for name in (*found.features, *(found.labels if several else ())):
        _check_numbers(path, name, file.schema_arrow.field(name).type)
    users, told = TextsBuilder(), TextsBuilder()
    parts: list[npt.NDArray[np.float32]] = []
    targets: list[npt.NDArray[np.float32]] = []
    wanted = [found.user, *found.labels, *found.features]
    for batch in file.iter_batches(_BATCH, columns=wanted):
        batch.validate(full=True)  # pyarrow believes the places in texts
        before = len(users)
        for name in wanted:
            if batch.column(name).null_count:
                missing = batch.column(name).is_null().to_numpy(zero_copy_only=False)
                raise DataError(
                    f"{path}: column {name!r:.200} has nothing in row "
                    f"{before + 1 + int(np.argmax(missing))}: fill it, or leave the row out"
                )
        _add(path, users, found.user, batch, before)
        if several:
            targets.append(_numbers(path, batch, found.labels, before))
        else:
            _add(path, told, found.labels[0], batch, before)
        parts.append(_numbers(path, batch, found.features, before))
        if len(users) * (_ROW_BYTES + 4 * len(wanted)) > limit:
            raise DataError(
                f"{path}: its first {len(users):,} rows unpack to more than {limit:,} bytes: "
                "divide it"
            )
    empty = np.empty((0, len(found.features)), np.float32)
    return rows_of(
        str(path),
        found,
        users.built(),
        np.concatenate([empty, *parts]),
        np.concatenate(targets).astype(np.float64) if targets else told.built(),
    )


def _numbers(
    path: Path, batch: pa.RecordBatch, names: tuple[str, ...], before: int
) -> npt.NDArray[np.float32]:
    columns = [np.empty((batch.num_rows, 0), np.float32)]
    for name in names:
        values = batch.column(name).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):  # what becomes infinite is refused below
            numbers = values.astype(np.float32)
        wrong = np.flatnonzero(~np.isfinite(numbers))
        if wrong.size:
            raise DataError(
                f"{path}: column {name!r:.200} has {values[wrong[0]]} in row "
                f"{before + 1 + int(wrong[0])}, which is not a finite float32: correct it, or "
                "leave the row out"
            )
        columns.append(numbers[:, None])
    return np.concatenate(columns, axis=1)


def _add(path: Path, texts: TextsBuilder, name: str, batch: pa.RecordBatch, before: int) -> None:
    for row, value in enumerate(batch.column(name).to_pylist(), start=before + 1):
        text = str(int(value)) if isinstance(value, bool) else name_of(value)
        if not isinstance(value, str | int | float) or not 0 < len(text) <= MAX_NAME:
            raise DataError(
                f"{path}: column {name!r:.200} has {type(value).__name__} {text!r:.40} in row "
                f"{row}, and must have whole numbers or texts of at most {MAX_NAME} characters"
            )
        if value != value:
            raise DataError(
                f"{path}: column {name!r:.200} has nan in row {row}: fill it, or leave the row out"
            )
        texts.add(text)


def _check_numbers(path: Path, name: str, kind: pa.DataType) -> None:
    types = pa.types
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise DataError(
            f"{path}: column {name!r:.200} has {kind!s:.40}, not numbers: encode it, or leave "
            "it out of the features (data.feature_columns); images and lists are read with "
            "data.format = 'hub'"
        )


FORMAT: Final = table_format(
    "parquet",
    "a Parquet file with a row for each sample",
    "a .parquet file with a column for each number",
    read_parquet_table,
)
