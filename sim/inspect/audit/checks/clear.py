"""Did devices send anything of their own except masked vectors, keys, boxes and shares?

Every message of the protocol is known to the last field, and the strict readers accept nothing
else. Messages that they refuse are searched for readable values.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

import msgpack

from deltafl.fl.read.strict_json import MAX_NESTING, nesting
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.check import Check, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import NUM_FIELDS
from deltafl.sim.inspect.audit.shallow import is_shallow

_NAMED_NUMBER: Final = re.compile(rb"[A-Za-z_]{2,}[^0-9A-Za-z]{1,4}-?[0-9]")
_MAX_SHOWN: Final = 60


RULES: Final = Rules.read(
    """\
clear.by-design critical settings A15: the server sees what each device sends
    It reads every device's update, and its loss where the algorithm asks for losses.
clear.values critical device A15: a device's message holds values in clear
    The server reads values that it should only learn as part of a sum.
clear.unknown medium somebody A15: a message does not belong to the protocol
    Its contents are unknown, and nothing in the protocol protects them.
"""
)


class ValuesInClear(Check):
    """Finds messages that do not belong to the protocol, and says what can be read in them."""

    name = "values in clear"
    rules = RULES
    needs_messages = False

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at what the strict readers refused."""
        for seen in over.view.strange:
            party = "the server sent to" if seen.record.sent else "the server received from"
            who = f"{seen.record.size} bytes that {party} device {seen.record.peer}"
            readable = "" if seen.record.sent else readable_values(seen.content.data)
            if readable:
                yield RULES.found("clear.values", f"{who} hold {readable}", [seen.place])
            else:
                yield RULES.found("clear.unknown", f"{who}: {seen.content.problem}", [seen.place])

    def on_end(self) -> Iterator[Finding]:
        """Of a run without masks, the server sees everything; a baseline is there to show that."""
        if self._premises.source.is_in_clear:
            severity = Severity.INFO if self._premises.is_baseline else None
            yield RULES.found("clear.by-design", self._in_clear(), [Evidence()], severity)

    def coverage(self, tally: Tally) -> Coverage:
        """All messages, if there are any."""
        if self._premises.source.is_in_clear:
            return Coverage(0, f"{self._in_clear()}: the record has no messages")
        return Coverage(tally.whole, "every message, field by field")

    def _in_clear(self) -> str:
        config = self._premises.source.config
        algorithm = config.federation.algorithm if config else "unknown"
        return f"the run's algorithm is {algorithm}, which has no masks"


def readable_values(data: bytes) -> str:
    """What of some bytes can be read as values, in words; "" where nothing can.

    >>> readable_values(b'{"loss": 1.5}')
    'JSON: {"loss": 1.5}'
    """
    try:
        value = msgpack.unpackb(data, strict_map_key=False) if is_shallow(data) else None
    except (ValueError, TypeError, msgpack.UnpackException):
        value = None
    match value:
        case [_, int(number), *_] if number in NUM_FIELDS:
            kind = Kind(number)
            extra = len(value) - NUM_FIELDS[kind]
            return f"{extra} fields more than a {kind.name} message has" if extra > 0 else ""
    try:
        if nesting(data) <= MAX_NESTING:
            return f"JSON: {_shown(json.dumps(json.loads(data)))}"
    except ValueError:
        pass
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
