"""A session as a row of steps: whom the server asked, who answered in time, whom it asked next.

An honest server goes on with exactly the devices that answered in time, except those that it has to
drop (`dismissals`). So each set of devices follows from the messages before it.

The record has no mark where a step was closed. An answer that came too late stands behind those
that were counted, and before the next question. So an answer is known to have come in time only if
the server has used it (`used`), or if it came before one that was used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from deltafl.secagg.messages import OpenSlot, UnmaskRequest
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import SessionView, SlotView, contributors


@dataclass(frozen=True, eq=False)
class SessionStep:
    """Messages of one kind that the server sent, and the answers.

    Attributes:
        asks: What devices were asked for, such as "keys".
        sent: The server's messages.
        came: The answers, in any order.
        listed: The devices of the list that the messages have; None where it is not known.
        slot: The slot, if they are about one.
    """

    asks: str
    sent: Sequence[Seen]
    came: Sequence[Seen]
    listed: frozenset[int] | None = None
    slot: SlotView | None = None

    @property
    def begins(self) -> int:
        """Number of the first record."""
        return min(seen.record.number for seen in self.sent)

    @cached_property
    def asked(self) -> frozenset[int]:
        """The devices that were sent something."""
        return frozenset(seen.record.peer for seen in self.sent)

    def heard(self, before: int) -> dict[int, Seen]:
        """The first answer of each device that was asked, of those that came before a record."""
        answers: dict[int, Seen] = {}
        for seen in self.came:
            if seen.record.number < before and seen.record.peer in self.asked:
                answers.setdefault(seen.record.peer, seen)
        return answers

    def in_time(self, before: int, counted: frozenset[int]) -> dict[int, Seen]:
        """The answers that came before one that was counted.

        Args:
            before: The record at which the next step begins.
            counted: The devices whose answers were counted.
        """
        answers = self.heard(before)
        last = max((a.record.number for d, a in answers.items() if d in counted), default=-1)
        return {device: a for device, a in answers.items() if a.record.number <= last}


def steps_of(session: SessionView) -> list[SessionStep]:
    """The steps of a session, in the order of the record."""
    every = [
        SessionStep("keys", session.announcements, list(session.advertisements.values())),
        SessionStep(
            "sealed shares", session.rosters, list(session.share_keys.values()), _roster(session)
        ),
        SessionStep(
            "receipts", session.deliveries, session.receipts, _list(session, session.deliveries)
        ),
    ]
    for _, slot in sorted(session.slots.items()):
        if slot.index >= len(session.params.slots):
            continue
        signed = _list(session, slot.checks)
        every += [
            SessionStep("vectors", slot.opened, slot.inputs, _list(session, slot.opened), slot),
            SessionStep("signatures", slot.checks, slot.signatures, signed, slot),
            SessionStep("shares", slot.requests, slot.helped, _list(session, slot.requests), slot),
        ]
    return sorted((step for step in every if step.sent), key=lambda step: step.begins)


def used(session: SessionView, step: SessionStep, following: SessionStep) -> frozenset[int]:
    """The devices whose answers the server has used, as far as the record shows it.

    They are asked next, or are in the list that was made of the answers or in their sum, or others
    are shown their signatures.

    Args:
        session: The session.
        step: The step that was answered.
        following: The next step.
    """
    named = following.asked
    slot = step.slot
    if step.asks == "signatures" and slot is not None:
        named |= _shown(session, following)
        if following.slot is not slot or not session.is_whole_slot(slot):
            return named  # that list is of those whose vectors came
    if step.asks == "vectors" and slot is not None:
        named |= {device for one in slot.sums for device in one.contributors.tolist()}
    return named | (following.listed or frozenset())


def _shown(session: SessionView, step: SessionStep) -> frozenset[int]:
    """The devices whose signatures came with the messages of a step."""
    messages = (seen.content.message for seen in step.sent)
    shown = {
        position
        for message in messages
        if isinstance(message, OpenSlot | UnmaskRequest)
        for position in message.signatures
    }
    return frozenset(device for device, at in session.positions.items() if at in shown)


def _roster(session: SessionView) -> frozenset[int] | None:
    """The ids of the rosters; None where no roster is kept whole."""
    if not session.listed:
        return None
    return frozenset(int(i) for ids in session.listed for i in np.frombuffer(ids, "<u4"))


def _list(session: SessionView, sent: Sequence[Seen]) -> frozenset[int] | None:
    for seen in sent:
        if seen.content.members is not None:
            return frozenset(contributors(session, seen.content.members))
    return None
