"""Converted data sets on disk, so that raw sources are parsed once.

An entry is a folder of .npy files and one JSON header. It is opened memory-mapped: devices are
views of the files, and cost memory when they are touched. Windows of a text are stored as the
text. Nothing is ever unpickled.

The entry's name is the SHA-256 of all that the data set depends on: the loader, its version, its
options and its source files, by their names, sizes and times (of content and of inode). Reading
large sources only to hash them would be slow.

Every entry is checked when it is opened: the header holds the SHA-256 of each file and of itself.
A damaged entry is made anew, and the log says so. Entries appear in one step, so a crash or two
processes at once leave no half of one.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap
from numpy.lib.stride_tricks import sliding_window_view

from deltafl.fl.data.federated import (
    TEST,
    TRAIN,
    VALIDATION,
    DeviceData,
    FederatedDataset,
    Scale,
    text_under,
)
from deltafl.fl.errors import DataError
from deltafl.fl.read.regular import open_regular, read_regular
from deltafl.fl.read.strict_json import parse_json

FORMAT: Final = 3
"""Of the entries. A new number leaves the old entries alone and unread."""

MAX_HEADER_BYTES: Final = 1 << 28
"""100,000 devices take about 3 million."""

_HEADER: Final = "header.json"
_LOG: Final = logging.getLogger(__name__)

Option: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class SourceKey:
    """All that a converted data set depends on.

    Attributes:
        loader: the loader's name.
        version: of the loader, to be raised when the same source gives another data set.
        options: everything the loader was told, the split included.
        sources: files and folders (with all that is below them) that the loader reads.
    """

    loader: str
    version: int
    options: Mapping[str, Option] = field(default_factory=dict)
    sources: Sequence[Path] = ()


def default_cache_folder() -> Path:
    """Give $DELTAFL_CACHE, or ~/.cache/deltafl where it is not set."""
    chosen = os.environ.get("DELTAFL_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "deltafl"


def cached(
    key: SourceKey, build: Callable[[], FederatedDataset], folder: Path | None = None
) -> FederatedDataset:
    """Open the data set from the cache, or build and keep it.

    The result equals `build()`, device by device and bit by bit; its arrays are read-only.

    Args:
        key: what `build` depends on.
        build: reads the sources.
        folder: the cache's, made if it is missing; by default that of `default_cache_folder`.

    Raises:
        DataError: a source is missing, or `build` raised it, or the devices differ in dtype or
            shape and so fit in no array.
        OSError: the cache cannot be written.
    """
    folder = folder or default_cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    entry = folder / _key_digest(key)
    if entry.exists():
        try:
            return _open(entry)
        except (_Damaged, OSError) as damage:
            _LOG.warning("%s: %s: damaged, made anew from the source", entry, damage)
            _remove(entry)
    _write(build(), entry)
    return _open(entry)


class _Damaged(Exception):
    """An entry is not as it was written; the message says where."""


def _key_digest(key: SourceKey) -> str:
    content = {
        "format": FORMAT,
        "loader": key.loader,
        "version": key.version,
        "options": dict(key.options),
        "sources": [_stamps(source) for source in key.sources],
    }
    return hashlib.sha256(_canonical(content)).hexdigest()


def _stamps(source: Path) -> list[tuple[str, int, int, int]]:
    """Name, size and times of all files; where they lie does not matter."""
    found = ((name, file.stat()) for name, file in _files(source))
    return [(name, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for name, one in found]


def _files(source: Path) -> Iterator[tuple[str, Path]]:
    """Give the files of a source by their names relative to it, in the order of the names."""
    if source.is_file():
        yield source.name, source
        return
    if not source.is_dir():
        raise DataError(f"{source}: no such file or folder: check the path")
    found = sorted(path for path in source.rglob("*") if path.is_file())
    for path in found:
        yield path.relative_to(source).as_posix(), path


def _file_digest(path: Path) -> bytes:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").digest()


def _canonical(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _write(dataset: FederatedDataset, entry: Path) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=entry.parent))
    try:
        header = _write_arrays(dataset, unfinished)
        header["files"] = {
            path.name: _file_digest(path).hex() for path in sorted(unfinished.iterdir())
        }
        header["digest"] = hashlib.sha256(_canonical(header)).hexdigest()
        (unfinished / _HEADER).write_bytes(_canonical(header))
        try:
            unfinished.rename(entry)
        except OSError:
            if not entry.exists():  # else another process was faster, with the same content
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_arrays(dataset: FederatedDataset, folder: Path) -> dict[str, object]:
    first = dataset.train[0]
    counts, ids, windows = [], [], True
    for device in chain.from_iterable(dataset.sides.values()):
        if (device.x.dtype, device.x.shape[1:]) != (first.x.dtype, first.x.shape[1:]):
            raise DataError(
                f"{dataset.name}: inputs of user {device.id!r} are {device.x.dtype} of shape "
                f"{device.x.shape[1:]} and those of user {first.id!r} {first.x.dtype} of shape "
                f"{first.x.shape[1:]}: bring them to one kind"
            )
        counts.append(device.num_samples)
        ids.append(device.id)
        windows = windows and text_under(device.x) is not None
    shape = first.x.shape[1:]
    rows = sum(counts)
    # windows overlap: n of them have n + L − 1 characters
    x_shape = (rows + len(counts) * (shape[0] - 1),) if windows else (rows, *shape)
    x = open_memmap(folder / "x.npy", "w+", first.x.dtype, x_shape)
    y = open_memmap(folder / "y.npy", "w+", np.dtype(np.int64), (rows,))
    x_end = y_end = 0
    for device in chain.from_iterable(dataset.sides.values()):
        text = text_under(device.x) if windows else None
        part = device.x if text is None else text
        x[x_end : x_end + len(part)] = part
        y[y_end : y_end + device.num_samples] = device.y
        x_end, y_end = x_end + len(part), y_end + device.num_samples
    x.flush()
    y.flush()
    if dataset.embedding is not None:
        np.save(folder / "embedding.npy", dataset.embedding, allow_pickle=False)
    if dataset.scale is not None:
        scale = np.stack([dataset.scale.mean, dataset.scale.std])
        np.save(folder / "scale.npy", scale, allow_pickle=False)
    return {
        "format": FORMAT,
        "name": dataset.name,
        "num_classes": dataset.num_classes,
        "input_shape": list(dataset.input_shape),
        "dropped": dataset.dropped,
        "rule": dataset.rule,
        "classes": list(dataset.classes),
        "scaled": str(dataset.scaled),
        "had_pixels": dataset.had_pixels,
        "windows": shape[0] if windows else 0,
        "sides": {name: len(side) for name, side in dataset.sides.items()},
        "ids": ids,
        "counts": counts,
    }


def _remove(entry: Path) -> None:
    """Take the entry away in one step, then delete it."""
    grave = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=entry.parent))
    entry.rename(grave / entry.name)
    shutil.rmtree(grave, ignore_errors=True)


def _open(entry: Path) -> FederatedDataset:
    try:
        header: Any = parse_json(read_regular(entry / _HEADER, MAX_HEADER_BYTES), halves=True)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise _Damaged("no readable header")
    digest = header.pop("digest", None)
    if digest != hashlib.sha256(_canonical(header)).hexdigest():
        raise _Damaged("the header is not as it was written")
    try:
        for name in header["files"]:
            if _file_digest(entry / Path(name).name).hex() != header["files"][name]:
                raise _Damaged(f"{name} is not as it was written")
        return _dataset(entry, header)
    except (
        AttributeError,
        KeyError,
        MemoryError,
        OverflowError,
        TypeError,
        ValueError,
    ) as error:
        raise _Damaged(f"the header says what can not be ({error!r})") from error


def _dataset(entry: Path, header: Mapping[str, Any]) -> FederatedDataset:
    x, y = _load(entry / "x.npy"), _load(entry / "y.npy")
    if x.ndim == 0 or y.ndim != 1:
        raise _Damaged(f"arrays of {x.ndim} and {y.ndim} dimensions hold no samples")
    devices, window = [], int(header["windows"])
    x_end = y_end = 0
    for device_id, count in zip(header["ids"], header["counts"], strict=True):
        length = count + window - 1 if window else count
        part = x[x_end : x_end + length]
        if count < 0 or len(part) != length or y_end + count > len(y):
            raise _Damaged("the arrays are too short")
        if window:
            part = sliding_window_view(part, window)
        devices.append(DeviceData(device_id, part, y[y_end : y_end + count]))
        x_end, y_end = x_end + length, y_end + count
    embedding = _load(entry / "embedding.npy") if "embedding.npy" in header["files"] else None
    scale = Scale(*_load(entry / "scale.npy")) if "scale.npy" in header["files"] else None
    sides = _sides(devices, header["sides"])
    return FederatedDataset(
        name=header["name"],
        train=sides[TRAIN],
        validation=sides[VALIDATION],
        test=sides[TEST],
        num_classes=header["num_classes"],
        input_shape=tuple(header["input_shape"]),
        dropped=header["dropped"],
        rule=header["rule"],
        embedding=embedding,
        scale=scale,
        classes=tuple(header["classes"]),
        scaled=header["scaled"],
        had_pixels=header["had_pixels"],
    )


def _sides(
    devices: Sequence[DeviceData], sizes: Mapping[str, int]
) -> dict[str, tuple[DeviceData, ...]]:
    """Divide devices again that lie one side after the other."""
    if not {TRAIN, TEST} <= sizes.keys() <= {TRAIN, VALIDATION, TEST}:
        raise _Damaged(f"its sides are {', '.join(sizes)}")
    left, order = iter(devices), (TRAIN, VALIDATION, TEST)
    return {name: tuple(islice(left, int(sizes.get(name, 0)))) for name in order}


def _load(path: Path) -> npt.NDArray[Any]:
    # a plain view: slices of np.memmap are ten times slower to make
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
