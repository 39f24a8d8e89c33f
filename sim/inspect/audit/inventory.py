"""Everything that passed through the server, by kind, and one round as the server saw it."""

from dataclasses import dataclass, field, replace
from typing import Final

from deltafl.protocol.quantile.search import Query
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.report import Observed, TimelineStep
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import Question
from deltafl.sim.record.transcript import Sum

_TELLS: Final = {
    Kind.OPEN: "nothing: the same for all",
    Kind.ROSTER: "public keys of its neighbours",
    Kind.DELIVERY: "sealed shares for it",
    Kind.SLOT: "nothing: the same for all",
    Kind.CHECK: "nothing: the same for all",
    Kind.REQUEST: "nothing: the same for all",
    Kind.OPENING: "nothing: the same for all",
    Kind.ADVERTISE: "its public keys",
    Kind.SHARE_KEYS: "commitments and sealed shares",
    Kind.RECEIPT: "whose boxes did not open",
    Kind.MASKED: "a masked vector",
    Kind.SIGNATURE: "its signature of a list",
    Kind.SHARES: "shares of its neighbours' secrets",
}
_NAMES: Final = {
    Kind.OPEN: "announcement",
    Kind.ROSTER: "roster",
    Kind.DELIVERY: "delivery of shares",
    Kind.SLOT: "question",
    Kind.CHECK: "consistency check",
    Kind.REQUEST: "request for shares",
    Kind.OPENING: "proof of a sum",
    Kind.ADVERTISE: "key advertisement",
    Kind.SHARE_KEYS: "sealed shares",
    Kind.RECEIPT: "receipt of shares",
    Kind.MASKED: "masked vector",
    Kind.SIGNATURE: "consistency signature",
    Kind.SHARES: "shares",
}
_UNKNOWN: Final = "unknown"
_SUM: Final = "released sum"
_WORD_BYTES: Final = 8


@dataclass(slots=True)
class Inventory:
    """Counts messages and sums."""

    _kinds: dict[tuple[bool, Kind | None], Observed] = field(default_factory=dict)
    _sums: Observed = field(
        default_factory=lambda: Observed(_SUM, False, "nothing by itself", 0, 0, 0, 0)
    )

    def add(self, seen: Seen) -> None:
        """Count a message."""
        kind, record = seen.content.kind, seen.record
        tells = "unknown" if kind is None else _TELLS[kind]
        new = Observed(name_of(kind), record.sent, tells, 0, 0, record.size, record.size)
        self._kinds[record.sent, kind] = _one_more(
            self._kinds.get((record.sent, kind), new), record.size
        )

    def add_sum(self, released: Sum) -> None:
        """Count a sum."""
        size = released.length * _WORD_BYTES
        before = self._sums if self._sums.count else replace(self._sums, smallest=size)
        self._sums = _one_more(before, size)

    def observed(self) -> tuple[Observed, ...]:
        """The counts: received messages first, then sent messages, then the sums."""
        order = sorted(self._kinds, key=lambda key: (key[0], -1 if key[1] is None else key[1]))
        sums = (self._sums,) if self._sums.count else ()
        return (*(self._kinds[key] for key in order), *sums)


@dataclass(slots=True)
class Timeline:
    """Follows the first recorded round, step by step.

    Attributes:
        round: Number of that round; None before there is one.
    """

    round: int | None = None
    _steps: list[TimelineStep] = field(default_factory=list)
    _devices: set[int] = field(default_factory=set)

    def begin(self, number: int) -> None:
        """Note that a round begins; only the first is followed."""
        if self.round is None:
            self.round = number

    def add(self, seen: Seen) -> None:
        """Add a message to its step, or begin a new one."""
        if seen.record.round != self.round:
            return
        label, record = name_of(seen.content.kind), seen.record
        step = self._steps[-1] if self._steps else None
        if step is None or (step.label, step.sent, step.slot) != (
            label,
            record.sent,
            seen.content.slot,
        ):
            # a late message, or one to a device that answers at once, goes back to its own step
            step = self._earlier(label, record.sent, seen.content.slot)
        if step is None:
            number = record.number
            step = TimelineStep(label, record.sent, 0, 0, number, number, seen.content.slot, "")
            self._steps.append(step)
        self._replace(
            step,
            replace(
                step,
                devices=step.devices + 1,
                size=step.size + record.size,
                last_record=record.number,
            ),
        )

    def add_sum(self, released: Sum, question: Question | None) -> None:
        """Note what the server knew after the last step of a slot, given its question."""
        if released.round != self.round:
            return
        knows = _knows(question, released)
        for step in reversed(self._steps):
            if step.slot == released.slot and not step.sent:
                self._replace(step, replace(step, revealed=knows))
                return

    def steps(self) -> tuple[TimelineStep, ...]:
        """The steps, in order."""
        return tuple(self._steps)

    def _earlier(self, label: str, sent: bool, slot: int | None) -> TimelineStep | None:
        for step in reversed(self._steps):
            if (step.label, step.sent, step.slot) == (label, sent, slot):
                return step
        return None

    def _replace(self, old: TimelineStep, new: TimelineStep) -> None:
        self._steps[self._steps.index(old)] = new


def _knows(question: Question | None, released: Sum) -> str:
    """What a server learns from a sum, in a few words."""
    count = len(released.contributors)
    if isinstance(question, Query):
        pivots = len(question.pivots)
        return f"ranks of {count} devices at {pivots} {'pivot' if pivots == 1 else 'pivots'}"
    if question is None:
        return f"a sum over {count} devices"
    return f"the sum of updates over those of {count} devices that passed"


def name_of(kind: Kind | None) -> str:
    """What a message is called."""
    return _UNKNOWN if kind is None else _NAMES[kind]


def _one_more(observed: Observed, size: int) -> Observed:
    return replace(
        observed,
        count=observed.count + 1,
        size=observed.size + size,
        smallest=min(observed.smallest, size),
        largest=max(observed.largest, size),
    )
