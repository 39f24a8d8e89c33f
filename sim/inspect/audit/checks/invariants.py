"""Does what passed keep to the specification, whatever machines it was made by?"""

from collections.abc import Iterable, Iterator
from typing import Final

from deltafl.protocol.messages import Announce
from deltafl.sim.inspect.audit import invariants, over_sessions
from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.over_sessions import Past
from deltafl.sim.inspect.audit.rules import (
    A1,
    A2,
    A3,
    A4,
    A5,
    A6,
    A14,
    A15,
    A19,
    A20,
    A22,
    A23,
    Rule,
    Rules,
)
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.session_log import Breach, Session
from deltafl.sim.inspect.audit.views import RoundView, place_of
from deltafl.sim.record.transcript import Record, Resumed

RULES: Final = Rules(
    {
        "spec.told-apart": Rule(
            Severity.HIGH,
            "devices were told different things where the specification has one",
            "Devices that were told different models, cohorts or questions can be isolated from "
            "one another.",
            "Stop using this server.",
            A1,
        ),
        "spec.asked-again": Rule(
            Severity.HIGH,
            "something was asked more than once, or in another order than the slots'",
            "Whoever is asked twice may answer twice, and the difference of two answers is about "
            "few devices.",
            "Stop using this server.",
            A20,
        ),
        "spec.relayed": Rule(
            Severity.HIGH,
            "keys, boxes, signatures or proofs are not those that were sent",
            "Whoever replaced them can read the shares, compute the masks, or show a list that "
            "nobody agreed on.",
            "Stop using this server.",
            A3,
        ),
        "spec.membership": Rule(
            Severity.HIGH,
            "a list or a sum is over other devices than the specification allows",
            "A server that chooses who is in which sum learns of few devices, by a small sum or by "
            "the difference of two.",
            "Stop using this server.",
            A4,
        ),
        "spec.questions": Rule(
            Severity.HIGH,
            "a question is not one that the sums before it allow",
            "A server that chooses thresholds at will can isolate the device with the largest "
            "loss.",
            "Stop using this server.",
            A14,
        ),
        "spec.threshold": Rule(
            Severity.HIGH,
            "two lists can have enough signatures",
            "With the devices that collude with it, an active server has two lists signed, and "
            "gets both secrets of a device.",
            "Raise the threshold above half of the holders and of those that may collude.",
            A19,
        ),
        "spec.answers": Rule(
            Severity.MEDIUM,
            "a device's answer is not one to what it was asked",
            "It may be a message of its own, or a reason that was made up to drop the device.",
            "Find out what the device sent, and why.",
            A22,
        ),
        "shares.both-kinds": Rule(
            Severity.CRITICAL,
            "both secrets of a device were given away",
            "Together, the self mask and the pairwise masks reveal the device's vector.",
            "Sign sessions. Devices must release only one kind of share for each device and slot.",
            A2,
        ),
        "boxes.complaint": Rule(
            Severity.MEDIUM,
            "a device said that it could not open a box",
            "Somebody did not follow the protocol: the device that sealed the box, the server that "
            "relayed it, or the device that complains. Whose boxes a device refuses may be a "
            "message of its own.",
            "Simulate the run with a truth file: it shows whether the box holds shares.",
            A22,
        ),
        "input.late": Rule(
            Severity.LOW,
            "a masked vector came from a device that was declared dropped out",
            "Its pairwise masks are known, and only its self mask protects it.",
            "Do nothing as long as no share of its self mask is released. Expect this on slow "
            "networks.",
            A5,
        ),
        "input.twice": Rule(
            Severity.HIGH,
            "a device sent two different vectors for one slot",
            "Under one mask, their difference is the difference of the inputs.",
            "Send a masked vector once, and repeat it only byte for byte.",
            A6,
        ),
        "parameters.changed": Rule(
            Severity.HIGH,
            "settings changed from round to round",
            "Devices took part in another run than the one that was announced first.",
            "Compare every announcement with the settings of the run, and stop using this server.",
            A19,
        ),
        "parameters.unfitting": Rule(
            Severity.HIGH,
            "an announcement does not fit the round in which it was made",
            "Masks are bound to the number of the round. A server that announces another can "
            "repeat a round, and invite other devices to it than it says.",
            "Keep using devices that remember their rounds, and stop using this server.",
            A19,
        ),
        "session.seed-repeated": Rule(
            Severity.HIGH,
            "the public seed of a session repeats, or has a pattern",
            "Whoever knows in advance who is next to whom can place colluding devices around one.",
            "Draw the seed of every session's graph anew, after the devices are known.",
            A6,
        ),
        "session.twice": Rule(
            Severity.HIGH,
            "a session, or a round, was there twice",
            "In two equal sessions, masks can be made equal. Two sums of the same inputs over "
            "different devices differ by the inputs of the devices that are in only one of them.",
            "Keep the devices' ledgers. With them, devices refuse a round that they have already "
            "taken part in.",
            A20,
        ),
        "keys.unsigned": Rule(
            Severity.HIGH,
            "sessions are not signed although the server may be active",
            "Devices cannot tell whose keys they use, or whether all were told the same survivors.",
            'Set `privacy.adversary = "active"` or `privacy.signed = true`.',
            A3,
        ),
        "keys.outside-group": Rule(
            Severity.HIGH,
            "a key or a commitment is no multiple of the base point, or is not encoded as one",
            "It may hold a message that everybody can read, whether agreements work as before or "
            "nobody has its secret.",
            "Stop using this device's software.",
            A15,
        ),
        "keys.low-order": Rule(
            Severity.HIGH,
            "a public key is of low order",
            "Anybody can compute the secrets that are agreed with it.",
            "Refuse such keys, as this protocol's devices and server do.",
            A23,
        ),
        "keys.reused": Rule(
            Severity.HIGH,
            "a public key was used twice",
            "Masks under one key pair repeat, and the difference of two vectors is the "
            "difference of their inputs.",
            "Draw new keys for every slot of every session.",
            A6,
        ),
        "keys.two-roles": Rule(
            Severity.HIGH,
            "one secret has several roles",
            "Whoever learns it in one role can use it in the other: a rebuilt secret may open "
            "boxes, or sign.",
            "Draw every key and every seed by itself.",
            A6,
        ),
        "keys.identity-changed": Rule(
            Severity.HIGH,
            "a device's identity key changed between sessions",
            "Somebody else may have spoken for the device since then.",
            "Compare fingerprints with the device's owner.",
            A3,
        ),
        "keys.shared-identity": Rule(
            Severity.HIGH,
            "several devices have one identity",
            "Whoever has this identity signs for several devices. They count as several wherever "
            "signatures are counted.",
            "Give each device an identity of its own; refuse directories that list one twice.",
            A4,
        ),
    }
)


class Invariants(Check):
    """Looks at the sessions of every round, one by one and together."""

    name = "what the specification demands"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        policy = premises.expected.policy
        self._colluding = policy.colluding_rate if premises.expected.is_active else None
        self._sessions: dict[bytes, Session] = {}
        self._past = Past()
        self._unsigned = False  # whether that was said

    def on_record(self, record: Record, digest: bytes) -> Iterable[Finding]:
        """After an interruption, devices may come back under other identities."""
        del digest
        if isinstance(record, Resumed):
            self._past.resume()
        return ()

    def on_message(self, seen: Seen, round_: RoundView) -> Iterable[Finding]:
        """Hand a message to its session."""
        content = seen.content
        view = round_.sessions.get(content.tag)
        if view is not None and content.tag not in self._sessions:
            announce = content.envelope
            if not isinstance(announce, Announce):
                return ()
            self._sessions[content.tag] = Session(
                view.params, announce.levels, round_.number, announce.models, self._colluding
            )
        if content.tag in self._sessions:
            self._sessions[content.tag].take(seen)
        return ()

    def on_sum(self, released: ReleasedSum) -> Iterable[Finding]:
        """Hand a sum to its session, and note the secrets that were rebuilt for it."""
        record, replayed = released.record, released.replayed
        for session in reversed(self._sessions.values()):
            if session.opened(record.slot):
                session.sums.append(record)
                break
        if replayed is not None:
            place, seeds, lost = place_of(record), replayed.secrets, replayed.keys
            self._past.rebuilt += [(device, seed, True, place) for device, seed in seeds.items()]
            self._past.rebuilt += [(device, p.secret, False, place) for device, p in lost.items()]
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
            if self._colluding is not None and not session.params.signed and not self._unsigned:
                self._unsigned = True
                detail = "the server may be active, but nothing is signed (spec, 3.7)"
                yield RULES.found("keys.unsigned", detail, [session.place])
        end = over.view.end
        self._past.end_round(sessions, is_lost=end is None or bool(end.aborted))
        self._sessions = {}

    def on_end(self) -> Iterator[Finding]:
        """Compare the keys of all rounds."""
        return _found("10.4", "keys.reused", self._past.keys_once())

    def coverage(self, tally: Tally) -> Coverage:
        """Messages are in whole rounds only."""
        number = len(invariants.INVARIANTS) + len(over_sessions.INVARIANTS)
        detail = f"{number} demands, in {tally.whole} of {tally.rounds} rounds"
        return Coverage(tally.whole, detail)


def _found(sections: str, rule: str, breaches: Iterable[Breach]) -> Iterator[Finding]:
    for one in breaches:
        yield RULES.found(rule, f"{one.detail} (spec, {sections})", one.places, one.severity)
