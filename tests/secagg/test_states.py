import itertools
from dataclasses import replace

import numpy as np
import pytest
from parties import BINDING, STEPS, Parties, make_ids, make_params, plain_sum

from secagg import Fault, PeerError, Refusal, Server, SessionAborted, Step, UsageError
from secagg.messages import (
    AdvertiseKeys,
    ClientMessage,
    MaskedInput,
    Message,
    OpenSlot,
    RosterMessage,
    ServerMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    UnmaskRequest,
    UnmaskShares,
)
from secagg.stages import Stage
from secagg.states import (
    CLIENT_TRANSITIONS,
    SERVER_TRANSITIONS,
    ClientState,
    CloseRound,
    Contribute,
    OpenSlotCall,
    ServerState,
)

PARAMS = make_params(6, threshold=3)
IDS = make_ids(6)
VICTIM = IDS[2]


@pytest.fixture(scope="module")
def spoken():
    """All that is said in the session that `Parties(PARAMS)` repeats byte for byte."""
    parties = Parties(PARAMS)
    to_victim, from_all = [], []
    server_receive = parties.server.receive

    def receive(sender, data):
        from_all.append((sender, data))
        server_receive(sender, data)

    parties.server.receive = receive
    for pending in parties.steps():
        if VICTIM in pending:
            to_victim.append(pending[VICTIM])
    assert parties.server.drops == {}
    return to_victim, from_all


def step_of(message):
    match message:
        case AdvertiseKeys():
            return Step(Stage.ADVERTISE)
        case ShareKeys():
            return Step(Stage.SHARE)
        case MaskedInput():
            return Step(Stage.MASK, message.slot)
        case UnmaskShares():
            return Step(Stage.UNMASK, message.slot)
    raise TypeError(message)


SERVER_STEPS = {
    0: Step(Stage.ADVERTISE),
    1: Step(Stage.SHARE),
    3: Step(Stage.MASK, 0),
    4: Step(Stage.UNMASK, 0),
    6: Step(Stage.MASK, 1),
    7: Step(Stage.UNMASK, 1),
}


def at_step(index):
    parties = Parties(PARAMS)
    steps = parties.steps()
    pending = next(itertools.islice(steps, index, None))
    assert parties.server.state is STEPS[index]
    return parties, steps, pending


def check_sums(parties, *, without=()):
    assert len(parties.sums) == len(PARAMS.slots)
    for result in parties.sums:
        expected = plain_sum(PARAMS, result.slot, parties.inputs, result.contributors)
        assert result.vector.tolist() == expected
        assert set(parties.ids) - set(without) <= set(result.contributors)


def test_tables_are_closed():
    for table, states in (
        (SERVER_TRANSITIONS, ServerState),
        (CLIENT_TRANSITIONS, ClientState),
    ):
        assert set(table) == set(states)
        for transitions in table.values():
            assert set(transitions.values()) <= set(states)
    for final in (ServerState.DONE, ServerState.ABORTED):
        assert SERVER_TRANSITIONS[final] == {}
    assert CLIENT_TRANSITIONS[ClientState.FAILED] == {}


def test_every_message_has_its_one_place():
    def events(table):
        return sorted(event.__name__ for transitions in table.values() for event in transitions)

    client_messages = [kind.__name__ for kind in ClientMessage.__args__]
    server_messages = [kind.__name__ for kind in ServerMessage.__args__]
    closings = [CloseRound.__name__] * 4 + [OpenSlotCall.__name__]
    assert events(SERVER_TRANSITIONS) == sorted([*client_messages, *closings])
    assert events(CLIENT_TRANSITIONS) == sorted([*server_messages, Contribute.__name__])


@pytest.mark.parametrize("index", range(len(STEPS)))
@pytest.mark.parametrize(
    "said", range(6), ids=["keys", "shares", "mask 0", "unmask 0", "mask 1", "unmask 1"]
)
def test_device_messages_in_every_server_state(spoken, index, said):
    _, from_all = spoken
    data = [data for sender, data in from_all if sender == VICTIM][said]
    parties, steps, _ = at_step(index)
    message, now = parties.decode(data), SERVER_STEPS.get(index)
    parties.server.receive(VICTIM, data)
    assert parties.server.state is STEPS[index]
    early = now is not None and step_of(message).order > now.order
    if now is not None and step_of(message) == now:
        assert type(message) in SERVER_TRANSITIONS[STEPS[index]]
    dropped = {VICTIM: (Fault.UNEXPECTED, now)} if early else {}
    assert {c: (d.fault, d.step) for c, d in parties.server.drops.items()} == dropped
    for _ in steps:
        pass
    assert set(parties.server.drops) == set(dropped)
    check_sums(parties, without=dropped)


@pytest.mark.parametrize("index", range(len(STEPS)))
@pytest.mark.parametrize("said", range(5))
def test_server_messages_are_refused_by_the_server(spoken, index, said):
    to_victim, _ = spoken
    parties, steps, _ = at_step(index)
    parties.server.receive(VICTIM, to_victim[said])
    collecting = index in SERVER_STEPS
    assert set(parties.server.drops) == ({VICTIM} if collecting else set())
    if collecting:
        assert parties.server.drops[VICTIM].fault is Fault.UNEXPECTED
    for _ in steps:
        pass
    check_sums(parties, without={VICTIM} if collecting else ())


def test_aborted_session_takes_nothing(spoken):
    _, from_all = spoken
    parties = Parties(PARAMS)
    parties.server.start()
    with pytest.raises(SessionAborted):
        parties.server.close_round()
    drops = dict(parties.server.drops)
    assert parties.server.state is ServerState.ABORTED
    for sender, data in from_all:
        parties.server.receive(sender, data)
    parties.server.receive(VICTIM, b"")
    assert parties.server.state is ServerState.ABORTED
    assert parties.server.drops == drops
    with pytest.raises(UsageError):
        parties.server.close_round()
    with pytest.raises(UsageError):
        parties.server.open_slot(0, BINDING)
    with pytest.raises(UsageError):
        parties.server.take_sum()


def advance(name):
    """A session whose devices are all in a state; "ready again" is READY after the first slot."""
    parties = Parties(PARAMS)
    if name == "ready again":
        next(itertools.islice(parties.steps(), 6, None))
    elif name == ClientState.FAILED:
        parties.advance(ClientState.ADVERTISED)
        parties.clients[VICTIM].close()
    else:
        parties.advance(ClientState(name))
    return parties


def fresh_messages(spoken):
    """One message of each type that no device of the session has seen yet."""
    to_victim, from_all = spoken
    parties = Parties(PARAMS)
    _, roster, delivery, *_ = [parties.decode(data) for data in to_victim]
    first, second, third, fourth = (
        parties.decode(data) for sender, data in from_all[: 4 * 6] if sender == VICTIM
    )
    left = parties.members(parties.ids[:5])
    keys = dict(roster.keys)
    position, advertised = next(iter(keys.items()))
    keys[position] = replace(advertised, sealing_key=b"\5" * 32)
    boxes = {p: bytes(len(box)) for p, box in delivery.boxes.items()}
    return {
        RosterMessage: RosterMessage(roster.roster, keys),
        ShareDelivery: ShareDelivery(delivery.members, boxes),
        OpenSlot: OpenSlot(1, left),
        UnmaskRequest: UnmaskRequest(0, left),
        AdvertiseKeys: first,
        ShareKeys: second,
        MaskedInput: third,
        UnmaskShares: fourth,
    }


CLIENT_STATES = [*ClientState, "ready again"]


@pytest.mark.parametrize("name", CLIENT_STATES)
@pytest.mark.parametrize(
    "kind", [k for k in Message.__args__ if k is not SessionOpen], ids=lambda k: k.__name__
)
def test_messages_in_every_client_state(spoken, name, kind):
    parties = advance(name)
    state = ClientState.READY if name == "ready again" else ClientState(name)
    machine = parties.clients[VICTIM]
    assert machine.state is state
    message = fresh_messages(spoken)[kind]
    data = parties.encode(message)
    if state is ClientState.FAILED:
        with pytest.raises(UsageError, match="has ended this session"):
            machine.receive(data)
    elif following := CLIENT_TRANSITIONS[state].get(kind):
        reply = machine.receive(data)
        assert machine.state is following
        assert (reply is None) == (kind in (ShareDelivery, OpenSlot))
        return
    else:
        with pytest.raises(PeerError) as caught:
            machine.receive(data)
        if state is ClientState.IDLE:
            assert caught.value.reason is Refusal.MALFORMED
        elif name == "ready again" and kind is UnmaskRequest:
            assert caught.value.reason is Refusal.BOTH_SHARE_KINDS
        else:
            assert caught.value.reason is Refusal.OUT_OF_ORDER
    assert machine.state is ClientState.FAILED


@pytest.mark.parametrize("state", [s for s in ClientState if s is not ClientState.OPENED])
def test_contributing_without_an_open_slot_changes_nothing(state):
    parties = advance(state)
    machine = parties.clients[VICTIM]
    with pytest.raises(UsageError, match=f"contribute in state {machine.state}"):
        machine.contribute(parties.inputs[VICTIM][0], BINDING)
    assert machine.state is state


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(5, dtype=np.uint32),
        np.zeros((4, 1), dtype=np.uint32),
        np.zeros(4, dtype=np.float64),
        np.zeros(4, dtype=np.int64),
        np.array([0, 0, 0, 2**16], dtype=np.uint32),
    ],
)
def test_contributing_what_does_not_fit_changes_nothing(spoken, vector):
    _, from_all = spoken
    parties = advance(ClientState.OPENED)
    machine = parties.clients[VICTIM]
    with pytest.raises(UsageError):
        machine.contribute(vector, BINDING)
    assert machine.state is ClientState.OPENED
    assert (VICTIM, parties.contribute(VICTIM)) in from_all


def test_contributing_leaves_the_callers_vector_alone():
    parties = advance(ClientState.OPENED)
    vector = parties.inputs[VICTIM][0]
    before = vector.copy()
    parties.contribute(VICTIM)
    assert np.array_equal(vector, before)


@pytest.mark.parametrize("index", range(len(STEPS)))
def test_server_misuse_changes_nothing(index):
    parties, steps, _ = at_step(index)
    server = parties.server
    if index not in SERVER_STEPS:
        with pytest.raises(UsageError, match=f"close_round in state {server.state}"):
            server.close_round()
    if server.state is not ServerState.READY:
        with pytest.raises(UsageError, match=f"open_slot in state {server.state}"):
            server.open_slot(1, BINDING)
    else:
        for slot in (-1, *range(len(parties.sums)), len(PARAMS.slots)):
            with pytest.raises(UsageError, match="slots are opened in order, once each"):
                server.open_slot(slot, BINDING)
    with pytest.raises(UsageError, match="no sum to take"):
        server.take_sum()
    assert server.state is STEPS[index]
    for _ in steps:
        pass
    assert server.drops == {}
    check_sums(parties)


def test_a_slot_may_be_skipped_but_not_opened_afterwards():
    parties = Parties(make_params(6, slots=((2, 8),) * 3))
    parties.deliver(parties.advance(ClientState.SHARED))
    result = parties.run_slot(1)
    assert result.vector.tolist() == plain_sum(parties.params, 1, parties.inputs, parties.ids)
    for slot in (0, 1):
        with pytest.raises(UsageError, match="once each"):
            parties.server.open_slot(slot, BINDING)
    last = parties.run_slot(2)
    assert last.vector.tolist() == plain_sum(parties.params, 2, parties.inputs, parties.ids)
    assert parties.server.state is ServerState.DONE


@pytest.mark.parametrize("ids", [[1, 2], [1, 2, 3, 4, 5, 6, 7], [1, 1, 2, 3, 4, 5]])
def test_server_refuses_a_wrong_number_of_devices(ids):
    with pytest.raises(UsageError, match="the parameters say 6"):
        Server(PARAMS, ids)


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_server_refuses_ids_out_of_range(wrong):
    with pytest.raises(UsageError, match="are not in"):
        Server(PARAMS, [1, 2, 3, 4, 5, wrong])


def test_largest_ids_make_a_session():
    parties = Parties(PARAMS, ids=[0, 1, 2, 3, 2**31, 2**32 - 1])
    for _ in parties.steps():
        pass
    check_sums(parties)
