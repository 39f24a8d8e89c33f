"""Files of one's own: a table of everybody, or a folder with a file for each device.

    visits.csv                                   a column says whose each row is
    silos/north.csv        silos/south.csv       a file is a device, called by its name
    silos/ann/2024.csv     silos/ann/2025.csv    so is a folder, with all that is in it
    silos/train/0.npz      silos/test/0.npz      a split that is already made; validation/, too

Files of a folder are CSV, Parquet or .npz files (arrays x and y), and have the same inputs. Where a
column says whose each row is, one person may be in several files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.checks import checked_device
from deltafl.fl.data.federated import (
    TEST,
    TRAIN,
    VALIDATION,
    DeviceData,
    FederatedDataset,
    Split,
    as_numbers,
    check_classes,
    federate,
    federate_sides,
)
from deltafl.fl.data.npz import read_arrays
from deltafl.fl.data.registry import Format
from deltafl.fl.data.tables import (
    MISSING,
    Columns,
    Rows,
    name_of,
    read_csv_table,
    read_parquet_table,
)
from deltafl.fl.errors import DataError

READERS: Final = {".csv": read_csv_table, ".parquet": read_parquet_table}
SUFFIXES: Final = (*READERS, ".npz")
"""Of files of a folder that are read; others are refused, but for hidden ones."""


def load_own(
    read: Callable[[Path, Columns], Rows] | None,
    path: Path,
    split: Split,
    *,
    user_column: str = "",
    label_column: str = "",
    feature_columns: tuple[str, ...] = (),
    missing: str = MISSING[0],
    separator: str = ",",
    decimal: str = ".",
    unit: str = "",
) -> FederatedDataset:
    """Read a table whose columns the settings name, or a folder with files for each device.

    Args:
        read: reads the table; None for a folder.
        path: the file or the folder.
        split: the rule for small devices, and who trains, where the folder does not say that.
        user_column: the column of the user; "" if each entry of the folder is one.
        label_column: that of the label.
        feature_columns: those of the inputs; empty for all others.
        missing: one of `MISSING`.
        separator: of CSV files, one of `deltafl.fl.data.tables.SEPARATORS`.
        decimal: of CSV files, "." or ",".
        unit: of labels that are numbers to be predicted; "" if they are classes.

    Raises:
        DataError: there is no such file or folder, one cannot be read, files do not go together, or
            too few devices remain.
    """
    is_one = split.alone or read is None  # what one device has may be in several files
    columns = Columns(
        user_column, (label_column,), feature_columns, missing, separator, decimal, is_one
    )
    reader = _Reader(columns, path.name if split.alone and not user_column else "", unit)
    made: Mapping[str, Path] = {} if read else _made_split(path)
    if made and not {TRAIN, TEST} <= made.keys():
        raise DataError(f"{path}: {', '.join(made)} alone is no split: give train/ and test/")
    name = path.name if read is None else path.stem
    if read is None:
        sides = {side: [*reader.parts(place)] for side, place in (made or {"": path}).items()}
    else:
        sides = {"": [*reader.of_table(read(path, columns), path.name)]}
    devices, classes = _devices(name, sides, unit)
    dataset = federate_sides(name, devices, split) if made else federate(name, devices[""], split)
    return without_rows(replace(dataset, classes=classes), reader.left_out)


def without_rows(dataset: FederatedDataset, left_out: int) -> FederatedDataset:
    """The same, with a rule that says how many rows of its tables were left out."""
    if not left_out:
        return dataset
    rows = "1 row with a gap" if left_out == 1 else f"{left_out:,} rows with gaps"
    return replace(dataset, rule=f"{dataset.rule}; {rows} left out")


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Samples of one device, from one file.

    Attributes:
        user: whose they are.
        x: inputs, [n, ...].
        labels: as they are written: numbers, or texts.
    """

    user: str
    x: npt.NDArray[np.generic]
    labels: npt.NDArray[np.generic]


class _Reader:
    """Reads files whose inputs are alike.

    Args:
        columns: of tables.
        only: whose all files are; "" if each entry of a folder is somebody's.
        unit: of labels that are numbers to be predicted; "" if they are classes.

    Attributes:
        left_out: how many rows with gaps have been left out so far.
    """

    def __init__(self, columns: Columns, only: str, unit: str) -> None:
        self.left_out = 0
        self._columns, self._only, self._unit = columns, only, unit
        self._features: tuple[str, ...] = ()

    def parts(self, folder: Path) -> Iterator[_Part]:
        """All samples in a folder."""
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder: check the path")
        seen: dict[str, Path] = {}
        for entry in _entries(folder):
            user = self._only or (entry.stem if entry.is_file() else entry.name)
            if not (self._only or self._columns.user) and seen.setdefault(user, entry) != entry:
                told = f"{entry}: {seen[user].name} is called alike"
                raise DataError(f"{told}: give each device one file or one folder")
            for file in _files(entry):
                yield from self._read(file, user)

    def _read(self, file: Path, user: str) -> Iterator[_Part]:
        suffix = file.suffix.lower()
        if suffix == ".npz" and not self._columns.features:
            arrays = read_arrays(file, ("x", "y"))
            yield _Part(user, arrays["x"], arrays["y"])
            return
        if suffix not in READERS:
            raise DataError(
                f"{file}: a folder of devices has {', '.join(SUFFIXES)} files, and tables alone "
                "where columns are named (data.feature_columns): write it so, or take it out"
            )
        yield from self.of_table(self._alike(file, READERS[suffix](file, self._columns)), user)

    def of_table(self, rows: Rows, user: str) -> Iterator[_Part]:
        """The samples of a table, which are this user's if no column says whose they are."""
        self.left_out += rows.left_out
        if self._unit:
            rows.check_numbers(user)
        for name, x, labels in rows.by_user():
            written = np.array(rows.classes)[labels] if rows.classes else labels
            yield _Part(name if self._columns.user else user, x, written)

    def _alike(self, file: Path, rows: Rows) -> Rows:
        """The same with the columns in the order of the first file.

        Raises:
            DataError: there are other columns.
        """
        first = self._features = self._features or rows.features
        if set(first) != set(rows.features):
            odd = ", ".join(sorted(set(first) ^ set(rows.features))[:5])
            raise DataError(
                f"{file}: its columns are not those of the files before ({odd}): name the columns "
                "of the inputs that all have (--set data.feature_columns=…)"
            )
        order = [rows.features.index(name) for name in first]
        return replace(rows, x=rows.x[:, order], features=first)


def files_of(folder: Path) -> Iterator[Path]:
    """All files of a folder of devices, in the order in which `load_own` reads them."""
    for place in _made_split(folder).values() or (folder,):
        for entry in _entries(place):
            yield from _files(entry)


def _made_split(folder: Path) -> dict[str, Path]:
    return {side: folder / side for side in (TRAIN, VALIDATION, TEST) if (folder / side).is_dir()}


def _entries(folder: Path) -> list[Path]:
    return [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]


def _files(entry: Path) -> list[Path]:
    """The file, or all files in a folder of one device, at any depth, but for hidden ones."""
    if not entry.is_dir():
        return [entry]
    return sorted(file for one in _entries(entry) for file in _files(one))


def _devices(
    source: str, sides: Mapping[str, Sequence[_Part]], unit: str
) -> tuple[dict[str, list[DeviceData]], tuple[str, ...]]:
    """Each side's devices, and what the classes are called if labels are texts.

    Labels are numbered over all files together: one that a device lacks counts for it as well.
    """
    parts = [part for side in sides.values() for part in side]
    classes: tuple[str, ...] = ()
    if any(part.labels.dtype.kind == "U" for part in parts) and not unit:
        named = [[*map(name_of, part.labels.tolist())] for part in parts]
        classes = tuple(sorted({name for names in named for name in names}))
        check_classes(source, classes)
        numbers = {name: number for number, name in enumerate(classes)}
        parts = [
            replace(part, labels=np.array([numbers[name] for name in names]))
            for part, names in zip(parts, named, strict=True)
        ]
    left, made = iter(parts), {}
    for name, side in sides.items():
        made[name] = _joined(source, [next(left) for _ in side], unit)
    if any(device.x.dtype == np.float32 for side in made.values() for device in side):
        made = {name: [*map(as_numbers, side)] for name, side in made.items()}
    return made, classes


def _joined(source: str, parts: Sequence[_Part], unit: str) -> list[DeviceData]:
    """One device for all parts of one user."""
    by_user: dict[str, list[_Part]] = {}
    for part in parts:
        by_user.setdefault(part.user, []).append(part)
    devices = []
    for user, own in by_user.items():
        if len({part.x.dtype for part in own} - {np.dtype(np.uint8)}) > 1:
            own = [replace(part, x=part.x.astype(np.float32)) for part in own]
        if len({(part.x.dtype, part.x.shape[1:]) for part in own}) > 1:
            raise DataError(
                f"{source}: inputs of {user!r} have several shapes or types: bring its files to one"
            )
        x, y = (np.concatenate([getattr(part, name) for part in own]) for name in ("x", "labels"))
        device = checked_device(source, user, x, y, numbers=bool(unit), keeps_whole=True)
        devices.append(device)
    return devices


CSV: Final = Format(
    "csv",
    "a CSV file with a row for each sample",
    partial(load_own, read_csv_table),
    needs="a .csv file whose first row names the columns",
)

PARQUET: Final = Format(
    "parquet",
    "a Parquet file with a row for each sample",
    partial(load_own, read_parquet_table),
    needs="a .parquet file with a column for each number",
)

FOLDER: Final = Format(
    "folder",
    "a folder with a file, or a folder of files, for each device",
    partial(load_own, None),
    needs="a folder of .csv, .parquet or .npz files, one for each device; or train/ and test/",
)
