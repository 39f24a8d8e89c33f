"""Faulty devices: each is dropped under a name, and the sum of the others stands."""

import itertools
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import BINDING, STEPS, Parties, make_ids, make_params, plain_sum

from secagg import Fault, SessionAborted, Stage, Step, keys, sealing, shamir
from secagg.labels import VERSION
from secagg.messages import MaskedInput, ShareKeys
from secagg.states import ServerState

PARAMS = make_params(7, threshold=3, slots=((4, 13), (3, 40)))
IDS = make_ids(7)
FAULTY = IDS[2]
OTHERS = [client for client in IDS if client != FAULTY]

COLLECTING = [
    i for i, state in enumerate(STEPS) if state not in (ServerState.READY, ServerState.DONE)
]
STEP_AT = {
    0: Step(Stage.ADVERTISE),
    1: Step(Stage.SHARE),
    3: Step(Stage.MASK, 0),
    4: Step(Stage.UNMASK, 0),
    6: Step(Stage.MASK, 1),
    7: Step(Stage.UNMASK, 1),
}


def at_step(index, params=PARAMS):
    parties = Parties(params)
    steps = parties.steps()
    return parties, steps, next(itertools.islice(steps, index, None))


def finish(parties, steps):
    """Run to the end; every sum must be that of its contributors, all honest ones among them."""
    for _ in steps:
        pass
    assert parties.server.state is ServerState.DONE
    for result in parties.sums:
        expected = plain_sum(parties.params, result.slot, parties.inputs, result.contributors)
        assert result.vector.tolist() == expected
    return parties.sums


def check_drop(parties, fault, step):
    drop = parties.server.drops[FAULTY]
    assert set(parties.server.drops) == {FAULTY}
    assert (drop.fault, drop.step) == (fault, step)
    assert parties.server.remaining == tuple(sorted(OTHERS))


def changed(parties, data, change):
    """A device's message, changed."""
    return parties.encode(change(parties.decode(data)))


@pytest.mark.parametrize("index", COLLECTING)
@pytest.mark.parametrize("data", [b"", b"\x93\x01\x12", b"\xff" * 50, bytes(3 << 20)])
def test_malformed_message_drops_its_sender(index, data):
    parties, steps, _ = at_step(index)
    parties.server.receive(FAULTY, data)
    check_drop(parties, Fault.MALFORMED, STEP_AT[index])
    sums = finish(parties, steps)
    check_drop(parties, Fault.MALFORMED, STEP_AT[index])
    assert all(set(OTHERS) <= set(result.contributors) for result in sums)


@pytest.mark.parametrize("index", COLLECTING)
def test_malformed_message_after_the_answer_drops_too(index):
    parties, _, pending = at_step(index)
    for client, reply in parties.deliver(pending).items():
        parties.server.receive(client, reply)
    parties.server.receive(FAULTY, b"\x90")
    check_drop(parties, Fault.MALFORMED, STEP_AT[index])
    following = parties.server.close_round()
    assert FAULTY not in following


def second_version(parties, index, data):
    """Another well-formed message of the same kind."""

    def change(message):
        match STEP_AT[index].stage:
            case Stage.ADVERTISE:
                return replace(message, sealing_key=keys.key_pair(b"\7" * 32).public)
            case Stage.SHARE:
                return replace(message, commitments=(bytes(32),) * 2)
            case Stage.MASK:
                return replace(message, packed=bytes(len(message.packed)))
            case Stage.UNMASK:
                return replace(message, shares=np.zeros_like(message.shares))

    return changed(parties, data, change)


@pytest.mark.parametrize("index", COLLECTING)
def test_equivocation_drops_the_device_and_keeps_what_it_said_first(index):
    parties, steps, pending = at_step(index)
    first = parties.answer(FAULTY, pending[FAULTY])
    second = second_version(parties, index, first)
    assert second != first
    parties.server.receive(FAULTY, first)
    assert parties.server.drops == {}
    parties.server.receive(FAULTY, second)
    check_drop(parties, Fault.EQUIVOCATED, STEP_AT[index])
    parties.server.receive(FAULTY, first)
    sums = finish(parties, steps)
    check_drop(parties, Fault.EQUIVOCATED, STEP_AT[index])
    for result in sums:
        assert set(OTHERS) <= set(result.contributors)
        counted = STEP_AT[index].order >= Step(Stage.MASK, result.slot).order
        assert (FAULTY in result.contributors) == counted


@pytest.mark.parametrize("index", COLLECTING)
def test_exact_repetition_is_no_fault(index):
    parties, steps, pending = at_step(index)
    reply = parties.answer(FAULTY, pending[FAULTY])
    for _ in range(3):
        parties.server.receive(FAULTY, reply)
    assert parties.server.drops == {}
    sums = finish(parties, steps)
    assert parties.server.drops == {}
    assert all(set(result.contributors) == set(IDS) for result in sums)


@pytest.mark.parametrize("index", COLLECTING)
@pytest.mark.parametrize("stranger", [1, 1000, -1, 2**40])
def test_strangers_are_ignored(index, stranger):
    parties, steps, pending = at_step(index)
    reply = parties.answer(FAULTY, pending[FAULTY])
    for data in (reply, b"", b"\xff"):
        parties.server.receive(stranger, data)
    parties.server.receive(FAULTY, reply)
    sums = finish(parties, steps)
    assert parties.server.drops == {}
    assert all(set(result.contributors) == set(IDS) for result in sums)


@pytest.mark.parametrize("index", COLLECTING)
def test_messages_of_other_sessions_are_ignored(index):
    other = Parties(make_params(7, threshold=3, slots=((4, 13), (3, 40)), context=b"\1" * 32))
    pending = next(itertools.islice(other.steps(), index, None))
    parties, steps, _ = at_step(index)
    for client, data in other.deliver(pending).items():
        parties.server.receive(client, data)
    finish(parties, steps)
    assert parties.server.drops == {}


@pytest.mark.parametrize("index", COLLECTING)
def test_order_within_a_round_does_not_matter(index):
    parties, _, pending = at_step(index)
    for client, reply in reversed(parties.deliver(pending).items()):
        parties.server.receive(client, reply)
    following = parties.server.close_round()
    straight, _, pending = at_step(index)
    assert straight.exchange(pending) == following


@pytest.mark.parametrize("index", COLLECTING)
def test_late_message_is_ignored_and_its_sender_timed_out(index):
    parties, _, pending = at_step(index)
    replies = parties.deliver(pending)
    late = replies.pop(FAULTY)
    parties.collect(replies)
    check_drop(parties, Fault.TIMED_OUT, STEP_AT[index])
    before = parties.server.state
    parties.server.receive(FAULTY, late)
    assert parties.server.state is before
    check_drop(parties, Fault.TIMED_OUT, STEP_AT[index])


@pytest.mark.parametrize("index", COLLECTING)
def test_late_message_changes_no_sum(index):
    def run(deliver_late):
        parties, _, pending = at_step(index)
        late = parties.answer(FAULTY, pending[FAULTY])
        others = {client: data for client, data in pending.items() if client != FAULTY}
        pending = parties.exchange(others)
        if deliver_late:
            parties.server.receive(FAULTY, late)
        match STEP_AT[index].stage:
            case Stage.ADVERTISE:
                parties.deliver(parties.exchange(pending))
            case Stage.SHARE:
                parties.deliver(pending)
            case Stage.MASK:
                return parties.finish_slot(pending)
            case Stage.UNMASK:
                return parties.server.take_sum()
        return parties.run_slot(0)

    with_it, without = run(True), run(False)
    assert with_it.vector.tolist() == without.vector.tolist()
    assert with_it.contributors == without.contributors
    assert (FAULTY in with_it.contributors) == (STEP_AT[index].stage is Stage.UNMASK)


# Keys.


@pytest.mark.parametrize("field", ["sealing_key", "mask_keys"])
@pytest.mark.parametrize(
    "key",
    [bytes(32), b"\1" + bytes(31), b"\xed" + b"\xff" * 30 + b"\x7f", bytes(31) + b"\x80"],
)
def test_low_order_keys_are_refused(field, key):
    parties, steps, pending = at_step(0)
    data = parties.answer(FAULTY, pending[FAULTY])

    def change(message):
        value = key if field == "sealing_key" else (message.mask_keys[0], key)
        return replace(message, **{field: value})

    parties.server.receive(FAULTY, changed(parties, data, change))
    check_drop(parties, Fault.BAD_KEY, STEP_AT[0])
    finish(parties, steps)


def test_one_key_in_two_places_is_refused():
    parties, steps, pending = at_step(0)
    data = parties.answer(FAULTY, pending[FAULTY])
    parties.server.receive(
        FAULTY, changed(parties, data, lambda m: replace(m, mask_keys=(m.sealing_key,) * 2))
    )
    check_drop(parties, Fault.BAD_KEY, STEP_AT[0])
    finish(parties, steps)


@pytest.mark.parametrize("drawn", [0, 1, 2])
def test_a_key_that_another_device_advertised_is_refused(drawn):
    # The honest devices would refuse a roster with it, and one device would stop them all.
    parties, steps, pending = at_step(0)
    first = parties.answer(OTHERS[0], pending[OTHERS[0]])
    parties.server.receive(OTHERS[0], first)
    copied = keys.key_pair(parties.randomness[OTHERS[0]].given[drawn]).public
    data = parties.answer(FAULTY, pending[FAULTY])
    parties.server.receive(
        FAULTY, changed(parties, data, lambda m: replace(m, mask_keys=(copied, m.mask_keys[1])))
    )
    check_drop(parties, Fault.BAD_KEY, STEP_AT[0])
    sums = finish(parties, steps)
    assert all(set(result.contributors) == set(OTHERS) for result in sums)


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
    parties, steps, pending = at_step(1)
    data = parties.answer(FAULTY, pending[FAULTY])
    parties.server.receive(
        FAULTY, changed(parties, data, lambda m: ShareKeys(m.commitments, change(m.boxes)))
    )
    check_drop(parties, Fault.MALFORMED, STEP_AT[1])
    finish(parties, steps)


def test_masked_vector_with_padding_bits_is_refused():
    parties, steps, pending = at_step(3)
    data = parties.answer(FAULTY, pending[FAULTY])

    def change(message):
        # 4 x 13 bits leave the upper half of the seventh byte.
        return MaskedInput(0, message.packed[:-1] + bytes([message.packed[-1] | 0x80]))

    parties.server.receive(FAULTY, changed(parties, data, change))
    check_drop(parties, Fault.MALFORMED, STEP_AT[3])
    finish(parties, steps)


def test_a_faulty_vector_spoils_nobody_but_itself_when_it_is_refused():
    parties, steps, _ = at_step(3)
    parties.server.receive(FAULTY, parties.encode(MaskedInput(1, bytes(15))))
    check_drop(parties, Fault.UNEXPECTED, STEP_AT[3])
    assert set(finish(parties, steps)[0].contributors) == set(OTHERS)


# Shares.


def unmasking(vanished=(), params=PARAMS):
    """At the unmasking of slot 0, into which the vanished sent nothing: the honest answers."""
    parties, _, pending = at_step(3, params)
    present = {client: data for client, data in pending.items() if client not in vanished}
    return parties, parties.deliver(parties.exchange(present))


def with_wrong_share(parties, data, positions, *, error=1):
    # Limb 3: the lowest bits of a secret key do not matter, X25519 clears them.
    def change(message):
        shares = message.shares.copy()
        for row, position in enumerate(message.positions.tolist()):
            if position in positions:
                shares[row, 3] = (int(shares[row, 3]) + error) % shamir.PRIME
        return replace(message, shares=shares)

    wrong = changed(parties, data, change)
    assert wrong != data
    return wrong


def check_named(parties, replies, liars, contributors):
    parties.collect(replies)
    result = parties.server.take_sum()
    assert {c for c, d in parties.server.drops.items() if d.fault is Fault.BAD_SHARE} == liars
    assert all(parties.server.drops[liar].step == Step(Stage.UNMASK, 0) for liar in liars)
    assert set(result.contributors) == set(contributors)
    assert set(result.remaining) == set(contributors) - liars
    expected = plain_sum(parties.params, 0, parties.inputs, contributors)
    assert result.vector.tolist() == expected


@pytest.mark.parametrize("liar", IDS)
@pytest.mark.parametrize("whose", [0, 3, 6])
def test_wrong_share_of_a_seed_names_its_sender(liar, whose):
    parties, replies = unmasking()
    replies[liar] = with_wrong_share(parties, replies[liar], {whose})
    # Only a share that is looked at can be found wrong: the first t are, and all if those fail.
    first = sorted(IDS).index(liar) < PARAMS.threshold
    check_named(parties, replies, {liar} if first else set(), IDS)


def test_wrong_share_of_a_key_names_its_sender():
    parties, replies = unmasking(vanished=[IDS[0]])
    liar = sorted(IDS)[1]
    gone = parties.position(IDS[0])
    replies[liar] = with_wrong_share(parties, replies[liar], {gone})
    parties.collect(replies)
    assert parties.server.drops[liar].fault is Fault.BAD_SHARE
    assert parties.server.drops[IDS[0]].fault is Fault.TIMED_OUT
    expected = plain_sum(PARAMS, 0, parties.inputs, IDS[1:])
    assert parties.server.take_sum().vector.tolist() == expected


@pytest.mark.parametrize("liars", [(0, 1), (0, 6), (1, 2), (0, 1, 2), (0, 1, 2, 6)])
def test_several_wrong_shares_name_all_their_senders(liars):
    parties, replies = unmasking()
    wrong = {sorted(IDS)[position] for position in liars}
    for liar in wrong:
        # Unequal errors: equal ones can cancel in the interpolation, and then do no harm.
        error = 5 ** parties.position(liar)
        replies[liar] = with_wrong_share(parties, replies[liar], set(range(7)), error=error)
    check_named(parties, replies, wrong, IDS)


def test_session_goes_on_without_the_liar():
    parties, replies = unmasking()
    liar = sorted(IDS)[0]
    replies[liar] = with_wrong_share(parties, replies[liar], {4})
    parties.collect(replies)
    parties.server.take_sum()
    result = parties.run_slot(1)
    honest = [client for client in IDS if client != liar]
    assert set(result.contributors) == set(honest)
    assert result.vector.tolist() == plain_sum(PARAMS, 1, parties.inputs, honest)


def test_wrong_share_where_none_can_be_spared_ends_the_session():
    parties, replies = unmasking(params=make_params(5, threshold=5))
    liar = parties.ids[0]
    replies[liar] = with_wrong_share(parties, replies[liar], {2})
    with pytest.raises(SessionAborted, match="do not fit together"):
        parties.collect(replies)
    assert parties.server.state is ServerState.ABORTED


def test_too_few_shares_end_the_session():
    parties, replies = unmasking()
    with pytest.raises(SessionAborted, match="only 2 devices are left to help unmask"):
        parties.collect(dict(list(replies.items())[:2]))


def withhold(message):
    keep = message.positions != 3
    return replace(
        message,
        positions=message.positions[keep],
        kinds=message.kinds[keep],
        shares=message.shares[keep],
    )


def test_shares_withheld_for_one_device_are_no_fault():
    parties, replies = unmasking()
    replies[FAULTY] = changed(parties, replies[FAULTY], withhold)
    check_named(parties, replies, set(), IDS)


def test_too_many_withheld_shares_end_the_session():
    parties, replies = unmasking()
    for client in IDS[:5]:
        replies[client] = changed(parties, replies[client], withhold)
    with pytest.raises(SessionAborted, match="2 shares came for position 3"):
        parties.collect(replies)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, kinds=1 - m.kinds),
        lambda m: replace(m, positions=np.where(m.positions == 6, 7, m.positions)),
        lambda m: replace(m, positions=np.where(m.positions == 6, 2**32 - 1, m.positions)),
    ],
)
def test_shares_that_were_not_asked_for_are_refused(change):
    parties, replies = unmasking()
    replies[FAULTY] = changed(parties, replies[FAULTY], change)
    parties.collect(replies)
    check_drop(parties, Fault.MALFORMED, STEP_AT[4])
    expected = plain_sum(PARAMS, 0, parties.inputs, IDS)
    assert parties.server.take_sum().vector.tolist() == expected


def test_shares_of_a_device_that_was_not_in_the_slot_are_refused():
    parties, _, pending = at_step(3)
    gone = IDS[0]
    parties.finish_slot(parties.exchange({c: d for c, d in pending.items() if c != gone}))
    replies = parties.deliver(parties.exchange(parties.server.open_slot(1, BINDING)))

    def add_one(message):
        position = parties.position(gone)
        at = int(np.searchsorted(message.positions, position))
        return replace(
            message,
            positions=np.insert(message.positions, at, position),
            kinds=np.insert(message.kinds, at, 1),
            shares=np.insert(message.shares, at, 0, axis=0),
        )

    replies[FAULTY] = changed(parties, replies[FAULTY], add_one)
    parties.collect(replies)
    assert parties.server.drops[FAULTY].fault is Fault.MALFORMED
    expected = plain_sum(PARAMS, 1, parties.inputs, IDS[1:])
    assert parties.server.take_sum().vector.tolist() == expected


def test_box_with_impossible_content_costs_only_its_shares():
    # All limbs outside the field: the box opens, but holds no shares.
    parties, _, pending = at_step(1)
    reply = parties.answer(FAULTY, pending[FAULTY])
    victim = parties.position(OTHERS[0])

    def change(message):
        channel = parties.clients[FAULTY]._neighbours[victim].channel
        content = b"\xff" * (len(message.boxes[victim]) - sealing.OVERHEAD)
        box = channel.seal(content, parties.randomness[FAULTY])
        return replace(message, boxes={**message.boxes, victim: box})

    parties.server.receive(FAULTY, changed(parties, reply, change))
    pending = parties.collect(parties.deliver({c: d for c, d in pending.items() if c != FAULTY}))
    parties.deliver(pending)
    assert parties.position(FAULTY) not in parties.clients[OTHERS[0]]._held.positions
    for slot in range(2):
        result = parties.run_slot(slot)
        assert result.vector.tolist() == plain_sum(PARAMS, slot, parties.inputs, IDS)
    assert parties.server.drops == {}


def test_commitment_to_another_seed_ends_the_session_and_nothing_worse():
    # A dealer whose commitment fits no shares: its mask cannot be taken off.
    parties, _, pending = at_step(1)
    replies = parties.deliver(pending)
    replies[FAULTY] = changed(
        parties, replies[FAULTY], lambda m: replace(m, commitments=(bytes(32),) * 2)
    )
    parties.deliver(parties.collect(replies))
    requests = parties.exchange(parties.server.open_slot(0, BINDING))
    with pytest.raises(SessionAborted, match="do not fit together"):
        parties.exchange(requests)


# Anything at all.

plausible = st.builds(
    lambda kind, fields: msgpack.packb([VERSION, kind, PARAMS.tag, *fields]),
    st.sampled_from([0x01, 0x02, 0x03, 0x04, 0x05, 0x12, 0x13, 0x14, 0x15]),
    st.lists(
        st.one_of(
            st.integers(0, 8),
            st.binary(max_size=40),
            st.sampled_from([bytes(size) for size in (1, 7, 15, 32, 64, 41, 0, 7 * 41)]),
        ),
        max_size=4,
    ),
)


@settings(max_examples=60)
@given(
    index=st.integers(0, len(STEPS) - 1),
    junk=st.lists(
        st.tuples(st.sampled_from([*IDS[:3], 1, 2]), st.one_of(st.binary(max_size=60), plausible)),
        max_size=6,
    ),
    replayed=st.lists(st.tuples(st.sampled_from(IDS[:3]), st.integers(0, 27)), max_size=4),
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
