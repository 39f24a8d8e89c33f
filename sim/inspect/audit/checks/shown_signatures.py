"""Were devices shown the signatures that an honest server shows: the first ones that they count?

A device counts the signatures of the holders of its shares whose boxes it could read. An honest
server shows it the first t of those that came. A server that chooses others, or more, tells devices
something by its choice.

Spec: §10.7, §10.8.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from deltafl.secagg.messages import OpenSlot, UnmaskRequest
from deltafl.sim.inspect.audit.check import Check, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.dismissals import closings, refusals_of, said_at
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A16, Rule, Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.steps import SessionStep, steps_of, used
from deltafl.sim.inspect.audit.views import SessionView

RULES: Final = Rules(
    {
        "lists.chosen-signatures": Rule(
            Severity.MEDIUM,
            "devices were shown other signatures than the first that they count",
            "Which signatures a device is shown may be a message to it, which no other device "
            "sees.",
            "Find out why the server chose them. Until then, do not use it.",
            A16,
        ),
    }
)


class ShownSignatures(Check):
    """Computes which signatures each device had to be shown, with every list."""

    name = "which signatures are shown"
    rules = RULES

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's signed lists."""
        for session in over.view.sessions.values():
            if not (session.is_whole and session.params.signed):
                continue
            for step, following in pairwise(steps_of(session)):
                yield from _chosen(session, over.view.strange, step, following)

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages contain what was signed."""
        return Coverage(tally.whole, f"{tally.whole} of {tally.rounds} rounds are recorded whole")


def _chosen(
    session: SessionView, strange: Iterable[Seen], step: SessionStep, following: SessionStep
) -> Iterator[Finding]:
    """Messages with other signatures than the first, wherever the step may have been closed."""
    shown = {
        seen: frozenset(message.signatures)
        for seen in following.sent
        if isinstance(message := seen.content.message, OpenSlot | UnmaskRequest)
        and seen.record.peer in session.positions
    }
    refusals = refusals_of(session)
    if refusals is None or not shown:
        return
    asks_to_sign = step.asks == "signatures" and step.slot is following.slot
    said = said_at(session, strange, step, following.begins)
    taken = [
        (one.taken.record.number, device)
        for device, one in said.items()
        if one.taken is not None and device in step.asked and asks_to_sign
    ]
    counted = used(session, step, following) & {device for _, device in taken}
    other = min(
        (
            [
                seen
                for seen, signers in shown.items()
                if signers != _due(session, seen.record.peer, came, refusals)
            ]
            for came in closings(taken, counted)
        ),
        key=len,
    )
    if other:
        detail = (
            f"{len(other)} devices, such as {other[0].record.peer}, were not shown the first "
            f"{session.params.threshold} signatures that they count"
        )
        yield RULES.found("lists.chosen-signatures", detail, [seen.place for seen in other])


def _due(
    session: SessionView,
    device: int,
    came: frozenset[int],
    refusals: Mapping[int, frozenset[int]],
) -> frozenset[int]:
    """The positions of those whose signatures an honest server shows a device."""
    position = session.positions[device]
    collected = {session.positions[one] for one in came if one in session.positions}
    credible = collected - refusals.get(position, frozenset())
    holders = session.graph.holders_of(position).tolist()
    return frozenset([p for p in holders if p in credible][: session.params.threshold])
