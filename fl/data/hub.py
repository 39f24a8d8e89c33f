"""Data sets in the tables of the Hugging Face hub: one row per sample, a column for the user.

Parquet files on disk are read with pyarrow. A data set that was saved by the package `datasets`, or
that is named by its repository ("flwrlabs/femnist"), needs that package:
`pip install '.[hub]'`.
"""

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from deltafl.fl.data.checks import checked_device
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate
from deltafl.fl.data.files import bounded
from deltafl.fl.data.image_folder import read_image
from deltafl.fl.data.registry import Format, Options
from deltafl.fl.data.tables import name_of
from deltafl.fl.errors import DataError

_BATCH: Final = 256  # rows that are decoded at once: a value may be long, and in every row
_REPOSITORY: Final = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column is what.

    Attributes:
        user: whose sample it is, text or a whole number.
        input: images, or lists of numbers of one length.
        label: whole numbers from 0 on.
    """

    user: str
    input: str
    label: str


KNOWN: Final[Mapping[str, Columns]] = {
    "flwrlabs/femnist": Columns("writer_id", "image", "character"),
    "flwrlabs/fed-isic2019": Columns("center", "image", "label"),
}
"""The columns of data sets that are divided by user already."""

_Arrays = npt.NDArray[np.generic]


def load_hub(
    source: str,
    split: Split,
    *,
    user_column: str = "",
    input_column: str = "",
    label_column: str = "",
) -> FederatedDataset:
    """Read a table and assign its rows to their users; all its splits are put together.

    Args:
        source: a .parquet file, a folder of them (at any depth), a folder that
            `Dataset.save_to_disk` has written, or a repository of the hub, "owner/name".
        split: the rule for small devices, and who trains.
        user_column: the column of the user; "" takes the known one, else FEMNIST's.
        input_column: the column of the inputs, likewise.
        label_column: the column of the labels, likewise.

    Returns:
        Images as uint8 [n, height, width] (or [n, height, width, 3] if in colour), lists of
        numbers as float32 [n, length].

    Raises:
        DataError: the source is none of these, a column is missing or holds something else, or
            too few devices remain.
    """
    default = KNOWN.get(source, KNOWN["flwrlabs/femnist"])
    columns = Columns(
        user_column or default.user, input_column or default.input, label_column or default.label
    )
    devices = devices_of(source, _batches(source, columns), columns)
    return federate(Path(source).stem or source, devices, split)


def devices_of(
    source: str, batches: Iterable[pa.Table | pa.RecordBatch], columns: Columns
) -> list[DeviceData]:
    """Assign the rows of tables to their users.

    Args:
        source: what to call them, in messages.
        batches: the tables.
        columns: which column is what.

    Raises:
        DataError: as `load_hub`.
    """
    gathered = _gather(source, batches, columns)
    devices = []
    for user, (inputs, labels) in gathered.items():
        shapes = {part.shape for part in inputs}
        if len(shapes) > 1:
            few = " and ".join(str(shape) for shape in sorted(shapes)[:2])
            raise DataError(
                f"{source}: inputs of user {user!r} have shapes {few}: bring them to one shape"
            )
        devices.append(checked_device(source, user, np.stack(inputs), np.array(labels)))
        inputs.clear()  # or everything would be in memory twice
    return devices


def _gather(
    source: str, batches: Iterable[pa.Table | pa.RecordBatch], columns: Columns
) -> dict[str, tuple[list[_Arrays], list[float]]]:
    users: dict[str, tuple[list[_Arrays], list[float]]] = {}
    row = 0
    for batch in batches:
        missing = [
            name
            for name in (columns.user, columns.input, columns.label)
            if name not in batch.schema.names
        ]
        if missing:
            raise DataError(
                f"{source}: no column {missing[0]!r} (found: {', '.join(batch.schema.names)}): "
                "name the columns of user, input and label"
            )
        for user, value, label in _rows(source, batch, columns):
            row += 1
            if user is None or label is None or value is None or user != user:
                raise DataError(f"{source}: row {row} is not complete: remove it")
            inputs, labels = users.setdefault(name_of(user), ([], []))
            inputs.append(_input(source, row, value))
            labels.append(_label(source, row, label))
    if not users:
        raise DataError(f"{source}: no rows: check the path")
    return users


def _rows(
    source: str, batch: pa.Table | pa.RecordBatch, columns: Columns
) -> Iterator[tuple[object, object, object]]:
    try:
        batch.validate(full=True)  # pyarrow believes the places in lists and texts
        users, inputs, labels = (
            batch.column(name).to_pylist() for name in (columns.user, columns.input, columns.label)
        )
    except (
        ValueError,
        OverflowError,
        pa.ArrowException,
    ) as error:  # text that is no UTF-8, a date beyond all years
        raise DataError(f"{source}: a value cannot be read ({error}): correct the table") from error
    return zip(users, inputs, labels, strict=True)


def _label(source: str, row: int, value: object) -> float:
    if not isinstance(value, int | float):
        raise DataError(
            f"{source}: row {row} has the label {value!r:.40}, which is not a number: encode "
            "classes as 0, 1, ..."
        )
    return value


def _input(source: str, row: int, value: object) -> _Arrays:
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        return _pixels(source, row, value["bytes"])
    if isinstance(value, bytes):
        return _pixels(source, row, value)
    if isinstance(value, list):
        try:
            with np.errstate(over="ignore"):  # what becomes infinite is refused with its user
                return np.asarray(value, np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(f"{source}: row {row} is no list of numbers ({error})") from error
    raise DataError(
        f"{source}: row {row} has an input of type {type(value).__name__}: it must be an image or "
        "a list of numbers (for text, use the formats shakespeare and sent140)"
    )


def _pixels(source: str, row: int, data: bytes) -> npt.NDArray[np.uint8]:
    try:
        image = read_image(data, ("PNG", "JPEG"))
    except ValueError as error:
        raise DataError(f"{source}: row {row} is {error}: write it anew") from error
    return np.array(image, np.uint8)


def _batches(source: str, columns: Columns) -> Iterator[pa.Table | pa.RecordBatch]:
    path = Path(source)
    if path.is_file() or (path.is_dir() and not _is_saved(path)):
        files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
        if not files:
            raise DataError(f"{source}: no .parquet file in the folder: check the path")
        for file in files:
            yield from _parquet(file, columns)
        return
    if not path.is_dir() and not _REPOSITORY.fullmatch(source):
        raise DataError(
            f"{source}: neither a .parquet file, nor a folder, nor a repository 'owner/name'"
        )
    yield from _by_package(source, saved=path.is_dir())


def _is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _parquet(path: Path, columns: Columns) -> Iterator[pa.RecordBatch]:
    with bounded(path, "Parquet file") as opened:
        file = pq.ParquetFile(opened)
        wanted = [columns.user, columns.input, columns.label]
        # a file without one of them is read whole, so that the message can say what there is
        yield from file.iter_batches(
            _BATCH, columns=wanted if {*wanted} <= {*file.schema_arrow.names} else None
        )


def _by_package(source: str, *, saved: bool) -> Iterator[pa.Table]:
    try:
        package: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            f"{source}: the package 'datasets' reads it and is not installed: "
            "pip install '.[hub]', or download its Parquet files and give their folder"
        ) from error
    try:
        loaded = package.load_from_disk(source) if saved else package.load_dataset(source)
        yield from batches_of(loaded)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"{source}: 'datasets' cannot load it ({error}): check the name and the connection"
        ) from error


def batches_of(loaded: Any) -> Iterator[pa.Table]:  # noqa: ANN401
    """The rows of a `datasets.Dataset`, or of all splits of a `DatasetDict`, in tables."""
    splits = list(loaded.values()) if isinstance(loaded, dict) else [loaded]
    for split in splits:
        yield from split.with_format("arrow").iter(_BATCH)


def _load(source: str, split: Split, options: Options) -> FederatedDataset:
    return load_hub(
        source,
        split,
        user_column=options.user_column,
        input_column=options.input_column,
        label_column=options.label_column,
    )


FORMAT: Final = Format(
    "hub",
    "tables of the Hugging Face hub, by default flwrlabs/femnist",
    _load,
    needs="a .parquet file or their folder, a saved data set, or a repository 'owner/name'",
    options=frozenset({"user_column", "input_column", "label_column"}),
    origin="huggingface.co/datasets",
    licence="see the data set's card",
    note="Parquet files are read as they are; for the others, pip install '.[hub]'.",
)
