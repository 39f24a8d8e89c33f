"""Tables with a row for each sample, in columns: whose it is, its label, and its numbers.

`csv_table` and `parquet_table` read them. Texts are kept once, and rows refer to them by number:
an array of NumPy's would give every row the room of the longest.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.checks import check_classes, checked_device
from deltafl.fl.data.federated import FederatedDataset, Split, federate
from deltafl.fl.data.registry import Format, Options
from deltafl.fl.errors import DataError

MAX_COLUMNS: Final = 1 << 16
"""Most columns of a table."""

_SHOWN: Final = 20  # names of columns in a message
_NUMBER: Final = re.compile(
    r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?"
)
"""A number as programs write it. 02134 and 1_000 are none: they are codes, and no two are one."""
_NOTHING: Final = frozenset({"-", "?", "inf", "-inf", "n/a", "na", "nan", "none", "null"})
"""What stands, in small letters, where a table of numbers has nothing."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column is what.

    Attributes:
        user: whose a sample is.
        labels: its label; several are numbers that are to be predicted.
        features: its numbers; empty for all other columns, None for no column.
    """

    user: str
    labels: tuple[str, ...]
    features: tuple[str, ...] | None = ()

    def found_in(self, source: str, names: Sequence[str]) -> "Found":
        """The same, with all features named, if a table has such columns.

        Raises:
            DataError: it has not, or several of one name, or one is to be two things; or too many.
        """
        if len(names) > MAX_COLUMNS:
            raise DataError(f"{source}: more than {MAX_COLUMNS:,} columns: divide the table")
        if not (self.user and all(self.labels) and self.labels):
            raise DataError(
                f"{source}: the columns of the user and of the label have no name: say which they "
                f"are (data.user_column, data.label_column); there are {_few(names)}"
            )
        taken = {self.user, *self.labels}
        features = self.features or ()
        if self.features == ():
            features = tuple(name for name in names if name not in taken)
        for name in (self.user, *self.labels, *features):
            if name not in names:
                raise DataError(f"{source}: no column {name!r:.200}: there are {_few(names)}")
        used = (self.user, *self.labels, *features)
        for name in sorted(set(used)):
            if names.count(name) > 1:
                raise DataError(f"{source}: several columns are called {name!r:.200}: rename them")
            if used.count(name) > 1:
                raise DataError(
                    f"{source}: the column {name!r:.200} is named twice: user, label and inputs "
                    "must be columns of their own, or the model is told what it is to predict"
                )
        if not features and self.features is not None:
            raise DataError(f"{source}: no column is left for the inputs: there are {_few(names)}")
        return Found(self.user, self.labels, features)


class Found(NamedTuple):
    """Which column of a table is what; see `Columns`."""

    user: str
    labels: tuple[str, ...]
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """A column of texts.

    Attributes:
        names: those there are, each once.
        codes: for each row, the place of its text among them, int64 [n].
    """

    names: tuple[str, ...]
    codes: npt.NDArray[np.int64]

    def in_order(self) -> "Texts":
        """The same with the names in alphabetical order."""
        order = sorted(range(len(self.names)), key=self.names.__getitem__)
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return Texts(tuple(self.names[place] for place in order), places[self.codes])


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A table that was read.

    Attributes:
        users: whose each sample is.
        x: its numbers, float32 [n, features].
        labels: its labels: float64 [n], or [n, labels] if there are several columns; or texts.
    """

    users: Texts
    x: npt.NDArray[np.float32]
    labels: npt.NDArray[np.float64] | Texts

    @property
    def classes(self) -> tuple[str, ...]:
        """What labels are called; empty if they are numbers."""
        return self.labels.names if isinstance(self.labels, Texts) else ()

    def by_user(self) -> Iterator[tuple[str, npt.NDArray[np.float32], npt.NDArray[np.generic]]]:
        """Name, inputs and labels of each user, in the order of their first rows."""
        labels = self.labels.codes if isinstance(self.labels, Texts) else self.labels
        order = np.argsort(self.users.codes, kind="stable")
        counts = np.bincount(self.users.codes, minlength=len(self.users.names))
        parts = np.split(order, np.cumsum(counts)[:-1])
        for name, rows in zip(self.users.names, parts, strict=True):
            yield name, self.x[rows], labels[rows]


class TextsBuilder:
    """Gathers a column of texts."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._codes: list[int] = []

    def add(self, text: str) -> None:
        """Take the text of the next row."""
        self._codes.append(self._places.setdefault(text, len(self._places)))

    def __len__(self) -> int:
        return len(self._codes)

    def built(self) -> Texts:
        """The column."""
        return Texts(tuple(self._places), np.array(self._codes, np.int64))


def rows_of(
    source: str,
    columns: Found,
    users: Texts,
    x: npt.NDArray[np.float32],
    labels: Texts | npt.NDArray[np.float64],
) -> Rows:
    """Put the columns of a table together.

    Args:
        source: the file, for messages.
        columns: what they are called.
        users: whose each sample is.
        x: the inputs, float32 [n, features].
        labels: what one column says, or the numbers of several, float64 [n, labels].

    Raises:
        DataError: there are no rows, or a word for nothing stands among numbers.
    """
    if not len(x):
        raise DataError(f"{source}: no rows under the names of the columns: check the path")
    check_filled(source, columns.user, users)
    if not isinstance(labels, Texts):
        return Rows(users, x, labels)
    check_filled(source, columns.labels[0], labels)
    told = as_labels(labels)
    if isinstance(told, Texts):
        check_classes(source, told.names)
    return Rows(users, x, told)


def as_labels(texts: Texts) -> npt.NDArray[np.float64] | Texts:
    """Labels as numbers, if all of them are; else as they are, in alphabetical order.

    Codes with zeros in front, such as 02134, are texts: as numbers, 01 and 1 would be one class.
    """
    if not all(map(_NUMBER.fullmatch, texts.names)):
        return texts.in_order()
    values = np.array([float(name) for name in texts.names], np.float64)
    return values[texts.codes] if np.isfinite(values).all() else texts.in_order()


def check_filled(source: str, column: str, texts: Texts) -> None:
    """Check that no word for nothing, such as NA, stands among numbers.

    Between other texts it may be a name: NA is Namibia's code.

    Raises:
        DataError: there is one; it says which, and in which row.
    """
    others = [name for name in texts.names if name.lower() not in _NOTHING]
    if len(others) == len(texts.names) or not all(map(_NUMBER.fullmatch, others)):
        return
    place = next(n for n, name in enumerate(texts.names) if name.lower() in _NOTHING)
    row = int(np.argmax(texts.codes == place)) + 1
    raise DataError(
        f"{source}: column {column!r:.200} has {texts.names[place]!r} in row {row} of the samples, "
        "and numbers elsewhere: fill it, or leave the row out"
    )


def name_of(value: object) -> str:
    """What a user is called: 1.0 is the user 1, as a column with gaps turns 1 into 1.0."""
    if isinstance(value, float | np.floating) and abs(float(value)) < 2**53 and value == int(value):
        return str(int(value))
    return str(value)


def federated_rows(name: str, rows: Rows, split: Split) -> FederatedDataset:
    """Assign the rows of a table to their users, and split these.

    Raises:
        DataError: a label is neither a whole number nor a text, or too few devices remain.
    """
    devices = [checked_device(name, user, x, y) for user, x, y in rows.by_user()]
    return federate(name, devices, split)


def table_format(
    name: str, title: str, needs: str, read: Callable[[Path, Columns], Rows]
) -> Format:
    """The format of a kind of tables, whose columns the settings name.

    Args:
        name: of the format.
        title: what it is, in a line.
        needs: what the source is, in words.
        read: reads a file.
    """

    def load(source: str, split: Split, options: Options) -> FederatedDataset:
        columns = Columns(options.user_column, (options.label_column,), options.feature_columns)
        return federated_rows(Path(source).stem, read(Path(source), columns), split)

    used = frozenset({"user_column", "label_column", "feature_columns"})
    return Format(name, title, load, needs=needs, options=used)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(f"{name:.40}" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
