"""Data sets in the tables of the Hugging Face hub: one row per sample, a column for the user.

Parquet files on disk are read with pyarrow. A data set that was saved by the package `datasets`, or
that is named by its repository ("flwrlabs/femnist"), needs that package:
`pip install '.[hub]'`.
"""

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from deltafl.fl.data.checks import checked_device, rows_by_user
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate
from deltafl.fl.data.files import bounded
from deltafl.fl.data.image_folder import pixels, read_image
from deltafl.fl.data.registry import Format
from deltafl.fl.data.tables import Columns, check_whole, numbers_of, texts_of
from deltafl.fl.errors import DataError

_BATCH: Final = 256  # rows that are decoded at once: a value may be long, and in every row
_REPOSITORY: Final = re.compile(r"[\w-][\w.-]*/[\w.-]+")


KNOWN: Final[Mapping[str, tuple[str, str, str]]] = {
    "flwrlabs/femnist": ("writer_id", "image", "character"),
    "flwrlabs/fed-isic2019": ("center", "image", "label"),
}
"""The columns of user, input and label of data sets that are divided by user already."""

_Arrays = npt.NDArray[np.generic]


def load_hub(
    source: str | Path,
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
        Images as uint8 [n, channels, height, width], lists of numbers as float32 [n, length], of
        whole numbers as int64.

    Raises:
        DataError: the source is none of these, a column is missing or holds something else, or
            too few devices remain.
    """
    source = str(source)
    known = KNOWN.get(source, KNOWN["flwrlabs/femnist"])
    told = user_column, input_column, label_column
    columns = [own or usual for own, usual in zip(told, known, strict=True)]
    devices = _devices(source, _tables(source), columns)
    return federate(Path(source).stem or source, devices, split)


def devices_of(source: str, loaded: Any, columns: Sequence[str]) -> list[DeviceData]:  # noqa: ANN401
    """Assign the rows of a `datasets.Dataset`, or of all splits of a `DatasetDict`, to their users.

    Args:
        source: what to call it, in messages.
        loaded: the data set.
        columns: that of the user, of texts or whole numbers; that of the inputs, of images or
            lists of numbers of one length; and that of the labels, whole numbers from 0 on.

    Raises:
        DataError: as `load_hub`.
    """
    return _devices(source, _batches(loaded), columns)


def _devices(source: str, tables: Iterable[pa.Table], columns: Sequence[str]) -> list[DeviceData]:
    user_column, input_column, label_column = columns
    named = Columns(user_column, (label_column,), (input_column,))
    parts = []
    for part in tables:
        named.found_in(source, part.column_names)
        parts.append(part.select(columns))
    try:
        table = pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        told = f"{source}: its files do not go together ({error!s:.200})"
        raise DataError(f"{told}: write all with one type for each column") from error
    if not table.num_rows:
        raise DataError(f"{source}: no rows: check the path")
    check_whole(source, table)
    users = texts_of(source, user_column, table)
    labels = numbers_of(source, [label_column], table)[:, 0]
    values = (value for chunk in table.column(input_column).chunks for value in chunk.to_pylist())
    inputs: list[list[_Arrays]] = [[] for _ in users.names]
    for row, (user, value) in enumerate(zip(users.codes.tolist(), values, strict=True), start=1):
        inputs[user].append(_input(source, row, value))
    devices = []
    for name, rows in rows_by_user(users.names, users.codes):
        own = inputs.pop(0)  # or everything would be in memory twice
        if len(shapes := {one.shape for one in own}) > 1:
            few = " and ".join(str(shape) for shape in sorted(shapes)[:2])
            raise DataError(
                f"{source}: inputs of user {name!r} have shapes {few}: bring them to one shape"
            )
        devices.append(checked_device(source, name, np.stack(own), labels[rows], keeps_whole=True))
    return devices


def _input(source: str, row: int, value: object) -> _Arrays:
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        return _pixels(source, row, value["bytes"])
    if isinstance(value, bytes):
        return _pixels(source, row, value)
    if isinstance(value, list):
        try:
            with np.errstate(over="ignore"):  # what becomes infinite is refused with its user
                whole = np.asarray(value)
                return whole if whole.dtype == np.int64 else np.asarray(value, np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(f"{source}: row {row} is no list of numbers ({error})") from error
    raise DataError(
        f"{source}: row {row} has an input of type {type(value).__name__}: it must be an image or "
        "a list of numbers, such as the tokens of a text"
    )


def _pixels(source: str, row: int, data: bytes) -> npt.NDArray[np.uint8]:
    try:
        image = read_image(data, ("PNG", "JPEG"))
    except ValueError as error:
        raise DataError(f"{source}: row {row} is {error}: write it anew") from error
    return pixels(image)


def _tables(source: str) -> Iterator[pa.Table]:
    path = Path(source)
    if path.is_file() or (path.is_dir() and not _is_saved(path)):
        files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
        if not files:
            raise DataError(f"{source}: no .parquet file in the folder: check the path")
        for file in files:
            with bounded(file, "Parquet file") as opened:
                yield pq.ParquetFile(opened).read(use_threads=False)
        return
    if not path.is_dir() and not _REPOSITORY.fullmatch(source):
        raise DataError(
            f"{source}: neither a .parquet file, nor a folder, nor a repository 'owner/name'"
        )
    yield from _by_package(source, saved=path.is_dir())


def _is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


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
        yield from _batches(loaded)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"{source}: 'datasets' cannot load it ({error}): check the name and the connection"
        ) from error


def _batches(loaded: Any) -> Iterator[pa.Table]:  # noqa: ANN401
    splits = list(loaded.values()) if isinstance(loaded, dict) else [loaded]
    for split in splits:
        yield from split.with_format("arrow").iter(_BATCH)


FORMAT: Final = Format(
    "hub",
    "tables of the Hugging Face hub, by default flwrlabs/femnist",
    load_hub,
    needs="a .parquet file or their folder, a saved data set, or a repository 'owner/name'",
    origin="huggingface.co/datasets",
    licence="see the data set's card",
    note="Parquet files are read as they are; for the others, pip install '.[hub]'.",
)
