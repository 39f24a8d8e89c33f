"""Files of a run directory, against what the run writes of what is in them: byte for byte.

A reader takes from a file what it knows. What it does not look at, such as another array, a
comment, or bytes between the parts, is seen only if the file is written once more.
"""

import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from deltafl.fl.bundle import read_stored
from deltafl.fl.errors import DataError
from deltafl.fl.read.regular import open_regular, read_regular
from deltafl.fl.read.strict_json import parse_json
from deltafl.sim.errors import UserError
from deltafl.sim.record.checkpoint import checkpoint_bytes, read_checkpoint
from deltafl.sim.record.evaluations import evaluation_bytes, read_evaluation
from deltafl.sim.record.events import MAX_LINE_BYTES, event_line
from deltafl.sim.record.rundir import RunDirectory, json_bytes, read_json
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import merge, read_config_file, to_toml

_MORE: Final = "has bytes that no run writes"
_UNREADABLE: Final = (UserError, DataError, OSError, MemoryError, ValueError)


def with_other_bytes(directory: RunDirectory, config: RunConfig) -> Iterator[str]:
    """Say which files are not what the run writes of what is in them.

    Those that cannot be read are left to who reads them, and those that another version of numpy
    has written to `not_rewritten`.

    Args:
        directory: The run.
        config: Its settings.
    """
    for path in filter(Path.exists, (directory.versions, directory.summary)):
        if _is_other(path, json_bytes(read_json(path) or {})):
            yield f"{path.name} {_MORE}"
    settings = to_toml(merge([read_config_file(directory.config)])).encode()
    if _is_other(directory.config, settings):
        yield f"{directory.config.name} {_MORE}"
    if (line := _other_line(directory.events)) is not None:
        yield f"{directory.events.name} {_MORE}, in line {line}"
    if not _other_numpy(directory):
        for path in sorted(directory.checkpoints.glob("round-*.npz")):
            if _is_not(path, lambda path: checkpoint_bytes(read_checkpoint(path))):
                yield f"{path.name} {_MORE}"
        if _is_not(directory.bundle, lambda path: read_stored(path).to_bytes()):
            yield f"{directory.bundle.name} {_MORE}"
    for folder in directory.metrics_of(config.federation).values():
        for path in sorted(folder.glob("*.csv")):
            if _is_not(path, lambda path: evaluation_bytes(read_evaluation(path))):
                yield f"{path.name} {_MORE}"


def not_rewritten(directory: RunDirectory) -> Iterator[str]:
    """Say which files of a run were written by other versions of the libraries than are here."""
    if other := _other_numpy(directory):
        yield f"checkpoints and bundle: written by {other}, so not compared byte by byte"


def _is_not(path: Path, written: Callable[[Path], bytes]) -> bool:
    """Whether a file that can be read is not what is written of it."""
    try:
        return path.exists() and _is_other(path, written(path))
    except _UNREADABLE:
        return False


def _is_other(path: Path, wanted: bytes) -> bool:
    """Whether a file holds anything else."""
    if path.stat().st_size != len(wanted):
        return True
    return read_regular(path, len(wanted)) != wanted


def _other_line(path: Path) -> int | None:
    """The number of the first line of the events that is not as a run writes it."""
    if not path.exists():
        return None
    with open_regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
            try:
                event = parse_json(line)
            except ValueError:
                return None  # who reads the events says so, or it is a last line that was cut
            if line.endswith(b"\n") and isinstance(event, dict) and event_line(event) != line:
                return number
    return None


def _other_numpy(directory: RunDirectory) -> str:
    """The libraries that wrote the arrays of a run, if they are not those here; else ""."""
    try:
        said = read_json(directory.versions) or {}
    except UserError:
        return ""
    here = {
        "python": platform.python_version_tuple()[:2],
        "numpy": tuple(metadata.version("numpy").split(".")[:2]),
    }
    for name, version in here.items():
        told = said.get(name)
        if isinstance(told, str) and tuple(told.split(".")[:2]) != version:
            return f"another {name}"
    return ""
