"""What the server saw in one round, session by session.

This module judges nothing, and does not keep long messages.
"""

from dataclasses import dataclass, field

from deltafl.protocol.messages import Announce
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.seen import Decoder, Seen
from deltafl.sim.inspect.audit.session_log import Session
from deltafl.sim.inspect.audit.truth_rounds import HiddenInRound
from deltafl.sim.record.transcript import Message, RoundEnd, Sum


@dataclass(slots=True, eq=False)
class RoundView:
    """One round, as the server saw it.

    Attributes:
        number: The round, counted from 1.
        sessions: By tag, in the order in which they were announced; as a rule one.
        sums: What the server says that it learnt, in order.
        end: The record that ends the round; None where there is none.
        cohort: The devices that the record of its begin names; None where there is none.
        truth: What is known beside what the server saw.
    """

    number: int
    sessions: dict[bytes, Session] = field(default_factory=dict)
    sums: list[Sum] = field(default_factory=list)
    end: RoundEnd | None = None
    cohort: tuple[int, ...] | None = None
    truth: HiddenInRound = field(default_factory=HiddenInRound)
    _decoder: Decoder = field(default_factory=Decoder)

    def add(self, record: Message) -> Seen:
        """Sort a message in; what it is."""
        seen = self._decoder.decode(record)
        tag, told = seen.content.tag, seen.content.envelope
        if isinstance(told, Announce) and tag not in self.sessions:
            known = self._decoder.params[tag], self.number, told.levels, told.models, seen.place
            self.sessions[tag] = Session(*known)
        if tag in self.sessions:
            self.sessions[tag].take(seen)
        return seen

    def add_sum(self, record: Sum) -> Session | None:
        """Sort a sum in; whose first sum of its slot it is, or None where it is of no session."""
        self.sums.append(record)
        for session in reversed(self.sessions.values()):
            if record.slot in session.slots:
                is_first = session.sum_of(record.slot) is None
                session.sums.append(record)
                return session if is_first else None
        return None


def place_of(record: Sum | RoundEnd) -> Evidence:
    """Where a record is."""
    return Evidence(record.round, record.number)
