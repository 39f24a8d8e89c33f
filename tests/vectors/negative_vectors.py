"""Vectors of lies: what a device refuses, and whom a server blames, each under its name."""

from dataclasses import replace

import numpy as np
from message_vectors import session_params
from recorded_session import Parties, drops_to_json, fixed, sum_to_json
from session_vectors import LOST, played, small_case

from deltafl.secagg import (
    Fault,
    Identity,
    PeerError,
    Refusal,
    SessionAborted,
    UsageError,
    openings,
    pedersen,
    ring,
    signing,
    wire,
)
from deltafl.secagg.identity import identity
from deltafl.secagg.keys import SealedChannel, key_pair
from deltafl.secagg.masks import Link, SlotContext
from deltafl.secagg.messages import (
    ConsistencyCheck,
    Credential,
    MaskedInput,
    OpenSlot,
    SessionOpen,
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
)
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.shamir import PRIME
from deltafl.secagg.states import ServerState

PLAIN, SIGNED, SPARSE, LOSING = "complete", "complete, signed", "sparse", "complete, one lost"
SPARSE_SIGNED = "sparse, signed"
WHOLE, WHOLE_SIGNED, VERIFIED = "whole slots", "whole slots, signed", "verified"
VICTIM = 17
OWN = 2  # its position in a complete roster
OTHER = 3
EVERYBODY = np.ones(5, dtype=np.bool_)


def only(*positions):
    """A set over five devices."""
    return np.isin(np.arange(5), positions)


class Rewriting:
    """The messages of a small session, one at a time, to be changed."""

    def __init__(self, session):
        self.params = session_params(session)
        self.rounds = {(r["stage"], r["slot"]): r for r in played(session)[0]}

    def changed(self, way, client, stage, slot, change):
        """A message to or from a device, changed."""
        message = wire.decode(self.rounds[stage, slot][way][client], self.params)
        return wire.encode(change(message), self.params)

    def encode(self, message):
        return wire.encode(message, self.params)


# What a device refuses.


def refusals():
    cases = [*_opening_lies(), *_roster_lies(), *_delivery_lies()]
    cases += [*_slot_lies(), *_whole_slot_lies(), *_list_lies(), *_signed_lies(), *_sparse_lies()]
    cases += [*_unheard_lies(), *_verified_lies()]
    for case in cases:
        session = case["session"]
        refused = refuse(case, small_case(session), played(session)[0])
        assert refused == case["refusal"], (case["description"], refused)
    return cases


def refuse(case, session, rounds):
    """Feed a case's messages to a device; the name of its refusal.

    Args:
        case: One of `refusals`.
        session: The small session that it names.
        rounds: The messages of that session, as `play` gives them.

    Raises:
        AssertionError: it refuses nothing, or too early, or does not say what it said before.
    """
    client, parties = case["device"], Parties(session)
    machine = parties.client(
        client,
        case.get("policy"),
        enrolled=case.get("enrolled", True),
        attended=case.get("attended", ()),
    )
    heard = [r for r in rounds if client in r["to"]]
    for one in heard[: case["received"]]:
        assert parties.answer(machine, one["to"][client]) == one["from"].get(client)
    *before, last = [bytes.fromhex(data) for data in case["messages"]]
    for data in before:
        parties.answer(machine, data)
    try:
        machine.receive(last)
    except PeerError as error:
        try:
            machine.receive(last)
        except UsageError:
            return error.reason.value
    raise AssertionError(f"accepted: {case['description']}")


def _lie(description, refusal, session, at, *messages, device=VICTIM, policy=None):
    """A case: the device has heard everything before stage and slot `at`, then the messages."""
    heard = [r for r in played(session)[0] if device in r["to"]]
    received = [(r["stage"], r["slot"]) for r in heard].index(at)
    case = {
        "description": description,
        "session": session,
        "device": device,
        "received": received,
        "messages": [data.hex() for data in messages],
        "refusal": refusal.value,
    }
    return case if policy is None else case | {"policy": policy}


def _opening_lies():
    at = ("advertise", 0)
    for session, limits in (
        (PLAIN, {"min_cohort": 4}),
        (PLAIN, {"colluding_rate": 0.4}),
        (PLAIN, {"max_cohort": 4}),
        (PLAIN, {"max_degree": 3}),
        (PLAIN, {"max_slots": 1}),
        (PLAIN, {"max_length": 3}),
        (PLAIN, {"max_sharing_work": 539}),
        (PLAIN, {"max_mask_elements": 27}),
        (PLAIN, {"adversary": "active"}),
        (SIGNED, {"adversary": "active", "colluding_rate": 0.2}),
        (SPARSE_SIGNED, {"adversary": "active"}),
    ):
        (name, value), *_ = limits.items()
        opening = played(session)[0][0]["to"][VICTIM]
        yield _lie(
            f"{session}: a policy with {name} = {value}.",
            Refusal.POLICY,
            session,
            at,
            opening,
            policy=limits,
        )
    opening = played(PLAIN)[0][0]["to"][VICTIM]
    signed = played(SIGNED)[0][0]["to"][VICTIM]
    yield _lie(
        "A signed session, and a device that has no identity.", Refusal.POLICY, SIGNED, at, signed
    ) | {"enrolled": False}
    own = Rewriting(SIGNED)
    again = replace(own.params, graph_seed=fixed("the seed of another session"))
    for description, data in (
        ("A session that the device has taken part in before.", signed),
        ("Another session of the same context.", wire.encode(SessionOpen(again), again)),
    ):
        case = _lie(description, Refusal.SESSION_REPEATED, SIGNED, at, data)
        yield case | {"attended": [own.params.context.hex()]}
    yield _lie("A cut opening.", Refusal.MALFORMED, PLAIN, at, opening[:-1])
    yield _lie("Nothing.", Refusal.MALFORMED, PLAIN, at, b"")
    slot = Rewriting(PLAIN).encode(OpenSlot(0, EVERYBODY))
    yield _lie("A slot before the session.", Refusal.MALFORMED, PLAIN, at, slot)


def _roster_lies():
    own, at = Rewriting(PLAIN), ("share", 0)

    def lie(description, refusal, change):
        data = own.changed("to", VICTIM, *at, change)
        return _lie(description, refusal, PLAIN, at, data)

    def ids(*chosen):
        return lambda m: replace(m, roster=np.array(chosen, dtype=np.uint32))

    def named(change):
        return lambda m: replace(m, keys=change(dict(m.keys)))

    yield lie("The device is not in the roster.", Refusal.NOT_IN_ROSTER, ids(3, 10, 24, 31))
    yield lie("A roster of two.", Refusal.COHORT_TOO_SMALL, ids(3, 17))
    yield lie(
        "The device is its own neighbour.",
        Refusal.NAMED_AS_ITS_OWN_PEER,
        named(lambda k: k | {OWN: k[OTHER]}),
    )
    yield lie(
        "A neighbour beyond the roster.",
        Refusal.UNKNOWN_NEIGHBOUR,
        named(lambda k: k | {5: k[OTHER]}),
    )
    yield lie(
        "A neighbour is missing.",
        Refusal.MISSING_NEIGHBOUR,
        named(lambda k: {p: keys for p, keys in k.items() if p != OTHER}),
    )

    def advertised(**fields):
        return named(lambda k: k | {OTHER: replace(k[OTHER], **fields)})

    prime = 2**255 - 19
    eighth = 325606250916557431795983626356110631294008115727848805560023387167927233504
    other_eighth = 39382357235489614581723060781553021112529911719440698176882885853963445705823
    high = 1 << 255
    points = {0, 1, prime - 1, eighth, other_eighth}
    encodings = points | {p | high for p in points} | {prime, prime + 1, prime | high}
    encodings |= {(prime + 1) | high}
    for number in sorted(encodings):
        key = number.to_bytes(32, "little")
        yield lie(
            "A sealing key of low order, or another encoding of one.",
            Refusal.BAD_KEY,
            advertised(sealing_key=key),
        )
    low = bytes(32)
    ours = wire.decode(own.rounds["advertise", 0]["from"][VICTIM], own.params)
    theirs = wire.decode(own.rounds["advertise", 0]["from"][3], own.params)
    twin = (int.from_bytes(theirs.sealing_key, "little") | high).to_bytes(32, "little")
    first = wire.decode(own.rounds["advertise", 0]["from"][24], own.params).mask_keys[0]
    for description, fields in (
        ("A mask key of low order.", {"mask_keys": (first, low)}),
        ("The device's own sealing key.", {"sealing_key": ours.sealing_key}),
        ("The device's own mask key.", {"mask_keys": (ours.mask_keys[1], first)}),
        ("Another device's sealing key.", {"sealing_key": theirs.sealing_key}),
        ("Another device's sealing key, with its highest bit set.", {"sealing_key": twin}),
        ("One mask key for both slots.", {"mask_keys": (first, first)}),
        ("A sealing key for a mask key.", {"mask_keys": (theirs.sealing_key, first)}),
    ):
        yield lie(description, Refusal.BAD_KEY, advertised(**fields))
    slot = own.encode(OpenSlot(0, EVERYBODY))
    yield _lie("A slot before the roster.", Refusal.OUT_OF_ORDER, PLAIN, at, slot)
    opening = own.rounds["advertise", 0]["from"][3]
    yield _lie("A device's message.", Refusal.OUT_OF_ORDER, PLAIN, at, opening)


def _delivery_lies():
    own, at = Rewriting(PLAIN), ("receipt", 0)

    def lie(description, refusal, change):
        data = own.changed("to", VICTIM, *at, change)
        return _lie(description, refusal, PLAIN, at, data)

    def boxes(change):
        return lambda m: replace(m, boxes=change(dict(m.boxes)))

    def members(some):
        return lambda m: replace(
            m, members=some, boxes={p: b for p, b in m.boxes.items() if p < len(some) and some[p]}
        )

    yield lie(
        "A box of the device's own.",
        Refusal.NAMED_AS_ITS_OWN_PEER,
        boxes(lambda b: b | {OWN: b[OTHER]}),
    )
    yield lie(
        "A box from beyond the roster.",
        Refusal.UNKNOWN_NEIGHBOUR,
        boxes(lambda b: b | {5: b[OTHER]}),
    )
    yield lie(
        "A box of a device that has left.",
        Refusal.UNKNOWN_NEIGHBOUR,
        lambda m: replace(m, members=only(0, 1, 2, 4)),
    )
    yield lie(
        "A member's box is missing.",
        Refusal.MISSING_NEIGHBOUR,
        boxes(lambda b: {p: box for p, box in b.items() if p != OTHER}),
    )
    yield lie(
        "More boxes than devices were invited.",
        Refusal.MALFORMED,
        boxes(lambda b: b | {5: b[OTHER], 6: b[OTHER]}),
    )
    yield lie("The device is left out.", Refusal.DEVICE_LEFT_OUT, members(only(0, 1, 3, 4)))
    yield lie("Two are left.", Refusal.COHORT_TOO_SMALL, members(only(1, 2)))
    yield lie("A set over four devices.", Refusal.MALFORMED, members(EVERYBODY[:4]))


def _slot_lies():
    own = Rewriting(PLAIN)

    def lie(description, refusal, at, *messages):
        return _lie(description, refusal, PLAIN, at, *map(own.encode, messages))

    mask, unmask, next_mask = ("mask", 0), ("unmask", 0), ("mask", 1)
    for name, at, make in (("opening", mask, OpenSlot), ("unmasking", unmask, UnmaskRequest)):
        yield lie(
            f"The {name} leaves the device out.",
            Refusal.DEVICE_LEFT_OUT,
            at,
            make(0, only(0, 1, 3, 4)),
        )
        yield lie(f"Two are left at the {name}.", Refusal.COHORT_TOO_SMALL, at, make(0, only(1, 2)))
        yield lie(
            f"The {name} is over four of five devices.",
            Refusal.MALFORMED,
            at,
            make(0, EVERYBODY[:4]),
        )
    fewer = own.changed("to", VICTIM, "receipt", 0, lambda m: replace(
        m, members=only(0, 1, 2, 3), boxes={p: m.boxes[p] for p in (0, 1, 3)}
    ))  # fmt: skip
    everybody = own.encode(OpenSlot(0, EVERYBODY))
    yield _lie(
        "A device that had left before the first slot is back.",
        Refusal.COHORT_GREW,
        PLAIN,
        ("receipt", 0),
        fewer,
        everybody,
    )
    yield lie(
        "A device that was not in the slot survived it.",
        Refusal.COHORT_GREW,
        mask,
        OpenSlot(0, only(0, 1, 2, 3)),
        UnmaskRequest(0, only(0, 1, 2, 4)),
    )
    yield lie(
        "A device that was lost in the first slot is back in the second.",
        Refusal.COHORT_GREW,
        unmask,
        UnmaskRequest(0, only(0, 1, 2, 3)),
        OpenSlot(1, EVERYBODY),
    )
    yield lie("The first slot again.", Refusal.SLOT_REUSED, next_mask, OpenSlot(0, only(0, 1, 2)))
    yield lie(
        "The open slot again, over fewer.", Refusal.SLOT_REUSED, unmask, OpenSlot(0, only(0, 1, 2))
    )
    yield lie(
        "A second list of survivors: shares of both kinds.",
        Refusal.BOTH_SHARE_KINDS,
        next_mask,
        UnmaskRequest(0, only(0, 1, 2)),
    )
    yield lie(
        "The unmasking of a slot that is not open.",
        Refusal.OUT_OF_ORDER,
        unmask,
        UnmaskRequest(1, EVERYBODY),
    )
    yield lie(
        "The next slot when the unmasking is due.",
        Refusal.OUT_OF_ORDER,
        unmask,
        OpenSlot(1, EVERYBODY),
    )
    yield lie(
        "The unmasking before the slot is opened.",
        Refusal.OUT_OF_ORDER,
        mask,
        UnmaskRequest(0, EVERYBODY),
    )
    yield lie(
        "A consistency check in an unsigned session.",
        Refusal.OUT_OF_ORDER,
        unmask,
        ConsistencyCheck(0, EVERYBODY),
    )


def _whole_slot_lies():
    """Of whole slots, with lists that would do for others."""
    own = Rewriting(WHOLE)
    everybody, left = np.ones(4, dtype=np.bool_), np.array([True, False, True, True])
    alone = np.arange(4) == OWN
    first, second, fourth, fifth = (("mask", slot) for slot in (0, 1, 3, 4))
    for description, refusal, at, message in (
        (
            "The first whole slot leaves the device out.",
            Refusal.DEVICE_LEFT_OUT,
            first,
            OpenSlot(0, ~alone),
        ),
        (
            "The first whole slot is over one device.",
            Refusal.COHORT_TOO_SMALL,
            first,
            OpenSlot(0, alone),
        ),
        (
            "A list to sign in an unsigned session.",
            Refusal.OUT_OF_ORDER,
            first,
            ConsistencyCheck(0, everybody),
        ),
        (
            "The second whole slot lacks one device of the first.",
            Refusal.NOT_AGREED,
            second,
            OpenSlot(1, left),
        ),
        (
            "The second whole slot is over four of a roster of three.",
            Refusal.NOT_AGREED,
            second,
            OpenSlot(1, everybody[:3]),
        ),
        (
            "The unmasking of a whole slot.",
            Refusal.BOTH_SHARE_KINDS,
            second,
            UnmaskRequest(0, everybody),
        ),
        (
            "The unmasking of a whole slot that is not open.",
            Refusal.OUT_OF_ORDER,
            second,
            UnmaskRequest(1, everybody),
        ),
        (
            "A void slot is opened again, over those who are left.",
            Refusal.SLOT_REUSED,
            fourth,
            OpenSlot(1, left),
        ),
        (
            "The slot after a void one is opened, whole, over those who are left.",
            Refusal.NOT_AGREED,
            fourth,
            OpenSlot(2, left),
        ),
        (
            "A device that was lost in the tolerant slot is in the whole one after it.",
            Refusal.NOT_AGREED,
            fifth,
            OpenSlot(4, left),
        ),
    ):
        yield _lie(description, refusal, WHOLE, at, own.encode(message))


def _list_lies():
    """Of the members of a whole slot, in signed sessions: who signs what, and when."""
    own = Rewriting(WHOLE_SIGNED)
    parties = Parties(small_case(WHOLE_SIGNED))
    everybody, left = np.ones(4, dtype=np.bool_), np.array([False, True, True, True])
    alone = np.arange(4) == OWN
    listing, first, second, fourth = ("list", 0), ("mask", 0), ("mask", 1), ("mask", 3)
    honest = wire.decode(own.rounds[first]["to"][VICTIM], own.params)

    def lie(description, refusal, at, *messages):
        return _lie(description, refusal, WHOLE_SIGNED, at, *map(own.encode, messages))

    def signatures(members, slot, *positions):
        keys = _sealing_keys(own)
        session_id = parties.session_id()
        return {
            p: parties.identity(3 + 7 * p).sign(signing.members(session_id, slot, members, keys[p]))
            for p in positions
        }

    yield lie(
        "A whole slot without a list that was signed.",
        Refusal.NOT_AGREED,
        listing,
        honest,
    )
    yield lie(
        "The list leaves the device out.",
        Refusal.DEVICE_LEFT_OUT,
        listing,
        ConsistencyCheck(0, ~alone),
    )
    yield lie(
        "A list of one device.", Refusal.COHORT_TOO_SMALL, listing, ConsistencyCheck(0, alone)
    )
    yield lie(
        "A list over three of four devices.",
        Refusal.MALFORMED,
        listing,
        ConsistencyCheck(0, everybody[:3]),
    )
    yield lie(
        "A list for a tolerant slot.", Refusal.OUT_OF_ORDER, listing, ConsistencyCheck(3, everybody)
    )
    yield lie(
        "A second list to sign.", Refusal.INCONSISTENT_SURVIVORS, first, ConsistencyCheck(0, left)
    )
    yield lie(
        "The slot over fewer devices than the list.",
        Refusal.INCONSISTENT_SURVIVORS,
        first,
        OpenSlot(0, left, signatures(left, 0, 1, 3)),
    )
    yield lie(
        "Another whole slot than the list's.",
        Refusal.NOT_AGREED,
        first,
        replace(honest, slot=1),
    )
    few = dict(list(honest.signatures.items())[:1])
    yield lie(
        "One signature too few.",
        Refusal.TOO_FEW_SIGNATURES,
        first,
        replace(honest, signatures=few),
    )
    yield lie("No signatures.", Refusal.TOO_FEW_SIGNATURES, first, replace(honest, signatures={}))
    for description, changed in (
        ("A signature with one bit changed.", {0: _with_bit_changed(honest.signatures[0])}),
        ("A signature under another's name.", {0: honest.signatures[1]}),
        ("A signature of the same list for another slot.", signatures(everybody, 1, 0)),
        ("A signature of another list.", signatures(left, 0, 1)),
        ("A signature of survivors.", {0: _survivors_signature(own, parties, 0, everybody)}),
    ):
        yield lie(
            description,
            Refusal.BAD_SIGNATURE,
            first,
            replace(honest, signatures=dict(honest.signatures) | changed),
        )
    yield lie(
        "A signature of somebody beyond the roster.",
        Refusal.UNKNOWN_NEIGHBOUR,
        first,
        replace(honest, signatures=dict(honest.signatures) | {4: honest.signatures[0]}),
    )
    yield lie(
        "A valid signature of a device that is not on the list.",
        Refusal.UNKNOWN_NEIGHBOUR,
        listing,
        ConsistencyCheck(0, left),
        OpenSlot(0, left, signatures(left, 0, 0, 1, 3)),
    )
    yield lie(
        "A list although one was agreed on.",
        Refusal.INCONSISTENT_SURVIVORS,
        second,
        ConsistencyCheck(1, everybody),
    )
    yield lie(
        "A list for a slot that is over.",
        Refusal.OUT_OF_ORDER,
        second,
        ConsistencyCheck(0, left),
    )
    yield lie(
        "The next whole slot lacks a device of the list.",
        Refusal.NOT_AGREED,
        second,
        OpenSlot(1, left),
    )
    yield lie(
        "Signatures with a list that was agreed on before.",
        Refusal.MALFORMED,
        second,
        OpenSlot(1, everybody, signatures(everybody, 1, 0, 1)),
    )
    yield lie(
        "Signatures with a tolerant slot.",
        Refusal.MALFORMED,
        fourth,
        OpenSlot(3, left, signatures(left, 3, 1, 3)),
    )
    yield lie(
        "The proof of a sum that is not verified.",
        Refusal.MALFORMED,
        fourth,
        SumOpening(1, bytes(4), {}),
    )


def _verified_lies():
    """Of sums that are to be proved."""
    own = Rewriting(VERIFIED)
    parties = Parties(small_case(VERIFIED))
    at = ("opening", 0)
    honest = wire.decode(own.rounds[at]["to"][VICTIM], own.params)
    records = dict(honest.committed)
    spec = own.params.slots[0]

    def lie(description, refusal, where, *messages):
        return _lie(description, refusal, VERIFIED, where, *map(own.encode, messages))

    def proof(description, refusal, **fields):
        return lie(description, refusal, at, replace(honest, **fields))

    def added(index):
        total = ring.unpack(honest.packed, spec.wire_length, spec.ring_bits)
        total[index] += 1
        return ring.pack(total, spec.ring_bits)

    def signed(position, commitment):
        context = SlotContext.of(own.params, parties.session_id(), 0, parties.bindings[0])
        statement = openings.statement(context, commitment, _sealing_keys(own)[position])
        return commitment + parties.identity(3 + 7 * position).sign(statement)

    lost = wire.decode(own.rounds["mask", 0]["from"][3], own.params).committed
    yield proof(
        "A commitment of a device that was lost.",
        Refusal.UNKNOWN_NEIGHBOUR,
        committed=records | {3: lost},
    )
    yield proof(
        "A commitment is missing.",
        Refusal.MISSING_NEIGHBOUR,
        committed={p: c for p, c in records.items() if p != 1},
    )
    yield proof(
        "The device's own commitment is missing.",
        Refusal.MISSING_NEIGHBOUR,
        committed={p: c for p, c in records.items() if p != OWN},
    )
    other = wire.decode(own.rounds["opening", 1]["to"][VICTIM], own.params)
    for description, changed in (
        ("A signature with one bit changed.", {1: _with_bit_changed(records[1])}),
        ("Two devices' commitments, swapped.", {0: records[1], 1: records[0]}),
        ("A commitment under the signature of another.", {1: records[0][:32] + records[1][32:]}),
        ("The commitments of the next slot.", dict(other.committed)),
        ("Another commitment of the device's own.", {OWN: records[0]}),
    ):
        yield proof(description, Refusal.BAD_SIGNATURE, committed=records | changed)
    yield proof("A sum with one element more by 1.", Refusal.BAD_OPENING, packed=added(0))
    yield proof("A sum whose blinding is more by 1.", Refusal.BAD_OPENING, packed=added(-16))
    yield proof("The sum of the next slot.", Refusal.BAD_OPENING, packed=other.packed)
    flipped = bytes([*records[1][:31], records[1][31] ^ 0x80])
    for description, commitment in (
        ("A commitment that is no point, signed.", (2).to_bytes(32, "little")),
        ("A commitment that is negated, signed.", flipped),
        ("A commitment of zeros, signed.", (1).to_bytes(32, "little")),
        ("The same, in an encoding above the prime.", (2**255 - 18).to_bytes(32, "little")),
    ):
        yield proof(
            description,
            Refusal.BAD_OPENING,
            committed=records | {1: signed(1, commitment)},
        )
    yield lie(
        "The proof of a slot that is not open yet.",
        Refusal.OUT_OF_ORDER,
        at,
        replace(honest, slot=1),
    )
    yield lie("A proof before the first sum.", Refusal.OUT_OF_ORDER, ("mask", 0), honest)
    yield lie("A proof before the unmasking.", Refusal.OUT_OF_ORDER, ("confirm", 0), honest)
    yield lie(
        "A second proof of one sum.",
        Refusal.OUT_OF_ORDER,
        ("mask", 1),
        replace(honest, packed=added(0)),
    )
    yield lie(
        "A proof of an earlier sum, when the next is known.",
        Refusal.OUT_OF_ORDER,
        ("opening", 1),
        replace(honest, packed=added(0)),
    )


def _sealing_keys(own):
    """The sealing keys of a complete session, by position."""
    advertised = own.rounds["advertise", 0]["from"]
    return [wire.decode(advertised[c], own.params).sealing_key for c in sorted(advertised)]


def _survivors_signature(own, parties, position, members, slot=0):
    """A device's signature of survivors."""
    binding = parties.bindings[slot]
    context = SlotContext.of(own.params, parties.session_id(), slot, binding)
    statement = signing.survivors(context, members, _sealing_keys(own)[position])
    return parties.identity(3 + 7 * position).sign(statement)


def _unheard_lies():
    """Neighbours whose box holds no shares: that they are members counts for nothing."""
    own, signed, sparse = Rewriting(PLAIN), Rewriting(SIGNED), Rewriting(SPARSE)
    at = ("receipt", 0)

    def without(session, *unheard):
        """The delivery, with other boxes for those of some neighbours."""
        return session.changed(
            "to", VICTIM, *at, lambda m: replace(m, boxes={**m.boxes, **dict(unheard)})
        )

    def spoiled(session, position):
        box = wire.decode(session.rounds[at]["to"][VICTIM], session.params).boxes[position]
        return position, _with_bit_changed(box)

    def moved(session, position, source):
        return position, wire.decode(session.rounds[at]["to"][VICTIM], session.params).boxes[source]

    limbs = np.zeros(18 * len(own.params.slots), dtype="<u4")
    limbs[7] = PRIME
    no_shares = 4, _sealed(PLAIN, 4, limbs.tobytes())
    yield _lie(
        "Three of four boxes do not open: two devices are no cohort.",
        Refusal.COHORT_TOO_SMALL,
        PLAIN,
        at,
        without(own, *(spoiled(own, p) for p in (0, 1, 3))),
    )
    yield _lie(
        "One box does not open, one is another's, and one holds a limb that is the prime.",
        Refusal.COHORT_TOO_SMALL,
        PLAIN,
        at,
        without(own, spoiled(own, 0), moved(own, 1, 3), no_shares),
    )
    two = without(own, spoiled(own, 0), no_shares)
    yield _lie(
        "Two boxes hold no shares, and a third neighbour is not in the slot.",
        Refusal.COHORT_TOO_SMALL,
        PLAIN,
        at,
        two,
        own.encode(OpenSlot(0, only(0, 1, 2, 4))),
    )
    yield _lie(
        "Two boxes hold no shares, and a third neighbour is not among the survivors.",
        Refusal.COHORT_TOO_SMALL,
        PLAIN,
        at,
        two,
        own.rounds["mask", 0]["to"][VICTIM],
        own.encode(UnmaskRequest(0, only(0, 1, 2, 4))),
    )
    near = sorted(wire.decode(sparse.rounds["share", 0]["to"][VICTIM], sparse.params).keys)
    yield _lie(
        "Of four neighbours' boxes one opens, and two holders are wanted.",
        Refusal.TOO_FEW_NEIGHBOURS,
        SPARSE,
        at,
        without(sparse, *(spoiled(sparse, p) for p in near[:3])),
    )
    yield _lie(
        "A valid signature of a neighbour whose box did not open.",
        Refusal.UNKNOWN_NEIGHBOUR,
        SIGNED,
        at,
        without(signed, spoiled(signed, 1)),
        *(signed.rounds[stage, 0]["to"][VICTIM] for stage in ("mask", "confirm", "unmask")),
    )


def _sealed(session, sender, content):
    """A box for the device, by the true sender of a complete session."""
    own = Rewriting(session)
    secret = Parties(small_case(session)).draws(3 + 7 * sender)(32)
    ids = np.array(sorted(own.rounds["share", 0]["to"]), dtype="<u4").tobytes()
    theirs = wire.decode(own.rounds["advertise", 0]["from"][VICTIM], own.params).sealing_key
    pair, session_id = key_pair(secret), own.params.session_id(ids)
    link = Link.between(pair, OWN, theirs, session_id)
    channel = SealedChannel(link.secret, pair.public, theirs, sender, OWN)
    return channel.seal(content, SeededRandomness(fixed("the nonce of a made-up box")))


def _signed_lies():
    own = Rewriting(SIGNED)
    parties = Parties(small_case(SIGNED))
    roster, check, unmask = ("share", 0), ("confirm", 0), ("unmask", 0)

    def lie(description, refusal, at, *messages):
        return _lie(description, refusal, SIGNED, at, *messages)

    def credentials(change):
        def changed(message):
            keys = message.keys[OTHER]
            return replace(
                message,
                keys=dict(message.keys) | {OTHER: replace(keys, credential=change(keys))},
            )

        return own.changed("to", VICTIM, *roster, changed)

    yield lie(
        "A neighbour's signature with one bit changed.",
        Refusal.BAD_SIGNATURE,
        roster,
        credentials(
            lambda k: replace(k.credential, signature=_with_bit_changed(k.credential.signature))
        ),
    )
    yield lie(
        "A neighbour's keys, signed by a stranger.",
        Refusal.UNKNOWN_IDENTITY,
        roster,
        credentials(lambda k: _credential(identity(fixed("a stranger")), own.params, 24, k)),
    )
    yield lie(
        "A neighbour's keys, signed by another member.",
        Refusal.UNKNOWN_IDENTITY,
        roster,
        credentials(lambda k: _credential(parties.identity(31), own.params, 24, k)),
    )
    yield lie(
        "A neighbour's keys, signed under another id.",
        Refusal.BAD_SIGNATURE,
        roster,
        credentials(lambda k: _credential(parties.identity(24), own.params, 31, k)),
    )
    yield lie(
        "A neighbour's keys, signed by a stranger, and the signature has one bit changed.",
        Refusal.BAD_SIGNATURE,
        roster,
        credentials(
            lambda k: _with_bad_signature(
                _credential(identity(fixed("a stranger")), own.params, 24, k)
            )
        ),
    )
    second = own.encode(ConsistencyCheck(0, only(0, 1, 2)))
    yield lie("A second list to sign.", Refusal.INCONSISTENT_SURVIVORS, unmask, second)
    yield lie(
        "The next slot when a list is signed.",
        Refusal.OUT_OF_ORDER,
        unmask,
        own.encode(OpenSlot(1, EVERYBODY)),
    )
    yield lie(
        "The list to sign leaves the device out.",
        Refusal.DEVICE_LEFT_OUT,
        check,
        own.encode(ConsistencyCheck(0, only(0, 1, 3))),
    )
    yield lie(
        "The list to sign is that of another slot.",
        Refusal.OUT_OF_ORDER,
        check,
        own.encode(ConsistencyCheck(1, EVERYBODY)),
    )
    yield lie(
        "The unmasking before the list is signed.",
        Refusal.OUT_OF_ORDER,
        check,
        own.rounds[unmask]["to"][VICTIM],
    )

    yield lie(
        "The same slot over fewer when a list is signed.",
        Refusal.SLOT_REUSED,
        unmask,
        own.encode(OpenSlot(0, only(0, 1, 2))),
    )
    few = only(0, 1, 2, 4)
    yield lie(
        "A valid signature of a holder that was lost.",
        Refusal.UNKNOWN_NEIGHBOUR,
        check,
        own.encode(ConsistencyCheck(0, few)),
        own.encode(
            UnmaskRequest(
                0, few, {p: _survivors_signature(own, parties, p, few) for p in (0, 1, 3, 4)}
            )
        ),
    )

    def request(description, refusal, change):
        return lie(description, refusal, unmask, own.changed("to", VICTIM, *unmask, change))

    yield request(
        "The unmasking names another list than was signed.",
        Refusal.INCONSISTENT_SURVIVORS,
        lambda m: replace(m, survivors=only(0, 1, 2)),
    )
    yield request(
        "The unmasking is over four of five devices.",
        Refusal.INCONSISTENT_SURVIVORS,
        lambda m: replace(m, survivors=EVERYBODY[:4]),
    )
    yield request(
        "One signature too few.",
        Refusal.TOO_FEW_SIGNATURES,
        lambda m: replace(m, signatures={p: s for p, s in m.signatures.items() if p < 2}),
    )
    yield request("No signatures.", Refusal.TOO_FEW_SIGNATURES, lambda m: replace(m, signatures={}))
    yield request(
        "A signature with one bit changed.",
        Refusal.BAD_SIGNATURE,
        lambda m: replace(
            m, signatures=dict(m.signatures) | {1: _with_bit_changed(m.signatures[1])}
        ),
    )
    yield request(
        "A signature under another's name.",
        Refusal.BAD_SIGNATURE,
        lambda m: replace(m, signatures=dict(m.signatures) | {1: m.signatures[0]}),
    )
    yield request(
        "A signature of somebody beyond the roster.",
        Refusal.UNKNOWN_NEIGHBOUR,
        lambda m: replace(m, signatures=dict(m.signatures) | {5: m.signatures[0]}),
    )
    other_slot = wire.decode(own.rounds["unmask", 1]["to"][VICTIM], own.params).signatures
    yield lie(
        "The signatures of another slot, on the same list.",
        Refusal.BAD_SIGNATURE,
        unmask,
        own.changed("to", VICTIM, *unmask, lambda m: replace(m, signatures=other_slot)),
    )
    context = SlotContext.of(own.params, parties.session_id(), 0, parties.bindings[0])
    old = key_pair(fixed("the sealing key of another session")).public
    earlier = parties.identity(10).sign(signing.survivors(context, EVERYBODY, old))
    yield request(
        "A signature of the same list with the signer's sealing key of another session.",
        Refusal.BAD_SIGNATURE,
        lambda m: replace(m, signatures=dict(m.signatures) | {1: earlier}),
    )


def _sparse_lies():
    own = Rewriting(SPARSE)
    near = sorted(wire.decode(own.rounds["share", 0]["to"][VICTIM], own.params).keys)
    stranger = next(p for p in range(8) if p != OWN and p not in near)
    members = np.ones(8, dtype=np.bool_)
    members[near[:3]] = False
    data = own.changed(
        "to",
        VICTIM,
        "share",
        0,
        lambda m: replace(m, keys=dict(m.keys) | {stranger: m.keys[near[0]]}),
    )
    yield _lie(
        "A neighbour that the graph does not give.",
        Refusal.UNKNOWN_NEIGHBOUR,
        SPARSE,
        ("share", 0),
        data,
    )
    data = own.changed(
        "to",
        VICTIM,
        "receipt",
        0,
        lambda m: replace(m, members=members, boxes={near[3]: m.boxes[near[3]]}),
    )
    yield _lie(
        "Of four neighbours one is left at the delivery.",
        Refusal.TOO_FEW_NEIGHBOURS,
        SPARSE,
        ("receipt", 0),
        data,
    )
    for name, at, make in (
        ("opening", ("mask", 0), OpenSlot),
        ("unmasking", ("unmask", 0), UnmaskRequest),
    ):
        yield _lie(
            f"Of four neighbours one is left at the {name}.",
            Refusal.TOO_FEW_NEIGHBOURS,
            SPARSE,
            at,
            own.encode(make(0, members)),
        )
    signed = Rewriting(SPARSE_SIGNED)
    request = wire.decode(signed.rounds["unmask", 0]["to"][VICTIM], signed.params)
    near = wire.decode(signed.rounds["share", 0]["to"][VICTIM], signed.params).keys
    stranger = next(p for p in range(8) if p != OWN and p not in near)
    signature = wire.decode(
        signed.rounds["confirm", 0]["from"][3 + 7 * stranger], signed.params
    ).signature
    for description, position in (
        ("A valid signature of a device that holds none of the shares.", stranger),
        ("The device's own signature, which is no holder's on a sparse graph.", OWN),
    ):
        message = replace(request, signatures=dict(request.signatures) | {position: signature})
        yield _lie(
            description,
            Refusal.UNKNOWN_NEIGHBOUR,
            SPARSE_SIGNED,
            ("unmask", 0),
            signed.encode(message),
        )


def _credential(signer: Identity, params, client, message):
    statement = signing.advertisement(params, client, message.sealing_key, message.mask_keys)
    return Credential(signer.public, signer.sign(statement))


def _with_bad_signature(credential):
    return replace(credential, signature=_with_bit_changed(credential.signature))


def _with_bit_changed(data):
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


# Whom a server blames.


def faults():
    cases = [
        *_silences(),
        *_nonsense(),
        *_second_versions(),
        *_false_keys(),
        *_complaints(),
        *_false_shares(),
        *_void_slots(),
        *_commitments(),
        *_endings(),
        *_innocence(),
    ]
    for case in cases:
        session = case["session"]
        case.update(blame(case, small_case(session), played(session)[0]))
        assert case["drops"] == case.pop("expected"), case
    named = {drop["fault"] for case in cases for drop in case["drops"].values()}
    # These sessions have no proofs; of sparse ones so few may be missing that none is isolated.
    faults = set(Fault) - {Fault.BAD_PROOF, Fault.ISOLATED}
    assert named == {fault.value for fault in faults}, faults - named
    return cases


def blame(case, session, rounds):
    """Play a session in which devices deviate, up to one round's end.

    Args:
        case: One of `faults`.
        session: The small session that it names.
        rounds: The messages of that session, as `play` gives them.

    Returns:
        The server's drops and disputes; of a whole slot whether it is void, where that round ends
        it; the sum, where that round reveals it, and of a verified slot whether it has a proof; and
        what an honest device hears and says from then on that it does not in the session.
    """
    parties = Parties(session)
    server = parties.server()
    sent = {
        (d["stage"], d["slot"], d["device"]): [bytes.fromhex(data) for data in d["messages"]]
        for d in case["deviations"]
    }
    asked, heard = server.start(), {client: [] for client in parties.devices}

    def tell(messages):
        for client in messages:
            heard[client].append(messages[client])

    for one in rounds:
        stage, slot = one["stage"], one["slot"]
        if stage == "opening":
            continue
        if server.state is ServerState.READY:
            asked = server.open_slot(slot, parties.bindings[slot])
        tell(asked)
        senders = sorted({*one["from"], *(d for s, i, d in sent if (s, i) == (stage, slot))})
        for sender in senders:
            own = [one["from"][sender]] if sender in one["from"] else []
            for data in sent.get((stage, slot, sender), own):
                server.receive(sender, data)
        last = {"stage": stage, "slot": slot} == case["until"]
        try:
            asked = server.close_round()
        except SessionAborted:
            assert last
            return _outcome(server) | {"sum": None, "aborted": True, "witness": None}
        if last:
            break
        if server.has_sum and (opening := server.take_sum().opening):
            tell(dict.fromkeys(server.remaining, opening))
    result = _outcome(server) | {"aborted": False}
    result |= _ending(server, parties.params.slots[slot], stage, asked, tell)
    tell(_next_slot(server, slot if stage in IN_SLOTS else -1, parties.bindings) or asked)
    deviating = {device for _, _, device in sent}
    witness = next((c for c in server.remaining if c not in deviating), None)
    return result | {"witness": witness and _witness(parties, witness, heard[witness], rounds)}


def _ending(server, spec, stage, asked, tell):
    """What the end of a round says of its slot."""
    result = {}
    if stage in ("list", "mask"):
        result["void"] = spec.whole and not (server.has_sum or asked)
    if server.has_sum:
        revealed = server.take_sum()
        result["sum"] = sum_to_json(revealed)
        if spec.verified:
            result["proof"] = revealed.opening is not None
        if revealed.opening is not None:
            tell(dict.fromkeys(server.remaining, revealed.opening))
    return result


def _next_slot(server, slot, bindings):
    """The messages that open the first slot after `slot` that can have a sum; none if none can."""
    if server.state is ServerState.READY:
        for number in range(slot + 1, len(bindings)):
            if server.can_sum(number):
                try:
                    return server.open_slot(number, bindings[number])
                except SessionAborted:
                    return {}
    return {}


IN_SLOTS = ("list", "mask", "confirm", "unmask")


def _witness(parties, client, heard, rounds):
    """What an honest device hears and answers, from the first message that differs from `rounds`.

    Its answers before are those of the session.
    """
    machine = parties.client(client)
    usual = [one["to"][client] for one in rounds if client in one["to"]]
    alike = [len(usual), *(i for i, (a, b) in enumerate(zip(heard, usual, strict=False)) if a != b)]
    received = min(alike[1] if len(alike) > 1 else alike[0], len(heard))
    steps = []
    for index, data in enumerate(heard):
        answer = parties.answer(machine, data)
        if index >= received:
            steps.append({"message": data.hex(), "answer": answer and answer.hex()})
    return {"device": client, "received": received, "steps": steps}


def _outcome(server):
    disputes = sorted((d.owner, d.holder, d.step.order, d.step) for d in server.disputes)
    return {
        "drops": drops_to_json(server),
        "disputes": [
            {
                "owner": owner,
                "holder": holder,
                "stage": step.stage.name.lower(),
                "slot": step.slot,
            }
            for owner, holder, _, step in disputes
        ],
    }


def _deviation(description, session, deviations, expected, until=None):
    """A case; deviations are (stage, slot, device, messages), expected ones (device, fault).

    A device is dropped in the round in which it deviates, unless `expected` gives another.
    """
    stage, slot = until or deviations[0][:2]
    expected = {str(one[0]): _drop(one, stage, slot) for one in expected}
    return {
        "description": description,
        "session": session,
        "deviations": [
            {"stage": s, "slot": i, "device": d, "messages": [data.hex() for data in m]}
            for s, i, d, m in deviations
        ],
        "until": {"stage": stage, "slot": slot},
        "expected": dict(sorted(expected.items(), key=lambda item: int(item[0]))),
    }


def _drop(one, stage, slot):
    _, fault, *at = one
    stage, slot = at or (stage, slot)
    return {"fault": fault.value, "stage": stage, "slot": slot}


def _silences():
    for one in played(SIGNED)[0]:
        at = one["stage"], one["slot"]
        yield _deviation(
            f"Silence at {at[0]}.", SIGNED, [(*at, VICTIM, [])], [(VICTIM, Fault.TIMED_OUT)]
        )


def _nonsense():
    for one in played(SIGNED)[0][:6]:
        at = one["stage"], one["slot"]
        honest = one["from"][VICTIM]
        for description, data in (
            ("No message of the protocol", b"\x90"),
            ("A cut message", honest[:-1]),
        ):
            yield _deviation(
                f"{description} at {at[0]}.",
                SIGNED,
                [(*at, VICTIM, [data])],
                [(VICTIM, Fault.MALFORMED)],
            )
    own = Rewriting(PLAIN)

    def single(description, fault, stage, data):
        return _deviation(description, PLAIN, [(stage, 0, VICTIM, [data])], [(VICTIM, fault)])

    def changed(stage, change):
        return own.changed("from", VICTIM, stage, 0, change)

    yield single(
        "A neighbour's box is missing.",
        Fault.MALFORMED,
        "share",
        changed("share", lambda m: replace(m, boxes={p: m.boxes[p] for p in (0, 1, 3)})),
    )
    yield single(
        "A box for itself.",
        Fault.MALFORMED,
        "share",
        changed("share", lambda m: replace(m, boxes=dict(m.boxes) | {OWN: m.boxes[0]})),
    )
    yield single(
        "Its own box is refused.",
        Fault.MALFORMED,
        "receipt",
        own.encode(ShareReceipt((OWN,))),
    )
    yield single(
        "A padding bit of the vector is set.",
        Fault.MALFORMED,
        "mask",
        changed(
            "mask",
            lambda m: replace(m, packed=m.packed[:-1] + bytes([m.packed[-1] | 0x80])),
        ),
    )
    yield single(
        "Shares of the kind that was not asked for.",
        Fault.MALFORMED,
        "unmask",
        changed("unmask", lambda m: replace(m, kinds=1 - m.kinds)),
    )
    yield single(
        "A share is withheld.",
        Fault.MALFORMED,
        "unmask",
        changed(
            "unmask",
            lambda m: replace(m, positions=m.positions[1:], kinds=m.kinds[1:], shares=m.shares[1:]),
        ),
    )
    vector = own.rounds["mask", 1]["from"][VICTIM]
    for description, stage, data in (
        ("A vector before its slot is open.", "share", own.rounds["mask", 0]["from"][VICTIM]),
        ("The vector of the next slot.", "mask", vector),
        ("A message of the server.", "mask", own.rounds["mask", 0]["to"][VICTIM]),
        ("Shares before they are asked for.", "mask", own.rounds["unmask", 0]["from"][VICTIM]),
    ):
        yield single(description, Fault.UNEXPECTED, stage, data)


def _second_versions():
    own = Rewriting(SIGNED)
    other = key_pair(fixed("a second sealing key")).public
    parties = Parties(small_case(SIGNED))
    changes = {
        "advertise": lambda m: replace(
            m,
            sealing_key=other,
            credential=_credential(
                parties.identity(VICTIM), own.params, VICTIM, replace(m, sealing_key=other)
            ),
        ),
        "share": lambda m: replace(m, commitments=(bytes(32),) * 2),
        "receipt": lambda _: ShareReceipt((0,)),
        "mask": lambda m: MaskedInput(0, bytes(len(m.packed))),
        "confirm": lambda m: replace(m, signature=bytes(64)),
        "unmask": lambda m: replace(m, shares=np.zeros_like(m.shares)),
    }
    for stage, change in changes.items():
        first = own.rounds[stage, 0]["from"][VICTIM]
        second = own.changed("from", VICTIM, stage, 0, change)
        yield _deviation(
            f"Two different messages at {stage}.",
            SIGNED,
            [(stage, 0, VICTIM, [first, second])],
            [(VICTIM, Fault.EQUIVOCATED)],
        )


def _false_keys():
    own, signed = Rewriting(PLAIN), Rewriting(SIGNED)
    parties = Parties(small_case(SIGNED))
    earlier = wire.decode(own.rounds["advertise", 0]["from"][3], own.params)

    def lie(session, description, fault, change, stage="advertise"):
        source = own if session == PLAIN else signed
        data = source.changed("from", VICTIM, stage, 0, change)
        return _deviation(description, session, [(stage, 0, VICTIM, [data])], [(VICTIM, fault)])

    for description, fields in (
        ("A sealing key of low order.", {"sealing_key": bytes(32)}),
        ("A key that another device advertised before.", {"sealing_key": earlier.mask_keys[1]}),
    ):
        yield lie(PLAIN, description, Fault.BAD_KEY, lambda m, fields=fields: replace(m, **fields))
    yield lie(
        PLAIN,
        "One key in two places.",
        Fault.BAD_KEY,
        lambda m: replace(m, mask_keys=(m.sealing_key, m.mask_keys[1])),
    )
    yield lie(
        SIGNED,
        "Keys signed by a stranger.",
        Fault.UNKNOWN_IDENTITY,
        lambda m: replace(
            m, credential=_credential(identity(fixed("a stranger")), signed.params, VICTIM, m)
        ),
    )
    yield lie(
        SIGNED,
        "Keys signed under another device's id.",
        Fault.BAD_SIGNATURE,
        lambda m: replace(
            m, credential=_credential(parties.identity(VICTIM), signed.params, 24, m)
        ),
    )
    yield lie(
        SIGNED,
        "A signature of the keys with one bit changed.",
        Fault.BAD_SIGNATURE,
        lambda m: replace(
            m,
            credential=replace(m.credential, signature=_with_bit_changed(m.credential.signature)),
        ),
    )
    yield lie(
        SIGNED,
        "A signature of the survivors with one bit changed.",
        Fault.BAD_SIGNATURE,
        lambda m: replace(m, signature=_with_bit_changed(m.signature)),
        "confirm",
    )
    other = wire.decode(signed.rounds["confirm", 1]["from"][VICTIM], signed.params).signature
    yield lie(
        SIGNED,
        "The signature of the same survivors of another slot.",
        Fault.BAD_SIGNATURE,
        lambda m: replace(m, signature=other),
        "confirm",
    )


def _complaints():
    own = Rewriting(PLAIN)

    def receipts(*pairs):
        return [
            ("receipt", 0, client, [own.encode(ShareReceipt(refused))]) for client, refused in pairs
        ]

    yield _deviation(
        "Three of five refuse a device's box: two holders are fewer than t.",
        PLAIN,
        receipts((3, (OWN,)), (10, (OWN,)), (31, (OWN,))),
        [(VICTIM, Fault.BAD_BOX)],
    )
    yield _deviation(
        "Two of five do: three holders are left, and nobody is to blame.",
        PLAIN,
        receipts((3, (OWN,)), (10, (OWN,))),
        [],
    )
    yield _deviation(
        "A device refuses three of its four boxes.",
        PLAIN,
        receipts((VICTIM, (0, 1, 4))),
        [(VICTIM, Fault.BAD_RECEIPT)],
    )
    yield _deviation(
        "A device refuses two of its four boxes: nobody is to blame.",
        PLAIN,
        receipts((VICTIM, (0, 1))),
        [],
    )


def _false_shares():
    for session, whose, why in (
        (PLAIN, {0}, "of one seed: a dispute, and nobody is to blame"),
        (PLAIN, {0, 1}, "of two seeds of five: two disputes"),
        (PLAIN, {0, 3, 4}, "of three seeds of five"),
        (PLAIN, set(range(5)), "of all seeds"),
        (SIGNED, {0, 1, 4}, "of three seeds, in a signed session"),
        (LOSING, {0}, "of the key of the device that was lost: a dispute"),
        (LOSING, {0, 1, 4}, "of the key of the device that was lost, and of two seeds"),
    ):
        lost = _lost(session, ("unmask", 0)) if session in LOST else []
        guilty = [(VICTIM, Fault.BAD_SHARE)] if len(whose) > 2 else []
        yield _deviation(
            f"Wrong shares {why}.",
            session,
            [("unmask", 0, VICTIM, [_wrong_shares(session, VICTIM, whose)])],
            [*lost, *guilty],
        )
    yield _deviation(
        "Wrong shares of one seed from two of five: too many to tell them apart.",
        PLAIN,
        [
            ("unmask", 0, client, [_wrong_shares(PLAIN, client, {0}, error=client)])
            for client in (10, VICTIM)
        ],
        [],
    )
    own = Rewriting(PLAIN)
    for slot in (0, 1):
        false = own.changed(
            "from",
            VICTIM,
            "share",
            0,
            lambda m, slot=slot: replace(
                m,
                commitments=tuple(
                    bytes(32) if i == slot else c for i, c in enumerate(m.commitments)
                ),
            ),
        )
        yield _deviation(
            f"A commitment to another seed of slot {slot} than was shared: there is no sum.",
            PLAIN,
            [("share", 0, VICTIM, [false])],
            [(VICTIM, Fault.BAD_COMMITMENT)],
            until=("unmask", slot),
        )


def _wrong_shares(session, client, whose, error=1):
    def change(message):
        shares = message.shares.copy()
        for row, position in enumerate(message.positions.tolist()):
            if position in whose:
                # Not the lowest limb: X25519 clears the lowest bits of a secret key.
                shares[row, 3] = (int(shares[row, 3]) + error) % PRIME
        return replace(message, shares=shares)

    return Rewriting(session).changed("from", client, "unmask", 0, change)


def _void_slots():
    """Whole slots from which vectors are missing."""
    own, signed = Rewriting(WHOLE), Rewriting(WHOLE_SIGNED)
    vector = own.rounds["mask", 0]["from"][VICTIM]
    signature = signed.rounds["list", 0]["from"][VICTIM]
    for description, session, at, data, fault in (
        ("Silence at a whole slot: the slot is void.", WHOLE, ("mask", 0), [], Fault.TIMED_OUT),
        (
            "A cut vector at a whole slot: the slot is void.",
            WHOLE,
            ("mask", 0),
            [vector[:-1]],
            Fault.MALFORMED,
        ),
        (
            "Silence at a tolerant slot: it is not void.",
            WHOLE_SIGNED,
            ("mask", 3),
            [],
            Fault.TIMED_OUT,
        ),
        (
            "Silence when the members of a whole slot are listed: the slot is void.",
            WHOLE_SIGNED,
            ("list", 0),
            [],
            Fault.TIMED_OUT,
        ),
        (
            "A signature of the list of members with one bit changed: the slot is void.",
            WHOLE_SIGNED,
            ("list", 0),
            [
                signed.changed(
                    "from",
                    VICTIM,
                    "list",
                    0,
                    lambda m: replace(m, signature=_with_bit_changed(m.signature)),
                )
            ],
            Fault.BAD_SIGNATURE,
        ),
        (
            "A signature of the survivors where the members are listed: the slot is void.",
            WHOLE_SIGNED,
            ("list", 0),
            [
                signed.changed(
                    "from",
                    VICTIM,
                    "list",
                    0,
                    lambda m: replace(
                        m,
                        signature=_survivors_signature(
                            signed,
                            Parties(small_case(WHOLE_SIGNED)),
                            OWN,
                            np.ones(4, dtype=np.bool_),
                        ),
                    ),
                )
            ],
            Fault.BAD_SIGNATURE,
        ),
    ):
        gone = _lost(session, at) if at[0] != "list" else []
        yield _deviation(description, session, [(*at, VICTIM, data)], [*gone, (VICTIM, fault)])
    yield _deviation(
        "A vector that was added, and then another: the slot is complete all the same.",
        WHOLE,
        [("mask", 0, VICTIM, [vector, own.encode(MaskedInput(0, bytes(4)))])],
        [(VICTIM, Fault.EQUIVOCATED)],
    )
    late = own.rounds["mask", 1]["from"][VICTIM]
    shares = own.changed("from", VICTIM, "unmask", 3, lambda m: replace(m, slot=1))
    yield _deviation(
        "A vector and shares for a void slot, when another one is open.",
        WHOLE,
        [("mask", 3, VICTIM, [late, shares, own.rounds["mask", 3]["from"][VICTIM], late])],
        _lost(WHOLE, ("mask", 3)),
    )
    late = signed.rounds["confirm", 3]["from"][VICTIM]
    yield _deviation(
        "The signature of a list once more with the vector.",
        WHOLE_SIGNED,
        [("mask", 0, VICTIM, [signature, signed.rounds["mask", 0]["from"][VICTIM], signature])],
        [],
    )
    yield _deviation(
        "A signature of survivors, with the vector of a whole slot before.",
        WHOLE_SIGNED,
        [("mask", 0, VICTIM, [late])],
        [(VICTIM, Fault.UNEXPECTED)],
    )


def _commitments():
    """Commitments that are not what they should be."""
    own, parties = Rewriting(VERIFIED), Parties(small_case(VERIFIED))

    def changed(slot, change):
        return own.changed("from", VICTIM, "mask", slot, change)

    def forged(slot, values, binding=None):
        binding = parties.bindings[slot] if binding is None else binding
        context = SlotContext.of(own.params, parties.session_id(), slot, binding)
        commitment = pedersen.commit(values, 1)
        statement = openings.statement(context, commitment, _sealing_keys(own)[OWN])
        return commitment + parties.identity(VICTIM).sign(statement)

    for slot, ending in ((0, "the others are summed"), (1, "the slot is void")):
        gone = _lost(VERIFIED, ("mask", slot))
        for description, committed in (
            ("A signature of the commitment with one bit changed", None),
            ("A commitment that is signed for another binding", forged(slot, [1, 2, 3], b"")),
        ):
            data = changed(
                slot,
                lambda m, c=committed: replace(m, committed=c or _with_bit_changed(m.committed)),
            )
            yield _deviation(
                f"{description}: {ending}.",
                VERIFIED,
                [("mask", slot, VICTIM, [data])],
                [*gone, (VICTIM, Fault.BAD_SIGNATURE)],
            )
    data = changed(1, lambda m: replace(m, committed=forged(1, [1, 2, 3])))
    yield _deviation(
        "A commitment to another vector than was masked: a sum, and no proof.",
        VERIFIED,
        [("mask", 1, VICTIM, [data])],
        _lost(VERIFIED, ("mask", 1)),
    )


def _lost(session, until):
    """Who vanishes in a session up to a round of its slots."""
    return [
        (3 + 7 * index, Fault.TIMED_OUT, stage, slot)
        for index, stage, slot in LOST[session]
        if slot <= until[1]
    ]


def _endings():
    """Three of five are silent, and two are fewer than t."""
    for one in played(SIGNED)[0][:6]:
        at = one["stage"], one["slot"]
        gone = (3, VICTIM, 31)
        yield _deviation(
            f"Three of five are silent at {at[0]}.",
            SIGNED,
            [(*at, client, []) for client in gone],
            [(client, Fault.TIMED_OUT) for client in gone],
        )


def _innocence():
    """What costs nobody anything."""
    own, other = Rewriting(PLAIN), Rewriting(SIGNED)
    for stage in ("advertise", "share", "receipt", "mask", "unmask"):
        data = own.rounds[stage, 0]["from"][VICTIM]
        yield _deviation(
            f"The same message three times at {stage}.",
            PLAIN,
            [(stage, 0, VICTIM, [data] * 3)],
            [],
        )
    late = own.rounds["advertise", 0]["from"][VICTIM]
    for stage in ("share", "mask"):
        data = own.rounds[stage, 0]["from"][VICTIM]
        yield _deviation(
            f"A message of an earlier round once more at {stage}.",
            PLAIN,
            [(stage, 0, VICTIM, [late, data, late])],
            [],
        )
        stray = other.rounds[stage, 0]["from"][VICTIM]
        yield _deviation(
            f"A message of another session at {stage}.",
            PLAIN,
            [(stage, 0, VICTIM, [stray, data, stray])],
            [],
        )
        yield _deviation(
            f"A stranger's message at {stage}.", PLAIN, [(stage, 0, 4, [data, b""])], []
        )
