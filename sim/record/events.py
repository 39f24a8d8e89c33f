"""What happened in each round: one line of JSON per round, appended."""

import json
import math
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import numpy as np

from deltafl.sim.errors import RunDirectoryError, damaged

Event: TypeAlias = dict[str, object]
"""One round: the strategy's report, the cohort, the times. JSON values only."""


class EventLog:
    """Appends events to a file.

    Args:
        path: the file.
        size: how many of its bytes to keep; what follows is cut off.

    Raises:
        RunDirectoryError: the file is shorter than `size`.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        present = path.stat().st_size if path.exists() else 0
        if present < size:
            raise RunDirectoryError(
                f"{path} has {present} bytes where its checkpoint knows of {size}: "
                f"the run is damaged, start it again in another --out"
            )
        self._file = path.open("ab")
        self._file.truncate(size)

    def append(self, event: Mapping[str, object]) -> Event:
        """Append one event; the event as it will be read."""
        line = json.dumps(to_json(event), allow_nan=False)
        self._file.write(line.encode() + b"\n")
        read: Event = json.loads(line)
        return read

    def flush(self) -> int:
        """Bring everything to the disk; the length of the log in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def read_events(path: Path) -> list[Event]:
    """Read all events of a run, in order; a last line that was cut short does not count.

    Raises:
        RunDirectoryError: a line is no JSON.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise damaged(path, error) from error


def to_json(value: object) -> object:
    """Convert a report's value to JSON: NaN and infinities become null, fractions texts.

    >>> to_json({"eta": float("nan"), "theta": Fraction(1, 3), "ids": (1, 2)})
    {'eta': None, 'theta': '1/3', 'ids': [1, 2]}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Fraction) else value
