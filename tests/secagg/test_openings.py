"""Verified slots: devices commit to their vectors, and believe no other sum than the true one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from malicious_clients import MaliciousClients
from parties import BINDING, Parties, as_ring, make_params, plain_sum
from refusing import IDS, OTHERS, VICTIM, refuse

from deltafl.secagg import (
    DecodeError,
    Fault,
    Refusal,
    SessionParams,
    SlotSpec,
    Stage,
    Step,
    UsageError,
    keys,
    labels,
    masks,
    openings,
    pedersen,
    prg,
    ring,
)
from deltafl.secagg.identity import identity
from deltafl.secagg.labels import Label
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import SumOpening
from deltafl.secagg.openings import COMMITTED_SIZE, Opening
from deltafl.secagg.pedersen import BLINDING_SIZE, COMMITMENT_SIZE, ORDER
from deltafl.secagg.signing import Signer
from deltafl.secagg.states import ClientState, ServerState

BITS = 24
WHOLE, TOLERANT, PLAIN = (4, BITS, True, True), (4, BITS, False, True), (3, 40)
PARAMS = make_params(6, slots=(WHOLE, WHOLE, PLAIN))
MIXED = make_params(6, slots=(TOLERANT, PLAIN))

ALICE = identity(b"a" * 32)
SIGNER = Signer(ALICE.public, b"sealing key of Alice".ljust(32, b"\0"))
CONTEXT = SlotContext.of(PARAMS, b"s" * 32, 0, BINDING)


def summed(params=PARAMS, slot=0):
    """A session that has summed a verified slot, and the sum."""
    parties = Parties(params)
    parties.exchange(parties.advance(ClientState.SHARED))
    return parties, parties.run_slot(slot)


# The sum that is proved.


@pytest.mark.parametrize("params", [PARAMS, MIXED], ids=["whole", "tolerant"])
def test_every_device_believes_the_true_sum(params):
    parties, result = summed(params)
    assert result.vector.tolist() == plain_sum(params, 0, parties.inputs, parties.ids)
    assert len(result.vector) == 4
    for machine in parties.clients.values():
        assert machine.proved is None
        assert machine.receive(result.opening) is None
        assert machine.state is ClientState.READY
        assert machine.proved.slot == 0
        assert np.array_equal(machine.proved.vector, result.vector)
        # A repetition is none.
        assert machine.receive(result.opening) is None


def test_each_slot_has_a_proof_of_its_own():
    parties, first = summed()
    machine = parties.clients[VICTIM]
    machine.receive(first.opening)
    second = parties.run_slot(1)
    assert machine.proved.slot == 0
    machine.receive(second.opening)
    assert machine.proved.slot == 1
    assert machine.proved.vector.tolist() == plain_sum(PARAMS, 1, parties.inputs, IDS)
    third = parties.run_slot(2)
    assert third.opening is None
    assert machine.proved.slot == 1


def test_a_proof_may_be_left_out():
    """Whether a device insists on it is the caller's business."""
    parties, _ = summed()
    second = parties.run_slot(1)
    parties.clients[VICTIM].receive(second.opening)
    assert parties.clients[VICTIM].proved.slot == 1


def test_a_proof_is_of_those_who_are_in_the_sum():
    """In a tolerant slot somebody may be missing from it."""
    parties = Parties(MIXED)
    replies = parties.deliver(parties.advance(ClientState.LINKED))
    gone = OTHERS[0]
    lost_input = replies.pop(gone)
    result = parties.finish_slot(parties.collect(replies))
    machine = parties.clients[VICTIM]
    message = parties.decode(result.opening)
    positions = [parties.position(client) for client in sorted(set(IDS) - {gone})]
    assert list(message.committed) == positions
    machine.receive(result.opening)
    expected = plain_sum(MIXED, 0, parties.inputs, set(IDS) - {gone})
    assert machine.proved.vector.tolist() == expected
    # With the one who is gone, it is another sum, and no sum that was agreed on.
    committed = dict(message.committed) | {
        parties.position(gone): parties.decode(lost_input).committed
    }
    data = parties.encode(replace(message, committed=dict(sorted(committed.items()))))
    refuse(parties, data, Refusal.OUT_OF_ORDER)  # a second sum, whatever it is over
    other = next(client for client in OTHERS if client != gone)
    refuse(parties, data, Refusal.UNKNOWN_NEIGHBOUR, victim=other)


# What a device does not believe.


SPEC = PARAMS.slots[0]


def forged(message, *, position=None, by=1):
    """A sum that differs at a position, or without one in its blinding."""
    words, blinding = openings.unpack(SPEC, message.packed)
    words = words.copy()
    if position is None:
        blinding += by
    else:
        words[position] = (int(words[position]) + by) % 2**BITS
    return replace(message, packed=openings.pack(SPEC, words, blinding))


def recommitted(parties, message, changes):
    """The same with other commitments; `changes` is by position."""
    committed = {p: bytes(c) for p, c in message.committed.items()} | changes
    return replace(message, committed=dict(sorted(committed.items())))


def sign_commitment(parties, client, commitment, *, slot=0, key=None):
    """A device's commitment, well signed."""
    context = SlotContext.of(parties.params, parties.session_id(), slot, BINDING)
    key = parties.key(client) if key is None else key
    statement = openings.statement(context, commitment, key)
    return commitment + parties.enrolment.credentials(client).identity.sign(statement)


def moved(parties, message):
    """Two commitments whose sum stays, with the signatures that they had."""
    one, other = (bytes(message.committed[p]) for p in (0, 1))
    more, less = pedersen.commit([1], 1), pedersen.commit([-1], ORDER - 1)
    return recommitted(
        parties,
        message,
        {
            0: pedersen.add([one[:32], more]) + one[32:],
            1: pedersen.add([other[:32], less]) + other[32:],
        },
    )


def swapped(parties, message):
    committed = message.committed
    return recommitted(parties, message, {0: bytes(committed[1]), 1: bytes(committed[0])})


def with_signature_of_another(parties, message):
    own, other = (bytes(message.committed[p]) for p in (0, 1))
    return recommitted(parties, message, {0: own[:32] + other[32:]})


def own_replaced(parties, message):
    """The server knows what else to say of the victim, but not how to sign it."""
    position = parties.position(VICTIM)
    own = bytes(message.committed[position])
    changed = pedersen.add([own[:32], pedersen.commit([1], 0)]) + own[32:]
    return forged(recommitted(parties, message, {position: changed}), position=0)


def from_slot_1(parties, message):
    """A commitment of the second slot, which the device made in this very session."""
    again, _ = summed()  # the same to the last bit
    assert again.session_id() == parties.session_id()
    later = again.decode(again.run_slot(1).opening)
    return recommitted(parties, message, {0: bytes(later.committed[0])})


def from_another_session(parties, message):
    """The same devices with the same keys, asked about something else."""
    other, result = summed(replace(PARAMS, context=b"\1" * 32))
    assert other.key(IDS[-1]) == parties.key(IDS[-1])
    return recommitted(parties, message, dict(other.decode(result.opening).committed))


def without(client):
    def change(parties, message):
        committed = dict(message.committed)
        del committed[parties.position(client)]
        return replace(message, committed=committed)

    return change


def with_a_seventh(parties, message):
    return recommitted(parties, message, {2**32 - 1: bytes(message.committed[0])})


LIES = {
    "a sum": (lambda _, m: forged(m, position=2), Refusal.BAD_OPENING),
    "a smaller sum": (lambda _, m: forged(m, position=0, by=-1), Refusal.BAD_OPENING),
    "another sign": (lambda _, m: forged(m, position=1, by=2 ** (BITS - 1)), Refusal.BAD_OPENING),
    "moved within": (
        lambda _, m: forged(forged(m, position=0), position=1, by=-1),
        Refusal.BAD_OPENING,
    ),
    "a blinding": (lambda _, m: forged(m), Refusal.BAD_OPENING),
    "its highest bits": (lambda _, m: forged(m, by=2**251), Refusal.BAD_OPENING),
    "nothing": (lambda _, m: replace(m, packed=bytes(len(m.packed))), Refusal.BAD_OPENING),
    "a commitment": (
        lambda p, m: recommitted(
            p, m, {0: pedersen.commit([1], 1) + bytes(m.committed[0][COMMITMENT_SIZE:])}
        ),
        Refusal.BAD_SIGNATURE,
    ),
    "two commitments": (moved, Refusal.BAD_SIGNATURE),
    "swapped": (swapped, Refusal.BAD_SIGNATURE),
    "another's signature": (with_signature_of_another, Refusal.BAD_SIGNATURE),
    "the victim's own": (own_replaced, Refusal.BAD_SIGNATURE),
    "from the next slot": (from_slot_1, Refusal.BAD_SIGNATURE),
    "from another session": (from_another_session, Refusal.BAD_SIGNATURE),
    "without one": (without(OTHERS[0]), Refusal.MISSING_NEIGHBOUR),
    "without the victim": (without(VICTIM), Refusal.MISSING_NEIGHBOUR),
    "without all": (lambda _, m: replace(m, committed={}), Refusal.MISSING_NEIGHBOUR),
    "with one more": (with_a_seventh, Refusal.MALFORMED),
}
"""What a server makes of a proof, and how it is refused."""


@pytest.mark.parametrize("lie", LIES)
def test_lies_about_a_sum(lie):
    parties, result = summed()
    change, reason = LIES[lie]
    message = change(parties, parties.decode(result.opening))
    refuse(parties, parties.encode(message), reason)


def test_a_device_that_left_before_adds_no_commitment():
    """Its commitment would be well signed: it is not on the list."""
    parties = MaliciousClients(PARAMS, {(OTHERS[0], Stage.RECEIPT): lambda *_: None})
    parties.exchange(parties.advance(ClientState.SHARED))
    result = parties.run_slot(0)
    message = parties.decode(result.opening)
    gone = parties.position(OTHERS[0])
    assert gone not in message.committed
    commitment = sign_commitment(parties, OTHERS[0], pedersen.commit([0] * 4, 0))
    data = parties.encode(recommitted(parties, message, {gone: commitment}))
    refuse(parties, data, Refusal.UNKNOWN_NEIGHBOUR)
    # Control: without it.
    parties.clients[OTHERS[1]].receive(result.opening)


def test_a_sum_with_unused_bits_set_is_malformed():
    params = make_params(6, slots=((3, 23, True, True),))
    parties, result = summed(params)
    message = parties.decode(result.opening)
    assert 3 * 23 % 8 == 5  # of the ninth byte
    packed = message.packed[:8] + bytes([message.packed[8] | 0x80]) + message.packed[9:]
    refuse(parties, parties.encode(replace(message, packed=packed)), Refusal.MALFORMED)


@pytest.mark.parametrize("colluding", [0, 5])
def test_a_colluding_device_changes_its_own_commitment_and_no_other(colluding):
    """It signs what the server likes, and the sum is then of what it signed."""
    parties, result = summed()
    client = parties.roster[colluding]
    message = parties.decode(result.opening)
    own = bytes(message.committed[colluding])
    more = pedersen.add([own[:COMMITMENT_SIZE], pedersen.commit([5], 0)])
    signed = recommitted(parties, message, {colluding: sign_commitment(parties, client, more)})
    parties.clients[VICTIM].receive(parties.encode(forged(signed, position=0, by=5)))
    proved = parties.clients[VICTIM].proved.vector.tolist()
    expected = plain_sum(PARAMS, 0, parties.inputs, IDS)
    assert proved == [(expected[0] + 5) % 2**BITS, *expected[1:]]
    # Control: the sum without it, or it without the sum, opens to nothing.
    for lie in (signed, forged(message, position=0, by=5)):
        refuse(summed()[0], parties.encode(lie), Refusal.BAD_OPENING)


@pytest.mark.parametrize("garbage", [b"\2" * 32, b"\xff" * 32, bytes(31) + b"\x80"])
def test_a_commitment_that_is_no_point_opens_to_nothing(garbage):
    parties, result = summed()
    message = parties.decode(result.opening)
    committed = sign_commitment(parties, parties.roster[0], garbage)
    refuse(
        parties, parties.encode(recommitted(parties, message, {0: committed})), Refusal.BAD_OPENING
    )


# When a proof may come.


def proof():
    """What an honest server would say once the first slot is over."""
    return summed()[1].opening


@pytest.mark.parametrize("state", [ClientState.LINKED, ClientState.OPENED])
def test_a_proof_before_the_vector(state):
    parties = Parties(PARAMS)
    parties.advance(state)
    assert parties.clients[VICTIM].state is state
    refuse(parties, proof(), Refusal.OUT_OF_ORDER)


@pytest.mark.parametrize("state", [ClientState.MASKED, ClientState.CONFIRMED])
def test_a_proof_before_a_tolerant_slot_is_unmasked(state):
    parties = Parties(MIXED)
    parties.advance(state)
    assert parties.clients[VICTIM].state is state
    refuse(parties, summed(MIXED)[1].opening, Refusal.OUT_OF_ORDER)


def test_a_proof_when_the_next_slot_is_open_or_over():
    parties, result = summed()
    pending = parties.server.open_slot(1, BINDING)
    parties.clients[VICTIM].receive(pending[VICTIM])
    refuse(parties, result.opening, Refusal.OUT_OF_ORDER)
    parties, result = summed()
    parties.run_slot(1)
    refuse(parties, result.opening, Refusal.OUT_OF_ORDER)


def test_a_proof_of_a_slot_that_is_not_the_last():
    parties, result = summed()
    message = parties.decode(result.opening)
    refuse(parties, parties.encode(replace(message, slot=1)), Refusal.OUT_OF_ORDER)


def test_a_second_proof():
    """A sum that a server with a colluding device can prove in two ways is proved once."""
    parties, result = summed()
    parties.clients[VICTIM].receive(result.opening)
    message = parties.decode(result.opening)
    other = recommitted(
        parties,
        message,
        {0: sign_commitment(parties, parties.roster[0], bytes(message.committed[0][:32]))},
    )
    data = parties.encode(forged(other, position=0))
    refuse(parties, data, Refusal.OUT_OF_ORDER)


def test_a_proof_of_a_slot_that_is_not_verified():
    parties, _ = summed()
    parties.run_slot(1)
    parties.run_slot(2)
    data = parties.encode(SumOpening(2, bytes(15), {}))
    refuse(parties, data, Refusal.MALFORMED)


# What the server does.


def mask_another(by=1):
    """Mask another vector than was committed to."""

    def change(parties, client, message):
        if not message.committed:
            return message
        spec = parties.params.slots[message.slot]
        words, blinding = openings.unpack(spec, message.packed)
        words = words.copy()
        words[0] = (int(words[0]) + by) % 2**spec.ring_bits
        return replace(message, packed=openings.pack(spec, words, blinding))

    return change


def commit_to_another(parties, client, message):
    """The other way round: another commitment, well signed."""
    if not message.committed:
        return message
    other = pedersen.add([message.committed[:COMMITMENT_SIZE], pedersen.commit([1], 0)])
    return replace(message, committed=sign_commitment(parties, client, other, slot=message.slot))


def commit_to_nothing(parties, client, message):
    if not message.committed:
        return message
    garbage = b"\2" * COMMITMENT_SIZE
    return replace(message, committed=sign_commitment(parties, client, garbage, slot=message.slot))


@pytest.mark.parametrize("params", [PARAMS, MIXED], ids=["whole", "tolerant"])
@pytest.mark.parametrize("cheat", [mask_another(), commit_to_another])
def test_a_device_that_commits_to_something_else_costs_the_proof_only(params, cheat):
    """There is a sum, of what was masked. Whose fault it is that it is not proved, nobody knows."""
    parties = MaliciousClients(params, {(VICTIM, Stage.MASK): cheat})
    for _ in parties.steps():
        pass
    sums = parties.sums
    assert [result.slot for result in sums] == list(range(len(params.slots)))
    for result, spec in zip(sums, params.slots, strict=True):
        assert result.opening is None
        assert result.contributors == tuple(parties.roster)
        expected = plain_sum(params, result.slot, parties.inputs, parties.ids)
        if spec.verified and cheat is not commit_to_another:
            expected[0] = (expected[0] + 1) % 2**BITS
        assert result.vector.tolist() == expected
    assert parties.server.drops == {}
    # Control: of honest devices.
    assert summed(params)[1].opening is not None


@pytest.mark.parametrize("params", [PARAMS, MIXED], ids=["whole", "tolerant"])
def test_a_commitment_that_is_no_point_is_its_senders_fault(params):
    parties = MaliciousClients(params, {(VICTIM, Stage.MASK): commit_to_nothing})
    for _ in parties.steps():
        pass
    assert {c: drop.fault for c, drop in parties.server.drops.items()} == {
        VICTIM: Fault.BAD_COMMITMENT
    }


def test_two_devices_may_deceive_each_other_and_not_the_rest():
    """What they mask beside their commitments cancels: the sum is of what they committed to."""
    changes = {(OTHERS[0], Stage.MASK): mask_another(1), (OTHERS[1], Stage.MASK): mask_another(-1)}
    parties = MaliciousClients(PARAMS, changes)
    parties.exchange(parties.advance(ClientState.SHARED))
    result = parties.run_slot(0)
    assert result.vector.tolist() == plain_sum(PARAMS, 0, parties.inputs, IDS)
    parties.clients[VICTIM].receive(result.opening)
    assert parties.clients[VICTIM].proved.slot == 0


WRONG = {
    "signature": lambda _, own: own[:-1] + bytes([own[-1] ^ 1]),
    "commitment": lambda _, own: b"\1" + own[1:],
    "zeros": lambda *_: bytes(COMMITTED_SIZE),
    "another slot": lambda p, own: sign_commitment(p, VICTIM, own[:COMMITMENT_SIZE], slot=1),
    "another device": lambda p, own: sign_commitment(p, OTHERS[0], own[:COMMITMENT_SIZE]),
    "another session": lambda p, own: sign_commitment(
        p, VICTIM, own[:COMMITMENT_SIZE], key=b"\7" * 32
    ),
}
"""What the victim sends in the place of its commitment and signature."""


def commit_wrongly(wrong):
    def change(parties, client, message):
        del client
        if message.slot != 0:
            return message
        return replace(message, committed=WRONG[wrong](parties, message.committed))

    return change


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_signature_costs_its_sender_and_a_whole_slot(wrong):
    parties = MaliciousClients(PARAMS, {(VICTIM, Stage.MASK): commit_wrongly(wrong)})
    for _ in parties.steps():
        pass
    left = tuple(sorted(OTHERS))
    assert {c: (d.fault, d.step) for c, d in parties.server.drops.items()} == {
        VICTIM: (Fault.BAD_SIGNATURE, Step(Stage.MASK, 0))
    }
    [result] = parties.sums
    assert (result.slot, result.contributors) == (2, left)
    assert parties.server.state is ServerState.DONE


def test_a_wrong_signature_costs_its_sender_in_a_tolerant_slot():
    """The others' sum is proved without it."""
    parties = MaliciousClients(MIXED, {(VICTIM, Stage.MASK): commit_wrongly("signature")})
    parties.exchange(parties.advance(ClientState.SHARED))
    result, left = parties.run_slot(0), tuple(sorted(OTHERS))
    assert parties.faults == {VICTIM: Fault.BAD_SIGNATURE}
    assert result.contributors == left
    parties.clients[OTHERS[0]].receive(result.opening)
    proved = parties.clients[OTHERS[0]].proved.vector.tolist()
    assert proved == plain_sum(MIXED, 0, parties.inputs, left)


def test_a_device_that_was_shown_something_else_has_signed_something_else():
    parties = Parties(PARAMS)
    openings_ = parties.advance(ClientState.LINKED)
    shown = {VICTIM: b"another model"}
    replies = {c: parties.answer(c, d, shown.get(c, BINDING)) for c, d in openings_.items()}
    assert parties.collect(replies) == {}
    assert parties.server.drops[VICTIM].fault is Fault.BAD_SIGNATURE
    assert not parties.server.has_sum


# Numbers at their limits.


def sums_to(params, columns):
    """The first slot's sum of some integers of either sign, each device's in a column."""
    parties = Parties(params)
    bits = params.slots[0].ring_bits
    for client, values in zip(parties.ids, columns, strict=True):
        parties.inputs[client][0] = as_ring(values, bits)
    parties.exchange(parties.advance(ClientState.SHARED))
    return parties, parties.run_slot(0)


@pytest.mark.parametrize(
    ("num_invited", "bits"),
    [(3, 3), (4, 3), (5, 4), (7, 19), (8, 20), (3, 31), (3, 32), (3, 33), (3, 63), (3, 64)],
)
def test_sums_at_the_limits_of_the_ring_are_proved(num_invited, bits):
    """−2^(b−1) and 2^(b−1) − 1 are sums; one more or less is read with the other sign."""
    slots = ((2, bits, True, True),)
    params = make_params(num_invited, threshold=2, slots=slots)
    most, least = 2 ** (bits - 1) - 1, -(2 ** (bits - 1))
    rest = [0] * (num_invited - 3)

    def column(total):
        """Integers of either sign with this sum, the extremes among them."""
        return [total, most, -most, *rest]

    def devices(first, second):
        return list(zip(column(first), column(second), strict=True))

    parties, result = sums_to(params, devices(most, least))
    assert result.vector.tolist() == [most, least % 2**bits]
    for machine in parties.clients.values():
        machine.receive(result.opening)
        assert openings.signed(machine.proved.vector, bits) == [most, least]
    for over in ((1, 0), (0, -1)):  # what one device adds to wrap the sum around
        columns = devices(most, least)
        columns[2] = tuple(value + more for value, more in zip(columns[2], over, strict=True))
        _, wrapped = sums_to(params, columns)
        assert wrapped.opening is None


def test_blindings_wrap_around_the_order():
    """As large as can be, each; a ring has no part in it."""
    spec = SlotSpec("sum", 2, 3, whole=True, verified=True)
    drawn = (ORDER - 1).to_bytes(64, "little")
    total, blindings, committed = ring.zeros(2, 3), 0, []
    for _ in range(7):
        vector = as_ring([-1, 0], 3)
        blinding, own = openings.commit(
            CONTEXT, spec, vector, ALICE, SIGNER.key, lambda size: drawn[:size]
        )
        assert blinding == ORDER - 1
        total += vector
        blindings += blinding
        committed.append(own)
    ring.reduce(total, 3)
    packed = openings.pack(spec, total, blindings)
    assert openings.unpack(spec, packed)[1] == ORDER - 7
    assert not openings.opens(spec, total, blindings, committed)  # -7 is no number of three bits
    spec = replace(spec, ring_bits=4)
    assert openings.opens(spec, as_ring([-7, 0], 4), blindings, committed)


# Vector and blinding in one string.


@given(bits=st.integers(1, 64), blinding=st.integers(0, ORDER - 1), data=st.data())
def test_a_packed_vector_is_read_as_it_was_written(bits, blinding, data):
    values = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=5))
    words = as_ring(values, bits)
    for verified in (False, True):
        spec = SlotSpec("sum", len(values), bits, verified=verified)
        packed = openings.pack(spec, words, blinding)
        assert len(packed) == spec.packed_size
        assert packed.startswith(ring.pack(words, bits))
        assert packed[ring.packed_size(len(values), bits) :] == (
            blinding.to_bytes(BLINDING_SIZE, "little") if verified else b""
        )
        read, again = openings.unpack(spec, packed)
        assert (read.tolist(), again) == (values, blinding if verified else 0)


@pytest.mark.parametrize("blinding", [ORDER, ORDER + 1, 2**253, 2**256 - 1])
def test_a_blinding_of_the_order_or_more_is_refused(blinding):
    vector = bytes(12)
    assert openings.unpack(SPEC, vector + (ORDER - 1).to_bytes(32, "little"))[1] == ORDER - 1
    with pytest.raises(DecodeError, match="not below the order"):
        openings.unpack(SPEC, vector + blinding.to_bytes(32, "little"))


@pytest.mark.parametrize("size", [0, 11, 12, 43, 45])
def test_a_packed_vector_of_another_size_is_refused(size):
    with pytest.raises(DecodeError, match="bytes"):
        openings.check_packed(SPEC, bytes(size))
    openings.check_packed(SPEC, bytes(44))


def test_padding_before_a_blinding_is_zero():
    spec = SlotSpec("sum", 1, 3, verified=True)
    openings.check_packed(spec, b"\x07" + bytes(32))
    with pytest.raises(DecodeError, match="padding bits"):
        openings.check_packed(spec, b"\x08" + bytes(32))


# Masks of blindings.


def test_both_ends_of_a_pair_make_one_mask_of_blindings_and_it_is_no_part_of_the_vectors():
    one, other = keys.key_pair(b"1" * 32), keys.key_pair(b"2" * 32)
    [here] = CONTEXT.pair_secrets(one, [5], [other.public])
    [there] = CONTEXT.pair_secrets(other, [2], [one.public])
    mask = here.of_blinding()
    assert mask == there.of_blinding()
    assert 0 <= mask < ORDER
    assert masks.of_blinding(2, [here]) == mask
    assert masks.of_blinding(5, [there]) == -mask
    label = labels.pack(Label.BLINDING_MASK) + here.info
    stream = prg.keystream(keys.expand(here.secret, label), 64)
    assert mask == int.from_bytes(stream, "little") % ORDER
    assert prg.keystream(here.key(), 64) != stream
    assert here._replace(info=b"other").of_blinding() != mask


def test_a_self_mask_of_a_blinding_is_of_the_slot_and_its_seed():
    mask = CONTEXT.self_mask_of_blinding(b"s" * 32)
    info = labels.pack(Label.BLINDING_MASK) + labels.pack(Label.SELF_MASK, CONTEXT.info)
    key = keys.derive(b"s" * 32, salt=CONTEXT.session_id, info=info)
    assert mask == int.from_bytes(prg.keystream(key, 64), "little") % ORDER
    assert CONTEXT.self_mask_of_blinding(b"t" * 32) != mask
    assert SlotContext.of(PARAMS, CONTEXT.session_id, 1, BINDING).self_mask_of_blinding(
        b"s" * 32
    ) not in (mask, 0)


@pytest.mark.parametrize("params", [PARAMS, MIXED], ids=["whole", "tolerant"])
def test_what_a_device_sends_hides_its_blinding(params):
    """Known are the blindings that it drew; none is on the wire, whoever is in the sum."""
    parties = Parties(params)
    parties.exchange(parties.advance(ClientState.SHARED))
    opened = parties.server.open_slot(0, BINDING)
    replies = parties.deliver(parties.exchange(opened) if params is PARAMS else opened)
    sent = {c: openings.unpack(SPEC, parties.decode(data).packed)[1] for c, data in replies.items()}
    drawn = {}
    for client in parties.ids:
        given = [one for one in parties.randomness[client].given if len(one) == 64]
        drawn[client] = int.from_bytes(given[-1], "little") % ORDER
        assert sent[client] != drawn[client]
    if params is PARAMS:  # all masks cancel
        assert sum(sent.values()) % ORDER == sum(drawn.values()) % ORDER
    else:  # until the self masks are removed, the sum is masked too
        assert sum(sent.values()) % ORDER != sum(drawn.values()) % ORDER
    result = parties.finish_slot(parties.collect(replies))
    _, total = openings.unpack(SPEC, parties.decode(result.opening).packed)
    assert total == sum(drawn.values()) % ORDER


@given(bits=st.integers(1, 64), data=st.data())
def test_words_are_read_as_twos_complement(bits, data):
    half = 2 ** (bits - 1)
    values = data.draw(st.lists(st.integers(-half, half - 1), max_size=5))
    assert openings.signed(as_ring(values, bits), bits) == values


# The parts.


def test_a_device_commits_to_its_vector_under_a_new_blinding_and_signs():
    spec = SlotSpec("sum", 3, BITS, whole=True, verified=True)
    assert spec.packed_size == 9 + BLINDING_SIZE == 41
    asked = []

    def randomness(size):
        asked.append(size)
        return bytes(range(size))

    vector = as_ring([-5, 0, 7], BITS)
    before = vector.copy()
    drawn, committed = openings.commit(CONTEXT, spec, vector, ALICE, SIGNER.key, randomness)
    assert np.array_equal(vector, before)
    assert asked == [64]
    blinding = int.from_bytes(bytes(range(64)), "little") % ORDER
    assert drawn == blinding
    commitment, signature = committed[:32], committed[32:]
    assert commitment == pedersen.commit([-5, 0, 7], blinding)
    statement = openings.statement(CONTEXT, commitment, SIGNER.key)
    assert signature == ALICE.sign(statement)
    assert openings.is_signed(CONTEXT, SIGNER, committed)
    assert openings.opens(spec, vector, blinding, [committed])
    assert not openings.opens(spec, vector, blinding + 1, [committed])


def test_equal_vectors_have_different_commitments():
    """A device draws a blinding for each, and says nothing of the vector by it."""
    slots = ((4, BITS, True, True), (4, BITS, True, True))
    parties = Parties(make_params(6, slots=slots))
    for client in parties.ids:
        parties.inputs[client] = [as_ring([1, 2, 3, 4], BITS)] * 2
    parties.exchange(parties.advance(ClientState.SHARED))
    seen = set()
    for slot in range(2):
        message = parties.decode(parties.run_slot(slot).opening)
        seen |= {bytes(committed[:32]) for committed in message.committed.values()}
    assert len(seen) == 12
    for client in parties.ids:
        drawn = [secret for secret in parties.randomness[client].given if len(secret) == 64]
        assert len(set(drawn)) == 2


OTHERWISE = {
    "session": lambda c, s, b: (replace(c, session_id=b"t" * 32), s, b),
    "slot": lambda c, s, b: (SlotContext.of(PARAMS, c.session_id, 1, BINDING), s, b),
    "binding": lambda c, s, b: (SlotContext.of(PARAMS, c.session_id, 0, b"other"), s, b),
    "key": lambda c, s, b: (c, replace(s, key=b"\1" * 32), b),
    "identity": lambda c, s, b: (c, replace(s, identity=identity(b"b" * 32).public), b),
    "commitment": lambda c, s, b: (c, s, pedersen.commit([2], 5) + b[COMMITMENT_SIZE:]),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_a_signature_is_of_one_commitment_of_one_device_in_one_slot(what):
    commitment = pedersen.commit([1], 5)
    statement = openings.statement(CONTEXT, commitment, SIGNER.key)
    committed = commitment + ALICE.sign(statement)
    assert openings.is_signed(CONTEXT, SIGNER, committed)
    assert not openings.is_signed(*OTHERWISE[what](CONTEXT, SIGNER, committed))


NUMBERS = st.integers(-(2**20), 2**20)


@settings(max_examples=20)
@given(
    vectors=st.lists(
        st.lists(st.integers(-(2**20), 2**20), min_size=2, max_size=2), min_size=1, max_size=4
    ),
    data=st.data(),
)
def test_a_sum_is_examined_as_it_is_made(vectors, data):
    spec = SlotSpec("sum", 2, 40, whole=True, verified=True)
    total, blindings, committed = ring.zeros(2, 40), 0, []
    for index, vector in enumerate(vectors):
        seed = bytes([index, len(vectors)])
        blinding, own = openings.commit(
            CONTEXT,
            spec,
            as_ring(vector, 40),
            ALICE,
            SIGNER.key,
            lambda size, seed=seed: seed.ljust(size, b"\3"),
        )
        total += as_ring(vector, 40)
        blindings += blinding
        committed.append(own)
    ring.reduce(total, 40)

    def examined(words, proofs, more=0):
        packed = openings.pack(spec, words, blindings + more)
        return openings.examine(
            Opening(CONTEXT, spec, packed, (SIGNER,) * len(proofs), tuple(proofs))
        )

    assert examined(total, committed) is None
    assert examined(total, committed, more=1)[0] is Refusal.BAD_OPENING
    at = data.draw(st.integers(0, spec.length - 1))
    wrong = total.copy()
    wrong[at] ^= np.uint64(1)
    assert examined(wrong, committed)[0] is Refusal.BAD_OPENING
    assert examined(total, committed[1:])[0] is Refusal.BAD_OPENING
    flipped = [*committed[:-1], committed[-1][:-1] + bytes([committed[-1][-1] ^ 1])]
    reason, detail = examined(total, flipped)
    assert reason is Refusal.BAD_SIGNATURE
    assert detail.endswith(f"member {len(committed) - 1}")


# What a session may have.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signed": False}, "a verified slot takes a signed session over the complete graph"),
        ({"degree": 4}, "a verified slot takes a signed session over the complete graph"),
    ],
)
def test_sessions_without_what_a_verified_slot_takes(changes, message):
    with pytest.raises(UsageError, match=message):
        replace(PARAMS, **changes)
    # Control: without the proof.
    params = replace(PARAMS, slots=(SlotSpec("s", 4, 18, whole=True),))
    possible = {name: value for name, value in changes.items() if name != "slots"}
    assert isinstance(replace(params, **possible), SessionParams)


# --- slots with proofs, whatever is proved ------------------------------------------------------

PROVED = make_params(6, slots=((4, BITS, False, True, 64), PLAIN))
GOOD, BAD = b"g" * 64, b"b" * 64


def ready():
    """A session whose slots can be opened."""
    parties = Parties(PROVED)
    parties.exchange(parties.advance(ClientState.SHARED))
    return parties


def is_good(commitment, proof):
    del commitment
    return proof == GOOD


@pytest.mark.parametrize("size", [-32, 1, 31, 33, 2**24 + 32])
def test_proofs_have_sizes_in_their_range(size):
    with pytest.raises(UsageError, match=f"proof_size={size} is not a multiple of 32"):
        SlotSpec("sum", 4, BITS, verified=True, proof_size=size)


def test_only_a_verified_slot_has_proofs():
    with pytest.raises(UsageError, match=r"proof_size=32 is not .* verified=False"):
        SlotSpec("sum", 4, BITS, proof_size=32)


def test_slots_that_differ_in_proofs_are_described_differently():
    specs = [SlotSpec("a", 4, BITS, verified=v, proof_size=p) for v, p in ((0, 0), (1, 0), (1, 32))]
    assert [spec.assurance for spec in specs] == [0, 1, 33]
    assert len({spec.canonical for spec in specs}) == 3


def test_a_server_needs_a_check_for_proofs():
    parties = ready()
    with pytest.raises(UsageError, match="its vectors come with proofs, which need a check"):
        parties.server.open_slot(0, BINDING)
    assert parties.server.state is ServerState.READY
    assert parties.server.open_slot(0, BINDING, is_good)


def test_a_device_needs_a_proof_of_the_right_size():
    parties = ready()
    outgoing = parties.server.open_slot(0, BINDING, is_good)
    machine, vector = parties.clients[VICTIM], parties.inputs[VICTIM][0]
    machine.receive(outgoing[VICTIM])
    with pytest.raises(UsageError, match="a vector of this slot needs a proof"):
        machine.contribute(vector, BINDING)
    with pytest.raises(UsageError, match="a proof of 63 bytes"):
        machine.contribute(vector, BINDING, lambda *_: GOOD[1:])
    assert machine.state is ClientState.OPENED
    assert machine.contribute(vector, BINDING, lambda *_: GOOD)


def test_vectors_whose_proof_does_not_hold_are_left_out():
    """And both sides tell whoever proves and checks the same of a commitment."""
    told, seen = {}, {}
    parties = ready()

    def check(commitment, proof):
        seen[commitment.position] = commitment
        return proof == GOOD

    outgoing = parties.server.open_slot(0, BINDING, check)
    for client, data in outgoing.items():
        machine = parties.clients[client]
        machine.receive(data)

        def prove(commitment, blinding, client=client):
            values = openings.signed(parties.inputs[client][0], BITS)
            assert commitment.point == pedersen.commit(values, blinding)
            told[commitment.position] = commitment
            return BAD if client == VICTIM else GOOD

        parties.server.receive(
            client, machine.contribute(parties.inputs[client][0], BINDING, prove)
        )
    assert told == seen
    assert parties.server.drops[VICTIM].fault is Fault.BAD_PROOF
    assert parties.server.num_contributed == len(IDS) - 1
    result = parties.finish_slot(parties.server.close_round())
    assert result.vector.tolist() == plain_sum(PROVED, 0, parties.inputs, OTHERS)
    assert list(parties.decode(result.opening).committed) == [
        parties.position(client) for client in sorted(OTHERS)
    ]
