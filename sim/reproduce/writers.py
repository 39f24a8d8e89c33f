"""Two disjoint parts of the devices, each in a file of its own: to tune on, and to test on.

Devices are ranked by SHA-256 of their ids, and the first ones tune. Runs read only the file of
their part, so that no test device has a say in the settings.
"""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.errors import DataError
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.atomic import write_file
from deltafl.sim.settings.config import DataConfig


@dataclass(frozen=True, slots=True)
class Parts:
    """The files of the two parts.

    Attributes:
        tuning: .npz archive of the devices that tune.
        testing: of all others.
    """

    tuning: Path
    testing: Path


def divide(data: DataConfig, share: Fraction, out: Path) -> Parts:
    """Write the two parts, unless they are there.

    Args:
        data: which data; its rule for small devices holds, and its split does not matter.
        share: of the devices, who tune.
        out: folder of the results; the files go into its folder `parts`.

    Raises:
        ConfigError: the data cannot be used, or their settings contradict each other.
    """
    source = Path(data.source)
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    seen = [(str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in files if one.exists()]
    digest = hashlib.sha256(repr((data, share, seen)).encode()).hexdigest()[:16]
    folder = out.resolve() / "parts"
    parts = Parts(folder / f"{digest}-tuning.npz", folder / f"{digest}-testing.npz")
    if not (parts.tuning.exists() and parts.testing.exists()):
        try:
            dataset = build_dataset(replace(data, standardise="none"))
        except DataError as error:
            raise ConfigError(str(error)) from error
        devices = sorted((*dataset.train, *dataset.test), key=_rank)
        count = int(len(devices) * share)
        folder.mkdir(parents=True, exist_ok=True)
        _write(parts.tuning, devices[:count])
        _write(parts.testing, devices[count:])
    return parts


def _rank(device: DeviceData) -> bytes:
    return hashlib.sha256(f"tuning\0{device.id}".encode()).digest()


def _write(path: Path, devices: Sequence[DeviceData]) -> None:
    archive = io.BytesIO()
    np.savez(
        archive,
        x=np.concatenate([device.x for device in devices]),
        y=np.concatenate([device.y for device in devices]),
        user=np.repeat(np.arange(len(devices)), [device.num_samples for device in devices]),
        users=np.array([device.id for device in devices]),
    )
    write_file(path, archive.getvalue())
