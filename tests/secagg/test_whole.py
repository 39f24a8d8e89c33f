"""Whole slots: a sum over all devices that the slot was opened with, or none."""

import itertools

import numpy as np
import pytest
from malicious_clients import MaliciousClients, check_sums
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
from deltafl.secagg.messages import (
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    OpenSlot,
    UnmaskRequest,
)
from deltafl.secagg.states import ClientState, ServerState

WHOLE, PLAIN = (4, 16, True), (4, 16, False)
SPARSE = {"degree": 4, "threshold": 3}

in_both = pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
every_silence = pytest.mark.parametrize(
    "silence", [lambda *_: None, lambda *_: b"\x93\x01\x14"], ids=["lost", "malformed"]
)
"""How a device comes to be missing."""


def params_of(*slots, signed=False, num_invited=6, **options):
    return make_params(num_invited, slots=slots, signed=signed, **{"threshold": 3, **options})


# What a device refuses.


def survivors_of(params, members, *, opened=None):
    """A session whose victim has masked its vector, and is then told of survivors."""
    parties = Parties(params)
    openings = parties.advance(ClientState.READY)
    if opened is not None:
        openings = {VICTIM: parties.encode(OpenSlot(0, parties.members(opened)))}
    parties.deliver(openings)
    kind = ConsistencyCheck if params.signed else UnmaskRequest
    return parties, parties.encode(kind(0, parties.members(members)))


@in_both
@pytest.mark.parametrize("lost", OTHERS)
def test_a_device_helps_to_unmask_a_whole_slot_for_nobody_less(signed, lost):
    left = [client for client in IDS if client != lost]
    refuse(*survivors_of(params_of(WHOLE, signed=signed), left), Refusal.NOT_WHOLE)
    # Control: it would, if the slot were another.
    parties, data = survivors_of(params_of(PLAIN, signed=signed), left)
    assert parties.clients[VICTIM].receive(data) is not None


@in_both
def test_a_device_helps_to_unmask_a_whole_slot_for_all(signed):
    parties, data = survivors_of(params_of(WHOLE, signed=signed), IDS)
    assert parties.clients[VICTIM].receive(data) is not None


@in_both
def test_all_are_those_that_the_slot_was_opened_with(signed):
    """Who was lost before is not missing; who was lost since is."""
    params, opened = params_of(WHOLE, signed=signed), [VICTIM, *OTHERS[:4]]
    parties, data = survivors_of(params, opened, opened=opened)
    assert parties.clients[VICTIM].receive(data) is not None
    parties, data = survivors_of(params, [VICTIM, *OTHERS[:3]], opened=opened)
    refuse(parties, data, Refusal.NOT_WHOLE)
    parties, data = survivors_of(params, IDS, opened=opened)
    refuse(parties, data, Refusal.COHORT_GREW)


@in_both
def test_far_devices_count_too(signed):
    params = params_of(WHOLE, signed=signed, num_invited=9, **SPARSE)
    kind = ConsistencyCheck if signed else UnmaskRequest
    parties = Parties(params)
    parties.advance(ClientState.MASKED)
    victim = parties.ids[4]
    near = parties.clients[victim]._neighbours.keys()
    far = next(p for p in range(9) if p not in near and p != parties.position(victim))
    survivors = np.arange(9) != far
    refuse(parties, parties.encode(kind(0, survivors)), Refusal.NOT_WHOLE, victim)


@in_both
def test_each_slot_is_whole_or_not_by_itself(signed):
    """The first of two is not, the second is."""
    kind = ConsistencyCheck if signed else UnmaskRequest
    parties = Parties(params_of(PLAIN, WHOLE, signed=signed))
    parties.exchange(parties.advance(ClientState.SHARED))
    parties.run_slot(0)
    parties.deliver(parties.server.open_slot(1, BINDING))
    refuse(parties, parties.encode(kind(1, parties.members(IDS[:5]))), Refusal.NOT_WHOLE)


def test_a_smaller_list_after_the_signature_is_another_list():
    parties, data = survivors_of(params_of(WHOLE, signed=True), IDS)
    parties.clients[VICTIM].receive(data)
    left = parties.members(IDS[:5])
    signatures = {parties.position(c): parties.sign_survivors(c, left) for c in IDS[:5]}
    data = parties.encode(UnmaskRequest(0, left, signatures))
    refuse(parties, data, Refusal.INCONSISTENT_SURVIVORS)


# What the server does.


def void_slot(params, silence=lambda *_: None, lost=VICTIM):
    """A session whose first slot is whole and, at its end, lacks a device."""
    parties = MaliciousClients(params, {})
    parties.exchange(parties.advance(ClientState.SHARED))
    parties.changes = {(lost, Stage.MASK): silence}
    replies = parties.deliver(parties.server.open_slot(0, BINDING))
    for client, data in replies.items():
        parties.server.receive(client, data)
    return parties, replies


@in_both
@every_silence
def test_a_whole_slot_that_lacks_a_device_ends_without_messages_and_a_sum(signed, silence):
    parties, _ = void_slot(params_of(WHOLE, PLAIN, signed=signed), silence)
    server = parties.server
    assert server.close_round() == {}
    assert server.state is ServerState.READY
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
    assert {parties.clients[client].state for client in left} == {ClientState.MASKED}
    result = parties.run_slot(1)
    assert result.contributors == result.remaining == tuple(left)
    assert result.vector.tolist() == plain_sum(parties.params, 1, parties.inputs, left)
    assert server.state is ServerState.DONE


@in_both
def test_the_last_slot_ends_the_session_void_or_not(signed):
    parties, _ = void_slot(params_of(WHOLE, signed=signed))
    assert parties.server.close_round() == {}
    assert parties.server.state is ServerState.DONE
    assert parties.server.remaining == tuple(sorted(OTHERS))
    for call in (parties.server.take_sum, parties.server.close_round):
        with pytest.raises(UsageError):
            call()
    with pytest.raises(UsageError, match="open_slot in state done"):
        parties.server.open_slot(0, BINDING)


@in_both
def test_whole_slots_that_lack_nobody_have_their_sums(signed):
    parties = Parties(params_of(WHOLE, WHOLE, signed=signed))
    for _ in parties.steps():
        pass
    assert [result.slot for result in parties.sums] == [0, 1]
    assert all(result.contributors == tuple(parties.roster) for result in parties.sums)
    assert parties.server.drops == {}
    check_sums(parties)


@in_both
def test_the_slots_after_a_void_one_may_be_whole_too(signed):
    """And void, each for itself: somebody is lost in the first and the third of four."""
    params = params_of(WHOLE, WHOLE, WHOLE, WHOLE, signed=signed)
    parties = MaliciousClients(params, {})
    lost_in = {0: VICTIM, 2: OTHERS[0]}

    def silence(parties, client, message):
        return None if lost_in.get(message.slot) == client else message

    parties.changes = {(client, Stage.MASK): silence for client in lost_in.values()}
    sums = parties.finish()
    assert [result.slot for result in sums] == [1, 3]
    assert [len(result.contributors) for result in sums] == [5, 4]
    assert set(parties.server.drops) == set(lost_in.values())


@pytest.mark.parametrize(
    ("signed", "stage"), [(False, Stage.UNMASK), (True, Stage.CONFIRM), (True, Stage.UNMASK)]
)
def test_who_is_lost_after_its_vector_is_in_is_not_missing(signed, stage):
    parties = MaliciousClients(params_of(WHOLE, signed=signed), {(VICTIM, stage): lambda *_: None})
    [result] = parties.finish()
    assert result.contributors == tuple(parties.roster)
    assert result.remaining == tuple(sorted(OTHERS))


def late_messages(parties):
    """All that devices may say about slot 0 when it is over, honestly or not."""
    yield parties.encode(MaskedInput(0, bytes(8)))
    if parties.params.signed:
        yield parties.encode(ConsistencySignature(0, bytes(64)))
    # As in a session in which nobody is missing.
    whole = Parties(parties.params)
    requests = whole.advance(ClientState.MASKED)
    if parties.params.signed:
        requests = whole.exchange(requests)
    yield from whole.deliver(requests).values()


@in_both
@pytest.mark.parametrize("reopened", [False, True], ids=["ready", "next slot"])
def test_what_comes_for_a_void_slot_is_ignored(signed, reopened):
    """Late vectors, repetitions, second vectors, and answers to questions never asked."""
    parties, replies = void_slot(params_of(WHOLE, PLAIN, signed=signed))
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
    if not reopened:
        openings = server.open_slot(1, BINDING)
    else:
        assert np.array_equal(server._open.total, total)
    result = parties.finish_slot(parties.exchange(openings))
    assert result.contributors == tuple(sorted(OTHERS))
    assert result.vector.tolist() == plain_sum(parties.params, 1, parties.inputs, OTHERS)


@in_both
def test_too_few_for_a_sum_are_noticed_when_the_next_slot_opens(signed):
    """A void slot reveals nothing, however few are left: it need not abort the session."""
    parties = MaliciousClients(params_of(WHOLE, PLAIN, signed=signed, min_cohort=5), {})
    parties.exchange(parties.advance(ClientState.SHARED))
    parties.changes = {(client, Stage.MASK): lambda *_: None for client in OTHERS[:2]}
    assert parties.exchange(parties.server.open_slot(0, BINDING)) == {}
    assert parties.server.state is ServerState.READY
    with pytest.raises(SessionAborted, match="4 devices are left"):
        parties.server.open_slot(1, BINDING)
    assert parties.server.state is ServerState.ABORTED


@in_both
def test_a_device_that_left_before_the_slot_opened_is_not_missing_from_it(signed):
    parties = MaliciousClients(
        params_of(WHOLE, signed=signed), {(VICTIM, Stage.RECEIPT): lambda *_: None}
    )
    [result] = parties.finish()
    assert result.contributors == tuple(sorted(OTHERS))


# The whole.


def outcomes(params, vanishing):
    """What the real session and the ideal one reveal, as comparable lists."""
    inputs = make_inputs(params, make_ids(params.num_invited))
    bindings = [BINDING] * len(params.slots)
    real = run_session(params, inputs, bindings, vanishing=vanishing, policy=POLICY)
    session, ideal = IdealSession(params, inputs, vanishing), []
    session.set_up()
    for slot in range(len(params.slots)):
        session.open_slot(slot)
        ideal.append(session.sum(slot, lambda client, slot=slot: inputs[client][slot]))
    return inputs, real, ideal


@in_both
@pytest.mark.parametrize("late", [False, True])
def test_every_subset_that_vanishes_makes_a_whole_slot_void_and_not_the_next(signed, late):
    params = params_of(WHOLE, PLAIN, signed=signed, num_invited=5, threshold=2)
    ids = make_ids(5)
    for size in range(4):
        for gone in itertools.combinations(ids, size):
            vanishing = {client: Vanish(Step(Stage.MASK, 0), late) for client in gone}
            inputs, real, ideal = outcomes(params, vanishing)
            assert (ideal[0] is None) == bool(gone)
            assert [result.slot for result in real] == ([1] if gone else [0, 1])
            left = tuple(sorted(set(ids) - set(gone)))
            for result, expected in zip(real, (r for r in ideal if r), strict=True):
                assert result.contributors == expected.contributors == left
                assert result.remaining == expected.remaining == left
                assert result.vector.tolist() == expected.vector.tolist()
                assert result.vector.tolist() == plain_sum(params, result.slot, inputs, left)


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
