"""What happened in each round: one line of JSON per round, appended."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self, TypeAlias, cast

import numpy as np

from deltafl.fl.read.exact import shortened
from deltafl.fl.read.regular import open_regular
from deltafl.fl.read.strict_json import parse_json
from deltafl.sim.errors import RunDirectoryError, damaged
from deltafl.sim.record.atomic import sync_folder
from deltafl.sim.record.own_files import open_own

Event: TypeAlias = dict[str, object]
"""One round: the strategy's report, the cohort, the times. JSON values only."""

MAX_LINE_BYTES: Final = 1 << 26
"""The longest event that is read; one of a cohort of a million devices takes 8 million."""


class EventLog:
    """Appends events to a file.

    Args:
        path: the file.
        size: how many of its bytes to keep; what follows is cut off.

    Raises:
        RunDirectoryError: the file is shorter than `size`, or no regular one.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        present = path.stat().st_size if path.exists() else 0
        if present < size:
            raise RunDirectoryError(
                f"{path} has {present} bytes where its checkpoint knows of {size}: "
                f"the run is damaged, start it again in another --out"
            )
        self._file = open_own(path)
        self._file.truncate(size)
        self._file.seek(size)
        sync_folder(path.parent)  # it may be new

    def append(self, event: Mapping[str, object]) -> Event:
        """Append one event; the event as it will be read."""
        line = event_line(event)
        self._file.write(line)
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


def event_line(event: Mapping[str, object]) -> bytes:
    """The line of an event."""
    return json.dumps(to_json(event), allow_nan=False).encode() + b"\n"


def read_events(path: Path) -> list[Event]:
    """Read all events of a run, in order; a last line that was cut short does not count.

    Raises:
        RunDirectoryError: a line is no JSON object, or the file is no regular one.
    """
    return [event for event, _ in follow_events(path)]


def follow_events(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """Read the events of a run that may be in progress, each with where the next line begins.

    Args:
        path: the file; it need not exist.
        offset: where to begin, in bytes: 0, or what came with an event before.

    Raises:
        RunDirectoryError: a line is no JSON object, or the file is no regular one; events before
            it have been given.
    """
    if not path.exists():
        return
    try:
        with open_regular(path) as file:
            file.seek(offset)
            for event in _events(file):
                yield event, file.tell()
    except OSError as error:
        raise damaged(path, error.strerror) from error
    except ValueError as error:
        raise damaged(path, error) from error


def size_of_events(path: Path, number: int) -> int | None:
    """The bytes that the first so many events take; None where there are fewer, or no file.

    Raises:
        RunDirectoryError: the file is no regular one.
    """
    if not path.exists():
        return None
    size = 0
    try:
        with open_regular(path) as file:
            for _ in range(number):
                if not (line := file.readline(MAX_LINE_BYTES)):
                    return None
                size += len(line)
    except OSError as error:
        raise damaged(path, error.strerror) from error
    return size


def values_of(events: Sequence[Event], key: str) -> list[float]:
    """A number of each of the events that have it."""
    return [cast("float", event[key]) for event in events if event.get(key) is not None]


def dropped(events: Sequence[Event]) -> Counter[str]:
    """Devices lost, by stage."""
    found: Counter[str] = Counter()
    for event in events:
        found.update(cast("dict[str, int]", event.get("dropped_by_stage") or {}))
    return found


def _events(file: BinaryIO) -> Iterator[Event]:
    while (line := file.readline(MAX_LINE_BYTES)).endswith(b"\n"):
        event = parse_json(line)
        if not isinstance(event, dict):
            raise ValueError(f"a line is {shortened(event)}, not an object")
        _check_kinds(event)
        yield event
    if len(line) == MAX_LINE_BYTES:
        raise ValueError(f"a line has more than {MAX_LINE_BYTES:,} bytes")


_MOST: Final = 1e100  # far beyond any run, and the sum over all rounds is finite
_NUMBERS: Final = (
    "bytes_up_per_device",
    "clipped",
    "delta",
    "epsilon",
    "eta",
    "half_width",
    "kept_devices",
    "kept_weight",
    "num_queries",
    "protocol_cpu_s",
    "round",
    "secure_sums",
    "train_cpu_s",
    "wall_s",
)
"""What an event says in numbers, and others compute with; each may be null."""


def _check_kinds(event: Event) -> None:
    """Check the types of what others compute with."""
    for name in _NUMBERS:
        value = event.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _MOST:
            raise ValueError(f"{name} = {shortened(value)} is not a number of at most {_MOST:g}")
    seconds = event.get("stage_s") or {}
    if not isinstance(seconds, dict) or not all(map(_is_time, seconds.values())):
        raise ValueError(f"stage_s is not a table of seconds from 0 to {_MOST:g}")
    dropped, levels = event.get("dropped_by_stage") or {}, event.get("levels") or {}
    if not isinstance(dropped, dict) or any(type(n) is not int for n in dropped.values()):
        raise ValueError("dropped_by_stage is not a table of whole numbers")
    if not isinstance(levels, dict) or not all(isinstance(e, dict) for e in levels.values()):
        raise ValueError("levels is not a table of events")
    for level in levels.values():
        if "levels" in level:
            raise ValueError("a level has levels of its own")
        _check_kinds(level)


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= cast("float", value) <= _MOST


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
