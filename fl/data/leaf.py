"""Data sets in the LEAF format: JSON files with users, num_samples and user_data {user: {x, y}}.

A folder may hold train/ and test/, or all_data/, or the files themselves (.json or .json.gz).
With train/ and test/ of different users that split is used as it is. Otherwise, as after LEAF's
split by sample, each user's samples are put together again and the users are split by seed.
Source: Caldas et al. 2018, "LEAF: A Benchmark for Federated Settings" (format of its files).
"""

import gzip
import json
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl.data.checks import checked_device
from fl.data.federated import DeviceData, FederatedDataset, Partition, federate
from fl.errors import DataError


def load_leaf(folder: Path, partition: Partition) -> FederatedDataset:
    """Read all files of the folder.

    Raises:
        DataError: the folder or its files are missing, broken or not LEAF; a user's samples
            cannot be used; too few devices remain.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: check the path")
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        train, test = _read_folder(folder / "train"), _read_folder(folder / "test")
        if train.keys().isdisjoint(test):
            devices = [*train.values(), *test.values()]
            return federate(folder.name, devices, partition, test_ids=test.keys())
        return federate(folder.name, _merge(folder, train, test), partition)
    inner = folder / "all_data"
    devices = list(_read_folder(inner if inner.is_dir() else folder).values())
    return federate(folder.name, devices, partition)


def _merge(
    folder: Path, train: dict[str, DeviceData], test: dict[str, DeviceData]
) -> list[DeviceData]:
    merged = []
    for user in train.keys() | test.keys():
        parts = [side[user] for side in (train, test) if user in side]
        if len({part.x.shape[1:] for part in parts}) > 1:
            raise DataError(
                f"{folder}: inputs of user {user!r} differ in shape between train and test: bring "
                "them to one shape"
            )
        x = np.concatenate([part.inputs() for part in parts])
        merged.append(DeviceData(user, x, np.concatenate([part.y for part in parts])))
    return merged


def _read_folder(folder: Path) -> dict[str, DeviceData]:
    paths = sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")))
    if not paths:
        raise DataError(f"{folder}: no .json or .json.gz file: point to a LEAF data folder")
    devices: dict[str, DeviceData] = {}
    for path in paths:
        for device in _read_file(path):
            if device.id in devices:
                raise DataError(
                    f"{path}: user {device.id!r} is in another file of the folder too: remove "
                    "stale files or rename the user"
                )
            devices[device.id] = device
    return devices


def _read_file(path: Path) -> list[DeviceData]:
    content = _read_json(path)
    users = content.get("users")
    counts = content.get("num_samples")
    user_data = content.get("user_data")
    if not (isinstance(users, list) and isinstance(counts, list) and isinstance(user_data, dict)):
        raise DataError(
            f"{path}: not a LEAF file (keys: {', '.join(sorted(content)) or 'none'}): it needs "
            "the lists users and num_samples and the object user_data"
        )
    if len(users) != len(counts):
        raise DataError(
            f"{path}: {len(users)} users but {len(counts)} num_samples: give one number per user"
        )
    names = [str(user) for user in users]  # keys of a JSON object are strings
    if len(set(names)) != len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path}: user {double!r} is listed twice: list every user once")
    return [
        _read_user(path, name, count, user_data.get(name))
        for name, count in zip(names, counts, strict=True)
    ]


def _read_user(path: Path, user: str, count: object, samples: object) -> DeviceData:
    if not (isinstance(samples, dict) and "x" in samples and "y" in samples):
        raise DataError(f"{path}: user {user!r} has no x and y in user_data: add them")
    device = checked_device(
        str(path), user, _array(path, user, samples["x"]), _array(path, user, samples["y"])
    )
    if device.num_samples != count:
        raise DataError(
            f"{path}: num_samples says {count} for user {user!r} and user_data has "
            f"{device.num_samples}: correct num_samples"
        )
    return device


def _read_json(path: Path) -> dict[str, object]:
    try:
        data = path.read_bytes()
        content = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(
            f"{path}: broken or cut short ({error}): fetch or write the file again"
        ) from error
    if not isinstance(content, dict):
        raise DataError(
            f"{path}: not a LEAF file (a JSON {type(content).__name__}): it needs an object with "
            "users, num_samples and user_data"
        )
    return content


def _array(path: Path, user: str, rows: object) -> npt.NDArray[np.generic]:
    try:
        return np.asarray(rows)
    except ValueError as error:  # rows of unequal length
        raise DataError(
            f"{path}: user {user!r} has samples of unequal length: bring them to one shape"
        ) from error
