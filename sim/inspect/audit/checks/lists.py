"""Was everybody told the same: model, question, roster, cohort, survivors?"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

from deltafl.protocol.messages import Ask
from deltafl.sim.inspect.audit.catalogue import found
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import RoundView, SessionView, SlotView, contributors


def check(round_: RoundView) -> Iterator[Finding]:
    """Compare what devices were told, message by message."""
    yield from _announcements(round_)
    for session in round_.sessions.values():
        if len(session.listed) > 1:
            places = [seen.place for seen in session.listed.values()]
            yield found("lists.roster", f"{len(places)} different rosters", places)
        yield from _differing("lists.members", "deliveries of shares", session.deliveries, _members)
        for slot in session.slots.values():
            yield from _slot(session, slot)
        for level in session.by_level():
            yield from _whole_slots(level)


def _announcements(round_: RoundView) -> Iterator[Finding]:
    """Different announcements to different devices, or to the same ones."""
    by_digest: dict[bytes, list[Seen]] = {}
    for session in round_.sessions.values():
        for seen in session.announcements:
            by_digest.setdefault(seen.record.sha256, []).append(seen)
    if len(by_digest) < 2:
        return
    told = [seen.record.peer for group in by_digest.values() for seen in group]
    places = [group[0].place for group in by_digest.values()]
    if len(set(told)) == len(told):
        sizes = " and ".join(str(len(group)) for group in by_digest.values())
        detail = f"{len(by_digest)} different announcements, to {sizes} devices"
        yield found("broadcast.announcement", detail, places)
    else:
        devices = sorted(device for device, times in Counter(told).items() if times > 1)
        detail = f"{len(devices)} devices, such as {devices[0]}, were announced the round twice"
        yield found("session.twice", detail, places)


def _slot(session: SessionView, slot: SlotView) -> Iterator[Finding]:
    name = f"slot {slot.index}"
    yield from _differing("broadcast.question", f"questions in {name}", slot.opened, _question)
    yield from _differing("lists.members", f"cohorts in {name}", slot.opened, _members)
    lists = [*slot.checks, *slot.requests]
    yield from _differing("lists.survivors", f"lists of survivors in {name}", lists, _members)
    del session


def _whole_slots(session: SessionView) -> Iterator[Finding]:
    """A query over fewer devices than the one before, or a part of a whole slot's cohort."""
    before: frozenset[int] | None = None
    for _, slot in sorted(session.slots.items()):
        index = slot.index
        if index >= len(session.params.slots) or slot.members is None:
            continue
        told = frozenset(contributors(session, slot.members))
        if session.params.slots[index].whole:
            missing = (before or told) - told
            for released in slot.sums:
                missing |= told - frozenset(released.contributors.tolist())
            if missing:
                detail = f"slot {index} lacks devices {_some(missing)} of the search's cohort"
                yield found("lists.not-whole", detail, [slot.opened[0].place])
        before = told
        for released in slot.sums:
            before = frozenset(released.contributors.tolist())


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
        yield found(rule, detail, [group[0].place for group in groups.values()])


def _members(seen: Seen) -> bytes | None:
    return None if seen.content.members is None else seen.content.members.tobytes()


def _question(seen: Seen) -> bytes | None:
    envelope = seen.content.envelope
    if not isinstance(envelope, Ask):
        return None
    return type(envelope.question).__name__.encode() + envelope.question.canonical()


def _some(devices: frozenset[int]) -> str:
    shown = ", ".join(map(str, sorted(devices)[:5]))
    return shown if len(devices) <= 5 else f"{shown} and {len(devices) - 5} more"
