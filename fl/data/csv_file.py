"""CSV files, through pyarrow: columns by their names, each of texts or of numbers."""

import csv
from collections.abc import Mapping, Sequence
from io import BufferedReader, BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow

from deltafl.fl.data.checks import check_column
from deltafl.fl.data.files import bounded
from deltafl.fl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_BLOCK: Final = 1 << 23  # bytes that are parsed at once; no row is longer than two of them
_TYPES: Final = {str: pa.string(), float: pa.float64()}


def csv_names(file: BufferedReader, separator: str = ",") -> list[str]:
    """The names in a file's first row that is not empty, as they are written; the position stays.

    Not by pyarrow, which reads on in threads that a program which ends does not survive.

    Raises:
        ValueError: there is none, or it is no text.
    """
    text = TextIOWrapper(BytesIO(file.read(2 * _BLOCK)), "utf-8-sig", newline="")
    file.seek(0)
    try:
        return next(filter(None, csv.reader(text, delimiter=separator)))
    except StopIteration:
        raise ValueError("the file is empty") from None
    except csv.Error as error:
        raise ValueError(f"in its first row: {error}") from error


def csv_table(
    file: BufferedReader,
    names: Sequence[str],
    types: Mapping[str, type],
    *,
    skip_rows: int = 0,
    delimiter: str = ",",
    nothing: Sequence[str] | None = None,
    encoding: str = "utf8",
    is_quoted: bool = True,
    decimal: str = ".",
) -> pa.Table:
    """Read columns of a file; all rows must have as many fields as there are names.

    Empty lines are no rows.

    Args:
        file: the file.
        names: of all columns; none if the first row has them.
        types: of those that are read: `str` or `float`. Numbers have no blanks around them.
        skip_rows: how many at the beginning are no samples.
        delimiter: between fields.
        nothing: what a number that is missing looks like; None for what programs write.
        encoding: of the text.
        is_quoted: whether quotation marks may stand around a field, as in RFC 4180.
        decimal: what stands before the fractions of numbers.

    Raises:
        ValueError: a row has more or fewer fields, or a number is none; it says in which row.
    """
    table = arrow.read_csv(
        file,
        arrow.ReadOptions(
            # else it does not say which row is damaged
            use_threads=False,
            block_size=_BLOCK,
            skip_rows=skip_rows,
            column_names=names,
            encoding=encoding,
        ),
        arrow.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if is_quoted else False,
            newlines_in_values=is_quoted,
        ),
        arrow.ConvertOptions(
            column_types={name: _TYPES[kind] for name, kind in types.items()},
            include_columns=list(types),
            null_values=nothing,
            strings_can_be_null=False,
            decimal_point=decimal,
        ),
    )
    if not is_quoted:
        return table
    for place, (name, kind) in enumerate(types.items()):
        if kind is str:
            table = table.set_column(place, name, pc.utf8_trim_whitespace(table.column(name)))
    return table


def read_frame(
    path: Path,
    columns: Mapping[str, type | None],
    max_bytes: int,
    *,
    has_names: bool = False,
    skip_rows: int = 0,
    **form: Any,  # noqa: ANN401
) -> "pd.DataFrame":
    """Read a file of known columns.

    Args:
        path: the file.
        columns: all columns by their names: `str`, `float`, or None if they are of no use; only
            those of use where the first row has the names.
        max_bytes: the largest file that can be meant.
        has_names: whether the first row has the names.
        skip_rows: how many at the beginning are neither names nor samples.
        form: options of `csv_table`.

    Returns:
        The columns that are of use; numbers are finite as float32, or NaN where they are missing.

    Raises:
        DataError: the file is missing, too large or damaged.
    """
    types = {name: kind for name, kind in columns.items() if kind is not None}
    with bounded(path, "table", max_bytes) as file:
        names = () if has_names else list(columns)
        table = csv_table(file, names, types, skip_rows=skip_rows, **form)
    for name, kind in types.items():
        if kind is float:
            column = table.column(name)
            check_column(path, name, column.to_numpy(), column.is_valid().to_numpy())
    return table.to_pandas()


def one_hot(
    path: Path, values: "pd.Series[Any]", categories: Sequence[object], nothing: str | None = None
) -> npt.NDArray[np.bool_]:
    """Encode a column of categories as one 1 among zeros, [n, categories].

    Args:
        path: the file, for messages.
        values: the column, with its name; its index counts the rows of the file from 0.
        categories: that there are.
        nothing: the value that all zeros stand for.

    Raises:
        DataError: a value is none of the categories.
    """
    column = values.to_numpy()
    encoded: npt.NDArray[np.bool_] = column[:, None] == np.array(categories, column.dtype)
    known = encoded.any(axis=1) | (values == nothing).to_numpy()
    check_values(path, values, known, f"one of {', '.join(map(str, categories))}")
    return encoded


def check_values(
    path: Path, values: "pd.Series[Any]", are_right: npt.ArrayLike, right: str
) -> None:
    """Check that all values of a column are what they must be.

    Raises:
        DataError: one is not; its row is named.
    """
    wrong = np.flatnonzero(~np.asarray(are_right, bool))
    if wrong.size:
        (value,) = values.iloc[wrong[:1]].tolist()
        raise DataError(
            f"{path}: row {values.index[wrong[0]] + 1} has {values.name} = {value!r:.40}, which is "
            f"not {right}: correct or fetch the file again"
        )
