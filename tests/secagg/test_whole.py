"""Whole slots: a sum over all devices that were agreed on, in one message of each, or none."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from malicious_clients import MaliciousClients, check_sums
from outcomes import looks_uniform, run_ideal, run_real
from parties import BINDING, POLICY, Parties, make_ids, make_inputs, make_params, plain_sum
from refusing import IDS, OTHERS, VICTIM, refuse

from deltafl.secagg import (
    Fault,
    IdealSession,
    Refusal,
    SessionAborted,
    Stage,
    Step,
    UsageError,
    Vanish,
    ring,
    run_session,
)
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import (
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    OpenSlot,
    UnmaskRequest,
)
from deltafl.secagg.prg import add_mask
from deltafl.secagg.states import ClientState, ServerState

WHOLE, PLAIN = (4, 16, True), (4, 16, False)
SPARSE = {"degree": 4, "threshold": 3}

every_silence = pytest.mark.parametrize(
    "silence", [lambda *_: None, lambda *_: b"\x93\x01\x14"], ids=["lost", "malformed"]
)
"""How a device comes to be missing."""


def params_of(*slots, num_invited=6, **options):
    return make_params(num_invited, slots=slots, **{"threshold": 3, **options})


def lost(*clients):
    """Those of `IDS` that are left without some."""
    return [client for client in IDS if client not in clients]


# Who takes part: what a device refuses.


def ready(params, absent=()):
    """A session whose devices are through the set-up, but for some that never came."""
    parties = Parties(params)
    pending = parties.server.start()
    for _ in range(3):
        replies = parties.deliver(pending)
        pending = parties.collect({c: d for c, d in replies.items() if c not in absent})
    assert parties.server.state is ServerState.READY
    return parties


def agreed(params, members=IDS):
    """A session whose devices have agreed on its members, in a first slot, and that slot is over.

    A tolerant slot loses the others; a whole one is opened without them.
    """
    parties = ready(params)
    openings = parties.server.open_slot(0, BINDING)
    if not params.slots[0].whole:
        replies = parties.deliver(openings)
        parties.finish_slot(parties.collect({c: replies[c] for c in members}))
    else:
        told = replace(parties.decode(openings[VICTIM]), members=parties.members(members))
        parties.answer(VICTIM, parties.encode(told))
    assert parties.clients[VICTIM].state is ClientState.READY
    return parties


def opened(parties, members, slot, tags=None):
    return parties.encode(OpenSlot(slot, parties.members(members), tags or {}))


@pytest.mark.parametrize("members", [IDS, lost(OTHERS[0]), [VICTIM, *OTHERS[:2]]])
def test_a_first_list_is_any_cohort(members):
    """The masks are bound to it, so that devices which were shown another list share none."""
    parties = ready(params_of(WHOLE))
    told = parties.decode(parties.server.open_slot(0, BINDING)[VICTIM])
    data = parties.encode(replace(told, members=parties.members(members)))
    parties.clients[VICTIM].receive(data)
    assert parties.clients[VICTIM].state is ClientState.OPENED


@pytest.mark.parametrize("first", [PLAIN, WHOLE], ids=["tolerant", "whole"])
@pytest.mark.parametrize(
    "members", [IDS, lost(*OTHERS[:2]), lost(OTHERS[1])], ids=["more", "fewer", "others"]
)
def test_later_whole_slots_are_over_those_that_were_agreed_on_last(first, members):
    """Those that were there to the end of the last tolerant slot, or of the last list."""
    left, params = lost(OTHERS[0]), params_of(first, WHOLE)
    refuse(parties := agreed(params, left), opened(parties, members, 1), Refusal.NOT_AGREED)
    # Control: exactly those.
    parties = agreed(params, left)
    parties.clients[VICTIM].receive(opened(parties, left, 1))
    assert parties.clients[VICTIM].state is ClientState.OPENED


def through_a_tolerant_slot(parties, slot, left):
    """The victim takes part in a tolerant slot that loses devices."""
    machine, survivors = parties.clients[VICTIM], parties.members(left)
    parties.answer(VICTIM, opened(parties, left, slot))
    machine.receive(parties.encode(ConsistencyCheck(slot, survivors)))
    signatures = {
        parties.position(c): parties.sign_survivors(c, survivors, slot=slot) for c in left
    }
    machine.receive(parties.encode(UnmaskRequest(slot, survivors, signatures)))
    assert machine.state is ClientState.READY


def test_an_agreement_holds_till_the_next_tolerant_slot():
    """A whole slot that lost a device leaves the list as it was."""
    params, left = params_of(WHOLE, WHOLE, PLAIN, WHOLE), lost(OTHERS[0])
    refuse(parties := agreed(params), opened(parties, left, 1), Refusal.NOT_AGREED)
    parties = agreed(params)
    through_a_tolerant_slot(parties, 2, left)
    refuse(parties, opened(parties, lost(*OTHERS[:2]), 3), Refusal.NOT_AGREED)
    parties = agreed(params)
    through_a_tolerant_slot(parties, 2, left)
    parties.clients[VICTIM].receive(opened(parties, left, 3))
    assert parties.clients[VICTIM].state is ClientState.OPENED


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (OTHERS, Refusal.DEVICE_LEFT_OUT),
        ([VICTIM, OTHERS[0]], Refusal.COHORT_TOO_SMALL),
    ],
)
def test_a_list_is_a_cohort(members, reason):
    parties = ready(params_of(WHOLE))
    told = parties.decode(parties.server.open_slot(0, BINDING)[VICTIM])
    data = parties.encode(replace(told, members=parties.members(members)))
    refuse(parties, data, reason)


@pytest.mark.parametrize("first", [PLAIN, WHOLE], ids=["tolerant", "whole"])
@pytest.mark.parametrize("second", [PLAIN, WHOLE], ids=["tolerant", "whole"])
def test_tags_come_with_the_first_slot_only(first, second):
    parties = agreed(params_of(first, second))
    tags = {parties.position(OTHERS[0]): bytes(16)}
    refuse(parties, opened(parties, IDS, 1, tags), Refusal.MALFORMED)


# What the masks hide.

LENGTH = 4096
WIDE = (LENGTH, 16, True)


def masked_vectors(parties, slot=0):
    """What every device sends in a whole slot, by device, and its context."""
    replies = parties.deliver(parties.server.open_slot(slot, BINDING))
    return {
        client: ring.unpack(parties.decode(data).packed, LENGTH, 16)
        for client, data in replies.items()
    }


def difference(parties, vectors, slot=0):
    """What is left of a sum of masked vectors once the devices' own vectors are taken off."""
    total = ring.zeros(LENGTH, 16)
    for client, vector in vectors.items():
        total += vector
        total -= parties.inputs[client][slot]
    ring.reduce(total, 16)
    return total


@pytest.mark.parametrize("graph", [{}, {"degree": 4, "num_invited": 6}], ids=["complete", "sparse"])
def test_all_vectors_are_the_sum_and_fewer_are_noise(graph):
    params = params_of(WIDE, **{"num_invited": 5, **graph})
    parties = ready(params)
    vectors = masked_vectors(parties)
    for size in range(1, len(vectors)):
        for some in itertools.combinations(vectors, size):
            assert looks_uniform(difference(parties, {c: vectors[c] for c in some}))
    assert not difference(parties, vectors).any()


@pytest.mark.parametrize("change", ["binding", "members"])
def test_a_device_that_is_shown_something_else_spoils_the_sum(change):
    parties = ready(params_of(WIDE, num_invited=5))
    odd = parties.ids[0]
    openings = dict(parties.server.open_slot(0, BINDING))
    if change == "members":
        told = parties.decode(openings[odd])
        left = parties.members([odd, *parties.ids[2:]])
        openings[odd] = parties.encode(replace(told, members=left))
    shown = {odd: b"another model"} if change == "binding" else {}
    replies = {c: parties.answer(c, d, shown.get(c, BINDING)) for c, d in openings.items()}
    vectors = {c: ring.unpack(parties.decode(d).packed, LENGTH, 16) for c, d in replies.items()}
    assert looks_uniform(difference(parties, vectors))


def test_devices_that_are_shown_different_lists_share_no_mask():
    """Each list lacks the device opposite: every mask has two ends, and no list is another's."""
    parties = ready(params_of(WIDE))
    members = {c: lost(opposite) for c, opposite in zip(IDS, IDS[3:] + IDS[:3], strict=True)}
    openings = {
        c: parties.encode(replace(parties.decode(d), members=parties.members(members[c])))
        for c, d in parties.server.open_slot(0, BINDING).items()
    }
    replies = parties.deliver(openings)
    vectors = {c: ring.unpack(parties.decode(d).packed, LENGTH, 16) for c, d in replies.items()}
    assert len(vectors) == 6
    assert looks_uniform(difference(parties, vectors))


FROM_ELSEWHERE = {
    "another slot": lambda params: masked_vectors(ready(params), slot=1),
    "another session": lambda params: masked_vectors(ready(replace(params, context=b"\1" * 32))),
    "another roster": lambda params: masked_vectors(ready(params, make_ids(5)[-1:])),
}


@pytest.mark.parametrize("where", FROM_ELSEWHERE)
def test_a_vector_from_elsewhere_does_not_complete_a_sum(where):
    """The devices draw the same keys there, so nothing but what masks are bound to differs."""
    params = params_of(WIDE, WIDE, num_invited=5)
    parties = ready(params)
    parties.inputs = dict.fromkeys(parties.ids, [ring.zeros(LENGTH, 16)] * 2)
    vectors = masked_vectors(parties)
    odd = parties.ids[0]
    vectors[odd] = FROM_ELSEWHERE[where](params)[odd]
    assert looks_uniform(difference(parties, vectors))


def test_keys_that_are_drawn_again_give_other_masks_in_another_session():
    """As from randomness that starts anew: of two vectors of zeros, the difference is no zeros."""
    params = params_of(WIDE, num_invited=5)
    sessions = [ready(p) for p in (params, params, replace(params, context=b"\1" * 32))]
    for parties in sessions:
        parties.inputs = {client: [ring.zeros(LENGTH, 16)] for client in parties.ids}
    keys = [{c: parties.key(c) for c in parties.ids} for parties in sessions]
    assert keys[0] == keys[1] == keys[2]
    first, again, other = map(masked_vectors, sessions)
    for client in first:
        assert np.array_equal(first[client], again[client])
        assert looks_uniform((first[client] - other[client]) & np.uint32(0xFFFF))
    pairs = itertools.combinations(first, 2)
    assert all(
        looks_uniform((first[a] + first[b] - other[a] - other[b]) & np.uint32(0xFFFF))
        for a, b in pairs
    )


def test_a_recovery_key_takes_no_mask_off_a_whole_slot():
    """A device that is lost in the update: what is rebuilt of it is of that slot alone."""
    params = params_of(WIDE, (LENGTH, 16), num_invited=5)
    parties = ready(params)
    victim, *others = parties.ids
    openings = parties.server.open_slot(0, BINDING)
    for client, data in openings.items():
        parties.clients[client].receive(data)
    pairs = parties.clients[victim]._phase.secrets.pairs
    members, own = parties.members(parties.ids), parties.position(victim)
    context = SlotContext.of(params, parties.session_id(), 0, BINDING)
    vectors = {}
    for client in openings:
        data = parties.contribute(client)
        vectors[client] = ring.unpack(parties.decode(data).packed, LENGTH, 16)
        parties.server.receive(client, data)
    parties.server.close_round()
    # Recovered from the server's receipts with the recovery key of slot 1: the only one there is.
    recovery = parties.randomness[victim].given[2]
    peers = np.array(sorted(parties.position(c) for c in others))
    rebuilt = parties.server._receipts.revealed(own, 0, recovery, peers)
    assert rebuilt == pairs[1]
    for of_peers, is_clear in ((pairs[0], True), (rebuilt, False)):
        unmasked = vectors[victim] - parties.inputs[victim][0]
        for pair in context.whole(of_peers, members):
            add_mask(unmasked, pair.key(), negative=own < pair.peer)
        ring.reduce(unmasked, 16)
        assert unmasked.any() != is_clear
        assert looks_uniform(unmasked) != is_clear
    # And these are the keys with which the sum is unmasked where it is lost.
    replies = parties.deliver(parties.server.open_slot(1, BINDING))
    result = parties.finish_slot(parties.collect({c: replies[c] for c in others}))
    assert result.vector.tolist() == plain_sum(params, 1, parties.inputs, others)
    assert dict(result.recovered.recovery) == {own: recovery}


# What is shared of a whole slot: nothing.


def test_a_session_of_whole_slots_shares_no_secret():
    """A device draws its key, and half of a link for each neighbour."""
    parties = Parties(params_of(WHOLE, (3, 40, True)))
    for _ in parties.steps():
        pass
    check_sums(parties)
    assert [result.slot for result in parties.sums] == [0, 1]
    for client in parties.ids:
        drawn = [len(secret) for secret in parties.randomness[client].given if secret]
        assert drawn == [32] + [32] * 5
        secrets = parties.clients[client]._phase.secrets
        assert (secrets.seeds, secrets.shares) == ({}, {})


@pytest.mark.parametrize(
    ("slots", "num_tolerant"),
    [((WHOLE,), 0), ((PLAIN,), 1), ((WHOLE, PLAIN), 1), ((WHOLE, PLAIN, WHOLE, PLAIN), 2)],
)
def test_messages_of_the_set_up_have_room_for_tolerant_slots_only(slots, num_tolerant):
    parties = Parties(params_of(*slots))
    said = parties.deliver(parties.server.start())
    said = parties.deliver(parties.collect(said))
    for data in said.values():
        shares = parties.decode(data)
        assert len(shares.commitments) == 2 * num_tolerant
        assert {len(box) for box in shares.boxes.values()} == {1168 + 72 * num_tolerant}
    said = parties.deliver(parties.collect(said))
    for data in said.values():
        rows = parties.decode(data).links.values()
        assert {len(row) for row in rows} == {32 + 48 * num_tolerant}
    parties.collect(said)
    # Each column of shares is opened in its own slot.
    for slot, spec in enumerate(parties.params.slots):
        result = parties.run_slot(slot)
        assert result.vector.tolist() == plain_sum(
            parties.params, slot, parties.inputs, parties.ids
        ), spec


def test_a_device_says_one_thing_in_a_whole_slot():
    """Its vector."""
    parties = ready(params_of(WHOLE, WHOLE))
    said = []
    for slot in range(2):
        pending = parties.server.open_slot(slot, BINDING)
        while pending:
            replies = parties.deliver(pending)
            said.append((slot, {type(parties.decode(data)) for data in replies.values()}))
            pending = parties.collect(replies)
    assert said == [(0, {MaskedInput}), (1, {MaskedInput})]


# What the server does.


def void_slot(params, silence=lambda *_: None):
    """A session whose first slot is whole and, at its end, lacks a device."""
    parties = MaliciousClients(params, {})
    parties.exchange(parties.advance(ClientState.SHARED))
    pending = parties.server.open_slot(0, BINDING)
    parties.changes = {(VICTIM, Stage.MASK): silence}
    replies = parties.deliver(pending)
    for client, data in replies.items():
        parties.server.receive(client, data)
    return parties, replies


@every_silence
def test_a_whole_slot_that_lacks_a_device_ends_without_messages_and_a_sum(silence):
    parties, _ = void_slot(params_of(WHOLE, PLAIN), silence)
    server = parties.server
    assert server.close_round() == {}
    assert server.state is ServerState.READY
    assert not server.has_sum
    fault = Fault.TIMED_OUT if silence() is None else Fault.MALFORMED
    assert {c: (d.fault, d.step) for c, d in server.drops.items()} == {
        VICTIM: (fault, Step(Stage.MASK, 0))
    }
    with pytest.raises(UsageError, match="no sum to take"):
        server.take_sum()
    with pytest.raises(UsageError, match="no round is open"):
        server.close_round()
    with pytest.raises(UsageError, match="once each"):
        server.open_slot(0, BINDING)
    # The devices were told nothing, and the next slot is theirs.
    left = sorted(OTHERS)
    assert {parties.clients[client].state for client in left} == {ClientState.READY}
    result = parties.run_slot(1)
    assert result.contributors == result.remaining == tuple(left)
    assert result.vector.tolist() == plain_sum(parties.params, 1, parties.inputs, left)
    assert server.state is ServerState.DONE


def test_the_last_slot_ends_the_session_void_or_not():
    parties, _ = void_slot(params_of(WHOLE))
    assert parties.server.close_round() == {}
    assert parties.server.state is ServerState.DONE
    assert parties.server.remaining == tuple(sorted(OTHERS))
    for call in (parties.server.take_sum, parties.server.close_round):
        with pytest.raises(UsageError):
            call()
    with pytest.raises(UsageError, match="open_slot in state done"):
        parties.server.open_slot(0, BINDING)


def test_whole_slots_that_lack_nobody_have_their_sums():
    parties = Parties(params_of(WHOLE, WHOLE))
    for _ in parties.steps():
        pass
    assert [result.slot for result in parties.sums] == [0, 1]
    assert all(result.contributors == tuple(parties.roster) for result in parties.sums)
    assert parties.server.drops == {}
    check_sums(parties)


def test_whole_slots_after_a_void_one_need_a_tolerant_one_between():
    """A device of the list is gone; the survivors of a tolerant slot are a list again."""
    params = params_of(WHOLE, WHOLE, PLAIN, WHOLE, WHOLE)
    parties, _ = void_slot(params)
    server = parties.server
    server.close_round()
    assert [server.can_sum(slot) for slot in range(1, 5)] == [False, True, False, False]
    for slot in (1, 3, 4):
        with pytest.raises(UsageError, match=f"slot={slot}: a device of this whole slot is gone"):
            server.open_slot(slot, BINDING)
    assert server.state is ServerState.READY
    left = tuple(sorted(OTHERS))
    assert parties.run_slot(2).contributors == left
    assert [server.can_sum(slot) for slot in (3, 4)] == [True, True]
    for slot in (3, 4):
        result = parties.run_slot(slot)
        assert result.contributors == left
        assert result.vector.tolist() == plain_sum(params, slot, parties.inputs, left)


@pytest.mark.parametrize("stage", [Stage.CONFIRM, Stage.UNMASK])
def test_who_is_lost_when_its_vector_is_in_is_missing_from_the_next_whole_slot(stage):
    """It is in the tolerant slot's sum, and on the list that was agreed on there."""
    params = params_of(PLAIN, WHOLE, PLAIN)
    parties = MaliciousClients(params, {(VICTIM, stage): lambda *_: None})
    for _ in parties.steps():
        pass
    assert [result.slot for result in parties.sums] == [0, 2]
    assert parties.sums[0].contributors == tuple(parties.roster)
    assert parties.sums[1].contributors == tuple(sorted(OTHERS))
    assert set(parties.server.drops) == {VICTIM}
    check_sums(parties)


def late_messages(parties):
    """All that devices may say about slot 0 when it is over, honestly or not."""
    yield parties.encode(MaskedInput(0, bytes(8)))
    # As in a session in which nobody is missing.
    whole = Parties(parties.params)
    pending = whole.advance(ClientState.LINKED)
    while pending:
        replies = whole.deliver(pending)
        yield from replies.values()
        pending = whole.collect(replies)
    yield parties.encode(ConsistencySignature(0, bytes(64)))


@pytest.mark.parametrize("reopened", [False, True], ids=["ready", "next slot"])
def test_what_comes_for_a_void_slot_is_ignored(reopened):
    """Late vectors, also the one that was missing, repetitions, second vectors, signatures."""
    parties, replies = void_slot(params_of(WHOLE, PLAIN))
    server = parties.server
    server.close_round()
    openings = server.open_slot(1, BINDING) if reopened else {}
    state, drops = server.state, dict(server.drops)
    said = list(late_messages(parties))
    total = server._open.total.copy() if reopened else None
    for sender in IDS:
        for data in (*replies.values(), *said):
            server.receive(sender, data)
    assert (server.state, server.drops) == (state, drops)
    assert not server.has_sum
    if not reopened:
        openings = server.open_slot(1, BINDING)
    else:
        assert np.array_equal(server._open.total, total)
    result = parties.finish_slot(openings)
    assert result.contributors == tuple(sorted(OTHERS))
    assert result.vector.tolist() == plain_sum(parties.params, 1, parties.inputs, OTHERS)


def test_too_few_for_a_sum_are_noticed_when_the_next_slot_opens():
    """A void slot reveals nothing, however few are left: it need not abort the session."""
    parties = MaliciousClients(params_of(WHOLE, PLAIN, min_cohort=5), {})
    parties.exchange(parties.advance(ClientState.SHARED))
    pending = parties.server.open_slot(0, BINDING)
    parties.changes = {(client, Stage.MASK): lambda *_: None for client in OTHERS[:2]}
    assert parties.exchange(pending) == {}
    assert parties.server.state is ServerState.READY
    with pytest.raises(SessionAborted, match="4 devices are left"):
        parties.server.open_slot(1, BINDING)
    assert parties.server.state is ServerState.ABORTED


def test_a_device_that_left_before_the_slot_opened_is_not_missing_from_it():
    parties = MaliciousClients(params_of(WHOLE), {(VICTIM, Stage.RECEIPT): lambda *_: None})
    [result] = parties.finish()
    assert result.contributors == tuple(sorted(OTHERS))


# The whole.

GRAPHS = {
    "complete": ({"threshold": 2}, ()),
    "sparse": ({"threshold": 2, "degree": 2}, ()),
    # Over five, a graph of degree four is complete; the sixth device never comes.
    "sparse at first": ({"threshold": 2, "degree": 4, "num_invited": 6}, make_ids(6)[:1]),
}
LAYOUTS = {"whole first": (WHOLE, PLAIN, WHOLE), "tolerant first": (PLAIN, WHOLE, WHOLE)}


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_subset_of_five_is_lost_at_every_step(graph, layout, monkeypatch):
    """The sum of a whole slot is that of all who were agreed on, or there is none."""
    options, absent = GRAPHS[graph]
    params = params_of(*LAYOUTS[layout], **{"num_invited": 5, **options})
    devices = [client for client in make_ids(params.num_invited) if client not in absent]
    inputs = make_inputs(params, make_ids(params.num_invited))
    stages = [(0, Stage.RECEIPT)] + [
        (slot, stage)
        for slot, spec in enumerate(params.slots)
        for stage in ([Stage.MASK] if spec.whole else list(Stage)[Stage.MASK :])
    ]
    subsets = [some for size in range(4) for some in itertools.combinations(devices, size)]
    # Two are too few for every sum, and so are fewer, whoever they are.
    subsets += [tuple(devices[:4]), tuple(devices)]
    outcomes = set()
    for (slot, stage), some in itertools.product(stages, subsets):
        vanishing = {client: Vanish(Step(stage, slot)) for client in some}
        vanishing |= {client: Vanish(Step(Stage.ADVERTISE)) for client in absent}
        real = run_real(params, inputs, vanishing, monkeypatch)
        assert real == run_ideal(params, inputs, vanishing)
        members = None  # of whole slots
        sums = {result[0]: result for result in real.sums}
        for index, spec in enumerate(params.slots):
            if index not in sums:
                continue
            _, _, vector, contributors, remaining = sums[index]
            assert vector == plain_sum(params, index, inputs, contributors)
            if spec.whole:
                assert members in (None, contributors)
                assert remaining == contributors
            members = contributors
        outcomes.update(("sum", index) for index in sums)
        outcomes.update(("void", index) for index in real.void)
        outcomes.update(("skipped", index) for index in real.skipped)
        outcomes.add(("aborted", real.aborted))
    whole = [index for index, spec in enumerate(params.slots) if spec.whole]
    assert {("sum", index) for index in range(3)} | {("void", i) for i in whole} <= outcomes
    assert ("aborted", True) in outcomes
    # Without any one of five, the sparse graph has isolated devices: no tolerant slot can follow.
    follows = layout == "tolerant first" or graph != "sparse"
    assert (("skipped", 2) in outcomes) == follows


@pytest.mark.parametrize("late", [False, True])
def test_every_subset_that_vanishes_makes_a_whole_slot_void_and_not_the_next(late, monkeypatch):
    params = params_of(WHOLE, PLAIN, num_invited=5, threshold=2)
    ids = make_ids(5)
    inputs = make_inputs(params, ids)
    for size in range(4):
        for gone in itertools.combinations(ids, size):
            vanishing = {client: Vanish(Step(Stage.MASK, 0), late) for client in gone}
            real = run_real(params, inputs, vanishing, monkeypatch)
            assert real == run_ideal(params, inputs, vanishing)
            assert real.void == ([0] if gone else [])
            left = tuple(sorted(set(ids) - set(gone)))
            assert [result[0] for result in real.sums] == ([1] if gone else [0, 1])
            for slot, _, vector, contributors, remaining in real.sums:
                assert contributors == remaining == left
                assert vector == plain_sum(params, slot, inputs, left)


def test_the_ideal_session_opens_no_whole_slot_of_which_a_device_is_gone():
    params = params_of(WHOLE, WHOLE, PLAIN, num_invited=5)
    ids = make_ids(5)
    session = IdealSession(params, ids, {ids[0]: Vanish(Step(Stage.MASK, 0))})
    session.set_up()
    assert session.open_slot(0) == tuple(sorted(ids))
    assert session.collect(0) is None
    assert [session.can_sum(slot) for slot in range(3)] == [False, False, True]
    with pytest.raises(UsageError, match="slot=1: a device of this whole slot is gone"):
        session.open_slot(1)
    assert session.open_slot(2) == tuple(sorted(ids[1:]))


@pytest.mark.parametrize("whole", [False, True])
def test_two_sums_over_one_vector_differ_by_whoever_is_lost_unless_they_are_whole(whole):
    """What whole slots are for: a search asks its devices for nearly the same thing repeatedly."""
    slot = WHOLE if whole else PLAIN
    params = params_of(PLAIN, slot, num_invited=5)
    ids = make_ids(5)
    inputs = {c: [v[0], v[0]] for c, v in make_inputs(params, ids).items()}
    lost = {ids[1]: Vanish(Step(Stage.MASK, 1))}
    sums = run_session(params, inputs, [BINDING] * 2, vanishing=lost, policy=POLICY)
    if whole:
        assert [result.slot for result in sums] == [0]
    else:
        difference = ring.as_vector(sums[0].vector - sums[1].vector & np.uint32(0xFFFF), 4, 16)
        assert difference.tolist() == inputs[ids[1]][0].tolist()
