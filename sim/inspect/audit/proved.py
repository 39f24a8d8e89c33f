"""A verified search as its devices saw it: what was proved to them, and what they could believe.

The audit does what a device does. It examines every proof, and follows the search from proved sums
to the questions and the threshold that devices must insist on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from deltafl.protocol.anonymity import Tail
from deltafl.protocol.configuration import binding
from deltafl.protocol.followed_search import Followed
from deltafl.protocol.messages import Ask
from deltafl.protocol.quantile.search import Query
from deltafl.secagg import PeerError, openings, ring
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import AdvertiseKeys, SumOpening
from deltafl.secagg.openings import Opening
from deltafl.secagg.signing import Signer
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import SessionView, SlotView, contributors


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """The proof of a slot's sum, as it was sent.

    Attributes:
        slot: The slot whose sum it proves.
        seen: The first question that it came with.
        opening: It.
    """

    slot: SlotView
    seen: Seen
    opening: SumOpening


@dataclass(frozen=True, slots=True, eq=False)
class Believed:
    """What a device makes of a question.

    Attributes:
        slot: The slot in which it was asked.
        seen: The first message that asked it.
        unproved: Whether the sum before it should have been proved, and was not.
        departure: Why a device refuses it otherwise; "" if it follows from the proved sums.
        tail: What a threshold keeps, as devices know it; None of queries.
    """

    slot: SlotView
    seen: Seen
    unproved: bool = False
    departure: str = ""
    tail: Tail | None = None


def proofs(session: SessionView) -> Iterator[Proof]:
    """The proofs that came with the questions of a session: of equal ones, the first."""
    known = set[bytes]()
    for _, slot in sorted(session.slots.items()):
        for seen in slot.opened:
            envelope, proof = seen.content.envelope, seen.content.proof
            if not isinstance(envelope, Ask) or proof is None or envelope.opening in known:
                continue
            known.add(envelope.opening)
            yield Proof(session.slots.get(proof.slot, SlotView(proof.slot)), seen, proof)


def flaw(session: SessionView, proof: Proof) -> str:
    """What is wrong with a proof, as a device finds it; "" if nothing is, or if it is not known.

    The transcript must have the devices' keys.
    """
    members, question = proof.slot.members, proof.slot.question
    if members is None or question is None:
        return "no question was asked in its slot"
    expected = session.summed(proof.slot)
    wanted = np.flatnonzero(members if expected is None else expected).tolist()
    if list(proof.opening.committed) != wanted:
        return "it is not over exactly the devices of the slot"
    ids, signers = session.ids.tolist(), []
    if len(members) != len(ids):
        return "it is over other devices than those of the roster"
    for position in wanted:
        signer = signer_of(session, ids[position])
        if signer is None:
            return ""
        signers.append(signer)
    # what devices were shown is bound to the context that their session was announced with
    bound = binding(session.params.context, question)
    found = openings.examine(
        Opening(
            SlotContext.of(session.params, session.session_id, proof.slot.index, bound),
            session.params.slots[proof.slot.index],
            proof.opening.packed,
            tuple(signers),
            tuple(bytes(committed) for committed in proof.opening.committed.values()),
        )
    )
    return "" if found is None else found[1]


def has_all_keys(session: SessionView) -> bool:
    """Whether the transcript has the identities of all devices."""
    return all(signer_of(session, device) is not None for device in session.ids.tolist())


def signer_of(session: SessionView, device: int) -> Signer | None:
    """Who a device says it is, by its advertisement; None if the transcript does not hold it."""
    seen = session.advertisements.get(device)
    keys = None if seen is None else seen.content.message
    if not isinstance(keys, AdvertiseKeys) or keys.credential is None:
        return None
    return Signer(keys.credential.identity, keys.sealing_key)


def believed(session: SessionView) -> Iterator[Believed]:
    """What devices make of the questions of a session whose searches are verified, in order."""
    levels = session.levels
    if levels is None or session.params.slots != levels.slots():
        return
    starts = [levels.first_slot(level) for level in range(len(levels.rounds) + 1)]
    left = _delivered(session)
    for (first, end), config in zip(pairwise(starts), levels.rounds, strict=True):
        slots = [slot for index, slot in sorted(session.slots.items()) if first <= index < end]
        followed, waiting = Followed.begin(config), None
        for slot in slots:
            question, members = slot.question, slot.members
            if question is None or members is None:
                continue
            seen, asked = slot.opened[0], int(members.sum())
            proof = next((s.content.proof for s in slot.opened if s.content.proof), None)
            if proof is not None and waiting is not None and proof.slot == waiting.index:
                spec = session.params.slots[proof.slot]
                total = ring.unpack(proof.packed, spec.wire_length, spec.ring_bits)
                followed = followed.after(total[: spec.length], left)
                waiting = None
            is_query, shrank = isinstance(question, Query), asked < left
            unproved = waiting is not None and (is_query or not shrank)
            departure, tail = "", None
            if not unproved:
                try:
                    if isinstance(question, Query):
                        followed.check_query(question)
                    else:
                        kept = followed.check_threshold(question, asked, shrank=shrank)
                        searched = asked if kept is None else followed.num_searched
                        tail = (kept or Tail(asked, asked)).among(searched, asked, asked)
                except PeerError as error:
                    departure = str(error)
            yield Believed(slot, seen, unproved, departure, tail)
            waiting = slot if is_query else None
            summed = session.summed(slot)
            left = asked if summed is None else int(summed.sum())


def _delivered(session: SessionView) -> int:
    """The devices that were left when shares had been delivered."""
    members = next(
        (s.content.members for s in session.deliveries if s.content.members is not None), None
    )
    return len(session.ids) if members is None else int(members.sum())


def opens(session: SessionView, slot: SlotView, packed: bytes, devices: Sequence[int]) -> bool:
    """Whether what devices committed to opens to a sum of theirs.

    Args:
        session: The session.
        slot: A verified slot.
        packed: The sum with its blinding.
        devices: Who is in it, all with a commitment.
    """
    spec = session.params.slots[slot.index]
    total = ring.unpack(packed, spec.wire_length, spec.ring_bits)
    return openings.opens(spec, total, [slot.committed[device] for device in devices])


def summed_devices(session: SessionView, slot: SlotView) -> tuple[int, ...]:
    """The devices of a slot's sum; none if they are not known."""
    summed = session.summed(slot)
    return () if summed is None else contributors(session, summed)
