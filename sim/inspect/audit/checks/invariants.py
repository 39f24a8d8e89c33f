"""Does what passed keep to the specification, whatever machines it was made by?"""

from collections.abc import Iterable, Iterator
from typing import Final

from deltafl.protocol.messages import Announce
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit import invariants, over_sessions
from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.over_sessions import Past
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.session_log import Breach, Session
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Record, Resumed

RULES: Final = Rules.read(
    """\
spec.told-apart high server A1: devices were told different things
    Devices that were told different models, cohorts or questions can be isolated from one another.
spec.asked-again high server A20: something was asked again, or in another order than that of slots
    Whoever is asked twice may answer twice, and the difference of two answers is about few devices.
spec.relayed high server A3: keys, boxes, signatures or proofs are not those that were sent
    Whoever replaced them can read shares, compute masks, or show a list that nobody agreed on.
spec.membership high server A4: a list or a sum is over other devices than it may be
    A server that chooses who is in which sum learns of few, by a small sum or by a difference.
spec.questions high server A14: a question is not one that the sums before it allow
    A server that chooses thresholds at will can isolate the device with the largest loss.
spec.threshold high settings A1: two different lists can have enough signatures
    With colluding devices, an active server has two lists signed, and gets both secrets of one.
spec.answers medium device A22: a device answered what it was not asked, or in two ways
    It may be a message of its own, or made up to have a reason to drop the device.
shares.both-kinds critical server A2: both secrets of a device were given away
    Together, the self mask and the pairwise masks reveal the device's vector.
boxes.complaint medium somebody A22: a device said that it could not open a box
    Who sealed, relayed or refused it is at fault. Whose box it is may be a message of its own.
input.late low design A5: a masked vector came from a device that was declared dropped out
    Its pairwise masks are known, and only its self mask protects it.
input.twice high device A6: a device sent two different vectors for one slot
    Under one mask, their difference is the difference of the inputs.
parameters.changed high server A19: settings changed from round to round
    Devices took part in another run than the one that was announced first.
parameters.unfitting high server A19: an announcement does not fit the round in which it was made
    A server that announces another number can repeat a round, and invite others than it says.
session.seed-repeated high server A6: the public seed of a session repeats, or has a pattern
    Whoever knows in advance who is next to whom can place colluding devices around one.
session.twice high server A20: a session, or a round, was there twice
    Masks can be made equal. Two sums of the same inputs differ by the devices in one of them.
keys.unsigned high settings A3: sessions are not signed although the server may be active
    Devices cannot tell whose keys they use, or whether all were told the same survivors.
keys.outside-group high device A15: a key or a commitment is no honest multiple of the base point
    It may hold a message that everybody can read. Of one off the curve, nobody has the secret.
keys.low-order high device A23: a public key is of low order
    Anybody can compute the secrets that are agreed with it.
keys.reused high device A6: a public key was used twice
    Masks under one key pair repeat: the difference of two vectors is that of their inputs.
keys.two-roles high device A6: one secret has several roles
    Whoever learns it in one role can use it in the other.
keys.identity-changed high device A3: a device's identity key changed between sessions
    Somebody else may have spoken for the device since then.
keys.shared-identity high device A4: several devices have one identity
    Whoever has this identity signs for several devices, and counts as several.
"""
)


class Invariants(Check):
    """Looks at the sessions of every round, one by one and together."""

    name = "what the specification demands"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        policy = premises.expected.policy
        self._colluding = policy.colluding_rate if policy.expects_active else None
        self._sessions: dict[bytes, Session] = {}
        self._past = Past()

    def on_record(self, record: Record, digest: bytes) -> Iterable[Finding]:
        """After an interruption, devices may come back under other identities."""
        del digest
        if isinstance(record, Resumed):
            self._past.resume()
        return ()

    def on_message(self, seen: Seen, round_: RoundView) -> Iterator[Finding]:
        """Hand a message to its session, and look at what is not kept of it."""
        content, announce = seen.content, seen.content.envelope
        view = round_.sessions.get(content.tag)
        if view and isinstance(announce, Announce) and content.tag not in self._sessions:
            self._sessions[content.tag] = Session(
                view.params, announce.levels, round_.number, announce.models, self._colluding
            )
        session = self._sessions.get(content.tag)
        if session is None or (one := session.take(seen)) is None:
            return
        for sections, rule, kind, breaches in invariants.ARRIVING:
            for part in (content.message, content.proof):
                if isinstance(part, kind):
                    yield from _found(sections, rule, breaches(session, part, one))

    def on_sum(self, released: ReleasedSum) -> Iterable[Finding]:
        """Hand a sum to its session."""
        for session in reversed(self._sessions.values()):
            if session.of(Kind.SLOT, released.record.slot):
                session.sums.append(released.record)
                break
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sessions."""
        sessions = list(self._sessions.values())
        for session in sessions:
            session.breaks_off = over.view.breaks_off
            for sections, rule, breaches in invariants.INVARIANTS:
                yield from _found(sections, rule, breaches(session))
            for sections, rule, compared in over_sessions.INVARIANTS:
                yield from _found(sections, rule, compared(self._past, session))
        end = over.view.end
        self._past.end_round(sessions, is_lost=end is None or bool(end.aborted))
        self._sessions = {}

    def coverage(self, tally: Tally) -> Coverage:
        """Messages are in whole rounds only."""
        tables = invariants.ARRIVING, invariants.INVARIANTS, over_sessions.INVARIANTS
        detail = f"{sum(map(len, tables))} demands, in {tally.whole} of {tally.rounds} rounds"
        return Coverage(tally.whole, detail)


def _found(sections: str, rule: str, breaches: Iterable[Breach]) -> Iterator[Finding]:
    for one in breaches:
        yield RULES.found(rule, f"{one.detail} (spec, {sections})", one.places, one.severity)
