"""Did devices send anything of their own except masked vectors, keys, boxes and shares?

Every message of the protocol is known to the last field, and the strict readers accept nothing
else.
"""

from collections.abc import Iterator
from typing import Final

from deltafl.sim.inspect.audit.check import Check
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import RoundView

_SHOWN: Final = 60  # bytes


class ValuesInClear(Check):
    """Finds messages that do not belong to the protocol."""

    name = "values in clear"
    table = """\
clear.by-design critical settings A15: the server sees what each device sends
    It reads every device's update, and its loss where the algorithm asks for losses.
clear.values critical device A15: a device sent what is no message of the protocol
    Nothing protects it, and it may hold the device's values in clear.
messages.unreadable medium server A15: the server sent what is no message of the protocol
    Devices refuse it. It may hold a message to somebody else.
"""
    needs_messages = False

    def on_message(self, seen: Seen, round_: RoundView) -> Iterator[Finding]:
        """Look whether the strict readers refused it."""
        del round_
        record, problem = seen.record, seen.content.problem
        rule, party = ("messages.unreadable", "to") if record.sent else ("clear.values", "by")
        if problem:
            detail = f"{record.size} bytes sent {party} device {record.peer}, "
            yield self.rules.found(rule, f"{detail}{seen.data[:_SHOWN]!r}: {problem}", [seen.place])

    def on_end(self) -> Iterator[Finding]:
        """Of a run without masks, the server sees everything; a baseline is there to show that."""
        config = self._premises.source.config
        if config is not None and not config.federation.is_private:
            detail = f"the run's algorithm is {config.federation.algorithm}, which has no masks"
            severity = Severity.INFO if self._premises.is_baseline else None
            yield self.rules.found("clear.by-design", detail, [Evidence()], severity)

    def coverage(self, tally: Tally) -> Coverage:
        """All messages, if there are any."""
        return Coverage(tally.whole, "every message, field by field")
