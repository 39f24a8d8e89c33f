"""Did every message pass once?

How often a message is sent is nobody's business to choose: a device that sends one k times tells
the server a number. Devices and servers of the project send each message once, also in runs that
were interrupted, where sessions begin anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A16, Rule, Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import RoundView

RULES: Final = Rules(
    {
        "messages.repeated": Rule(
            Severity.MEDIUM,
            "a message was sent again",
            "How often it was sent may be a message of its own, such as a digit of a loss.",
            "Find out who sends it again, and why. What a network repeats does not belong in the "
            "record.",
            A16,
        ),
        "messages.twice": Rule(
            Severity.MEDIUM,
            "two different messages were sent where there is one",
            "A server has to drop the device for it, and a device refuses the second. One of the "
            "two may be invented, to have a reason.",
            "Find out who sent the second message, and exclude the device if it did.",
            A16,
        ),
    }
)

_OF_OTHER_RULES: Final = frozenset({Kind.ADVERTISE, Kind.MASKED})
"""Two of these are found as `keys.twice` and `input.twice`, which are worse."""

_Place = tuple[bytes, Kind, int | None, int]  # session's tag, kind, slot, device


@dataclass(slots=True)
class _Round:
    """What passed in a round.

    Attributes:
        known: The messages: whether sent, device and digest.
        first: The digest of the first message of each place.
        again: Those that had passed before.
        others: Those that differ from the first of their place.
    """

    known: set[tuple[bool, int, bytes]] = field(default_factory=set)
    first: dict[_Place, bytes] = field(default_factory=dict)
    again: list[Seen] = field(default_factory=list)
    others: list[Seen] = field(default_factory=list)

    def add(self, seen: Seen) -> None:
        record, content = seen.record, seen.content
        message = record.sent, record.peer, record.sha256
        if message in self.known:
            self.again.append(seen)
            return
        self.known.add(message)
        if content.kind is None or content.problem or content.kind in _OF_OTHER_RULES:
            return
        place = content.tag, content.kind, content.slot, record.peer
        if self.first.setdefault(place, record.sha256) != record.sha256:
            self.others.append(seen)


class Repeats(Check):
    """Looks for messages that passed before, and for second ones of a kind."""

    name = "messages once each"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._round = _Round()

    def on_message(self, seen: Seen, round_: RoundView) -> tuple[Finding, ...]:
        """Note a message."""
        del round_
        self._round.add(seen)
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Name what passed more than once."""
        del over
        passed, self._round = self._round, _Round()
        for rule, found in (("messages.repeated", passed.again), ("messages.twice", passed.others)):
            for sent in (False, True):
                these = [seen for seen in found if seen.record.sent == sent]
                if these:
                    whose = "to" if sent else "of"
                    devices = len({seen.record.peer for seen in these})
                    detail = (
                        f"{len(these)} messages {whose} {devices} devices, such as "
                        f"{_what(these[0])} {whose} device {these[0].record.peer}"
                    )
                    yield RULES.found(rule, detail, [seen.place for seen in these])

    def coverage(self, tally: Tally) -> Coverage:
        """Every message has its digest in the record."""
        return Coverage(tally.told, "every message, by its digest")


def _what(seen: Seen) -> str:
    kind, slot = seen.content.kind, seen.content.slot
    what = f"the {kind.name} message" if kind is not None else "a message"
    return what if slot is None else f"{what} of slot {slot}"
