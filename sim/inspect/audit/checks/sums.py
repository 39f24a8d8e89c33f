"""Is every sum what the messages add up to, and is every sum in the record?"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.facts import CheckFacts
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A17, A24, Rule, Rules
from deltafl.sim.inspect.audit.views import SessionView, SlotView, contributors, place_of
from deltafl.sim.record.transcript import SUM_WORDS, Sum, sum_sha256

RULES: Final = Rules(
    {
        "sums.differ": Rule(
            Severity.HIGH,
            "a sum is not what the messages add up to",
            "The server reported something other than what it received.",
            "Trust the replayed sums; find out why the server's differ.",
            A17,
        ),
        "sums.unreplayable": Rule(
            Severity.MEDIUM,
            "a sum cannot be computed from the messages",
            "Either messages are missing from the record, or the server got the sum from "
            "elsewhere.",
            "Look at the evidence. A sum that no message explains was not learnt through this "
            "protocol.",
            A17,
        ),
        "sums.out-of-range": Rule(
            Severity.MEDIUM,
            "a sum is outside its range",
            "Devices were bound to different values, or one of them did not follow the layout.",
            "Discard the round, and look for different announcements.",
            A17,
        ),
        "sums.unrecorded": Rule(
            Severity.HIGH,
            "the server could compute a sum that is not in the record",
            "The server learnt a sum that it did not record.",
            "Find out what happened to it.",
            A24,
        ),
    }
)


class Sums(Check):
    """Compares the recorded sums with those computed from the messages."""

    name = "sums from messages"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._released = 0
        self._replayed = 0  # and equal

    def on_sum(self, released: ReleasedSum) -> Iterator[Finding]:
        """Compare a sum or, if its messages are not kept, the devices that it is said to cover."""
        self._released += 1
        entry, replayed = released.record, released.replayed
        if released.slot is None:
            if not released.round.is_opaque:
                detail = f"slot {entry.slot}: there is a sum although nothing was asked for"
                yield RULES.found("sums.unreplayable", detail, [place_of(entry)])
            return
        session, slot = released.slot
        if replayed is None:
            if session.summed(slot) is not None:
                yield from _contributors(session, slot, entry)
        elif replayed.total is None:
            detail = f"slot {slot.index}: {replayed.problem}"
            yield RULES.found("sums.unreplayable", detail, [place_of(entry)])
        elif sum_sha256(replayed.total) != entry.sha256 or not np.array_equal(
            replayed.total[-SUM_WORDS:].astype(np.uint64), entry.words
        ):
            detail = f"slot {slot.index}: its {entry.length} words are not those recorded"
            yield RULES.found("sums.differ", detail, [place_of(entry)])
        else:
            others = tuple(_contributors(session, slot, entry))
            self._replayed += not others
            yield from others

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look for sums that are not recorded, and for sums that no vectors add up to."""
        end = over.view.end
        is_given_up = end is not None and bool(end.aborted)
        stops = end is None and over.following is None  # the record ends here, perhaps the server
        for session in over.view.sessions.values():
            for slot in session.slots.values():
                may_lack = is_given_up or (stops and slot.index == max(session.slots))
                severity = Severity.LOW if may_lack else None
                if not slot.sums and slot.shares and _could_unmask(session, slot):
                    # in a round that was given up, the last shares may have come too late
                    detail = f"slot {slot.index}: enough shares came to unmask it"
                    place = slot.shares[0].place
                    yield RULES.found("sums.unrecorded", detail, [place], severity)
                elif not slot.sums and session.is_whole_slot(slot):
                    yield from _all_came(session, slot, severity)
        for one in over.played:
            for seen in one.out_of_range:
                yield RULES.found("sums.out-of-range", seen.detail, [seen.place])

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages contain vectors and shares."""
        replayed = f"{self._replayed} of {self._released} sums computed again and equal"
        return Coverage(tally.whole, replayed)

    def facts(self) -> CheckFacts:
        """How many sums there were, and how many of them agree."""
        return {"sums_released": self._released, "sums_replayed": self._replayed}


def _contributors(session: SessionView, slot: SlotView, entry: Sum) -> Iterator[Finding]:
    """Check that a sum covers the devices that it must be over."""
    summed = session.summed(slot)
    devices = () if summed is None else contributors(session, summed)
    if sorted(devices) != entry.contributors.tolist():
        detail = f"slot {slot.index}: it covers other devices than recorded"
        yield RULES.found("sums.differ", detail, [place_of(entry)])


def _all_came(session: SessionView, slot: SlotView, severity: Severity | None) -> Iterator[Finding]:
    """A whole slot without a sum although all its vectors came.

    LOW if the server says that one of the devices was gone by then: its vector may have been late.
    """
    members = slot.members
    if members is None or not members.any():
        return
    wanted = set(contributors(session, members))
    came = [seen for seen in slot.inputs if seen.record.peer in wanted]
    if {seen.record.peer for seen in came} != wanted:
        return
    is_late = any(
        later.members is not None
        and len(later.members) == len(members)
        and bool((members & ~later.members).any())
        for index, later in session.slots.items()
        if index > slot.index
    )
    detail = f"slot {slot.index}: all its vectors came{', one of them late' if is_late else ''}"
    found = Severity.LOW if is_late else severity
    yield RULES.found("sums.unrecorded", detail, [came[-1].place], found)


def _could_unmask(session: SessionView, slot: SlotView) -> bool:
    """Whether enough shares came: for every device if shares are kept, else from enough devices."""
    if not slot.given:
        return len({seen.record.peer for seen in slot.shares}) >= session.params.threshold
    given = np.sum([holders.counts() for holders in slot.given.values()], axis=0)
    members = slot.members
    if members is None or len(members) != len(given) or not members.any():
        return False
    return bool((given[members] >= session.params.threshold).all())
