"""Conversion of a data set to another file format."""

import json
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.data.federated import DeviceData, FederatedDataset
from deltafl.sim.errors import UserError
from deltafl.sim.record.own_files import write_file, write_pieces

KINDS: Final = ("leaf", "npz")
_OTHER_FILES: Final = frozenset(
    {".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".xlsx", ".pkl", ".npy", ".pt", ".zip"}
)
MAX_NUMBERS: Final = 1 << 28
"""Most input numbers to write as JSON or as one array."""


def _kind_of(to: Path) -> str:
    """The kind of file that somebody wants who names only the target.

    Raises:
        UserError: no kind has this suffix.
    """
    if to.suffix.lower() in _OTHER_FILES:
        raise UserError(
            f"--out {to}: {to.suffix} files are not written: name a file that ends in .npz, or a "
            "folder for LEAF JSON (--as leaf makes a folder of any name)"
        )
    return "npz" if to.suffix == ".npz" else "leaf"


def convert(dataset: FederatedDataset, to: Path, kind: str | None) -> str:
    """Write a data set and say what was written.

    Args:
        dataset: what to write.
        to: leaf: a folder, which gets train/ and test/; npz: a file.
        kind: one of `KINDS`; None for what the target is named like.

    Raises:
        UserError: the format cannot store such data, or the target already exists.
    """
    kind = kind or _kind_of(to)
    if dataset.train[0].is_tokens:
        raise UserError(f"{kind} files hold numbers, and {dataset.name} has tokens")
    numbers = int(np.prod(dataset.input_shape)) * sum(
        device.num_samples for side in dataset.sides.values() for device in side
    )
    if numbers > MAX_NUMBERS:
        raise UserError(
            f"{dataset.name} has {numbers:,} input numbers, more than {MAX_NUMBERS:,}: take a part "
            "of it"
        )
    return _to_npz(dataset, to) if kind == "npz" else _to_leaf(dataset, to)


def _to_npz(dataset: FederatedDataset, path: Path) -> str:
    """Write all devices to one archive, without the split: its reader splits them again."""
    if path.exists():
        raise UserError(f"{path} exists: give another --out")
    everybody = _everybody(dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, as_archive(everybody))
    return f"{path}: {len(everybody)} users; whoever reads it splits them anew"


def as_archive(devices: Sequence[DeviceData]) -> bytes:
    """An .npz archive of some devices, with their ids."""
    archive = BytesIO()
    np.savez_compressed(
        archive,
        x=np.concatenate([device.x for device in devices]),
        y=np.concatenate([device.y for device in devices]),
        user=np.repeat(np.arange(len(devices)), [d.num_samples for d in devices]),
        users=np.array([device.id for device in devices]),
    )
    return archive.getvalue()


def _everybody(dataset: FederatedDataset) -> list[DeviceData]:
    """Each device once, with its train and its test samples."""
    parts: dict[str, list[DeviceData]] = {}
    for device in chain.from_iterable(dataset.sides.values()):
        parts.setdefault(device.id, []).append(device)
    return [
        DeviceData(name, np.concatenate([p.x for p in own]), np.concatenate([p.y for p in own]))
        for name, own in sorted(parts.items())
    ]


def _to_leaf(dataset: FederatedDataset, folder: Path) -> str:
    if len(dataset.validation):
        raise UserError("LEAF has no validation devices: leave data.validation_fraction out")
    sides = {folder / name: devices for name, devices in dataset.sides.items()}
    for path in sides:
        if path.exists():
            raise UserError(f"{path} exists: give another --out")
    for path, devices in sides.items():
        path.mkdir(parents=True)
        write_pieces(path / "data.json", _leaf(devices))
    return f"{folder}: train/ and test/, {len(dataset.train)} and {len(dataset.test)} users"


def _leaf(devices: Sequence[DeviceData]) -> Iterator[bytes]:
    """One object, a device at a time: as Python objects, all numbers would take 30 bytes each."""
    names = {
        "users": [device.id for device in devices],
        "num_samples": [device.num_samples for device in devices],
    }
    yield _json(names)[:-1] + b',"user_data":'
    comma = b"{"
    for device in devices:
        samples = {"x": device.inputs().tolist(), "y": device.y.tolist()}
        yield comma + _json(device.id) + b":" + _json(samples)
        comma = b","
    yield b"}}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
