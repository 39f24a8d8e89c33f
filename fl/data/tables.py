"""Tables with a row for each sample, in CSV or Parquet files: whose it is, its label, its numbers.

Users and labels may be texts; all other columns that are used are numbers. Texts are kept once, and
rows refer to them by number. (Parquet files with an image, or a list of numbers, in one column are
those of `deltafl.fl.data.hub`.)
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from deltafl.fl.data.checks import check_column, faulty, in_rows, rows_by_user
from deltafl.fl.data.csv_file import csv_names, csv_table
from deltafl.fl.data.federated import MAX_NAME, check_classes
from deltafl.fl.data.files import bounded
from deltafl.fl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

MAX_CSV_BYTES: Final = 1 << 30
"""The largest CSV file that is read; for larger ones, Parquet takes less room and time."""

MAX_COLUMNS: Final = 1 << 16
"""Most columns of a table."""

_MEND: Final = (
    "correct the line, or say how the file is written (data.separator, data.decimal); it must be "
    "UTF-8, and numbers have nothing between thousands, and 1 and 0 for true and false"
)
SEPARATORS: Final = {",": ",", ";": ";", "|": "|", "tab": "\t"}
"""What may stand between the columns of a CSV file, by its name in settings."""

MISSING: Final = ("refuse", "leave-out")
"""What may be done with a row in which something is missing that is used."""

_NAMELESS: Final = re.compile(r"|Unnamed: [0-9]+|__index_level_[0-9]+__")
"""What a column without a name is called; pandas writes such a one for its row numbers."""

_PIECE: Final = 1 << 20
_LATE_QUOTE: Final = re.compile(r'\s+"')
_NO_ROWS: Final = "no rows under the names of the columns: give some"
_NO_NAMES: Final = {
    b"(?:\xef\xbb\xbf){2}": "it begins with two byte-order marks: delete one (write as UTF-8 once)",
    b'(?:\xef\xbb\xbf)?"?sep=': "its first line is a note to Excel, 'sep=': delete the line",
    b"(?:\xef\xbb\xbf)?[ \t,;|]+\\s*\\Z": "its first row has nothing in it: delete the line",
}
"""What the first row of a CSV file may be in place of names, and what helps."""
_FILL: Final = (
    "fill it, or leave such rows out (--set data.missing=leave-out, or missing='leave-out')"
)
_NAME_INPUTS: Final = (
    "name the columns of the inputs (features=[…]; as a setting, data.feature_columns)"
)
_SHOWN: Final = 20  # names of columns in a message
_NUMBER: Final = re.compile(
    r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?"
)
"""A number as programs write it. 02134 and 1_000 are none: they are codes, and no two are one."""
_NUMBER_WITH_COMMA: Final = re.compile(_NUMBER.pattern.replace(r"\.", ","))
_NOTHING: Final = frozenset({"-", "?", "inf", "-inf", "n/a", "na", "nan", "none", "null"})
"""What stands, in small letters, where a table of numbers has nothing."""
_GAPS: Final = (*pcsv.ConvertOptions().null_values, "-", "?", "None", "none")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column is what, and how it is written.

    Attributes:
        user: whose a sample is; "" if all samples of the table are one user's.
        labels: its label; several are numbers that are to be predicted. None if it has none.
        features: its numbers; empty for all other columns.
        missing: one of `MISSING`: what to do with a row that is not whole.
        separator: CSV: one of `SEPARATORS`.
        decimal: CSV: "." or ",", what stands before the fractions of numbers.
        is_one: whether the table may be one user's.
    """

    user: str
    labels: tuple[str, ...]
    features: tuple[str, ...] = ()
    missing: str = MISSING[0]
    separator: str = ","
    decimal: str = "."
    is_one: bool = False

    def __post_init__(self) -> None:
        allowed = {"missing": MISSING, "separator": SEPARATORS, "decimal": (".", ",")}
        for name, values in allowed.items():
            if (value := getattr(self, name)) not in values:
                raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, values))}")

    def found_in(self, source: str, names: Sequence[str]) -> "Columns":
        """The same, with all features named, if a table has such columns.

        Raises:
            DataError: it has not, or several of one name, or one is to be two things; or too many.
        """
        if len(names) > MAX_COLUMNS:
            raise DataError(f"{source}: more than {MAX_COLUMNS:,} columns: divide the table")
        said = {"user": self.user or self.is_one, "label": all(self.labels)}
        for what in (what for what, is_said in said.items() if not is_said):
            told = f"which column is the {what}'s is not said: add --set data.{what}_column=NAME"
            raise DataError(f"{source}: {told}; there are {_few(names)}")
        taken = {*self.users, *self.labels}
        features = self.features or tuple(name for name in names if name not in taken)
        used = (*self.users, *self.labels, *features)
        if nameless := [name for name in features if _NAMELESS.fullmatch(name)]:
            raise DataError(
                f"{source}: a column has no name ({nameless[0]!r}), as pandas writes its row "
                f"numbers: write the table without them (to_csv(…, index=False)), or {_NAME_INPUTS}"
            )
        mend = f"there are {_few(names)}"
        if absent := [(f"no column {one!r:.200}", mend) for one in used if one not in names]:
            raise faulty(source, absent)
        for name in sorted(set(used)):
            if names.count(name) > 1:
                raise DataError(f"{source}: several columns are called {name!r:.200}: rename them")
            if used.count(name) > 1:
                told = f"the column {name!r:.200} is named twice: user, label and inputs"
                raise DataError(f"{source}: {told} must be columns of their own")
        if not features:
            raise DataError(f"{source}: no column is left for the inputs: there are {_few(names)}")
        return replace(self, features=features)

    @property
    def users(self) -> tuple[str, ...]:
        """The column of the user, if there is one."""
        return (self.user,) if self.user else ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns that may hold texts; of several labels, each is a number."""
        return self.users if len(self.labels) > 1 else (*self.users, *self.labels)

    @property
    def numbers(self) -> tuple[str, ...]:
        """All other columns."""
        return (*self.labels, *self.features) if len(self.labels) > 1 else self.features


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
        return Texts(tuple(self.names[place] for place in order), np.argsort(order)[self.codes])


Inputs: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A table that was read.

    Attributes:
        users: whose each sample is.
        x: its numbers, float32 [n, features]; int64 if all columns are of whole numbers.
        labels: its labels: float64 [n], or [n, columns] if there are several or none; or texts.
        features: the columns of x.
        left_out: how many rows were left out, for they were not whole.
    """

    users: Texts
    x: Inputs
    labels: npt.NDArray[np.float64] | Texts
    features: tuple[str, ...]
    left_out: int = 0

    @property
    def classes(self) -> tuple[str, ...]:
        """What labels are called; empty if they are numbers."""
        return self.labels.names if isinstance(self.labels, Texts) else ()

    def check_numbers(self, source: str) -> None:
        """Check that labels are numbers, which are to be predicted.

        Raises:
            DataError: they are texts.
        """
        if self.classes:
            shown = ", ".join(f"{name:.40}" for name in self.classes[:5])
            raise DataError(f"{source}: labels such as {shown} are no numbers (targets='numbers')")

    def by_user(
        self,
    ) -> Iterator[tuple[str, Inputs, npt.NDArray[np.generic]]]:
        """Name, inputs and labels of each user, in the order of their first rows."""
        labels = self.labels.codes if isinstance(self.labels, Texts) else self.labels
        for name, rows in rows_by_user(self.users.names, self.users.codes):
            yield name, self.x[rows], labels[rows]


def read_csv_table(path: Path, columns: Columns) -> Rows:
    """Read a CSV file, whose first row names the columns.

    Args:
        path: the file: UTF-8, commas, quotes as in RFC 4180.
        columns: which column is what.

    Raises:
        DataError: the file is missing, too large or no such text, a column is missing, or a value
            is no number; it says in which row.
    """
    with bounded(path, "CSV file", MAX_CSV_BYTES, _MEND) as file:
        separator = SEPARATORS[columns.separator]
        _check_first_row(path, file, columns.separator)
        _check_quotes(file, separator)
        written = csv_names(file, separator)
        names = [name.strip() for name in written]
        found = columns.found_in(str(path), names)
        types = dict.fromkeys(found.texts, str) | dict.fromkeys(found.numbers, float)
        form = partial(
            csv_table, file, (), delimiter=separator, decimal=columns.decimal, nothing=_GAPS
        )
        # the first row is not always the first line: pyarrow finds it once more
        kinds = {written[names.index(name)]: types[name] for name in types}
        try:
            table = form(kinds)
        except ValueError:
            file.seek(0)
            _check_numbers(path, found, form(dict.fromkeys(kinds, str)).rename_columns(list(types)))
            raise
    return _rows_of(str(path), found, table.rename_columns(list(types)))


def column_names(path: Path, separator: str) -> list[str]:
    """The names of the columns of a CSV or Parquet file.

    Args:
        path: the file.
        separator: CSV: one of `SEPARATORS`.

    Raises:
        DataError: the file is missing, too large or damaged.
    """
    if path.suffix.lower() == ".csv":
        with bounded(path, "CSV file", MAX_CSV_BYTES, _MEND) as file:
            return [name.strip() for name in csv_names(file, SEPARATORS[separator])]
    with bounded(path, "Parquet file", mend="write it anew") as file:
        names: list[str] = pq.ParquetFile(file).schema_arrow.names
        return names


def read_parquet_table(path: Path, columns: Columns) -> Rows:
    """Read a Parquet file with a column for each number.

    Args:
        path: the file.
        columns: which column is what.

    Raises:
        DataError: the file is missing or damaged, a column is missing, empty somewhere, or has
            something else than numbers.
    """
    with bounded(path, "Parquet file", mend="write it anew") as file:
        opened = pq.ParquetFile(file)
        found = columns.found_in(str(path), opened.schema_arrow.names)
        # threads could outlive the program, which would abort
        table = opened.read([*found.texts, *found.numbers], use_threads=False)
    return _rows_of(str(path), found, table)


def read_frame(source: str, frame: "pd.DataFrame", columns: Columns) -> Rows:
    """Read a DataFrame, as the file that it would be written to.

    Args:
        source: what to call it in messages.
        frame: the DataFrame.
        columns: which column is what.

    Raises:
        DataError: as `read_parquet_table`.
    """
    found = columns.found_in(source, list(map(str, frame.columns)))
    used = frame.rename(columns=str)[[*found.texts, *found.numbers]]
    try:
        table = pa.Table.from_pandas(used, preserve_index=False)
    except (ArithmeticError, TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{source}: {error!s:.200}: give a column values of one type") from error
    return _rows_of(source, found, table)


def _check_numbers(path: Path, found: Columns, texts: pa.Table) -> None:
    """Say which columns of numbers have something else, or nothing, and what helps.

    Raises:
        DataError: there is such a column, with something else.
    """
    number = _NUMBER if found.decimal == "." else _NUMBER_WITH_COMMA
    faults, gaps = [], []
    for name in found.numbers:
        values = texts.column(name).to_pylist()
        wrong = [
            row
            for row, text in enumerate(values)
            if text.lower() not in _NOTHING and text and not number.fullmatch(text)
        ]
        if wrong:
            where, text = in_rows(np.array(wrong)), values[wrong[0]]
            told = f"column {name!r:.200} has {text!r:.40} {where}, which is no number"
            faults.append((told, _mend_of(text)))
        if empty := [row for row, text in enumerate(values) if text in _GAPS]:
            gaps.append((f"column {name!r:.200} has nothing {in_rows(np.array(empty))}", _FILL))
    if faults:
        raise faulty(path, faults + gaps * (found.missing == MISSING[0]))


def _mend_of(text: str) -> str:
    """What helps where this stands in a column of numbers."""
    if _NUMBER_WITH_COMMA.fullmatch(text):
        return "say that its numbers have decimal commas (--set data.decimal=, or decimal=',')"
    if text.lower() in ("true", "false"):
        return "write 1 and 0 for true and false"
    return f"encode it as numbers (pandas.get_dummies), or {_NAME_INPUTS} without it"


def _check_quotes(file: BufferedReader, separator: str) -> None:
    """Refuse quotes other than those of RFC 4180: an open one makes pyarrow lose rows in a text."""
    if any(b'"' in piece for piece in iter(partial(file.read, _PIECE), b"")):
        file.seek(0)
        text = TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
        rows = csv.reader(text, strict=True, delimiter=separator)
        try:
            for row in rows:
                if '"' in "".join(row) and any(map(_LATE_QUOTE.match, row)):
                    raise csv.Error("a blank stands before a quotation mark")
        except csv.Error as error:
            raise ValueError(f"in or before line {rows.line_num}: {error}") from error
        text.detach()
    file.seek(0)


def _check_first_row(path: Path, file: BufferedReader, said: str) -> None:
    """Refuse a first row that has no names of columns, or is divided by something else."""
    lines = iter(partial(file.readline, _PIECE), b"")
    row = next((one for one in lines if one.strip(b"\r\n")), b"")
    is_all = not (re.search(rb"[\r\n]", row) or file.read(1))
    file.seek(0)
    for found, told in _NO_NAMES.items():
        if re.match(found, row):
            raise DataError(f"{path}: {told}")
    if row and is_all:
        raise DataError(f"{path}: {_NO_ROWS}")
    if SEPARATORS[said].encode() in row:
        return
    for name, separator in SEPARATORS.items():
        if separator.encode() in row:
            told = f"its first row is not divided by {said!r} but by {name!r}: say so"
            how = f"--set 'data.separator={name}', or separator={name!r}"
            raise DataError(f"{path}: {told} ({how})")


def _rows_of(source: str, found: Columns, table: pa.Table) -> Rows:
    if not table.num_rows:
        raise DataError(f"{source}: {_NO_ROWS}")
    before = table.num_rows
    if found.missing == MISSING[1]:
        table = _whole_rows(source, table)
        if left_out := before - table.num_rows:
            # so rows are counted in what follows
            source = f"{source} (without the rows with gaps: {left_out})"
    check_whole(source, table)
    users = (
        texts_of(source, found.user, table)
        if found.user
        else Texts((Path(source).name,), np.zeros(table.num_rows, np.int64))
    )
    numbers = numbers_of(source, found.features, table)
    is_whole = all(pa.types.is_integer(table.column(name).type) for name in found.features)
    x: Inputs = numbers.astype(np.int64) if is_whole else numbers.astype(np.float32)
    read = partial(Rows, users, x, features=found.features, left_out=before - table.num_rows)
    if len(found.labels) != 1:
        return read(numbers_of(source, found.labels, table))
    labels = as_labels(texts_of(source, found.labels[0], table), found.decimal)
    if isinstance(labels, Texts):
        check_classes(source, labels.names)
    return read(labels)


def _whole_rows(source: str, table: pa.Table) -> pa.Table:
    """The rows in which nothing is missing: no value is null, NaN or an empty text.

    Raises:
        DataError: there is none.
    """
    table = table.combine_chunks()
    whole = np.ones(table.num_rows, bool)
    for column in table.columns:
        kind = column.type
        there = pc.is_valid(column)
        if pa.types.is_floating(kind):
            there = pc.and_(there, pc.invert(pc.is_nan(pc.fill_null(column, 0))))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            there = pc.and_(there, pc.not_equal(pc.fill_null(column, "x"), ""))
        whole &= there.to_numpy()
    if not whole.any():
        raise DataError(f"{source}: no row is whole: fill what is missing, or name fewer columns")
    return table.filter(pa.array(whole))


def check_whole(source: str, table: pa.Table) -> None:
    """Check that no value of a table is missing or damaged.

    Raises:
        DataError: one is; it says in which row.
    """
    try:
        table.validate(full=True)  # pyarrow believes the places in texts and lists
    except pa.ArrowException as error:
        raise DataError(f"{source}: a value cannot be read ({error}): correct the table") from error
    empty = {
        name: np.flatnonzero(column.is_null().to_numpy())
        for name, column in zip(table.column_names, table.columns, strict=True)
        if column.null_count
    }
    if empty:
        told = [f"column {name!r:.200} has nothing {in_rows(rows)}" for name, rows in empty.items()]
        raise faulty(source, [(one, _FILL) for one in told])


def texts_of(source: str, name: str, table: pa.Table) -> Texts:
    """A column of texts or of whole numbers, as texts.

    Raises:
        DataError: it has something else, or nothing somewhere.
    """
    column, types = table.column(name), pa.types
    kind = column.type
    if types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    is_name = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if not (is_name or types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        raise DataError(
            f"{source}: column {name!r:.200} has {kind!s:.40}, and must have whole numbers or texts"
        )
    coded = pc.dictionary_encode(column.combine_chunks())
    values = [int(one) if isinstance(one, bool) else one for one in coded.dictionary.to_pylist()]
    for place, value in enumerate(values):
        if value != value or not 0 < len(name_of(value)) <= MAX_NAME:
            row = int(np.argmax(coded.indices.to_numpy() == place)) + 1
            raise DataError(
                f"{source}: column {name!r:.200} has {value!r:.40} in row {row} of the samples: "
                f"fill it with a name of at most {MAX_NAME} characters, or leave the row out"
            )
    texts = Texts(tuple(map(name_of, values)), coded.indices.to_numpy().astype(np.int64))
    check_filled(source, name, texts)
    return texts


def numbers_of(source: str, names: Sequence[str], table: pa.Table) -> npt.NDArray[np.float64]:
    """Columns of numbers, [n, columns], each of which is finite as a float32.

    Raises:
        DataError: a column has something else.
    """
    numbers = np.empty((table.num_rows, len(names)))
    for place, name in enumerate(names):
        column, types = table.column(name), pa.types
        kind = column.type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            told = "categories" if types.is_dictionary(kind) else f"{kind!s:.40}"
            raise DataError(
                f"{source}: column {name!r:.200} has {told}, not numbers: encode it "
                f"(pandas.get_dummies), or {_NAME_INPUTS} without it; images and lists are read "
                "with data.format = 'hub'"
            )
        numbers[:, place] = column.to_numpy()
        check_column(source, name, numbers[:, place])
    return numbers


def as_labels(texts: Texts, decimal: str = ".") -> npt.NDArray[np.float64] | Texts:
    """Labels as numbers, if all of them are; else as they are, in alphabetical order.

    Codes with zeros in front, such as 02134, are texts: as numbers, 01 and 1 would be one class.

    Args:
        texts: the labels.
        decimal: what stands before the fractions of numbers, "." or ",".
    """
    number = _NUMBER if decimal == "." else _NUMBER_WITH_COMMA
    if not all(map(number.fullmatch, texts.names)):
        return texts.in_order()
    values = np.array([float(name.replace(",", ".")) for name in texts.names], np.float64)
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


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(f"{name:.40}" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
