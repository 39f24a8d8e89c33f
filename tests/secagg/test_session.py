"""Whole sessions: right sums, the ideal ones, bound to what all were shown, hidden before."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import bindings_of, looks_uniform, run_ideal, run_real
from parties import BINDING, POLICY, Parties, make_ids, make_inputs, make_params, plain_sum

from deltafl.secagg import (
    Fault,
    IdealSession,
    PeerError,
    Refusal,
    SessionAborted,
    Stage,
    Step,
    UsageError,
    Vanish,
    cohort,
    ring,
    run_session,
    signing,
    wire,
)
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import AdvertiseKeys, Credential, OpenSlot, RosterMessage, SessionOpen
from deltafl.secagg.prg import add_mask
from deltafl.secagg.session import NoObserver
from deltafl.secagg.states import ClientState


class Watch(NoObserver):
    """Counts messages, and catches the server to look at its drops."""

    def __init__(self):
        self.sent, self.received = [], []

    def message(self, *, sent, peer, data):
        (self.sent if sent else self.received).append((peer, data))


@st.composite
def sessions(draw):
    num_invited = draw(st.integers(5, 12))
    sparse = [degree for degree in (4, 6) if degree < num_invited - 1]
    degree = draw(st.sampled_from([num_invited - 1, *sparse]))
    threshold = draw(st.integers(2, min(degree, 5)))
    min_cohort = draw(st.integers(threshold, max(threshold, num_invited - 2)))
    specs = st.tuples(
        st.integers(1, 6),
        st.sampled_from([1, 2, 7, 16, 31, 32, 33, 48, 63, 64]),
        st.booleans(),
    )
    num_slots = draw(st.sampled_from([1, 2, 3]))
    slots = tuple(draw(st.lists(specs, min_size=num_slots, max_size=num_slots)))
    if degree == num_invited - 1 and draw(st.booleans()):
        slots = tuple((*slot, draw(st.booleans())) for slot in slots)
    params = make_params(
        num_invited,
        degree=degree,
        threshold=threshold,
        min_cohort=min_cohort,
        slots=slots,
        graph_seed=draw(st.binary(min_size=32, max_size=32)),
    )
    # Who vanishes at a stage that a slot does not have is missed at the next.
    steps = [Step(Stage.ADVERTISE), Step(Stage.SHARE), Step(Stage.RECEIPT)] + [
        Step(stage, slot)
        for slot in range(len(slots))
        for stage in (Stage.MASK, Stage.CONFIRM, Stage.UNMASK)
    ]
    # Mostly few, or nearly every session would end at once.
    num_vanishing = draw(st.sampled_from([0, 1, 2, 3, 4, num_invited]))
    vanishing = {
        client: Vanish(draw(st.sampled_from(steps)), draw(st.booleans()))
        for client in draw(st.permutations(make_ids(num_invited)))[:num_vanishing]
    }
    return params, vanishing, draw(st.integers(0, 2**32))


def test_real_and_ideal_sessions_agree():
    outcomes = set()

    @settings(max_examples=300)
    @given(drawn=sessions())
    def check(drawn):
        params, vanishing, seed = drawn
        inputs = make_inputs(params, make_ids(params.num_invited), seed)
        with pytest.MonkeyPatch.context() as monkeypatch:
            real = run_real(params, inputs, vanishing, monkeypatch, seed)
        assert real == run_ideal(params, inputs, vanishing)
        sums, void, skipped, drops, aborted = real
        assert aborted == (len(sums) + len(void) + len(skipped) < len(params.slots))
        lost_in = {drop.step for drop in drops.values() if drop.fault is not Fault.ISOLATED}
        for slot in void:
            assert params.slots[slot].whole
            assert Step(Stage.MASK, slot) in lost_in
        for slot in skipped:
            assert params.slots[slot].whole
            assert any(step.order < Step(Stage.MASK, slot).order for step in lost_in)
        for slot, _, vector, contributors, remaining in sums:
            assert vector == plain_sum(params, slot, inputs, contributors)
            assert len(contributors) >= params.min_cohort
            assert set(remaining) <= set(contributors)
            if params.slots[slot].whole:
                assert Step(Stage.MASK, slot) not in lost_in
                outcomes.add("whole")
            if params.slots[slot].verified:
                outcomes.add(("verified", params.slots[slot].whole))
        timed_out = {client for client, drop in drops.items() if drop.fault is Fault.TIMED_OUT}
        assert timed_out <= set(vanishing)
        if not vanishing:
            assert drops == {}
            assert not aborted
        kind = "complete" if params.is_complete else "sparse"
        outcomes.add((kind, aborted, bool(sums), bool(drops)))
        outcomes.update(drop.fault for drop in drops.values())
        outcomes.update(drop.step.stage for drop in drops.values())
        outcomes.update(("void", slot + 1 == len(params.slots)) for slot in void)
        outcomes.update(("void", slot, "and another sum") for slot in void if sums)
        outcomes.update("skipped" for _ in skipped)

    check()
    # Otherwise all this could hold because every session drawn ends in the same way.
    for kind in ("complete", "sparse"):
        assert (kind, False, True, False) in outcomes
        assert (kind, False, True, True) in outcomes
        assert (kind, True, True, True) in outcomes
        assert (kind, True, False, True) in outcomes
    assert {Fault.TIMED_OUT, *Stage, "whole", "skipped"} <= outcomes
    assert {("void", False), ("void", True), ("void", 0, "and another sum")} <= outcomes
    assert {("verified", False), ("verified", True)} <= outcomes


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (Stage.SHARE, (32, 0)),
        (Stage.RECEIPT, (32, 0)),
        (Stage.MASK, (0, 32)),
        (Stage.CONFIRM, (0, 32)),
        (Stage.UNMASK, (0, 32)),
    ],
)
def test_neighbourhoods_that_fall_below_the_threshold(stage, expected, monkeypatch):
    # Sparse graph, t = 2 of four who hold shares. Three lost of them isolate a device: 8 times
    # 3 of 4. Once the slot is open the lost devices' secrets are needed too, and the same 3 of 4
    # end it, whether the device in their middle is there or not.
    params = make_params(8, degree=4, threshold=2, slots=((2, 9),))
    ids = make_ids(8)
    inputs = make_inputs(params, ids)
    isolated, ended = 0, 0
    for gone in itertools.combinations(ids, 3):
        vanishing = {client: Vanish(Step(stage)) for client in gone}
        ideal = run_ideal(params, inputs, vanishing)
        sums, _, _, drops, aborted = ideal
        isolated += Fault.ISOLATED in {drop.fault for drop in drops.values()}
        ended += aborted
        assert set(drops) >= set(gone)
        if not aborted:
            assert sums[0][2] == plain_sum(params, 0, inputs, sums[0][3])
            assert set(sums[0][4]) == set(ids) - set(drops)
        # The graph is a ring: turned around it, every three devices are three of whom this is one.
        if ids[0] in gone:
            assert run_real(params, inputs, vanishing, monkeypatch) == ideal
    assert (isolated, ended) == expected


def test_a_session_ends_at_the_step_at_which_too_few_are_left(monkeypatch):
    # A device that would have vanished afterwards is not lost any more.
    params = make_params(5, threshold=3, slots=((2, 9),))
    ids = make_ids(5)
    inputs = make_inputs(params, ids)
    vanishing = {client: Vanish(Step(Stage.CONFIRM)) for client in ids[:3]}
    vanishing[ids[3]] = Vanish(Step(Stage.UNMASK))
    ideal = run_ideal(params, inputs, vanishing)
    sums, _, _, drops, aborted = ideal
    assert (sums, set(drops), aborted) == ([], set(ids[:3]), True)
    assert run_real(params, inputs, vanishing, monkeypatch) == ideal


@pytest.mark.parametrize("stage", Stage)
def test_every_subset_that_vanishes_at_one_stage(stage, monkeypatch):
    # Complete graph, n = 5, t = 3, smallest cohort 4: what survives decides alone.
    params = make_params(5, threshold=3, min_cohort=4, slots=((3, 20),))
    ids = make_ids(5)
    inputs = make_inputs(params, ids)
    everything = [gone for size in range(6) for gone in itertools.combinations(ids, size)]
    # Who answers late is lost like who does not answer: those first, or last, of the invited.
    late = {gone for size in range(1, 6) for gone in (tuple(ids[:size]), tuple(ids[-size:]))}
    for gone, is_late in [(gone, False) for gone in everything] + [
        (gone, True) for gone in sorted(late)
    ]:
        vanishing = {client: Vanish(Step(stage), is_late) for client in gone}
        real = run_real(params, inputs, vanishing, monkeypatch)
        assert real == run_ideal(params, inputs, vanishing)
        sums, _, _, drops, aborted = real
        # After the masked inputs are in, only the threshold counts.
        needed = params.threshold if stage > Stage.MASK else params.min_cohort
        assert aborted == (5 - len(gone) < needed)
        assert set(drops) == set(gone)
        if not aborted:
            contributors = ids if stage > Stage.MASK else set(ids) - set(gone)
            assert sums[0][2] == plain_sum(params, 0, inputs, sorted(contributors))
            assert set(sums[0][3]) == set(contributors)
            assert set(sums[0][4]) == set(ids) - set(gone)


@pytest.mark.parametrize("bits", [1, 16, 32, 33, 64])
def test_sums_wrap_around_in_the_ring(bits):
    params = make_params(5, slots=((3, bits),))
    largest = ring.to_words(np.full(3, 2**bits - 1, dtype=np.uint64), bits)
    [result] = run_session(params, {client: [largest] for client in range(5)}, [b""], policy=POLICY)
    assert result.vector.tolist() == [5 * (2**bits - 1) % 2**bits] * 3


@pytest.mark.parametrize(
    ("changed", "bindings", "message"),
    [
        ([[1, 2, 3], [0, 0]], 2, "device 3, slot 0: a vector is a NumPy array .* not a list"),
        ([np.zeros(3, np.uint32), np.zeros(3, np.uint32)], 2, "device 3, slot 1: vector of shape"),
        ([np.zeros(3, np.uint32)], 2, "device 3: 1 vectors for 2 slots"),
        ([np.array([0, 0, 2**16], np.uint32)], 1, "device 3, slot 0: element 65536 is not in"),
        ([np.zeros(3, np.uint32), np.zeros(2, np.uint32)], 3, "3 bindings for 2 slots"),
    ],
)
def test_vectors_that_do_not_fit_are_refused_before_a_message_is_sent(changed, bindings, message):
    params = make_params(5, slots=((3, 16), (2, 16)))
    inputs = make_inputs(params, make_ids(5)) | {3: changed}
    watch = Watch()
    with pytest.raises(UsageError, match=message):
        run_session(params, inputs, [b""] * bindings, policy=POLICY, observer=watch)
    assert watch.sent == []


def test_inputs_are_by_device():
    params = make_params(5, slots=((3, 16),))
    with pytest.raises(UsageError, match="vectors by device, not a list"):
        run_session(params, [[np.zeros(3, np.uint32)]] * 5, [b""], policy=POLICY)


def test_slots_without_a_binding_are_not_opened_and_need_no_vector():
    params = make_params(5, slots=((3, 16), (2, 16)))
    inputs = {client: vectors[:1] for client, vectors in make_inputs(params, make_ids(5)).items()}
    [result] = run_session(params, inputs, [b""], policy=POLICY)
    assert result.vector.tolist() == plain_sum(params, 0, inputs, make_ids(5))


def test_long_vectors_and_many_chunks():
    params = make_params(5, slots=((40_000, 20),))
    inputs = make_inputs(params, range(5))
    [result] = run_session(params, inputs, [b""], policy=POLICY)
    total = sum(vectors[0].astype(np.uint64) for vectors in inputs.values()) % 2**20
    assert np.array_equal(result.vector, total)


def test_observer_sees_every_message_once():
    params = make_params(5)
    watch = Watch()
    gone = {make_ids(5)[0]: Vanish(Step(Stage.MASK, 0), late=True)}
    run_session(
        params,
        make_inputs(params, make_ids(5)),
        bindings_of(params),
        vanishing=gone,
        policy=POLICY,
        observer=watch,
    )
    # Sent: opening, roster, boxes, and three for each of two slots, less those to
    # the lost device. Received: an answer to each, one of them late.
    assert len(watch.sent) == 5 * 3 + (5 + 4 * 2) + (4 + 4 * 2)
    assert len(watch.received) == 5 * 3 + (4 + 1 + 4 * 2) + (4 + 4 * 2)
    for _, data in watch.sent + watch.received:
        assert wire.decode(data, params) is not None


# Negative controls: the properties above can fail.


def test_masks_that_all_add_give_wrong_sums(monkeypatch):
    params = make_params(5, slots=((8, 32),))
    inputs = make_inputs(params, make_ids(5))
    right = run_real(params, inputs, {}, monkeypatch).sums
    assert right[0][2] == plain_sum(params, 0, inputs, inputs)
    monkeypatch.setattr("deltafl.secagg.primitives.subtracts", lambda *_: False)
    wrong = run_real(params, inputs, {}, monkeypatch).sums
    assert all(one != other for one, other in zip(wrong[0][2], right[0][2], strict=True))


def test_a_mask_less_gives_a_wrong_sum(monkeypatch):
    params = make_params(5, slots=((8, 32),))
    parties = Parties(params)
    openings = parties.advance(ClientState.LINKED)
    forgetful, tolerant = parties.ids[1], SlotContext.tolerant
    with monkeypatch.context() as patch:
        patch.setattr(
            "deltafl.secagg.masks.SlotContext.tolerant",
            lambda *said: tolerant(*said)[1:],
        )
        parties.clients[forgetful].receive(openings[forgetful])
        reply = parties.contribute(forgetful)
    others = {client: data for client, data in openings.items() if client != forgetful}
    requests = parties.collect(parties.deliver(others) | {forgetful: reply})
    result = parties.finish_slot(requests)
    expected = plain_sum(params, 0, parties.inputs, parties.ids)
    assert all(one != other for one, other in zip(result.vector.tolist(), expected, strict=True))


def test_masks_left_on_for_the_dropped_give_wrong_sums(monkeypatch):
    params = make_params(5, slots=((8, 32),))
    inputs = make_inputs(params, make_ids(5))
    gone = {make_ids(5)[0]: Vanish(Step(Stage.MASK))}
    sums = run_real(params, inputs, gone, monkeypatch).sums
    assert sums[0][2] == plain_sum(params, 0, inputs, make_ids(5)[1:])
    monkeypatch.setattr("deltafl.secagg.unmasking.subtracts", lambda own, peer: own < peer)
    sums = run_real(params, inputs, gone, monkeypatch).sums
    assert sums[0][2] != plain_sum(params, 0, inputs, make_ids(5)[1:])


# Binding. The server is as strong as can be: it takes every self mask off whatever it was bound
# to, so that only the pairwise masks protect the sum.

LENGTH = 4096
WIDE = make_params(5, slots=((LENGTH, 16),))


def masked_vector(parties, data, params):
    message = wire.decode(data, params)
    spec = params.slots[0]
    return ring.unpack(message.packed, spec.length, spec.ring_bits)


def take_off_self_mask(vector, machine, seed, binding):
    context = SlotContext.of(machine.params, machine._phase.cohort.session_id, 0, binding)
    add_mask(vector, context.self_mask_key(seed), negative=True)


def sum_without_self_masks(parties, replies, bindings):
    """What is left of the sum once the server has taken off all self masks, each as applied."""
    total = ring.zeros(LENGTH, 16)
    for client, (data, seed) in replies.items():
        machine = parties.clients[client]
        vector = masked_vector(parties, data, machine.params)
        take_off_self_mask(vector, machine, seed, bindings.get(client, BINDING))
        total += vector
    ring.reduce(total, 16)
    return total


def contribute_all(parties, openings, bindings):
    replies = {}
    for client, data in openings.items():
        machine = parties.clients[client]
        machine.receive(data)
        seed = machine._phase.secrets.seeds[0]
        replies[client] = (parties.contribute(client, bindings.get(client, BINDING)), seed)
    return replies


def difference_to_truth(parties, replies, bindings):
    truth = np.array(plain_sum(WIDE, 0, parties.inputs, replies), dtype=np.uint32)
    return (sum_without_self_masks(parties, replies, bindings) - truth) & np.uint32(0xFFFF)


def through(params, others):
    """Rewrites a message of one session as one of another: what a lying server would do."""
    return lambda data: wire.encode(wire.decode(data, params), others)


def test_same_binding_gives_the_exact_sum():
    parties = Parties(WIDE)
    replies = contribute_all(parties, parties.advance(ClientState.LINKED), {})
    difference = difference_to_truth(parties, replies, {})
    assert not difference.any()
    assert not looks_uniform(difference)


@pytest.mark.parametrize("fooled", [1, 2, 4])
def test_other_bindings_hide_the_sum(fooled):
    parties = Parties(WIDE)
    bindings = {client: b"another model" for client in parties.ids[:fooled]}
    replies = contribute_all(parties, parties.advance(ClientState.LINKED), bindings)
    assert looks_uniform(difference_to_truth(parties, replies, bindings))


@pytest.mark.parametrize("shown", [b"one", b"other"])
def test_devices_that_were_shown_another_binding_sign_another_one(shown):
    parties = Parties(make_params(5, slots=((4, 16),)))
    parties.exchange(parties.advance(ClientState.SHARED))
    pending = parties.collect(parties.deliver(parties.server.open_slot(0, b"one"), shown))
    if shown == b"one":
        result = parties.finish_slot(pending)
        assert result.vector.tolist() == plain_sum(parties.params, 0, parties.inputs, parties.ids)
    else:
        with pytest.raises(SessionAborted):
            parties.exchange(pending)
        faults = {drop.fault for drop in parties.server.drops.values()}
        assert faults == {Fault.BAD_SIGNATURE}


# A device that is shown something else opens no box and derives no link. It ends its session. That
# it does not mask with those that were shown the truth is seen where it believes all the same.


def linked_to_everybody(monkeypatch):
    """Devices that take everybody for linked, whatever was shown; they mask with whom they can."""
    check = cohort.check_members

    def lenient(members, before, linked, *rest):
        check(members, before, np.ones_like(linked), *rest)

    monkeypatch.setattr("deltafl.secagg.cohort.check_members", lenient)


def shown_other_parameters(parties, fooled, lie):
    """A session up to the delivery of shares, one of whose devices is told of other parameters.

    Returns:
        What the devices are to get next.
    """
    back = through(lie, WIDE)
    openings = {c: d for c, d in parties.server.start().items() if c != fooled}
    replies = parties.deliver(openings)
    key = parties.clients[fooled].receive(wire.encode(SessionOpen(lie), lie))
    said = parties.decode(back(key))
    # Its signature is of other parameters: the server takes it for right, and so do the devices.
    replies[fooled] = parties.encode(parties.advertisement(fooled, said.key))
    pending = dict(parties.collect(replies))
    shown = parties.decode(pending.pop(fooled))
    signed = Parties(lie, ids=parties.ids if lie.num_invited == len(parties.ids) else None)
    keys = {p: signed.advertisement(parties.roster[p], each.key) for p, each in shown.keys.items()}
    told = wire.encode(replace(shown, keys=keys), lie)
    boxes = parties.clients[fooled].receive(told)
    return parties.collect(parties.deliver(pending) | {fooled: back(boxes)})


OTHER_PARAMETERS = [
    {"context": b"\1" * 32},
    {"graph_seed": b"\1" * 32},
    {"threshold": 2},
    {"min_cohort": 4},
    {"slots": ((LENGTH, 17),)},
]


@pytest.mark.parametrize("changes", OTHER_PARAMETERS)
@pytest.mark.parametrize("believes", [False, True])
def test_a_device_with_other_parameters_has_no_link(changes, believes, monkeypatch):
    parties = Parties(WIDE)
    fooled = parties.ids[0]
    lie = make_params(**({"num_invited": 5, "slots": ((LENGTH, 16),)} | changes))
    deliveries = dict(shown_other_parameters(parties, fooled, lie))
    data = through(WIDE, lie)(deliveries.pop(fooled))
    if believes:
        linked_to_everybody(monkeypatch)
    said = wire.decode(parties.clients[fooled].receive(data), lie) if believes else None
    if not believes:
        parties.clients[fooled].receive(data)
        opening = OpenSlot(0, np.ones(5, dtype=np.bool_))
        with pytest.raises(PeerError) as refused:
            parties.clients[fooled].receive(wire.encode(opening, lie))
        assert refused.value.reason is Refusal.COHORT_TOO_SMALL
        return
    assert len(said.links) == 0
    parties.exchange(deliveries)
    opening = OpenSlot(0, np.ones(5, dtype=np.bool_))
    parties.clients[fooled].receive(wire.encode(opening, lie))
    machine = parties.clients[fooled]
    assert machine._phase.secrets.pairs[0] == {}
    # Nobody else masks with it: the others' sum stands without it.
    parties.server._settle()
    result = parties.run_slot(0)
    others = [client for client in parties.ids if client != fooled]
    assert set(result.contributors) == set(others)
    assert result.vector.tolist() == plain_sum(WIDE, 0, parties.inputs, others)


def shown_another_roster(parties, fooled):
    """A session up to the delivery of shares, one of whose devices is shown another roster."""
    pending = dict(parties.advance(ClientState.ADVERTISED))
    honest = wire.decode(pending[fooled], WIDE)
    last = int(honest.roster[-1])
    assert fooled != last
    roster = honest.roster + np.uint32(honest.roster == last)
    named = dict(honest.keys)
    position = parties.position(last)
    key = named[position].key
    identity = parties.enrolment.credentials(last + 1).identity
    statement = signing.advertisement(WIDE, last + 1, key)
    named[position] = AdvertiseKeys(key, Credential(identity.public, identity.sign(statement)))
    pending[fooled] = parties.encode(RosterMessage(roster, named))
    return parties.exchange(pending)


def test_a_device_with_another_roster_has_no_link_and_costs_nobody_the_sum():
    parties = Parties(WIDE)
    fooled = parties.ids[-1]
    deliveries = dict(shown_another_roster(parties, fooled))
    replies = parties.deliver(deliveries)
    assert parties.decode(replies[fooled]).links == {}
    parties.collect(replies)
    result = parties.run_slot(0)
    assert {c: drop.fault for c, drop in parties.server.drops.items()} == {fooled: Fault.ISOLATED}
    others = [client for client in parties.ids if client != fooled]
    assert set(result.contributors) == set(others)
    assert result.vector.tolist() == plain_sum(WIDE, 0, parties.inputs, others)
    # Opened by a server that lies, it is alone.
    data = parties.encode(OpenSlot(0, parties.members(parties.ids)))
    with pytest.raises(PeerError) as refused:
        parties.clients[fooled].receive(data)
    assert refused.value.reason is Refusal.COHORT_TOO_SMALL


# What the server sees before the unmasking.


def masked_inputs(seed, inputs=None, params=WIDE):
    parties = Parties(params, seed=seed)
    if inputs is not None:
        parties.inputs = inputs
    replies = parties.deliver(parties.advance(ClientState.LINKED))
    return {client: masked_vector(parties, data, params) for client, data in replies.items()}


def test_masked_inputs_look_uniform_and_depend_on_the_randomness():
    zeros = {client: [ring.zeros(LENGTH, 16)] for client in make_ids(5)}
    first, second, again = (masked_inputs(seed, zeros) for seed in (0, 1, 0))
    for client in zeros:
        assert np.array_equal(first[client], again[client])
        assert looks_uniform(first[client])
        assert looks_uniform((first[client] - second[client]) & np.uint32(0xFFFF))
    for one, other in itertools.combinations(first.values(), 2):
        assert looks_uniform((one - other) & np.uint32(0xFFFF))
    # Together they are still masked, by the self masks.
    assert looks_uniform(sum(first.values()) & np.uint32(0xFFFF))


def test_slots_are_independent():
    params = make_params(5, slots=((LENGTH, 16), (LENGTH, 16)))
    inputs = {client: [ring.zeros(LENGTH, 16)] * 2 for client in make_ids(5)}
    parties = Parties(params)
    parties.inputs = inputs
    parties.exchange(parties.advance(ClientState.SHARED))
    vectors = []
    for slot in range(2):
        replies = parties.deliver(parties.server.open_slot(slot, BINDING))
        vectors.append(
            {
                client: ring.unpack(wire.decode(data, params).packed, LENGTH, 16)
                for client, data in replies.items()
            }
        )
        result = parties.finish_slot(parties.collect(replies))
        assert not result.vector.any()
    for client in inputs:
        assert looks_uniform((vectors[0][client] - vectors[1][client]) & np.uint32(0xFFFF))


def test_the_uniformity_test_can_fail():
    assert not looks_uniform(np.zeros(LENGTH, dtype=np.uint32))
    assert not looks_uniform(np.arange(LENGTH, dtype=np.uint32))
    generator = np.random.default_rng(0)
    skewed = generator.integers(0, 2**16, LENGTH, dtype=np.uint32)
    skewed[: LENGTH // 8] &= np.uint32(0x7FFF)
    assert not looks_uniform(skewed)
    assert looks_uniform(generator.integers(0, 2**16, LENGTH, dtype=np.uint32))


def test_ideal_session_checks_what_it_adds():
    params = make_params(5, slots=((2, 8),))
    session = IdealSession(params, make_ids(5), {})
    session.set_up()
    session.open_slot(0)
    with pytest.raises(UsageError, match=r"element 256 is not in \[0, 2\^8\)"):
        session.sum(0, lambda _: np.array([0, 256], dtype=np.uint32))
