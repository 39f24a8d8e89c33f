"""Did every message come in its turn, to a device of the session?

Devices refuse what is untimely, and an honest server never sends it. So it shows a server that
tried something, or a record from which messages were taken.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from deltafl.secagg.messages import OpenSlot, UnmaskRequest
from deltafl.sim.inspect.audit.check import Check, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A20, Rule, Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import SessionView, SlotView, place_of

RULES: Final = Rules(
    {
        "messages.untimely": Rule(
            Severity.MEDIUM,
            "a message was sent out of turn",
            "Devices refuse it, and an honest server never sends it. A device that did not refuse "
            "might answer twice, or for a sum that is not known yet.",
            "Keep using devices that refuse such messages, and find out why the server sent it.",
            A20,
        ),
    }
)


class Turns(Check):
    """Follows the slots of every session, in the order of the record."""

    name = "order of messages"
    rules = RULES

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sessions, one by one."""
        for session in over.view.sessions.values():
            slots = [slot for _, slot in sorted(session.slots.items())]
            yield from _strangers(session, slots)
            yield from _opened_again(slots)
            yield from _sums_that_came_late(slots)
            yield from _lists(session, slots)
            yield from _proofs(slots)
            yield from _grown(session, slots)

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough."""
        return Coverage(tally.told, "slots, sums, lists and proofs, one after the other")


def _untimely(detail: str, seen: Sequence[Seen]) -> Finding:
    return RULES.found("messages.untimely", detail, [one.place for one in seen])


def _strangers(session: SessionView, slots: Sequence[SlotView]) -> Iterator[Finding]:
    """Messages to devices that were sent no roster."""
    known = set(session.positions)
    sent = [*session.deliveries]
    for slot in slots:
        sent += [*slot.opened, *slot.checks, *slot.requests]
    if strange := [seen for seen in sent if seen.record.peer not in known]:
        device = strange[0].record.peer
        yield _untimely(f"device {device} was sent messages, but no roster", strange)


def _opened_again(slots: Sequence[SlotView]) -> Iterator[Finding]:
    """Slots that were opened twice for a device, or after a later one."""
    opened = [(seen.record.number, slot.index, seen) for slot in slots for seen in slot.opened]
    last: dict[int, int] = {}
    late: dict[tuple[int, int], list[Seen]] = {}
    for _, index, seen in sorted(opened, key=lambda one: one[0]):
        before = last.get(seen.record.peer, -1)
        if index <= before:
            late.setdefault((index, before), []).append(seen)
        last[seen.record.peer] = max(index, before)
    for (index, before), again in late.items():
        what = "again" if index == before else f"after slot {before}"
        yield _untimely(f"slot {index} was opened {what} for {len(again)} devices", again)


def _sums_that_came_late(slots: Sequence[SlotView]) -> Iterator[Finding]:
    """Sums that were learnt after the next question had been asked."""
    for slot in slots:
        later = [seen for other in slots if other.index > slot.index for seen in other.opened]
        begins = min((seen.record.number for seen in later), default=None)
        for released in slot.sums:
            if begins is not None and begins < released.number:
                detail = f"the sum of slot {slot.index} came after a later slot had been opened"
                yield RULES.found("messages.untimely", detail, [place_of(released)])


def _lists(session: SessionView, slots: Sequence[SlotView]) -> Iterator[Finding]:
    """Lists to be signed, and signatures of lists, where they have no place."""
    agreed = False
    for slot in slots:
        if slot.index >= len(session.params.slots):
            continue
        is_whole = session.is_whole_slot(slot)
        has_lists = session.params.signed and not (is_whole and agreed)
        if slot.checks and not has_lists:
            detail = f"slot {slot.index}: devices were asked to sign a list that nobody needs"
            yield _untimely(detail, slot.checks)
        told = [*slot.opened] if not is_whole or not has_lists else []
        told += [] if session.params.signed else slot.requests
        if signed := [seen for seen in told if _has_signatures(seen)]:
            yield _untimely(
                f"slot {slot.index}: signatures came with a list that needs none", signed
            )
        agreed = agreed or bool(slot.requests or (is_whole and (slot.opened or slot.checks)))


def _has_signatures(seen: Seen) -> bool:
    message = seen.content.message
    return isinstance(message, OpenSlot | UnmaskRequest) and bool(message.signatures)


def _proofs(slots: Sequence[SlotView]) -> Iterator[Finding]:
    """Proofs of another slot's sum than that of the slot that was opened last."""
    before: SlotView | None = None
    for slot in (slot for slot in slots if slot.opened):
        strange = [
            seen
            for seen in slot.opened
            if seen.content.proof is not None
            and (before is None or seen.content.proof.slot != before.index)
        ]
        if strange:
            detail = f"slot {slot.index} came with the proof of a sum that is not the one before"
            yield _untimely(detail, strange)
        before = slot


def _grown(session: SessionView, slots: Sequence[SlotView]) -> Iterator[Finding]:
    """Slots that were opened over devices that an earlier list had left out."""
    seen_first = next((s for s in session.deliveries if s.content.members is not None), None)
    cohort = None if seen_first is None else seen_first.content.members
    for slot in slots:
        members, is_grown = slot.members, False
        if members is not None and cohort is not None and len(members) == len(cohort):
            is_grown = bool((members & ~cohort).any())
        if is_grown and not session.is_whole_slot(slot):  # of whole ones, see `lists.not-agreed`
            detail = f"slot {slot.index} was opened over devices that had been lost before"
            yield _untimely(detail, slot.opened)
        summed = session.summed(slot) if slot.index < len(session.params.slots) else None
        for known in (members, summed):
            if known is not None:
                same = cohort is not None and len(known) == len(cohort)
                cohort = known & cohort if cohort is not None and same else known
