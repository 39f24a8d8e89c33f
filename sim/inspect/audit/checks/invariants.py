"""Does what passed keep to the specification, whatever machines it was made by?"""

from collections.abc import Iterable, Iterator

from deltafl.sim.inspect.audit import invariants, over_sessions
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.invariants import Breach
from deltafl.sim.inspect.audit.over_sessions import Past
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import INTERRUPTED, Record, Resumed


class Invariants(Check):
    """Looks at the sessions of every round, one by one and together."""

    name = "what the specification demands"
    table = """\
spec.told-apart high server A1: devices were told different things
    Devices that were told different models, cohorts or questions can be isolated from one another.
spec.asked-again high server A20: something was asked again, or in another order than that of slots
    Whoever is asked twice may answer twice, and the difference of two answers is about few devices.
spec.relayed high server A3: keys, boxes, tags, signatures or proofs are not those that were sent
    Whoever replaced them can read shares, compute masks, or show a list that nobody agreed on.
spec.membership high server A4: a list or a sum is over other devices than it may be
    A server that chooses who is in which sum learns of few, by a small sum or by a difference.
spec.questions high server A14: a question is not one that the sums before it allow
    A server that chooses thresholds at will can isolate the device with the largest loss.
spec.threshold high settings A1: two different lists can have enough signatures
    With colluding devices, an active server has two lists signed, and gets both secrets of one.
spec.answers medium device A22: a device answered without a question in the record, or in two ways
    It may be a message of its own, or made up. Under one mask, two vectors tell their difference.
shares.both-kinds critical server A2: both secrets of a device were given away
    Together, the self mask and the pairwise masks reveal the device's vector.
links.missing medium somebody A22: two devices have no link, although the boxes were sent
    Who sealed, relayed or read a box is at fault. Which links are missing may be a message.
input.late low design A5: a masked vector came from a device that was declared dropped out
    Its pairwise masks are known, and only its self mask protects it.
parameters.changed high server A19: settings changed from round to round
    Devices took part in another run than the one that was announced first.
parameters.unfitting high server A19: an announcement does not fit the round in which it was made
    A server that announces another number can repeat a round, and invite others than it says.
session.seed-repeated high server A6: the public seed of a session repeats, or has a pattern
    Whoever knows in advance who is next to whom can place colluding devices around one.
session.twice high server A20: a session, or a round, was there twice
    Masks can be made equal. Two sums of the same inputs differ by the devices in one of them.
keys.outside-group high device A15: a key or a commitment is no honest multiple of the base point
    It may be a message. Nobody has the secret of one off the curve; one of low order hides nothing.
keys.reused high device A6: a key or a secret was used twice
    Masks repeat, a secret learnt in one role opens another, or one device counts as several.
keys.identity-changed high device A3: a device's identity key changed between sessions
    Somebody else may have spoken for the device since then.
"""

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        policy = premises.expected.policy
        self._past = Past(policy.colluding_rate if policy.expects_active else None)

    def on_record(self, record: Record, digest: bytes) -> Iterable[Finding]:
        """After an interruption, devices may come back under other identities."""
        del digest
        if isinstance(record, Resumed):
            self._past.resume()
        return ()

    def on_message(self, seen: Seen, round_: RoundView) -> Iterator[Finding]:
        """Look at what is not kept of a message."""
        if (session := round_.sessions.get(seen.content.tag)) is None:
            return
        for sections, rule, kind, breaches in invariants.ARRIVING:
            for part in (seen.content.message, seen.content.proof):
                if isinstance(part, kind):
                    yield from _found(sections, rule, breaches(session, part, seen))

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sessions."""
        sessions, end = over.view.sessions.values(), over.view.end
        self._past.breaks_off = end is None or end.aborted == INTERRUPTED
        for session in sessions:
            for sections, rule, breaches in invariants.INVARIANTS:
                yield from _found(sections, rule, breaches(session))
            for sections, rule, compared in over_sessions.INVARIANTS:
                yield from _found(sections, rule, compared(self._past, session))
        self._past.end_round(sessions, is_lost=end is None or bool(end.aborted))

    def coverage(self, tally: Tally) -> Coverage:
        """Messages are in whole rounds only."""
        tables = invariants.ARRIVING, invariants.INVARIANTS, over_sessions.INVARIANTS
        detail = f"{sum(map(len, tables))} demands, in {tally.whole} of {tally.rounds} rounds"
        return Coverage(tally.whole, detail)


def _found(sections: str, rule: str, breaches: Iterable[Breach]) -> Iterator[Finding]:
    for one in breaches:
        yield Invariants.rules.found(
            rule, f"{one.detail} (spec, {sections})", one.places, one.severity
        )
