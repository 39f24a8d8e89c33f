"""Were both secrets of a device given away? Did vectors come late, or twice?"""

from collections.abc import Iterator

from deltafl.secagg.messages import ShareKind
from deltafl.sim.inspect.audit.catalogue import found
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.views import RoundView, SessionView, SlotView


def check(round_: RoundView) -> Iterator[Finding]:
    """Look at the shares that came, and at vectors beside those that were summed."""
    for session in round_.sessions.values():
        for slot in session.slots.values():
            yield from _both_kinds(session, slot)
            yield from _inputs(session, slot)


def _both_kinds(session: SessionView, slot: SlotView) -> Iterator[Finding]:
    seeds, keys = slot.given.get(ShareKind.SEED), slot.given.get(ShareKind.KEY)
    if seeds is None or keys is None:
        return
    num_seeds, num_keys = seeds.sum(axis=0), keys.sum(axis=0)
    ids, threshold = session.ids.tolist(), session.params.threshold
    for owner in ((num_seeds > 0) & (num_keys > 0)).nonzero()[0].tolist():
        known = min(int(num_seeds[owner]), int(num_keys[owner])) >= threshold
        detail = (
            f"for device {ids[owner]}, slot {slot.index}: {num_seeds[owner]} shares of its seed, "
            f"{num_keys[owner]} of its key; {threshold} rebuild either"
        )
        places = [seen.place for seen in slot.requests[:2]] or [slot.opened[0].place]
        severity = Severity.CRITICAL if known else Severity.HIGH
        yield found("shares.both-kinds", detail, places, severity)


def _inputs(session: SessionView, slot: SlotView) -> Iterator[Finding]:
    first: dict[int, bytes] = {}
    survivors = slot.survivors
    for seen in slot.inputs:
        device = seen.record.peer
        if first.setdefault(device, seen.record.sha256) != seen.record.sha256:
            detail = f"device {device} sent two different vectors for slot {slot.index}"
            yield found("input.twice", detail, [seen.place])
        position = session.positions.get(device)
        if survivors is None or position is None or position >= len(survivors):
            continue
        if not survivors[position]:
            detail = f"the vector of device {device} for slot {slot.index} came, and was not summed"
            yield found("input.late", detail, [seen.place])
