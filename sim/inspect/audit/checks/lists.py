"""Were all devices told the same model, question, roster, cohort and survivors?"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

from deltafl.protocol.messages import Ask
from deltafl.sim.inspect.audit.check import Check, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A1, A8, Rule, Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import SlotView

RULES: Final = Rules(
    {
        "broadcast.announcement": Rule(
            Severity.HIGH,
            "devices were shown different models or settings",
            "The masks of devices that were shown different ones do not cancel. Without this "
            "binding, a device's update would be isolated.",
            "Keep using devices that check the binding, and stop using this server.",
            A8,
        ),
        "broadcast.question": Rule(
            Severity.HIGH,
            "devices were asked different questions in one slot",
            "Different queries or thresholds single out a device, and only the binding of the "
            "masks protects it.",
            "Keep using devices that check the binding, and stop using this server.",
            A8,
        ),
        "broadcast.proof": Rule(
            Severity.HIGH,
            "devices were sent different proofs with one question",
            "Devices that believe different sums follow different searches.",
            "Keep using devices that check proofs, and stop using this server.",
            A8,
        ),
        "lists.roster": Rule(
            Severity.HIGH,
            "devices were shown different rosters",
            "Devices that were shown different cohorts can be isolated from one another.",
            "Sign sessions (`privacy.signed`), and stop using this server.",
            A1,
        ),
        "lists.members": Rule(
            Severity.HIGH,
            "devices were told different cohorts for one slot",
            "A device may have been made to mask against devices that are not there.",
            "Sign sessions (`privacy.signed`), and stop using this server.",
            A1,
        ),
        "lists.survivors": Rule(
            Severity.HIGH,
            "devices were told different survivors",
            "With enough helpers on each side, the server gets both secrets of a device and "
            "reads its vector.",
            "Sign sessions (`privacy.signed`): devices then compare the list before they help.",
            A1,
        ),
    }
)


class ToldTheSame(Check):
    """Compares what devices were told, message by message."""

    name = "the same for all"
    rules = RULES

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's announcements, and at every list in its sessions."""
        sessions = over.view.sessions.values()
        yield from _announcements([seen for session in sessions for seen in session.announcements])
        for session in sessions:
            if len(session.listed) > 1:
                places = [seen.place for seen in session.listed.values()]
                yield RULES.found("lists.roster", f"{len(places)} different rosters", places)
            told = session.deliveries
            yield from _differing("lists.members", "deliveries of shares", told, _members)
            for slot in session.slots.values():
                yield from _slot(slot)

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough."""
        return Coverage(tally.told, "models, questions, proofs, rosters, cohorts, survivors")


def _announcements(announced: Sequence[Seen]) -> Iterator[Finding]:
    """Different announcements to different devices; two to one device are two sessions."""
    by_digest: dict[bytes, list[Seen]] = {}
    for seen in announced:
        by_digest.setdefault(seen.record.sha256, []).append(seen)
    if len(by_digest) > 1 and len({seen.record.peer for seen in announced}) == len(announced):
        sizes = " and ".join(str(len(group)) for group in by_digest.values())
        detail = f"{len(by_digest)} different announcements, to {sizes} devices"
        places = [group[0].place for group in by_digest.values()]
        yield RULES.found("broadcast.announcement", detail, places)


def _slot(slot: SlotView) -> Iterator[Finding]:
    name = f"slot {slot.index}"
    yield from _differing("broadcast.question", f"questions in {name}", slot.opened, _question)
    yield from _differing("broadcast.proof", f"proofs in {name}", slot.opened, _proof)
    yield from _differing("lists.members", f"cohorts in {name}", slot.opened, _members)
    lists = [*slot.checks, *slot.requests]
    yield from _differing("lists.survivors", f"lists in {name}", lists, _members)


def _differing(
    rule: str, what: str, messages: Sequence[Seen], key: Callable[[Seen], Hashable]
) -> Iterator[Finding]:
    groups: dict[Hashable, list[Seen]] = {}
    for seen in messages:
        if (value := key(seen)) is not None:
            groups.setdefault(value, []).append(seen)
    if len(groups) > 1:
        sizes = " and ".join(str(len(group)) for group in groups.values())
        detail = f"{len(groups)} different {what}, told to {sizes} devices"
        yield RULES.found(rule, detail, [group[0].place for group in groups.values()])


def _members(seen: Seen) -> bytes | None:
    return None if seen.content.members is None else seen.content.members.tobytes()


def _proof(seen: Seen) -> bytes | None:
    envelope = seen.content.envelope
    return envelope.opening if isinstance(envelope, Ask) else None


def _question(seen: Seen) -> bytes | None:
    envelope = seen.content.envelope
    if not isinstance(envelope, Ask):
        return None
    return type(envelope.question).__name__.encode() + envelope.question.canonical()
