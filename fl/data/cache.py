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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
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

FORMAT: Final = 4
"""Of the entries. A new number leaves the old entries alone and unread."""

MAX_HEADER_BYTES: Final = 1 << 28
"""100,000 devices take about 3 million."""

_HEADER: Final = "header.json"
_PLAIN: Final = (
    *("name", "num_classes", "input_shape", "dropped", "rule"),
    *("classes", "scaled", "had_pixels"),
)
"""The fields of a data set that the header has as they are."""
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
    if not source.exists():
        raise DataError(f"{source}: no such file or folder: check the path")
    files = sorted(path for path in (source, *source.rglob("*")) if path.is_file())
    place = source.parent if source.is_file() else source
    found = ((path.relative_to(place).as_posix(), path.stat()) for path in files)
    return [(name, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for name, one in found]


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
    devices = [*chain.from_iterable(dataset.sides.values())]
    first = devices[0].x
    for device in devices:
        if (device.x.dtype, device.x.shape[1:]) != (first.dtype, first.shape[1:]):
            raise DataError(
                f"{dataset.name}: inputs of user {device.id!r} are {device.x.dtype} of shape "
                f"{device.x.shape[1:]} and those of user {devices[0].id!r} {first.dtype} of shape "
                f"{first.shape[1:]}: bring them to one kind"
            )
    texts = [text for device in devices if (text := text_under(device.x)) is not None]
    is_text = len(texts) == len(devices)
    parts = texts if is_text else [device.x for device in devices]
    shape = sum(map(len, parts)), *parts[0].shape[1:]
    np.concatenate(parts, out=open_memmap(folder / "x.npy", "w+", first.dtype, shape))
    others = {"y": np.concatenate([device.y for device in devices])}
    if dataset.embedding is not None:
        others["embedding"] = dataset.embedding
    if dataset.scale is not None:
        others["scale"] = np.stack([dataset.scale.mean, dataset.scale.std])
    for name, array in others.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    return {
        **{name: getattr(dataset, name) for name in _PLAIN},
        "format": FORMAT,
        "windows": first.shape[1] if is_text else 0,
        "sides": {name: len(side) for name, side in dataset.sides.items()},
        "ids": [device.id for device in devices],
        "counts": [device.num_samples for device in devices],
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
    except (ArithmeticError, AttributeError, KeyError, MemoryError, TypeError, ValueError) as error:
        raise _Damaged(f"the header says what can not be ({error!r})") from error


def _dataset(entry: Path, header: Mapping[str, Any]) -> FederatedDataset:
    arrays = {
        # a plain view: slices of np.memmap are ten times slower to make
        name: np.asarray(np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False))
        for name in ("x", "y", "embedding", "scale")
        if f"{name}.npy" in header["files"]
    }
    counts, window = header["counts"], int(header["windows"])
    # windows overlap: n of them have n + L − 1 characters
    lengths = [count + window - 1 if window else count for count in counts]
    if min(counts) < 0 or (sum(lengths), sum(counts)) != (len(arrays["x"]), len(arrays["y"])):
        raise _Damaged("the arrays have another length")
    xs, ys = (
        np.split(arrays[name], np.cumsum(sizes)[:-1])
        for name, sizes in (("x", lengths), ("y", counts))
    )
    if window:
        xs = [sliding_window_view(part, window) for part in xs]
    devices = iter([*map(DeviceData, header["ids"], xs, ys)])
    sizes, order = header["sides"], (TRAIN, VALIDATION, TEST)
    if not {TRAIN, TEST} <= sizes.keys() <= {*order} or len(header["ids"]) != len(counts):
        raise _Damaged(f"its sides are {', '.join(sizes)}, of {len(counts)} devices")
    plain: dict[str, Any] = {
        name: tuple(header[name]) if isinstance(header[name], list) else header[name]
        for name in _PLAIN
    }
    sides = {name: tuple(islice(devices, int(sizes.get(name, 0)))) for name in order}
    scale = Scale(*arrays["scale"]) if "scale" in arrays else None
    embedding = arrays.get("embedding")
    whole = FederatedDataset(train=(), test=(), embedding=embedding, scale=scale, **plain)
    return whole.with_sides(sides)
