"""Data sets in the LEAF format: JSON files with users, num_samples and user_data {user: {x, y}}.

A folder may hold train/ and test/, or all_data/, or the files themselves (.json or .json.gz).
With train/ and test/ of different users that split is used as it is. Otherwise, as after LEAF's
split by sample, each user's samples are put together again and the users are split by seed.
What x and y stand for is the matter of a function, so that text is read by the same code.
Source: Caldas et al. 2018, "LEAF: A Benchmark for Federated Settings" (format of its files).
"""

import gzip
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.checks import check_user, checked_device
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate
from deltafl.fl.data.files import bounded
from deltafl.fl.data.registry import Format
from deltafl.fl.errors import DataError
from deltafl.fl.read.regular import read_up_to
from deltafl.fl.read.strict_json import parse_json

MAX_JSON_BYTES: Final = 1 << 32
"""The largest file, unpacked, that is read."""


@dataclass(frozen=True, slots=True)
class LeafUser:
    """One user as a file has it, checked for nothing but its frame.

    Attributes:
        source: the file, for messages.
        id: the user.
        count: what num_samples says of the user.
        samples: the user's entry in user_data.
    """

    source: str
    id: str
    count: object
    samples: Mapping[str, object]

    def wrong(self, what: str) -> DataError:
        """The error for what is wrong with the user's samples."""
        return DataError(f"{self.source}: user {self.id!r}: {what}")

    def columns(self) -> tuple[list[object], list[object]]:
        """Give x and y, one entry per sample.

        Raises:
            DataError: one is missing or no list, or they differ in length or from num_samples.
        """
        x, y = self.samples.get("x"), self.samples.get("y")
        if not (isinstance(x, list) and isinstance(y, list)):
            raise self.wrong("no x and y in user_data: add them as lists")
        if len(x) != len(y):
            raise self.wrong(f"{len(x)} x and {len(y)} y do not pair up: give one of each")
        if len(y) != self.count:
            raise self.wrong(f"num_samples says {self.count} and user_data has {len(y)}")
        return x, y


Convert: TypeAlias = Callable[[LeafUser], DeviceData]
"""From a user of a file to a device."""


def load_leaf(folder: Path, split: Split) -> FederatedDataset:
    """Read all files of the folder, whose inputs are rows of numbers.

    Raises:
        DataError: the folder or its files are missing, broken or not LEAF; a user's samples
            cannot be used; too few devices remain.
    """
    devices, test_ids = read_leaf(folder, numeric_device)
    return federate(folder.name, devices, split, test_ids=test_ids)


def read_leaf(path: Path, convert: Convert) -> tuple[list[DeviceData], Collection[str] | None]:
    """Read all files of the folder, or one file; `convert` says what x and y are.

    Returns:
        The devices, and the ids of the test devices where the data came split by user.

    Raises:
        DataError: the folder or its files are missing, broken or not LEAF, or `convert` raised it.
    """
    if path.is_file():
        return list(_read_files([path], convert).values()), None
    if not path.is_dir():
        raise DataError(f"{path}: no such folder: check the path")
    if (path / "train").is_dir() and (path / "test").is_dir():
        train = _read_folder(path / "train", convert)
        test = _read_folder(path / "test", convert)
        if train.keys().isdisjoint(test):
            return [*train.values(), *test.values()], test.keys()
        return _merge(path, train, test), None
    inner = path / "all_data"
    return [*_read_folder(inner if inner.is_dir() else path, convert).values()], None


def numeric_device(user: LeafUser) -> DeviceData:
    """Give a user whose inputs are rows of numbers.

    Raises:
        DataError: the samples cannot be used.
    """
    x, y = user.columns()
    return checked_device(user.source, user.id, _array(user, x), _array(user, y))


def leaf_users(path: Path) -> Iterator[LeafUser]:
    """Read one file and give its users one by one, in its order; what is done with is let go.

    Raises:
        DataError: the file is missing, broken or not LEAF, or lists a user twice, or one whose
            name cannot be encoded.
    """
    content = read_json_file(path, MAX_JSON_BYTES)
    table = content if isinstance(content, dict) else {}
    users, counts, user_data = map(table.get, ("users", "num_samples", "user_data"))
    if not (isinstance(users, list) and isinstance(counts, list) and isinstance(user_data, dict)):
        raise DataError(
            f"{path}: not a LEAF file (keys: {', '.join(sorted(table)) or 'none'}): it needs an "
            "object with the lists users and num_samples and the object user_data"
        )
    if len(users) != len(counts):
        raise DataError(
            f"{path}: {len(users)} users but {len(counts)} num_samples: give one number per user"
        )
    names = [str(user) for user in users]  # keys of a JSON object are strings
    double, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise DataError(f"{path}: user {double!r} is listed twice: list every user once")
    for name, count in zip(names, counts, strict=True):
        check_user(str(path), name)
        samples = user_data.pop(name, None)
        if not isinstance(samples, dict):
            raise DataError(f"{path}: user {name!r} has no x and y in user_data: add them")
        yield LeafUser(str(path), name, count, samples)


def read_json_file(path: Path, max_bytes: int) -> object:
    """Read JSON, plain (.json) or packed (.json.gz).

    Args:
        path: the file; it is unpacked if its name ends in .gz.
        max_bytes: that it may have, packed and unpacked.

    Raises:
        DataError: it cannot be read, is too large, or is not JSON in UTF-8.
    """
    with bounded(path, "JSON file", max_bytes, "fetch or write it again") as file:
        content = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        data = read_up_to(content, max_bytes + 1)
        if len(data) > max_bytes:
            raise DataError(f"{path}: more than {max_bytes:,} bytes of JSON: divide it among files")
        # texts may be cut inside a character: names of users are checked where they are read
        return parse_json(data, halves=True)


def _merge(
    folder: Path, train: dict[str, DeviceData], test: dict[str, DeviceData]
) -> list[DeviceData]:
    merged = []
    for user in train.keys() | test.keys():
        parts = [side[user] for side in (train, test) if user in side]
        if len({part.x.shape[1:] for part in parts}) > 1:
            raise DataError(f"{folder}: inputs of user {user!r} differ in shape: bring them to one")
        x = np.concatenate([part.x for part in parts])
        merged.append(DeviceData(user, x, np.concatenate([part.y for part in parts])))
    return merged


def _read_folder(folder: Path, convert: Convert) -> dict[str, DeviceData]:
    paths = sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")))
    if not paths:
        raise DataError(f"{folder}: no .json or .json.gz file: point to a LEAF data folder")
    return _read_files(paths, convert)


def _read_files(paths: Sequence[Path], convert: Convert) -> dict[str, DeviceData]:
    devices: dict[str, DeviceData] = {}
    for path in paths:
        for user in leaf_users(path):
            if user.id in devices:
                raise user.wrong("another file of the folder has him, too: remove stale files")
            devices[user.id] = convert(user)
    return devices


def _array(user: LeafUser, rows: object) -> npt.NDArray[np.generic]:
    try:
        return np.asarray(rows)
    except ValueError:
        raise user.wrong("samples of unequal length: bring them to one shape") from None


FORMAT: Final = Format(
    "leaf",
    "a folder of LEAF JSON files whose inputs are numbers",
    load_leaf,
    needs="a folder with train/ and test/, or all_data/, or .json(.gz) files",
)
