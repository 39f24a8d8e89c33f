"""A session as a row of steps: whom the server asked for what, and who answered."""

from collections.abc import Sequence
from dataclasses import dataclass

from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import SessionView, SlotView


@dataclass(frozen=True, eq=False)
class SessionStep:
    """Messages of one kind that the server sent, and the answers.

    Attributes:
        asks: What devices were asked for, such as "keys".
        sent: The server's messages; at least one.
        came: The answers, in any order.
        slot: The slot, if they are about one.
    """

    asks: str
    sent: Sequence[Seen]
    came: Sequence[Seen]
    slot: SlotView | None = None


def steps_of(session: SessionView) -> list[SessionStep]:
    """The steps of a session, in the order of the record."""
    every = [
        SessionStep("keys", session.announcements, list(session.advertisements.values())),
        SessionStep("sealed shares", session.rosters, list(session.share_keys.values())),
        SessionStep("receipts", session.deliveries, session.receipts),
    ]
    for slot in session.slots.values():
        if slot.index < len(session.params.slots):
            every += [
                SessionStep("vectors", slot.opened, slot.inputs, slot),
                SessionStep("signatures", slot.checks, slot.signatures, slot),
                SessionStep("shares", slot.requests, slot.shares, slot),
            ]
    asked = [step for step in every if step.sent]
    return sorted(asked, key=lambda step: min(seen.record.number for seen in step.sent))
