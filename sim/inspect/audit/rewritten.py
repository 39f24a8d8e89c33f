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
from deltafl.fl.read.regular import read_regular
from deltafl.sim.errors import UserError
from deltafl.sim.record.record import SUMMARY, VERSIONS, as_json
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import to_toml

_MORE: Final = "has bytes that no run writes"
_UNREADABLE: Final = (UserError, DataError, OSError, MemoryError, ValueError)


def with_other_bytes(directory: RunDirectory, config: RunConfig) -> Iterator[str]:
    """Say what is not what the run writes of what is in it.

    What cannot be read is left to who reads it, and what another version of numpy has written to
    `not_rewritten`.

    Args:
        directory: The run.
        config: Its settings.
    """
    del config
    with directory.read() as record:
        for name in (VERSIONS, SUMMARY):
            if (said := record.json(name)) is not None and record.text(name) != as_json(said):
                yield f"{name} {_MORE}"
        if record.settings != to_toml(record.config(checked=False)):
            yield f"settings {_MORE}"
    is_other = not _other_numpy(directory)
    if is_other and _is_not(directory.bundle, lambda path: read_stored(path).to_bytes()):
        yield f"{directory.bundle.name} {_MORE}"


def not_rewritten(directory: RunDirectory) -> Iterator[str]:
    """Say which files of a run were written by other versions of the libraries than are here."""
    if other := _other_numpy(directory):
        yield f"bundle: written by {other}, so not compared byte by byte"


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


def _other_numpy(directory: RunDirectory) -> str:
    """The libraries that wrote the arrays of a run, if they are not those here; else ""."""
    try:
        with directory.read() as record:
            said = record.json(VERSIONS) or {}
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
