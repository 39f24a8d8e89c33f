"""What happened in each round: an object of JSON for each, in the table `events` of a record."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final, TypeAlias, cast

import numpy as np

from deltafl.fl.read.exact import shortened
from deltafl.sim.errors import damaged
from deltafl.sim.record.record import Record, json_object

Event: TypeAlias = dict[str, object]
"""One round: the strategy's report, the cohort, the times. JSON values only."""


def add_event(record: Record, event: Mapping[str, object]) -> Event:
    """Append the event of a round; the event as it will be read. The record is not kept."""
    text = json.dumps(to_json(event), allow_nan=False)
    read: Event = json.loads(text)
    record.chain.append("events", cast("int | None", read.get("round")), text)
    return read


def read_events(record: Record) -> list[Event]:
    """Read all events of a run, in order.

    Raises:
        RunDirectoryError: one is no JSON object.
    """
    return [event for event, _ in follow_events(record)]


def follow_events(record: Record, after: int = -1) -> Iterator[tuple[Event, int]]:
    """Read the events of a run that may be in progress, each with the number of its row.

    Args:
        record: the run's.
        after: only those with larger numbers.

    Raises:
        RunDirectoryError: one is no JSON object, or has what no run writes; events before it have
            been given.
    """
    for link in record.chain.select("events", "number > ?", after):
        event = json_object(record.path, link.fields[1])
        _check_kinds(record.path, event)
        yield event, link.number


def values_of(events: Sequence[Event], key: str) -> list[float]:
    """A number of each of the events that have it."""
    return [cast("float", event[key]) for event in events if event.get(key) is not None]


def dropped(events: Sequence[Event]) -> Counter[str]:
    """Devices lost, by stage."""
    found: Counter[str] = Counter()
    for event in events:
        found.update(cast("dict[str, int]", event.get("dropped_by_stage") or {}))
    return found


_MOST_ENTRIES: Final = 64
_LONGEST_KEY: Final = 60
_MOST: Final = 1e100  # far beyond any run, and the sum over all rounds is finite
_FOUND: Final = ("clipped", "delta", "eta", "half_width", "kept_devices", "kept_weight", "round")
_SPENT: Final = ("bytes_up_per_device", "epsilon", "num_queries", "secure_sums")
_TOOK: Final = ("protocol_cpu_s", "train_cpu_s", "wall_s")
NUMBERS: Final = (*_FOUND, *_SPENT, *_TOOK)
"""What an event says in numbers, and others compute with; each may be null."""


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(cast("float", value)) <= _MOST


def _is_time(value: object) -> bool:
    return _is_number(value) and cast("float", value) >= 0


_TABLES: Final[Sequence[tuple[str, Callable[[object], bool], str]]] = (
    ("stage_s", _is_time, f"seconds from 0 to {_MOST:g}"),
    ("dropped_by_stage", lambda number: type(number) is int, "whole numbers"),
    ("levels", lambda level: isinstance(level, dict) and "levels" not in level, "events"),
)
"""Tables in an event: what their values are, and how that is called."""


def _check_kinds(path: Path, event: Event) -> None:
    """Check the types of what others compute with."""
    for name in NUMBERS:
        value = event.get(name)
        if value is not None and not _is_number(value):
            raise damaged(path, f"{name} = {shortened(value)} is not a number of at most {_MOST:g}")
    for name, fits, what in _TABLES:
        table = event.get(name) or {}
        if not isinstance(table, dict) or not all(map(fits, table.values())):
            raise damaged(path, f"{name} is not a table of {what}")
        if len(table) > _MOST_ENTRIES or any(len(key) > _LONGEST_KEY for key in table):
            raise damaged(path, f"{name} has more entries than any run, or a longer name")
    for level in cast("dict[str, Event]", event.get("levels") or {}).values():
        _check_kinds(path, level)


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
