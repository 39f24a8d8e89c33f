"""Everything that passed through the server, by kind, and one round as the server saw it."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Final

from deltafl.protocol.quantile.search import Query
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.report import Observed, TimelineStep
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import Question
from deltafl.sim.record.transcript import Sum

_KINDS: Final = {
    Kind.OPEN: ("announcement", "nothing: the same for all"),
    Kind.ROSTER: ("roster", "public keys of its neighbours"),
    Kind.DELIVERY: ("delivery of shares", "sealed shares for it"),
    Kind.SLOT: ("question", "nothing: the same for all"),
    Kind.CHECK: ("consistency check", "nothing: the same for all"),
    Kind.REQUEST: ("request for shares", "nothing: the same for all"),
    Kind.OPENING: ("proof of a sum", "nothing: the same for all"),
    Kind.ADVERTISE: ("key advertisement", "its public keys"),
    Kind.SHARE_KEYS: ("sealed shares", "commitments and sealed shares"),
    Kind.RECEIPT: ("receipt of shares", "whose boxes did not open"),
    Kind.MASKED: ("masked vector", "a masked vector"),
    Kind.SIGNATURE: ("consistency signature", "its signature of a list"),
    Kind.SHARES: ("shares", "shares of its neighbours' secrets"),
}
"""What messages are called, and what they tell about a single device."""

_UNKNOWN: Final = ("unknown", "unknown")
_SUM: Final = ("released sum", "nothing by itself")
_WORD_BYTES: Final = 8


@dataclass(slots=True)
class Inventory:
    """Counts messages and sums, by their sizes."""

    _sizes: dict[tuple[bool, Kind | None], Counter[int]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    _sums: Counter[int] = field(default_factory=Counter)

    def add(self, seen: Seen) -> None:
        """Count a message."""
        self._sizes[seen.record.sent, seen.content.kind][seen.record.size] += 1

    def add_sum(self, released: Sum) -> None:
        """Count a sum."""
        self._sums[released.length * _WORD_BYTES] += 1

    def observed(self) -> tuple[Observed, ...]:
        """The counts: received messages first, then sent messages, then the sums."""
        order = sorted(self._sizes, key=lambda key: (key[0], -1 if key[1] is None else key[1]))
        kinds = [(sent, _about(kind), self._sizes[sent, kind]) for sent, kind in order]
        return tuple(
            Observed(name, sent, tells, sizes.total(), _weight(sizes), min(sizes), max(sizes))
            for sent, (name, tells), sizes in (*kinds, (False, _SUM, self._sums))
            if sizes
        )


@dataclass(slots=True)
class Timeline:
    """Follows the first recorded round, step by step.

    Attributes:
        round: Number of that round; None before there is one.
    """

    round: int | None = None
    _steps: dict[tuple[Kind | None, bool, int | None], TimelineStep] = field(default_factory=dict)

    def begin(self, number: int) -> None:
        """Note that a round begins; only the first is followed."""
        if self.round is None:
            self.round = number

    def add(self, seen: Seen) -> None:
        """Add a message to its step: a late one, too, or one to a device that answers at once."""
        record, content = seen.record, seen.content
        if record.round != self.round:
            return
        key, number = (content.kind, record.sent, content.slot), record.number
        name, _ = _about(content.kind)
        new = TimelineStep(name, record.sent, 0, 0, number, number, content.slot, "")
        step = self._steps.get(key, new)
        self._steps[key] = replace(
            step, devices=step.devices + 1, size=step.size + record.size, last_record=number
        )

    def add_sum(self, released: Sum, question: Question | None) -> None:
        """Note what the server knew after the last step of a slot, given its question."""
        if released.round != self.round:
            return
        answers = [key for key in self._steps if key[1:] == (False, released.slot)]
        for key in answers[-1:]:
            self._steps[key] = replace(self._steps[key], revealed=_knows(question, released))

    def steps(self) -> tuple[TimelineStep, ...]:
        """The steps, in order."""
        return tuple(self._steps.values())


def _about(kind: Kind | None) -> tuple[str, str]:
    return _UNKNOWN if kind is None else _KINDS[kind]


def _weight(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _knows(question: Question | None, released: Sum) -> str:
    """What a server learns from a sum, in a few words."""
    count = len(released.contributors)
    if isinstance(question, Query):
        pivots = len(question.pivots)
        return f"ranks of {count} devices at {pivots} {'pivot' if pivots == 1 else 'pivots'}"
    if question is None:
        return f"a sum over {count} devices"
    return f"the sum of updates over those of {count} devices that passed"
