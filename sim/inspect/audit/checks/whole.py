"""Was every whole slot summed over exactly the devices that were agreed on last, or not at all?

Nothing of a whole slot is ever rebuilt: its masks cancel only if all its vectors are added up. A
server that gets a second sum over fewer devices would know the answers of those that are missing.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from deltafl.secagg.graph import Members
from deltafl.sim.inspect.audit.check import Check, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A1, A2, A13, Rule, Rules
from deltafl.sim.inspect.audit.views import SessionView, SlotView, contributors, place_of

RULES: Final = Rules(
    {
        "lists.not-whole": Rule(
            Severity.HIGH,
            "a query covered only part of its search's cohort",
            "The difference of two sums is the answer of the devices that are missing.",
            "Keep using devices that insist on whole slots, and stop using this server.",
            A13,
        ),
        "lists.not-agreed": Rule(
            Severity.HIGH,
            "a whole slot was opened over devices that had not agreed on it",
            "The sum may be over devices of the server's choice, and may differ by few devices "
            "from another sum.",
            "Keep using devices that compare the list with the last one, and stop using this "
            "server.",
            A1,
        ),
        "whole.unmasked": Rule(
            Severity.HIGH,
            "shares were asked for, or came, for a whole slot",
            "A whole slot has no secrets to be rebuilt. Whoever asks for them is after those of "
            "another slot.",
            "Keep using devices that refuse this, and stop using this server.",
            A2,
        ),
        "whole.incomplete": Rule(
            Severity.HIGH,
            "a whole slot has a sum although a device's vector is missing",
            "Without all vectors the masks do not cancel, so the sum was not learnt through this "
            "protocol, or a vector is missing from the record.",
            "Find out where the sum comes from.",
            A13,
        ),
    }
)


class WholeSlots(Check):
    """Follows the list of devices that was agreed on, from slot to slot."""

    name = "whole slots"
    rules = RULES

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sessions, slot by slot."""
        for session in over.view.sessions.values():
            yield from _lists(session)
            for slot in session.slots.values():
                if session.is_whole_slot(slot):
                    yield from _secrets(slot)
                    yield from _sums(session, slot)

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough."""
        return Coverage(tally.told, "members, vectors and messages of every whole slot")


def _lists(session: SessionView) -> Iterator[Finding]:
    """Whole slots that were opened over other devices than were agreed on last."""
    agreed: Members | None = None
    for _, slot in sorted(session.slots.items()):
        if slot.index >= len(session.params.slots):
            continue
        if not session.is_whole_slot(slot):
            agreed = agreed if slot.survivors is None else slot.survivors
            continue
        members = slot.members
        if members is None:
            continue
        place = slot.opened[0].place
        if agreed is None:
            agreed = members
            if session.params.signed and not _was_listed(slot, members):
                detail = f"slot {slot.index} is over devices of which no list was sent to be signed"
                yield RULES.found("lists.not-agreed", detail, [place])
        elif len(members) != len(agreed) or (members & ~agreed).any():
            detail = f"slot {slot.index} is over devices that were not agreed on last"
            yield RULES.found("lists.not-agreed", detail, [place])
        elif (agreed & ~members).any():
            missing = _some(contributors(session, agreed & ~members))
            detail = f"slot {slot.index} lacks devices {missing} of the search's cohort"
            yield RULES.found("lists.not-whole", detail, [place])
        told = frozenset(contributors(session, members))
        for released in slot.sums:
            if left_out := told - frozenset(released.contributors.tolist()):
                detail = f"slot {slot.index} lacks devices {_some(left_out)} of the search's cohort"
                yield RULES.found("lists.not-whole", detail, [place])


def _was_listed(slot: SlotView, members: Members) -> bool:
    """Whether the devices were sent this list to sign, before the slot was opened."""
    begins = slot.opened[0].record.number
    return any(
        seen.record.number < begins
        and seen.content.members is not None
        and np.array_equal(seen.content.members, members)
        for seen in slot.checks
    )


def _secrets(slot: SlotView) -> Iterator[Finding]:
    """Messages about secrets that a whole slot does not have."""
    if slot.requests:
        detail = f"slot {slot.index}: {len(slot.requests)} devices were asked for shares"
        yield RULES.found("whole.unmasked", detail, [seen.place for seen in slot.requests])
    if slot.shares or slot.given:
        places = [seen.place for seen in slot.shares] or [slot.opened[0].place]
        yield RULES.found("whole.unmasked", f"slot {slot.index}: shares came", places)


def _sums(session: SessionView, slot: SlotView) -> Iterator[Finding]:
    """Sums before all vectors were there."""
    if slot.members is None:
        return
    told = set[int](contributors(session, slot.members))
    for released in slot.sums:
        came = {seen.record.peer for seen in slot.inputs if seen.record.number < released.number}
        if missing := told - came:
            detail = f"slot {slot.index}: no vector came from devices {_some(missing)} before"
            yield RULES.found("whole.incomplete", detail, [place_of(released)])


def _some(devices: frozenset[int] | set[int] | tuple[int, ...]) -> str:
    shown = ", ".join(map(str, sorted(devices)[:5]))
    return shown if len(devices) <= 5 else f"{shown} and {len(devices) - 5} more"
