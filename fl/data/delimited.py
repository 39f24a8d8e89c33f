"""Rows of a delimited text file, with their line numbers, so that a damaged one can be named."""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self, TextIO

from deltafl.fl.errors import DataError
from deltafl.fl.read.regular import open_regular

MAX_ROW: Final = 1 << 21
"""Most characters of a row: each field takes a text of its own while it is read."""

_LARGEST: Final = (2 - 2**-23) * 2.0**127  # of float32


def read_rows(
    path: Path,
    *,
    num_columns: int | None,
    delimiter: str = ",",
    max_bytes: int,
    skip: int = 0,
    encoding: str = "utf-8",
    mend: str = "fetch the file again",
) -> Iterator[tuple[int, list[str]]]:
    """Read a file row by row; blanks around a field are dropped, empty lines are passed over.

    Args:
        path: the file.
        num_columns: that every row has; None for as many as the first one has.
        delimiter: between fields; quotes are as in CSV.
        max_bytes: the largest file that can be meant.
        skip: how many lines at the beginning are no rows.
        encoding: of the text.
        mend: what to do about a damaged row, for messages.

    Yields:
        The number of the row's last line, from 1 on, and its fields.

    Raises:
        DataError: the file is missing, too large or no such text, or a row has more or fewer
            columns, or more than `MAX_ROW` characters.
    """
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}: check the path")
    if (size := path.stat().st_size) > max_bytes:
        raise DataError(
            f"{path}: {size:,} bytes are more than the {max_bytes:,} that such a file can have: "
            "check the path"
        )
    with io.TextIOWrapper(open_regular(path), encoding=encoding, newline="") as file:
        lines = _Lines(path, file)
        rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
        last = 0
        try:
            for _ in range(skip):
                next(rows, None)
            for row in rows:
                last = rows.line_num
                lines.begin_row()
                fields = [field.strip() for field in row]
                if not any(fields):
                    continue
                num_columns = num_columns or len(fields)
                if len(fields) != num_columns:
                    raise DataError(
                        f"{path}: line {last} has {len(fields)} columns instead of "
                        f"{num_columns}: {mend}"
                    )
                yield last, fields
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}: line {last + 1} and what follows cannot be read ({error}): {mend}"
            ) from error


class _Lines:
    """The lines of a file, unless those of one row are too long to be meant."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path = path
        self._file = file
        self._number = 0
        self._left = MAX_ROW

    def begin_row(self) -> None:
        """The next line begins a row."""
        self._left = MAX_ROW

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._file.readline(self._left + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self._left -= len(line)
        if self._left < 0:
            raise DataError(
                f"{self._path}: the row that ends after line {self._number - 1} has more than "
                f"{MAX_ROW:,} characters: check the path"
            )
        return line


def number(path: Path, line: int, column: str, text: str) -> float:
    """Read a number that is finite as a float32, in ASCII and without underscores.

    Raises:
        DataError: it is none.
    """
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not abs(value) <= _LARGEST:
        raise DataError(
            f"{path}: line {line} has {column} = {text!r:.40}, which is not a finite number: "
            f"{_mend_of(text)}"
        )
    return value


def _mend_of(text: str) -> str:
    """What would make a number of a text."""
    if "," in text:
        return "write decimal points, and nothing between thousands"
    if text.lower() in ("true", "false"):
        return "write 1 and 0"
    if not text:
        return "fill it, or leave the row out"
    return "correct or fetch the file again"


def one_hot(
    path: Path, line: int, column: str, value: str, categories: tuple[str, ...]
) -> list[float]:
    """Encode a category as one 1 among zeros, one number per category.

    Raises:
        DataError: it is none of the categories.
    """
    if value not in categories:
        raise wrong_category(path, line, column, value, categories)
    return [float(value == category) for category in categories]


def wrong_category(
    path: Path, line: int, column: str, value: str, categories: tuple[str, ...]
) -> DataError:
    """The error for a category that is none of those there are."""
    return DataError(
        f"{path}: line {line} has {column} = {value!r:.40}, which is not one of "
        f"{', '.join(categories)}: correct or fetch the file again"
    )
