"""Is there anything individual beside masked vectors, keys, boxes and shares?

Every message of the protocol is known to the last field, and the strict readers take nothing else.
So whatever they refuse is strange, and strange bytes are searched for values that can be read.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

import msgpack

from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.catalogue import found
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.heads import scan
from deltafl.sim.inspect.audit.seen import NUM_FIELDS, Seen
from deltafl.sim.inspect.audit.views import RoundView

_NAMED_NUMBER: Final = re.compile(rb"[A-Za-z_]{2,}[^0-9A-Za-z]{1,4}-?[0-9]")
_MAX_SHOWN: Final = 60


def check(round_: RoundView) -> Iterator[Finding]:
    """Find messages that are none of the protocol, and say what can be read in them."""
    for seen in round_.strange:
        party = "the server sent to" if seen.record.sent else "the server received from"
        who = f"{seen.record.size} bytes that {party} device {seen.record.peer}"
        readable = "" if seen.record.sent else readable_values(seen.content.data)
        if readable:
            yield found("clear.values", f"{who} hold {readable}", [seen.place])
        else:
            yield found("clear.unknown", f"{who}: {seen.content.problem}", [seen.place])


def readable_values(data: bytes) -> str:
    """What of some bytes can be read as values, in words; "" where nothing can.

    >>> readable_values(b'{"loss": 1.5}')
    'JSON: {"loss": 1.5}'
    """
    head = scan(data)
    if head is not None and len(head.fields) > 1 and head.fields[1] in NUM_FIELDS:
        kind = Kind(head.fields[1])
        extra = head.num_fields - NUM_FIELDS[kind]
        return f"{extra} fields more than a {kind.name} message has" if extra > 0 else ""
    try:
        return f"JSON: {_shown(json.dumps(json.loads(data)))}"
    except ValueError:
        pass
    try:
        value = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        value = None
    if _has_numbers(value):
        return f"msgpack: {_shown(repr(value))}"
    named = _NAMED_NUMBER.search(data)
    return f"text: {_shown(ascii(data[named.start() :]))}" if named else ""


def _has_numbers(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_numbers(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_has_numbers(item) for item in value)
    return isinstance(value, int | float)


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def describe(seen: Seen) -> str:
    """The kind of a message, as the specification calls it."""
    return seen.content.kind.name if seen.content.kind is not None else "unknown"
