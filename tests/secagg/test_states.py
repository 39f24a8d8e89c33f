from functools import cache

import numpy as np
import pytest
from parties import BINDING, STEPS, Parties, make_ids, make_params, plain_sum

from deltafl.secagg import (
    Fault,
    PeerError,
    Refusal,
    Server,
    SessionAborted,
    Step,
    UsageError,
    client,
    server,
    wire,
)
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ClientMessage,
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    Message,
    OpenSlot,
    RosterMessage,
    ServerMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareReceipt,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.stages import Stage
from deltafl.secagg.states import (
    CLIENT_TRANSITIONS,
    COLLECTED_AT,
    SERVER_TRANSITIONS,
    Abort,
    ClientState,
    Close,
    CloseRound,
    Contribute,
    EndLastSlot,
    LoseSlot,
    OpenSlotCall,
    ServerState,
    closing,
    follow,
)

PARAMS = {signed: make_params(6, threshold=3, signed=signed) for signed in (False, True)}
IDS = make_ids(6)
VICTIM = IDS[2]

SIGNED_ONLY = {
    ConsistencyCheck,
    ConsistencySignature,
    ClientState.CONFIRMED,
    ServerState.CONFIRM,
}


class Record(Parties):
    """A session that is played once, for others to repeat.

    Attributes:
        told: What the devices are to get at each of `STEPS`.
        said: What they answer, each with its sender; nothing where the server does not listen.
    """

    def __init__(self, signed, silent_from):
        super().__init__(PARAMS[signed])
        self.said: list[list[tuple[int, bytes]]] = [[] for _ in STEPS[signed]]
        self._silent_from = silent_from
        self.told = list(self.steps())
        assert set(self.server.drops) == ({VICTIM} if silent_from is not None else set())
        assert len(self.told) == len(STEPS[signed])

    def deliver(self, outgoing, binding=BINDING):
        now = Step(COLLECTED_AT[self.server.state], max(self.server._slot, 0))
        index = next(i for i, s in SERVER_STEPS[self.params.signed].items() if s == now)
        replies = super().deliver(outgoing, binding)
        if self._silent_from is not None and index >= self._silent_from:
            replies.pop(VICTIM, None)
        self.said[index] = list(replies.items())
        return replies


@cache
def record(signed, silent_from=None):
    """The session of `PARAMS[signed]`; if asked for, the victim says nothing from a step on."""
    return Record(signed, silent_from)


class Replay:
    """A server that hears a recorded session again: the devices need not compute it anew.

    Attributes:
        index: The step of `STEPS` at which it is.
    """

    def __init__(self, signed, index):
        original = record(signed)
        self.signed, self.index = signed, 0
        self.params, self.ids, self.inputs = original.params, original.ids, original.inputs
        self.sums = []
        self.server = Server(self.params, self.ids, original.enrolment)
        assert self.server.start() == original.told[0]
        self._play(original, index)
        assert self.server.state is STEPS[signed][index]

    def finish(self, *, dropped=False):
        """Run to the end; with what the others say if the victim was dropped here.

        The server must say what it says in the recorded session, to the last bit.
        """
        self._play(record(self.signed, self.index if dropped else None), len(STEPS[self.signed]))

    def _play(self, played, end):
        while self.index < min(end, len(STEPS[self.signed]) - 1):
            if self.index in SERVER_STEPS[self.signed]:
                for sender, data in played.said[self.index]:
                    self.server.receive(sender, data)
                told = self.server.close_round()
                if STEPS[self.signed][self.index] is ServerState.UNMASK:
                    self.sums.append(self.server.take_sum())
            else:
                told = self.server.open_slot(len(self.sums), BINDING)
            self.index += 1
            assert told == played.told[self.index]


def told_to(signed, client):
    """What a device is told in the recorded session, in order."""
    return [told[client] for told in record(signed).told if client in told]


def said_by(signed, sender):
    """A device's messages in their order."""
    return [dict(said)[sender] for said in record(signed).said if said]


def step_of(message):
    match message:
        case AdvertiseKeys():
            return Step(Stage.ADVERTISE)
        case ShareKeys():
            return Step(Stage.SHARE)
        case ShareReceipt():
            return Step(Stage.RECEIPT)
        case MaskedInput():
            return Step(Stage.MASK, message.slot)
        case ConsistencySignature():
            return Step(Stage.CONFIRM, message.slot)
        case UnmaskShares():
            return Step(Stage.UNMASK, message.slot)
    raise TypeError(message)


_SET_UP_STEPS = {0: Step(Stage.ADVERTISE), 1: Step(Stage.SHARE), 2: Step(Stage.RECEIPT)}
SERVER_STEPS = {
    False: {
        **_SET_UP_STEPS,
        4: Step(Stage.MASK, 0),
        5: Step(Stage.UNMASK, 0),
        7: Step(Stage.MASK, 1),
        8: Step(Stage.UNMASK, 1),
    },
    True: {
        **_SET_UP_STEPS,
        4: Step(Stage.MASK, 0),
        5: Step(Stage.CONFIRM, 0),
        6: Step(Stage.UNMASK, 0),
        8: Step(Stage.MASK, 1),
        9: Step(Stage.CONFIRM, 1),
        10: Step(Stage.UNMASK, 1),
    },
}
"""What the server collects at each index of `STEPS`; at the others, nothing."""

EVERYWHERE = [
    pytest.param(signed, index, id=f"{'signed' if signed else 'unsigned'} {index} {state}")
    for signed in (False, True)
    for index, state in enumerate(STEPS[signed])
]


def check_sums(parties, *, without=()):
    assert len(parties.sums) == len(parties.params.slots)
    for result in parties.sums:
        expected = plain_sum(parties.params, result.slot, parties.inputs, result.contributors)
        assert result.vector.tolist() == expected
        assert set(parties.ids) - set(without) <= set(result.contributors)


@pytest.mark.parametrize("signed", [False, True])
def test_tables_are_closed(signed):
    for table, states in (
        (SERVER_TRANSITIONS[signed], ServerState),
        (CLIENT_TRANSITIONS[signed], ClientState),
    ):
        assert set(table) == set(states)
        for transitions in table.values():
            assert set(transitions.values()) <= set(states)
    for final in (ServerState.DONE, ServerState.ABORTED):
        assert SERVER_TRANSITIONS[signed][final] == {}
    assert CLIENT_TRANSITIONS[signed][ClientState.FAILED] == {}


def reachable(table, start):
    """The states that events can lead to."""
    found, boundary = {start}, [start]
    while boundary:
        for following in table[boundary.pop()].values():
            if following not in found:
                found.add(following)
                boundary.append(following)
    return found


@pytest.mark.parametrize("signed", [False, True])
def test_every_state_is_reachable_and_confirmations_in_signed_sessions_only(signed):
    never = set() if signed else SIGNED_ONLY
    servers = reachable(SERVER_TRANSITIONS[signed], ServerState.ADVERTISE)
    clients = reachable(CLIENT_TRANSITIONS[signed], ClientState.IDLE)
    assert servers == set(ServerState) - never
    assert clients == set(ClientState) - never


@pytest.mark.parametrize("signed", [False, True])
def test_every_message_has_its_one_place(signed):
    """But the opening of a slot, which may also follow one that came to nothing."""

    def events(table):
        return sorted(event.__name__ for transitions in table.values() for event in transitions)

    def names(messages):
        left_out = set() if signed else SIGNED_ONLY
        return [kind.__name__ for kind in messages.__args__ if kind not in left_out]

    def places(table, event):
        return [state for state, transitions in table.items() if event in transitions]

    closings = [CloseRound.__name__] * (6 if signed else 5) + [OpenSlotCall.__name__]
    ends = [Abort.__name__] * (6 if signed else 5) + [LoseSlot.__name__, *["EndLastSlot"] * 2]
    closed = [Close.__name__] * (7 if signed else 6)
    servers, clients = SERVER_TRANSITIONS[signed], CLIENT_TRANSITIONS[signed]
    assert events(servers) == sorted([*names(ClientMessage), *closings, *ends])
    assert events(clients) == sorted(
        [*names(ServerMessage), OpenSlot.__name__, Contribute.__name__, *closed]
    )
    assert places(clients, OpenSlot) == [ClientState.READY, ClientState.MASKED]
    assert places(servers, LoseSlot) == [ServerState.MASK]
    assert places(servers, EndLastSlot) == [ServerState.MASK, ServerState.UNMASK]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("tables", [SERVER_TRANSITIONS, CLIENT_TRANSITIONS])
def test_what_the_table_has_not_is_refused(signed, tables):
    every = {event for transitions in tables[True].values() for event in transitions}
    for state, transitions in tables[signed].items():
        for event in every:
            if event in transitions:
                assert follow(tables[signed], state, event) is transitions[event]
            else:
                with pytest.raises(UsageError, match=f"^{event.__name__} in state {state}$"):
                    follow(tables[signed], state, event)


def test_what_the_end_of_a_round_is():
    for collected in ServerState:
        for is_last in (False, True):
            assert closing(collected, is_open=True, is_last=is_last) is CloseRound
        assert closing(collected, is_open=False, is_last=True) is EndLastSlot
        lost = collected is ServerState.MASK
        without = closing(collected, is_open=False, is_last=False)
        assert without is (LoseSlot if lost else CloseRound)


def taken(monkeypatch, module):
    """The transitions that a module's machines make from now on."""
    transitions = set()

    def spy(table, state, event):
        following = follow(table, state, event)
        transitions.add((state, event, following))
        return following

    monkeypatch.setattr(module, "follow", spy)
    return transitions


def entries(table):
    return {
        (state, event, following)
        for state, transitions in table.items()
        for event, following in transitions.items()
    }


def leave_at(state, signed):
    """A session whose devices are all silent from a state of the server on; it is aborted."""
    parties = Parties(PARAMS[signed])
    for _ in parties.steps():
        if parties.server.state is state:
            break
    with pytest.raises(SessionAborted):
        parties.server.close_round()


@pytest.mark.parametrize("signed", [False, True])
def test_the_server_takes_every_transition_of_its_table_and_no_other(signed, monkeypatch):
    found = taken(monkeypatch, server)
    for _ in Parties(PARAMS[signed]).steps():  # both slots are summed
        pass
    whole = Parties(make_params(6, slots=((2, 8, True),) * 2, signed=signed))
    replies = whole.deliver(whole.advance(ClientState.READY))
    del replies[VICTIM]
    whole.collect(replies)  # the first slot is lost
    replies = whole.deliver(whole.server.open_slot(1, BINDING))
    replies.popitem()
    whole.collect(replies)  # and the last
    for state in (ServerState.ADVERTISE, ServerState.SHARE, ServerState.MASK, ServerState.UNMASK):
        leave_at(state, signed)
    if signed:
        leave_at(ServerState.CONFIRM, signed)
    unheard = Parties(PARAMS[signed])
    unheard.deliver(unheard.advance(ClientState.SHARED))
    unheard.server.close_round()  # no receipt has come
    with pytest.raises(SessionAborted):
        unheard.server.open_slot(0, BINDING)
    assert found == entries(SERVER_TRANSITIONS[signed])


@pytest.mark.parametrize("signed", [False, True])
def test_a_device_takes_every_transition_of_its_table_and_no_other(signed, monkeypatch):
    found = taken(monkeypatch, client)
    for _ in Parties(PARAMS[signed]).steps():
        pass
    parties, _ = advance(signed, ClientState.MASKED)
    parties.clients[VICTIM].receive(parties.encode(fresh_messages(signed)[OpenSlot]))
    for name in CLIENT_STATES[signed]:
        parties, _ = advance(signed, name)
        parties.clients[VICTIM].close()
    assert found == entries(CLIENT_TRANSITIONS[signed])


@pytest.mark.parametrize("signed", [False, True])
def test_the_steps_of_a_session_are_those_of_the_table(signed):
    """Control of the tests below: in order, the devices' messages are all expected ones."""
    messages = [wire.decode(data, PARAMS[signed]) for data in said_by(signed, VICTIM)]
    assert [step_of(message) for message in messages] == list(SERVER_STEPS[signed].values())
    for index, message in zip(SERVER_STEPS[signed], messages, strict=True):
        assert type(message) in SERVER_TRANSITIONS[signed][STEPS[signed][index]]


DEVICE_MESSAGES = {
    False: ["keys", "shares", "receipt", "mask 0", "unmask 0", "mask 1", "unmask 1"],
    True: [
        *("keys", "shares", "receipt"),
        *("mask 0", "confirm 0", "unmask 0"),
        *("mask 1", "confirm 1", "unmask 1"),
    ],
}


def device_message(signed, name):
    """What the victim says, honestly or, of signatures in an unsigned session, never."""
    if name in DEVICE_MESSAGES[signed]:
        return said_by(signed, VICTIM)[DEVICE_MESSAGES[signed].index(name)]
    slot = int(name.removeprefix("confirm "))
    return wire.encode(ConsistencySignature(slot, bytes(64)), PARAMS[signed])


@pytest.mark.parametrize(("signed", "index"), EVERYWHERE)
@pytest.mark.parametrize("name", DEVICE_MESSAGES[True])
def test_device_messages_in_every_server_state(signed, index, name):
    data = device_message(signed, name)
    parties = Replay(signed, index)
    message, now = wire.decode(data, PARAMS[signed]), SERVER_STEPS[signed].get(index)
    parties.server.receive(VICTIM, data)
    assert parties.server.state is STEPS[signed][index]
    early = now is not None and step_of(message).order > now.order
    if now is not None and step_of(message) == now:
        assert type(message) in SERVER_TRANSITIONS[signed][STEPS[signed][index]]
    dropped = {VICTIM: (Fault.UNEXPECTED, now)} if early else {}
    assert {c: (d.fault, d.step) for c, d in parties.server.drops.items()} == dropped
    parties.finish(dropped=bool(dropped))
    assert set(parties.server.drops) == set(dropped)
    check_sums(parties, without=dropped)


SERVER_MESSAGES = ["open", "roster", "delivery", "slot", "check", "request"]


def server_message(signed, name):
    """What the victim is sent up to the first unmasking; the check of unsigned sessions, never."""
    sent = [n for n in SERVER_MESSAGES if signed or n != "check"]
    if name in sent:
        return told_to(signed, VICTIM)[sent.index(name)]
    check = ConsistencyCheck(0, np.ones(6, dtype=np.bool_))
    return wire.encode(check, PARAMS[signed])


@pytest.mark.parametrize(("signed", "index"), EVERYWHERE)
@pytest.mark.parametrize("name", SERVER_MESSAGES)
def test_server_messages_are_refused_by_the_server(signed, index, name):
    parties = Replay(signed, index)
    parties.server.receive(VICTIM, server_message(signed, name))
    collecting = index in SERVER_STEPS[signed]
    assert set(parties.server.drops) == ({VICTIM} if collecting else set())
    if collecting:
        assert parties.server.drops[VICTIM].fault is Fault.UNEXPECTED
    parties.finish(dropped=collecting)
    check_sums(parties, without={VICTIM} if collecting else ())


@pytest.mark.parametrize("signed", [False, True])
def test_aborted_session_takes_nothing(signed):
    parties = Parties(PARAMS[signed])
    parties.server.start()
    with pytest.raises(SessionAborted):
        parties.server.close_round()
    drops = dict(parties.server.drops)
    assert parties.server.state is ServerState.ABORTED
    for said in record(signed).said:
        for sender, data in said:
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


AGAIN = "ready again"
"""A device that is READY after the first slot."""

CLIENT_STATES = {
    signed: [
        *(state for state in ClientState if signed or state not in SIGNED_ONLY),
        AGAIN,
    ]
    for signed in (False, True)
}
IN_EVERY_STATE = [
    pytest.param(signed, name, id=f"{'signed' if signed else 'unsigned'} {name}")
    for signed in (False, True)
    for name in CLIENT_STATES[signed]
]


TOLD_BY = {
    ClientState.IDLE: 0,
    ClientState.ADVERTISED: 1,
    ClientState.FAILED: 1,
    ClientState.SHARED: 2,
    ClientState.READY: 3,
    ClientState.OPENED: 4,
    ClientState.MASKED: 4,
    ClientState.CONFIRMED: 5,
}
"""How many messages it takes to bring a device to a state."""


def advance(signed, name):
    """A victim that was told a recorded session up to a state, and that state."""
    parties = Parties(PARAMS[signed])
    machine = parties.clients[VICTIM]
    state = ClientState.READY if name == AGAIN else ClientState(name)
    num_told = (6 if signed else 5) if name == AGAIN else TOLD_BY[state]
    for data in told_to(signed, VICTIM)[:num_told]:
        machine.receive(data)
        if machine.state is ClientState.OPENED and state is not ClientState.OPENED:
            parties.contribute(VICTIM)
    if state is ClientState.FAILED:
        machine.close()
    assert machine.state is state
    return parties, state


@cache
def fresh_messages(signed):
    """One message of each type that the victim has not seen yet, each right in its own place."""
    parties = record(signed)
    _, roster, delivery, *_ = [parties.decode(data) for data in told_to(signed, VICTIM)]
    own = {}
    for data in said_by(signed, VICTIM):
        message = parties.decode(data)
        own.setdefault(type(message), message)
    left = parties.members(parties.ids[:5])
    position, advertised = next(iter(roster.keys.items()))
    changed = parties.advertisement(int(roster.roster[position]), b"\5" * 32, advertised.mask_keys)
    junk = {position: bytes(len(delivery.boxes[position]))}
    # The server asks with t signatures; here are all.
    everybody = parties.members(parties.ids)
    signatures = {parties.position(c): parties.sign_survivors(c, everybody) for c in parties.ids}
    request = UnmaskRequest(0, everybody, signatures) if signed else UnmaskRequest(0, left)
    return {
        RosterMessage: RosterMessage(roster.roster, {**roster.keys, position: changed}),
        ShareDelivery: ShareDelivery(delivery.members, {**delivery.boxes, **junk}),
        OpenSlot: OpenSlot(1, left),
        ConsistencyCheck: ConsistencyCheck(0, left),
        UnmaskRequest: request,
        ConsistencySignature: ConsistencySignature(0, bytes(64)),
        **own,
    }


NAMED_REFUSALS = {
    (AGAIN, UnmaskRequest): Refusal.BOTH_SHARE_KINDS,
    (ClientState.CONFIRMED, ConsistencyCheck): Refusal.INCONSISTENT_SURVIVORS,
}
"""Messages out of their order that have a name of their own."""


@pytest.mark.parametrize(("signed", "name"), IN_EVERY_STATE)
@pytest.mark.parametrize(
    "kind", [k for k in Message.__args__ if k is not SessionOpen], ids=lambda k: k.__name__
)
def test_messages_in_every_client_state(signed, name, kind):
    parties, state = advance(signed, name)
    machine = parties.clients[VICTIM]
    data = parties.encode(fresh_messages(signed)[kind])
    if state is ClientState.FAILED:
        with pytest.raises(UsageError, match="has ended this session"):
            machine.receive(data)
    elif following := CLIENT_TRANSITIONS[signed][state].get(kind):
        reply = machine.receive(data)
        assert machine.state is following
        assert (reply is None) == (kind is OpenSlot)
        return
    else:
        with pytest.raises(PeerError) as caught:
            machine.receive(data)
        if state is ClientState.IDLE:
            assert caught.value.reason is Refusal.MALFORMED
        else:
            expected = NAMED_REFUSALS.get((name, kind), Refusal.OUT_OF_ORDER)
            assert caught.value.reason is expected
    assert machine.state is ClientState.FAILED


@pytest.mark.parametrize(("signed", "name"), IN_EVERY_STATE)
def test_a_second_opening_changes_nothing_or_ends_the_session(signed, name):
    """Neither under its own tag nor under the session's can a server lower what was agreed."""
    weaker = make_params(6, threshold=2, min_cohort=2, signed=False)
    own_tag = wire.encode(SessionOpen(weaker), weaker)
    assert wire.decode_open(own_tag).params == weaker
    for data in (own_tag, wire.encode(SessionOpen(weaker), PARAMS[signed])):
        parties, state = advance(signed, name)
        machine = parties.clients[VICTIM]
        if state in (ClientState.IDLE, ClientState.FAILED):
            continue
        if data is own_tag:
            assert machine.receive(data) is None
            assert machine.state is state
        else:
            with pytest.raises(PeerError, match="under the tag of other parameters") as caught:
                machine.receive(data)
            assert caught.value.reason is Refusal.MALFORMED
        assert machine.params == PARAMS[signed]


@pytest.mark.parametrize(
    ("signed", "name"),
    [p for p in IN_EVERY_STATE if p.values[1] not in (ClientState.OPENED, AGAIN)],
)
def test_contributing_without_an_open_slot_changes_nothing(signed, name):
    parties, state = advance(signed, name)
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
def test_contributing_what_does_not_fit_changes_nothing(vector):
    parties, _ = advance(False, ClientState.OPENED)
    machine = parties.clients[VICTIM]
    with pytest.raises(UsageError):
        machine.contribute(vector, BINDING)
    assert machine.state is ClientState.OPENED
    assert parties.contribute(VICTIM) == device_message(False, "mask 0")


def test_contributing_leaves_the_callers_vector_alone():
    parties, _ = advance(False, ClientState.OPENED)
    vector = parties.inputs[VICTIM][0]
    before = vector.copy()
    parties.contribute(VICTIM)
    assert np.array_equal(vector, before)


@pytest.mark.parametrize(("signed", "index"), EVERYWHERE)
def test_server_misuse_changes_nothing(signed, index):
    parties = Replay(signed, index)
    server = parties.server
    if index not in SERVER_STEPS[signed]:
        with pytest.raises(UsageError, match=f"close_round in state {server.state}"):
            server.close_round()
    if server.state is not ServerState.READY:
        with pytest.raises(UsageError, match=f"open_slot in state {server.state}"):
            server.open_slot(1, BINDING)
    else:
        for slot in (-1, *range(len(parties.sums)), len(parties.params.slots)):
            with pytest.raises(UsageError, match="slots are opened in order, once each"):
                server.open_slot(slot, BINDING)
    with pytest.raises(UsageError, match="no sum to take"):
        server.take_sum()
    assert server.state is STEPS[signed][index]
    parties.finish()
    assert server.drops == {}
    check_sums(parties)


@pytest.mark.parametrize("signed", [False, True])
def test_a_slot_may_be_skipped_but_not_opened_afterwards(signed):
    parties = Parties(make_params(6, slots=((2, 8),) * 3, signed=signed))
    parties.exchange(parties.advance(ClientState.SHARED))
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
        Server(PARAMS[False], ids)


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_server_refuses_ids_out_of_range(wrong):
    with pytest.raises(UsageError, match="are not in"):
        Server(PARAMS[False], [1, 2, 3, 4, 5, wrong])


@pytest.mark.parametrize("signed", [False, True])
def test_largest_ids_make_a_session(signed):
    parties = Parties(PARAMS[signed], ids=[0, 1, 2, 3, 2**31, 2**32 - 1])
    for _ in parties.steps():
        pass
    check_sums(parties)
