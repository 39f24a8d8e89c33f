"""Faulty devices: each is dropped under a name, and the sum of the others stands."""

import itertools
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from malicious_clients import COLLECTING, at_step, changed, finish, index_of, step_at
from parties import STEPS, Parties, make_ids, make_params

from deltafl.secagg import Drop, Fault, Stage, Step, keys
from deltafl.secagg.labels import VERSION
from deltafl.secagg.messages import (
    ConsistencySignature,
    MaskedInput,
    ShareKeys,
    ShareReceipt,
    UnmaskShares,
)
from deltafl.secagg.states import ClientState

PARAMS = make_params(7, threshold=3, slots=((4, 13), (3, 40)))
IDS = make_ids(7)
FAULTY = IDS[2]
OTHERS = [client for client in IDS if client != FAULTY]

at_every_step = pytest.mark.parametrize("index", COLLECTING)


def check_drop(parties, fault, step):
    drop = parties.server.drops[FAULTY]
    assert set(parties.server.drops) == {FAULTY}
    assert (drop.fault, drop.step) == (fault, step)
    assert parties.server.remaining == tuple(sorted(OTHERS))


def at_stage(stage, slot=0):
    """A session in which the server listens for a stage's messages."""
    return at_step(index_of(stage, slot), PARAMS)


@at_every_step
def test_malformed_messages_drop_their_senders(index):
    """As many as can be spared, each for a message of its own."""
    parties, steps, _ = at_step(index, PARAMS)
    malformed = dict(zip(IDS, (b"", b"\x93\x01\x12", b"\xff" * 50, bytes(3 << 20)), strict=False))
    expected = {}
    for client, data in malformed.items():
        assert parties.server.drops == expected
        parties.server.receive(client, data)
        expected[client] = Drop(Fault.MALFORMED, step_at(index))
    left = set(IDS) - set(malformed)
    assert set(parties.server.remaining) == left
    sums = finish(parties, steps)
    assert parties.server.drops == expected
    assert all(left <= set(result.contributors) for result in sums)


@at_every_step
def test_malformed_message_after_the_answer_drops_too(index):
    parties, _, pending = at_step(index, PARAMS)
    for client, reply in parties.deliver(pending).items():
        parties.server.receive(client, reply)
    parties.server.receive(FAULTY, b"\x90")
    check_drop(parties, Fault.MALFORMED, step_at(index))
    following = parties.server.close_round()
    assert FAULTY not in following


def second_version(parties, stage, data):
    """Another well-formed message of the same kind."""

    def change(message):
        match stage:
            case Stage.ADVERTISE:
                return replace(message, key=keys.recipient(b"\7" * 32).public)
            case Stage.SHARE:
                return replace(message, commitments=(bytes(32),) * 4)
            case Stage.RECEIPT:
                return replace(message, links={})
            case Stage.MASK:
                return replace(message, packed=bytes(len(message.packed)))
            case Stage.CONFIRM:
                return replace(message, signature=bytes(64))
            case Stage.UNMASK:
                return replace(message, shares=np.zeros_like(message.shares))

    return changed(parties, data, change)


@at_every_step
def test_equivocation_drops_the_device_and_keeps_what_it_said_first(index):
    parties, steps, pending = at_step(index, PARAMS)
    first = parties.answer(FAULTY, pending[FAULTY])
    second = second_version(parties, step_at(index).stage, first)
    assert second != first
    parties.server.receive(FAULTY, first)
    assert parties.server.drops == {}
    parties.server.receive(FAULTY, second)
    check_drop(parties, Fault.EQUIVOCATED, step_at(index))
    parties.server.receive(FAULTY, first)
    sums = finish(parties, steps)
    check_drop(parties, Fault.EQUIVOCATED, step_at(index))
    for result in sums:
        assert set(OTHERS) <= set(result.contributors)
        counted = step_at(index).order >= Step(Stage.MASK, result.slot).order
        assert (FAULTY in result.contributors) == counted


@pytest.mark.parametrize("changed_byte", [0, 30_000, -1])
def test_long_vectors_that_differ_in_a_bit_are_two_messages(changed_byte):
    """And one that differs in none is a repetition."""
    params = make_params(len(IDS), slots=((8192, 64),))
    parties = Parties(params, ids=IDS)
    opened = parties.advance(ClientState.LINKED)
    first = parties.answer(FAULTY, opened[FAULTY])

    def change(message):
        packed = bytearray(message.packed)
        packed[changed_byte] ^= 1
        return replace(message, packed=bytes(packed))

    parties.server.receive(FAULTY, first)
    parties.server.receive(FAULTY, first)
    assert parties.server.drops == {}
    parties.server.receive(FAULTY, changed(parties, first, change))
    check_drop(parties, Fault.EQUIVOCATED, Step(Stage.MASK))


@at_every_step
def test_exact_repetition_is_no_fault(index):
    parties, steps, pending = at_step(index, PARAMS)
    reply = parties.answer(FAULTY, pending[FAULTY])
    for _ in range(3):
        parties.server.receive(FAULTY, reply)
    assert parties.server.drops == {}
    sums = finish(parties, steps)
    assert parties.server.drops == {}
    assert all(set(result.contributors) == set(IDS) for result in sums)


@at_every_step
def test_strangers_are_ignored(index):
    parties, steps, pending = at_step(index, PARAMS)
    reply = parties.answer(FAULTY, pending[FAULTY])
    for stranger in (1, 1000, -1, 2**40):
        for data in (reply, b"", b"\xff"):
            parties.server.receive(stranger, data)
    parties.server.receive(FAULTY, reply)
    sums = finish(parties, steps)
    assert parties.server.drops == {}
    assert all(set(result.contributors) == set(IDS) for result in sums)


@at_every_step
def test_messages_of_other_sessions_are_ignored(index):
    other, _, pending = at_step(index, replace(PARAMS, context=b"\1" * 32))
    parties, steps, _ = at_step(index, PARAMS)
    for client, data in other.deliver(pending).items():
        parties.server.receive(client, data)
    finish(parties, steps)
    assert parties.server.drops == {}


@at_every_step
def test_order_within_a_round_does_not_matter(index):
    parties, _, pending = at_step(index, PARAMS)
    for client, reply in reversed(parties.deliver(pending).items()):
        parties.server.receive(client, reply)
    following = parties.server.close_round()
    straight, _, pending = at_step(index, PARAMS)
    assert straight.exchange(pending) == following


@at_every_step
def test_late_message_is_ignored_and_its_sender_timed_out(index):
    parties, _, pending = at_step(index, PARAMS)
    replies = parties.deliver(pending)
    late = replies.pop(FAULTY)
    parties.collect(replies)
    check_drop(parties, Fault.TIMED_OUT, step_at(index))
    before = parties.server.state
    parties.server.receive(FAULTY, late)
    assert parties.server.state is before
    check_drop(parties, Fault.TIMED_OUT, step_at(index))


@at_every_step
def test_late_message_changes_no_sum(index):
    def run(deliver_late):
        parties, _, pending = at_step(index, PARAMS)
        late = parties.answer(FAULTY, pending[FAULTY])
        others = {client: data for client, data in pending.items() if client != FAULTY}
        pending = parties.exchange(others)
        if deliver_late:
            parties.server.receive(FAULTY, late)
        match step_at(index).stage:
            case Stage.ADVERTISE:
                parties.exchange(parties.exchange(pending))
            case Stage.SHARE:
                parties.exchange(pending)
            case Stage.MASK:
                return parties.finish_slot(pending)
            case Stage.CONFIRM:
                parties.exchange(pending)
                return parties.server.take_sum()
            case Stage.UNMASK:
                return parties.server.take_sum()
        return parties.run_slot(0)

    with_it, without = run(True), run(False)
    assert with_it.vector.tolist() == without.vector.tolist()
    assert with_it.contributors == without.contributors
    answered = step_at(index).stage > Stage.MASK
    assert (FAULTY in with_it.contributors) == answered


# Keys.


def check_key_refused(make):
    """A device advertises another key, well signed."""
    parties, steps, pending = at_stage(Stage.ADVERTISE)
    parties.server.receive(OTHERS[0], parties.answer(OTHERS[0], pending[OTHERS[0]]))
    parties.answer(FAULTY, pending[FAULTY])
    data = parties.encode(parties.advertisement(FAULTY, make(parties)))
    parties.server.receive(FAULTY, data)
    check_drop(parties, Fault.BAD_KEY, Step(Stage.ADVERTISE))
    sums = finish(parties, steps)
    assert all(set(result.contributors) == set(OTHERS) for result in sums)


@pytest.mark.parametrize(
    "point",
    [bytes(32), b"\1" + bytes(31), b"\xed" + b"\xff" * 30 + b"\x7f", bytes(31) + b"\x80"],
)
def test_keys_of_low_order_are_refused(point):
    check_key_refused(lambda parties: parties.key(FAULTY)[:-32] + point)


def test_keys_whose_coefficients_are_not_reduced_are_refused():
    check_key_refused(lambda parties: b"\xff" * 3 + parties.key(FAULTY)[3:])


def test_a_key_that_another_device_advertised_is_refused():
    # The honest devices would refuse a roster with it, and one device would stop them all.
    check_key_refused(lambda parties: parties.key(OTHERS[0]))


# Boxes and vectors.


@pytest.mark.parametrize(
    "change",
    [
        lambda boxes: dict(list(boxes.items())[1:]),
        lambda boxes: {p: boxes[p] for p in ()},
        lambda boxes: {p + 1 if p == 6 else p: box for p, box in boxes.items()},
        lambda boxes: {**boxes, sorted(IDS).index(FAULTY): next(iter(boxes.values()))},
    ],
)
def test_boxes_for_others_than_the_neighbours_are_refused(change):
    parties, steps, pending = at_stage(Stage.SHARE)
    data = parties.answer(FAULTY, pending[FAULTY])
    parties.server.receive(
        FAULTY, changed(parties, data, lambda m: ShareKeys(m.commitments, change(dict(m.boxes))))
    )
    check_drop(parties, Fault.MALFORMED, Step(Stage.SHARE))
    finish(parties, steps)


RECEIPTS = {
    "itself": lambda links: {**links, sorted(IDS).index(FAULTY): next(iter(links.values()))},
    "a position that does not exist": lambda links: {**links, 7: next(iter(links.values()))},
    "a position far beyond": lambda links: {**links, 2**32 - 1: next(iter(links.values()))},
}


@pytest.mark.parametrize("named", RECEIPTS)
def test_receipts_about_others_than_the_neighbours_are_refused(named):
    parties, steps, pending = at_stage(Stage.RECEIPT)
    data = parties.answer(FAULTY, pending[FAULTY])

    def change(message):
        return ShareReceipt(RECEIPTS[named]({p: bytes(row) for p, row in message.links.items()}))

    parties.server.receive(FAULTY, changed(parties, data, change))
    check_drop(parties, Fault.MALFORMED, Step(Stage.RECEIPT))
    finish(parties, steps)


def test_masked_vector_with_padding_bits_is_refused():
    parties, steps, pending = at_stage(Stage.MASK)
    data = parties.answer(FAULTY, pending[FAULTY])

    def change(message):
        # 4 x 13 bits leave the upper half of the seventh byte.
        return MaskedInput(0, message.packed[:-1] + bytes([message.packed[-1] | 0x80]))

    parties.server.receive(FAULTY, changed(parties, data, change))
    check_drop(parties, Fault.MALFORMED, Step(Stage.MASK))
    finish(parties, steps)


@pytest.mark.parametrize("is_padded", [True, False])
def test_padding_bits_drop_whoever_is_late_too(is_padded):
    """What a message may look like is checked before a late one is ignored."""
    parties, steps, _ = at_stage(Stage.CONFIRM)
    bits = 0x80 if is_padded else 0x01
    parties.server.receive(FAULTY, parties.encode(MaskedInput(0, bytes(6) + bytes([bits]))))
    assert (FAULTY in parties.server.drops) is is_padded
    if is_padded:
        check_drop(parties, Fault.MALFORMED, Step(Stage.CONFIRM))
        finish(parties, steps)


def test_a_faulty_vector_spoils_nobody_but_itself_when_it_is_refused():
    parties, steps, _ = at_stage(Stage.MASK)
    parties.server.receive(FAULTY, parties.encode(MaskedInput(1, bytes(15))))
    check_drop(parties, Fault.UNEXPECTED, Step(Stage.MASK))
    assert set(finish(parties, steps)[0].contributors) == set(OTHERS)


@pytest.mark.parametrize("stage", Stage)
def test_messages_of_later_rounds_are_unexpected(stage):
    # Whoever is ahead of its round did not wait for the server.
    parties, steps, pending = at_stage(Stage.ADVERTISE)
    early = {
        Stage.SHARE: ShareKeys((bytes(32),) * 4, {}),
        Stage.RECEIPT: ShareReceipt({}),
        Stage.MASK: MaskedInput(0, bytes(7)),
        Stage.CONFIRM: ConsistencySignature(0, bytes(64)),
        Stage.UNMASK: UnmaskShares(
            0,
            np.zeros(0, dtype=np.uint32),
            np.zeros(0, dtype=np.uint8),
            np.zeros((0, 9), dtype=np.uint32),
        ),
    }
    if stage in early:
        parties.server.receive(FAULTY, parties.encode(early[stage]))
        check_drop(parties, Fault.UNEXPECTED, Step(Stage.ADVERTISE))
    else:
        parties.server.receive(FAULTY, parties.answer(FAULTY, pending[FAULTY]))
        assert parties.server.drops == {}
    finish(parties, steps)


# Anything at all.

plausible = st.builds(
    lambda kind, fields: msgpack.packb([VERSION, kind, PARAMS.tag, *fields]),
    st.sampled_from([*range(0x01, 0x07), *range(0x11, 0x17)]),
    st.lists(
        st.one_of(
            st.integers(0, 8),
            st.binary(max_size=40),
            st.sampled_from([bytes(size) for size in (1, 4, 7, 8, 15, 32, 64, 96, 41, 0, 7 * 41)]),
        ),
        max_size=4,
    ),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    index=st.sampled_from(range(len(STEPS))),
    junk=st.lists(
        st.tuples(st.sampled_from([*IDS[:3], 1, 2]), st.one_of(st.binary(max_size=60), plausible)),
        max_size=6,
    ),
    replayed=st.lists(st.tuples(st.sampled_from(IDS[:3]), st.integers(0, 40)), max_size=4),
)
def test_whatever_three_devices_send_the_others_get_their_sum(index, junk, replayed):
    parties = Parties(PARAMS)
    said = []
    take = parties.server.receive

    def receive(sender, data):
        said.append(data)
        take(sender, data)

    parties.server.receive = receive
    steps = parties.steps()
    next(itertools.islice(steps, index, None))
    for sender, data in junk:
        parties.server.receive(sender, data)
    for sender, which in replayed:
        if said:
            parties.server.receive(sender, said[which % len(said)])
    sums = finish(parties, steps)
    assert set(parties.server.drops) <= set(IDS[:3])
    assert all(set(IDS[3:]) <= set(result.contributors) for result in sums)
    assert len(sums) == 2
