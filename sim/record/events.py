"""What happened in each round: an object of JSON for each, in the table `events` of a record."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
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
        try:
            _check_kinds(event)
        except ValueError as error:
            raise damaged(record.path, error) from error
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
