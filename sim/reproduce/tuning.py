"""The devices that settings are chosen on before the headline, and all others, in two files."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.data.federated import DeviceData, draw_rows
from deltafl.fl.data.shakespeare import ALPHABETS
from deltafl.fl.data.shakespeare import FORMAT as SHAKESPEARE
from deltafl.fl.errors import DataError
from deltafl.sim.data.convert import as_archive
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.own_files import write_file
from deltafl.sim.settings.config import DataConfig

_TEXT: Final = SHAKESPEARE.name


@dataclass(frozen=True, slots=True)
class Parts:
    """The files of the two parts.

    Attributes:
        tuning: of the devices that tune; an .npz archive, or LEAF's JSON of windows of text.
        testing: of all others.
    """

    tuning: Path
    testing: Path

    @property
    def format(self) -> str:
        """What the files are."""
        return _TEXT if self.tuning.suffix == ".json" else "npz"


def divide(data: DataConfig, share: Fraction, out: Path) -> Parts:
    """Write two disjoint parts of the devices, to tune and to test on, unless they are there.

    Devices are ranked by SHA-256 of their ids, and the first ones tune. Runs read only the file of
    their part, so that no test device has a say in the settings. Of a text, a part has windows
    drawn from all of it (`draw_rows`). A data set by itself takes the first ones, which overlap: 50
    windows of 20 characters would be 70 characters of a role.

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
    is_text = data.format == _TEXT
    end = "json" if is_text else "npz"
    parts = Parts(folder / f"{digest}-tuning.{end}", folder / f"{digest}-testing.{end}")
    if not (parts.tuning.exists() and parts.testing.exists()):
        try:
            limit = 0 if is_text else data.max_samples
            dataset = build_dataset(replace(data, standardise="none", max_samples=limit))
        except DataError as error:
            raise ConfigError(str(error)) from error
        devices = sorted((*dataset.train, *dataset.test), key=_rank)
        count = int(len(devices) * share)
        folder.mkdir(parents=True, exist_ok=True)
        for path, some in ((parts.tuning, devices[:count]), (parts.testing, devices[count:])):
            write_file(path, _windows(some, data) if is_text else as_archive(some))
    return parts


def _rank(device: DeviceData) -> bytes:
    return hashlib.sha256(f"tuning\0{device.id}".encode()).digest()


def _windows(devices: Sequence[DeviceData], data: DataConfig) -> bytes:
    characters = np.array(list(ALPHABETS[data.alphabet].characters))
    most = data.max_samples or None
    content: dict[str, dict[str, list[str]]] = {}
    for device in devices:
        rows = draw_rows(device.id, device.num_samples, most, data.split_seed)
        content[device.id] = {
            "x": ["".join(window) for window in characters[device.x[rows]]],
            "y": characters[device.y[rows]].tolist(),
        }
    counts = [len(samples["y"]) for samples in content.values()]
    whole = {"users": list(content), "num_samples": counts, "user_data": content}
    return json.dumps(whole).encode()
