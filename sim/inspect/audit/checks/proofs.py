"""Was every sum of a verified search proved to its devices, and does what was asked follow?"""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from deltafl.secagg import pedersen, ring
from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.proved import (
    Believed,
    Proof,
    believed,
    flaw,
    has_all_keys,
    opens,
    proofs,
    summed_devices,
)
from deltafl.sim.inspect.audit.public_keys import is_in_group
from deltafl.sim.inspect.audit.rules import A14, A15, A17, A19, A22, Rule, Rules
from deltafl.sim.inspect.audit.views import SessionView, SlotView, place_of
from deltafl.sim.inspect.audit.votes import has_proofs, unproved
from deltafl.sim.record.transcript import sum_sha256

RULES: Final = Rules(
    {
        "proof.missing": Rule(
            Severity.HIGH,
            "a question was asked without the proof of the sum before it",
            "Devices cannot tell whether the question follows from a true sum.",
            "Keep using devices that insist on the proof, and stop using this server.",
            A19,
        ),
        "proof.invalid": Rule(
            Severity.HIGH,
            "a proof does not prove its sum",
            "The sum that devices were shown is not that of what they committed to.",
            "Keep using devices that check proofs, and stop using this server.",
            A17,
        ),
        "proof.differs": Rule(
            Severity.HIGH,
            "devices were proved another sum than the one in the record",
            "The server told its record and its devices different things.",
            "Find out which of the two sums was used.",
            A17,
        ),
        "proof.impossible": Rule(
            Severity.MEDIUM,
            "devices' commitments do not open to the sum of their vectors",
            "A device committed to another answer than it sent. The sum cannot be proved, and the "
            "round is lost.",
            "If this is rare, do nothing. Otherwise search over other devices to find out which "
            "one it is.",
            A22,
        ),
        "votes.unproved": Rule(
            Severity.MEDIUM,
            "an answer was summed that its device had not proved to be valid",
            "The device may have voted more than once, or with a weight that is not legal.",
            "Update the server's software: it has to drop such a device before it adds.",
            A22,
        ),
        "commitments.outside-group": Rule(
            Severity.HIGH,
            "a commitment is not in the group of prime order, or is not encoded as one",
            "The sum may open as before. What was added to the commitment may be a message that "
            "everybody can read.",
            "Stop using this device's software.",
            A15,
        ),
        "question.not-following": Rule(
            Severity.HIGH,
            "a question of a verified search does not follow from the proved sums",
            "A server that chooses thresholds at will can isolate the device with the largest "
            "loss.",
            "Keep using devices that follow the search, and stop using this server.",
            A14,
        ),
        "search.small-tail": Rule(
            Severity.HIGH,
            "the threshold of a verified search keeps fewer devices than the policy allows",
            "Devices know how many the threshold keeps, and must refuse one that keeps so few.",
            "Raise θ or the cohort size. If devices answered, they do not hold to their policy.",
            A19,
        ),
    }
)


class Proofs(Check):
    """Examines the proofs of sums, and follows every verified search as its devices do."""

    name = "proofs of sums"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._packed: dict[tuple[bytes, int], bytes] = {}  # of this round, sums with blinding
        self._examined = 0
        self._unknown = 0

    def on_sum(self, released: ReleasedSum) -> tuple[Finding, ...]:
        """Note the sum of a verified slot, with its blinding."""
        if released.slot is not None and released.replayed is not None:
            session, slot = released.slot
            if released.replayed.packed:
                self._packed[session.params.tag, slot.index] = released.replayed.packed
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's verified searches."""
        for session in over.view.sessions.values():
            if any(spec.verified for spec in session.params.slots):
                yield from _outside(session)
                yield from self._session(session)
            if has_proofs(session):
                yield from _unproved(session)
        self._packed = {}

    def _session(self, session: SessionView) -> Iterator[Finding]:
        proved, are_known = set[int](), has_all_keys(session)
        for proof in proofs(session):
            proved.add(proof.slot.index)
            self._examined += are_known
            self._unknown += not are_known
            if problem := flaw(session, proof):
                detail = f"slot {proof.slot.index}: {problem}"
                yield RULES.found("proof.invalid", detail, [proof.seen.place])
            else:
                yield from self._differs(session, proof)
        for slot in session.slots.values():
            if slot.index not in proved:
                yield from self._impossible(session, slot)
        for one in believed(session):
            yield from self._believed(one, session.params.num_invited)

    def _differs(self, session: SessionView, proof: Proof) -> Iterator[Finding]:
        """A proof of another sum than was recorded, or of commitments that nobody sent."""
        slot, opening = proof.slot, proof.opening
        ids = session.ids.tolist()
        if not slot.sums:
            detail = f"slot {slot.index} has no sum in the record"
            yield RULES.found("proof.differs", detail, [proof.seen.place])
        packed = self._packed.get((session.params.tag, slot.index))
        if packed is not None and packed != opening.packed:
            detail = f"slot {slot.index}: it is not the sum of the vectors that came"
            yield RULES.found("proof.differs", detail, [proof.seen.place])
        spec = session.params.slots[slot.index]
        words = ring.unpack(opening.packed, spec.wire_length, spec.ring_bits)[: spec.length]
        for released in slot.sums:
            if released.sha256 != sum_sha256(words):
                detail = f"slot {slot.index}: it is not the sum that the server says it learnt"
                yield RULES.found("proof.differs", detail, [proof.seen.place])
        for position, committed in opening.committed.items():
            sent = slot.committed.get(ids[position])
            if sent is not None and sent != committed:
                detail = f"slot {slot.index}: device {ids[position]} committed to something else"
                yield RULES.found("proof.differs", detail, [proof.seen.place])

    def _impossible(self, session: SessionView, slot: SlotView) -> Iterator[Finding]:
        """A sum for which there was no proof to send."""
        packed = self._packed.get((session.params.tag, slot.index))
        devices = summed_devices(session, slot)
        if packed is None or not all(device in slot.committed for device in devices):
            return
        if not opens(session, slot, packed, devices):
            detail = f"slot {slot.index}: {len(devices)} commitments, of which one or more are off"
            yield RULES.found("proof.impossible", detail, [place_of(slot.sums[0])])

    def _believed(self, one: Believed, num_invited: int) -> Iterator[Finding]:
        """A question that devices must refuse."""
        where, place = f"slot {one.slot.index}", one.seen.place
        if one.unproved:
            detail = f"{where}: the sum of the query before has no proof"
            yield RULES.found("proof.missing", detail, [place])
        if one.departure:
            yield RULES.found("question.not-following", f"{where}: {one.departure}", [place])
        fewest = self._premises.expected.policy.min_tail(num_invited)
        if one.tail is not None and one.tail.fewest < fewest:
            detail = f"{where}: it keeps {one.tail.fewest} devices, and the policy says {fewest}"
            severity = None if one.slot.inputs else Severity.LOW  # all devices refused it
            yield RULES.found("search.small-tail", detail, [place], severity)

    def coverage(self, tally: Tally) -> Coverage:
        """Proofs are kept whole in all transcripts; the devices' keys may not be."""
        detail = f"{self._examined} of {self._examined + self._unknown} proofs examined"
        return Coverage(tally.told, detail, self._examined + self._unknown)


def _unproved(session: SessionView) -> Iterator[Finding]:
    """Answers in a sum that were not proved to be valid."""
    for device in session.ids.tolist():
        for index in sorted(unproved(session, device)):
            slot = session.slots[index]
            if slot.sums and device in summed_devices(session, slot):
                detail = f"slot {index}: that of device {device}"
                places = [seen.place for seen in slot.inputs if seen.record.peer == device]
                yield RULES.found("votes.unproved", detail, places[:1])


def _outside(session: SessionView) -> Iterator[Finding]:
    """Commitments that no blinding gives.

    That of a device is in its message, and comes with the proof of the sum, whichever is kept.
    """
    ids, looked_at = session.ids.tolist(), set[bytes]()
    sent = (
        (slot, seen.record.peer, slot.committed[seen.record.peer], seen.place)
        for slot in session.slots.values()
        for seen in slot.inputs
        if seen.record.peer in slot.committed
    )
    shown = (
        (proof.slot, ids[position], committed, proof.seen.place)
        for proof in proofs(session)
        for position, committed in proof.opening.committed.items()
        if position < len(ids)
    )
    for slot, device, committed, place in chain(sent, shown):
        point = bytes(committed[: pedersen.COMMITMENT_SIZE])
        if point not in looked_at and not is_in_group(point):
            detail = f"that of device {device} in slot {slot.index}: {point!r}"
            yield RULES.found("commitments.outside-group", detail, [place])
        looked_at.add(point)
