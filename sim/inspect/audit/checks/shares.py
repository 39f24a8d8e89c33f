"""Were both secrets of a device given away? Were boxes refused? Did vectors come late, or twice?"""

from collections.abc import Iterator
from typing import Final

from deltafl.secagg.messages import ShareKind, ShareReceipt
from deltafl.sim.inspect.audit.check import Check, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.views import SessionView, SlotView

RULES: Final = Rules.read(
    """\
shares.both-kinds critical server A2: both secrets of a device were given away
    Together, the self mask and the pairwise masks reveal the device's vector.
boxes.complaint medium somebody A22: a device said that it could not open a box
    Somebody did not follow the protocol: the device that sealed the box, the server that relayed
    it, or the device that complains. Whose boxes a device refuses may be a message of its own.
input.late low design A5: a masked vector came from a device that was declared dropped out
    Its pairwise masks are known, and only its self mask protects it.
input.twice high device A6: a device sent two different vectors for one slot
    Under one mask, their difference is the difference of the inputs.
"""
)


class Shares(Check):
    """Looks at the shares that came, and at vectors that were not summed."""

    name = "shares of one kind"
    rules = RULES

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's slots, one by one."""
        for session in over.view.sessions.values():
            yield from _complaints(session)
            for slot in session.slots.values():
                yield from _both_kinds(session, slot)
                yield from _inputs(session, slot)

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages contain shares."""
        return Coverage(tally.whole, f"{tally.whole} of {tally.rounds} rounds are recorded whole")


def _complaints(session: SessionView) -> Iterator[Finding]:
    """Receipts that refuse boxes; one that refuses none is short, and so kept whole."""
    for seen in session.receipts:
        message = seen.content.message
        if isinstance(message, ShareReceipt) and not message.refused:
            continue
        ids, refused = session.ids.tolist(), "boxes"
        if isinstance(message, ShareReceipt):
            sealed = [str(ids[p]) if p < len(ids) else "?" for p in message.refused]
            refused = f"the boxes of devices {', '.join(sealed[:5])}"
            refused += f" and {len(sealed) - 5} more" if sealed[5:] else ""
        detail = f"device {seen.record.peer} refused {refused}"
        yield RULES.found("boxes.complaint", detail, [seen.place])


def _both_kinds(session: SessionView, slot: SlotView) -> Iterator[Finding]:
    seeds, keys = slot.given.get(ShareKind.SEED), slot.given.get(ShareKind.KEY)
    if seeds is None or keys is None:
        return
    num_seeds, num_keys = seeds.counts(), keys.counts()
    ids, threshold = session.ids.tolist(), session.params.threshold
    for owner in ((num_seeds > 0) & (num_keys > 0)).nonzero()[0].tolist():
        known = min(int(num_seeds[owner]), int(num_keys[owner])) >= threshold
        detail = (
            f"for device {ids[owner]}, slot {slot.index}: {num_seeds[owner]} shares of its seed, "
            f"{num_keys[owner]} of its key; {threshold} rebuild either"
        )
        places = [seen.place for seen in slot.requests[:2]] or [slot.opened[0].place]
        severity = Severity.CRITICAL if known else Severity.HIGH
        yield RULES.found("shares.both-kinds", detail, places, severity)


def _inputs(session: SessionView, slot: SlotView) -> Iterator[Finding]:
    first: dict[int, bytes] = {}
    survivors = slot.survivors
    for seen in slot.inputs:
        device = seen.record.peer
        if first.setdefault(device, seen.record.sha256) != seen.record.sha256:
            detail = f"device {device} sent two different vectors for slot {slot.index}"
            yield RULES.found("input.twice", detail, [seen.place])
        position = session.positions.get(device)
        if survivors is None or position is None or position >= len(survivors):
            continue
        if not survivors[position]:
            detail = f"the vector of device {device} for slot {slot.index} came, but was not summed"
            yield RULES.found("input.late", detail, [seen.place])
