from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from parties import BINDING, POLICY, Parties, make_ids, make_params, plain_sum

from deltafl.secagg import (
    Client,
    Enrolment,
    Fault,
    PeerError,
    Refusal,
    Server,
    SessionAborted,
    Step,
    TrustedKeys,
    UsageError,
    client,
    server,
    wire,
)
from deltafl.secagg.keys import recipient
from deltafl.secagg.messages import (
    AdvertiseKeys,
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
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import (
    CLIENT_TRANSITIONS,
    SERVER_TRANSITIONS,
    Abort,
    ClientState,
    Close,
    CloseRound,
    Contribute,
    ContributeWhole,
    EndLastSlot,
    EndSlot,
    OpenSlotCall,
    ServerState,
    Stage,
    closing,
    follow,
)

PARAMS = {
    "tolerant": make_params(6, threshold=3),
    "whole": make_params(6, threshold=3, slots=((4, 24, True, True), (3, 40))),
}
"""A session of two tolerant slots, and one whose first slot is whole, with a sum that is proved."""

KINDS = list(PARAMS)
FRESH = recipient(b"\5" * 32).public
"""A key that no device drew."""

OWN = Enrolment(SeededRandomness(bytes(32))).credentials(1)
IDS = make_ids(6)
VICTIM = IDS[2]
WHOLE_AT = 0
"""The slot that is whole in sessions that have one."""


def is_whole(kind):
    return PARAMS[kind].slots[WHOLE_AT].whole


class Record(Parties):
    """A session that is played once, for others to repeat.

    Attributes:
        told: What the devices are to get at each step.
        said: What they answer, each with its sender; nothing where the server does not listen.
        states: The server's state at each step.
        collected: What it then collects; None where nothing.
    """

    def __init__(self, kind, silent_from):
        super().__init__(PARAMS[kind])
        self.told, self.said, self.states, self.collected = [], [], [], []
        self._silent_from = silent_from
        for pending in self.steps():
            self.told.append(pending)
            self.said.append([])
            self.states.append(self.server.state)
            listens = self.server.state not in (ServerState.READY, ServerState.DONE)
            self.collected.append(self.server.step if listens else None)
        assert set(self.server.drops) == ({VICTIM} if silent_from is not None else set())

    def deliver(self, outgoing, binding=BINDING):
        index = len(self.told) - 1
        replies = super().deliver(outgoing, binding)
        if self._silent_from is not None and index >= self._silent_from:
            replies.pop(VICTIM, None)
        self.said[index] = list(replies.items())
        return replies


@cache
def record(kind, silent_from=None):
    """The session of `PARAMS[kind]`; if asked for, the victim says nothing from a step on."""
    return Record(kind, silent_from)


class Replay:
    """A server that hears a recorded session again: the devices need not compute it anew.

    Attributes:
        index: The step at which it is.
    """

    def __init__(self, kind, index):
        original = record(kind)
        self.kind, self.index = kind, 0
        self.params, self.ids, self.inputs = original.params, original.ids, original.inputs
        self.sums = []
        self.server = Server(self.params, self.ids, original.enrolment)
        assert self.server.start() == original.told[0]
        self._play(original, index)

    def finish(self, *, dropped=False):
        """Run to the end; with what the others say if the victim was dropped here.

        The server must say what it says in the recorded session, to the last bit.
        """
        played = record(self.kind, self.index if dropped else None)
        self._play(played, len(played.told) - 1)

    def _play(self, played, end):
        while self.index < end:
            assert self.server.state is played.states[self.index]
            if played.collected[self.index] is not None:
                assert self.server.step == played.collected[self.index]
                for sender, data in played.said[self.index]:
                    self.server.receive(sender, data)
                told = self.server.close_round()
                if self.server.has_sum:
                    self.sums.append(self.server.take_sum())
            else:
                told = self.server.open_slot(self.server._slot + 1, BINDING)
            self.index += 1
            assert told == played.told[self.index]
        assert self.server.state is played.states[self.index]


def told_to(kind, client):
    """What a device is told in the recorded session, in order."""
    return [told[client] for told in record(kind).told if client in told]


def said_by(kind, sender):
    """A device's messages in their order."""
    return [dict(said)[sender] for said in record(kind).said if said]


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


def collected_at(kind):
    """What the server collects at each step that it listens at."""
    return {i: step for i, step in enumerate(record(kind).collected) if step is not None}


EVERYWHERE = [
    pytest.param(kind, index, id=f"{kind} {index} {state}")
    for kind in KINDS
    for index, state in enumerate(record(kind).states)
]


def check_sums(parties, *, without=None):
    """Every slot has its sum, but one that is whole and from which a device was dropped.

    Args:
        parties: The session.
        without: The step at which the victim was dropped, if it was.
    """
    void = without is not None and without.stage >= Stage.MASK and without.slot == WHOLE_AT
    void = void and parties.params.slots[WHOLE_AT].whole
    assert [result.slot for result in parties.sums] == ([1] if void else [0, 1])
    left = set(parties.ids) - ({VICTIM} if without else set())
    for result in parties.sums:
        expected = plain_sum(parties.params, result.slot, parties.inputs, result.contributors)
        assert result.vector.tolist() == expected
        assert left <= set(result.contributors)


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


def reachable(table, start):
    """The states that events can lead to."""
    found, boundary = {start}, [start]
    while boundary:
        for following in table[boundary.pop()].values():
            if following not in found:
                found.add(following)
                boundary.append(following)
    return found


def test_every_state_is_reachable():
    assert reachable(SERVER_TRANSITIONS, ServerState.ADVERTISE) == set(ServerState)
    assert reachable(CLIENT_TRANSITIONS, ClientState.IDLE) == set(ClientState)


def test_every_message_has_its_one_place():
    """One each, but for the opening of a slot, which is the first or a later one."""

    def places(table):
        events = {event for transitions in table.values() for event in transitions}
        return {
            event: [state for state, transitions in table.items() if event in transitions]
            for event in events
        }

    s, c = ServerState, ClientState
    collects = {
        AdvertiseKeys: [s.ADVERTISE],
        ShareKeys: [s.SHARE],
        ShareReceipt: [s.RECEIPT],
        MaskedInput: [s.MASK],
        ConsistencySignature: [s.CONFIRM],
        UnmaskShares: [s.UNMASK],
        OpenSlotCall: [s.READY],
        EndSlot: [s.MASK, s.UNMASK],
        EndLastSlot: [s.MASK, s.UNMASK],
        Abort: [s.ADVERTISE, s.SHARE, s.READY, s.MASK, s.CONFIRM, s.UNMASK],
        CloseRound: [s.ADVERTISE, s.SHARE, s.RECEIPT, s.MASK, s.CONFIRM],
    }
    takes = {
        SessionOpen: [c.IDLE],
        RosterMessage: [c.ADVERTISED],
        ShareDelivery: [c.SHARED],
        OpenSlot: [c.LINKED, c.READY],
        Contribute: [c.OPENED],
        ContributeWhole: [c.OPENED],
        ConsistencyCheck: [c.MASKED],
        UnmaskRequest: [c.CONFIRMED],
        SumOpening: [c.READY],
        Close: [state for state in c if state is not c.FAILED],
    }
    assert {*collects, *takes} >= {*Message.__args__}
    assert places(SERVER_TRANSITIONS) == collects
    assert places(CLIENT_TRANSITIONS) == takes


@pytest.mark.parametrize("tables", [SERVER_TRANSITIONS, CLIENT_TRANSITIONS])
def test_what_the_table_has_not_is_refused(tables):
    every = {event for transitions in tables.values() for event in transitions}
    for state, transitions in tables.items():
        for event in every:
            if event in transitions:
                assert follow(tables, state, event) is transitions[event]
            else:
                with pytest.raises(UsageError, match=f"^{event.__name__} in state {state}$"):
                    follow(tables, state, event)


def test_what_the_end_of_a_round_is():
    for is_last in (False, True):
        for was_open in (False, True):
            assert closing(was_open=was_open, is_open=True, is_last=is_last) is CloseRound
        # No slot was open: the set-up goes on.
        assert closing(was_open=False, is_open=False, is_last=is_last) is CloseRound
    assert closing(was_open=True, is_open=False, is_last=True) is EndLastSlot
    assert closing(was_open=True, is_open=False, is_last=False) is EndSlot


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


def leave_at(state):
    """A session whose devices are all silent from a state of the server on; it is aborted."""
    parties = Parties(PARAMS["tolerant"])
    for _ in parties.steps():
        if parties.server.state is state:
            break
    with pytest.raises(SessionAborted):
        parties.server.close_round()


def lose_one(parties, outgoing):
    """All but the victim answer, and the round ends."""
    replies = parties.deliver(outgoing)
    replies.pop(VICTIM)
    return parties.collect(replies)


def test_the_server_takes_every_transition_of_its_table_and_no_other(monkeypatch):
    found = taken(monkeypatch, server)
    for kind in KINDS:
        for _ in Parties(PARAMS[kind]).steps():  # both slots are summed
            pass
    for slots in ([(2, 8, True)] * 2, [(2, 8, True)]):
        whole = Parties(make_params(6, slots=slots))
        assert lose_one(whole, whole.advance(ClientState.LINKED)) == {}  # the slot is lost
    both = Parties(make_params(6, slots=[(2, 8, True)] * 2))
    for _ in both.steps():
        pass
    for state in (ServerState.ADVERTISE, ServerState.SHARE, ServerState.MASK, ServerState.UNMASK):
        leave_at(state)
    leave_at(ServerState.CONFIRM)
    unheard = Parties(PARAMS["tolerant"])
    unheard.deliver(unheard.advance(ClientState.SHARED))
    unheard.server.close_round()  # no receipt has come
    with pytest.raises(SessionAborted):
        unheard.server.open_slot(0, BINDING)
    assert found == entries(SERVER_TRANSITIONS)


def test_a_device_takes_every_transition_of_its_table_and_no_other(monkeypatch):
    found = taken(monkeypatch, client)
    for kind in KINDS:
        for state in ClientState:
            for message in accepted(kind, state):
                parties = advance(kind, state)
                data = parties.encode(fresh_messages(kind, state)[message])
                parties.clients[VICTIM].receive(data)
            if state is ClientState.OPENED:
                parties = advance(kind, state)
                parties.contribute(VICTIM)
            advance(kind, state).clients[VICTIM].close()
    assert found == entries(CLIENT_TRANSITIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_of_a_session_are_those_of_the_table(kind):
    """Control of the tests below: in order, the devices' messages are all expected ones."""
    messages = [wire.decode(data, PARAMS[kind]) for data in said_by(kind, VICTIM)]
    collected = collected_at(kind)
    assert [step_of(message) for message in messages] == list(collected.values())
    for index, message in zip(collected, messages, strict=True):
        assert type(message) in SERVER_TRANSITIONS[record(kind).states[index]]


def test_how_many_messages_a_session_takes():
    """Three of each device to set up; then one in a whole slot, and three in a tolerant one."""
    assert {kind: len(said_by(kind, VICTIM)) for kind in KINDS} == {
        "tolerant": 3 + 3 + 3,
        "whole": 3 + 1 + 3,
    }


DEVICE_MESSAGES = [
    *("keys", "shares", "receipt"),
    *(f"{what} {slot}" for slot in range(2) for what in ("sign", "mask", "unmask")),
]


def device_message(kind, name):
    """What the victim says honestly, or, where a session has no such message, never."""
    said = {}
    for data in said_by(kind, VICTIM):
        message = wire.decode(data, PARAMS[kind])
        said[type(message), getattr(message, "slot", None)] = message
    what, _, slot = name.partition(" ")
    types = (
        AdvertiseKeys,
        ShareKeys,
        ShareReceipt,
        ConsistencySignature,
        MaskedInput,
        UnmaskShares,
    )
    wanted = dict(zip(("keys", "shares", "receipt", "sign", "mask", "unmask"), types, strict=True))
    at = int(slot) if slot else None
    never = {
        ConsistencySignature: lambda: ConsistencySignature(at, bytes(64)),
        UnmaskShares: lambda: replace(said[UnmaskShares, 1], slot=at),
    }
    message = said.get((wanted[what], at)) or never[wanted[what]]()
    return wire.encode(message, PARAMS[kind])


@pytest.mark.parametrize(("kind", "index"), EVERYWHERE)
@pytest.mark.parametrize("name", DEVICE_MESSAGES)
def test_device_messages_in_every_server_state(kind, index, name):
    data = device_message(kind, name)
    parties = Replay(kind, index)
    message, now = wire.decode(data, PARAMS[kind]), collected_at(kind).get(index)
    parties.server.receive(VICTIM, data)
    state = record(kind).states[index]
    assert parties.server.state is state
    early = now is not None and step_of(message).order > now.order
    if now is not None and step_of(message) == now:
        assert type(message) in SERVER_TRANSITIONS[state]
    dropped = {VICTIM: (Fault.UNEXPECTED, now)} if early else {}
    assert {c: (d.fault, d.step) for c, d in parties.server.drops.items()} == dropped
    parties.finish(dropped=bool(dropped))
    assert set(parties.server.drops) == set(dropped)
    check_sums(parties, without=now if dropped else None)


def server_message(kind, wanted):
    """What the victim is sent, of one type; where a session has no such message, never."""
    params = PARAMS[kind]
    never = {
        ConsistencyCheck: ConsistencyCheck(0, np.ones(6, dtype=np.bool_)),
        SumOpening: SumOpening(0, b"", {}),
    }
    for data in told_to(kind, VICTIM):
        if type(message := wire.decode(data, params)) is wanted:
            return wire.encode(message, params)
    opening = record(kind).sums[0].opening
    return opening if wanted is SumOpening and opening else wire.encode(never[wanted], params)


@pytest.mark.parametrize(("kind", "index"), EVERYWHERE)
@pytest.mark.parametrize("wanted", ServerMessage.__args__, ids=lambda m: m.__name__)
def test_server_messages_are_refused_by_the_server(kind, index, wanted):
    parties = Replay(kind, index)
    parties.server.receive(VICTIM, server_message(kind, wanted))
    now = collected_at(kind).get(index)
    assert set(parties.server.drops) == ({VICTIM} if now else set())
    if now:
        readable = wanted is not SumOpening or kind == "whole"
        expected = Fault.UNEXPECTED if readable else Fault.MALFORMED
        assert parties.server.drops[VICTIM].fault is expected
    parties.finish(dropped=now is not None)
    check_sums(parties, without=now)


@pytest.mark.parametrize("kind", KINDS)
def test_aborted_session_takes_nothing(kind):
    parties = Parties(PARAMS[kind])
    parties.server.start()
    with pytest.raises(SessionAborted):
        parties.server.close_round()
    drops = dict(parties.server.drops)
    assert parties.server.state is ServerState.ABORTED
    for said in record(kind).said:
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


IN_EVERY_STATE = [
    pytest.param(kind, state, id=f"{kind} {state}") for kind in KINDS for state in ClientState
]


def advance(kind, state):
    """A victim that was told a recorded session up to a state."""
    parties = Parties(PARAMS[kind])
    machine = parties.clients[VICTIM]
    goal = ClientState.ADVERTISED if state is ClientState.FAILED else state
    for data in told_to(kind, VICTIM):
        if machine.state is goal:
            break
        machine.receive(data)
        if machine.state is ClientState.OPENED is not goal:
            parties.contribute(VICTIM)
    if state is ClientState.FAILED:
        machine.close()
    assert machine.state is state
    return parties


UNMASKED = (ClientState.MASKED, ClientState.CONFIRMED)
"""States in which a slot is a tolerant one."""


@cache
def fresh_messages(kind, state):
    """One message of each type that the victim has not seen yet, each right in its own place.

    In a session whose first slot is whole, the second is the one that is unmasked.
    """
    parties = record(kind)
    told = [parties.decode(data) for data in told_to(kind, VICTIM)]
    _, roster, delivery, opening, *_ = told
    own = {}
    for data in said_by(kind, VICTIM):
        message = parties.decode(data)
        own.setdefault(type(message), message)
    left, everybody = parties.members(parties.ids[:5]), parties.members(parties.ids)
    position = next(iter(roster.keys))
    changed = parties.advertisement(int(roster.roster[position]), FRESH)
    junk = {position: bytes(len(delivery.boxes[position]))}
    slot = int(is_whole(kind) and state in UNMASKED)
    # The server asks with t signatures; here are all.
    signatures = {
        parties.position(c): parties.sign_survivors(c, everybody, slot=slot) for c in parties.ids
    }
    if state is not ClientState.LINKED:
        opening = OpenSlot(1, left)
    proof = SumOpening(0, b"", {})
    if is_whole(kind):
        proof = parties.decode(parties.sums[0].opening)
    return {
        RosterMessage: RosterMessage(roster.roster, {**roster.keys, position: changed}),
        ShareDelivery: ShareDelivery(delivery.members, {**delivery.boxes, **junk}),
        SessionOpen: SessionOpen(parties.params),
        OpenSlot: opening,
        ConsistencyCheck: ConsistencyCheck(slot, left),
        UnmaskRequest: UnmaskRequest(slot, everybody, signatures),
        SumOpening: proof,
        ConsistencySignature: ConsistencySignature(0, bytes(64)),
        **own,
    }


def accepted(kind, state):
    """The messages that a device takes in a state of a session."""
    return {
        ClientState.IDLE: {SessionOpen},
        ClientState.ADVERTISED: {RosterMessage},
        ClientState.SHARED: {ShareDelivery},
        ClientState.LINKED: {OpenSlot},
        ClientState.MASKED: {ConsistencyCheck},
        ClientState.CONFIRMED: {UnmaskRequest},
        ClientState.READY: {OpenSlot} | ({SumOpening} if is_whole(kind) else set()),
    }.get(state, set())


NAMED_REFUSALS = {
    (ClientState.READY, UnmaskRequest): Refusal.BOTH_SHARE_KINDS,
    (ClientState.CONFIRMED, ConsistencyCheck): Refusal.INCONSISTENT_SURVIVORS,
}
"""Messages out of their order that have a name of their own."""


def refusal(kind, state, message):
    """By what name a device refuses a message that it does not take."""
    if state is ClientState.IDLE or (message is SumOpening and not is_whole(kind)):
        return Refusal.MALFORMED
    if message is OpenSlot and is_whole(kind) and state in UNMASKED:
        return Refusal.SLOT_REUSED
    return NAMED_REFUSALS.get((state, message), Refusal.OUT_OF_ORDER)


@pytest.mark.parametrize(("kind", "state"), IN_EVERY_STATE)
@pytest.mark.parametrize(
    "message", [m for m in Message.__args__ if m is not SessionOpen], ids=lambda m: m.__name__
)
def test_messages_in_every_client_state(kind, state, message):
    parties = advance(kind, state)
    machine = parties.clients[VICTIM]
    data = parties.encode(fresh_messages(kind, state)[message])
    if state is ClientState.FAILED:
        with pytest.raises(UsageError, match="has ended this session"):
            machine.receive(data)
    elif message in accepted(kind, state):
        reply = machine.receive(data)
        assert machine.state is CLIENT_TRANSITIONS[state][message]
        assert (reply is None) == (message in (OpenSlot, SumOpening))
        return
    else:
        with pytest.raises(PeerError) as caught:
            machine.receive(data)
        assert caught.value.reason is refusal(kind, state, message)
    assert machine.state is ClientState.FAILED


@pytest.mark.parametrize(("kind", "state"), IN_EVERY_STATE)
def test_a_second_opening_changes_nothing_or_ends_the_session(kind, state):
    """Neither under its own tag nor under the session's can a server lower what was agreed."""
    weaker = make_params(6, threshold=2, min_cohort=2)
    own_tag = wire.encode(SessionOpen(weaker), weaker)
    assert wire.decode_open(own_tag).params == weaker
    for data in (own_tag, wire.encode(SessionOpen(weaker), PARAMS[kind])):
        parties = advance(kind, state)
        machine = parties.clients[VICTIM]
        if state in (ClientState.IDLE, ClientState.FAILED):
            continue
        if data is own_tag:
            assert machine.receive(data) is None
            assert machine.state is state
            assert machine.params == PARAMS[kind]
        else:
            with pytest.raises(PeerError, match="under the tag of other parameters") as caught:
                machine.receive(data)
            assert caught.value.reason is Refusal.MALFORMED
            assert machine.state is ClientState.FAILED


@pytest.mark.parametrize(
    ("kind", "state"), [p for p in IN_EVERY_STATE if p.values[1] is not ClientState.OPENED]
)
def test_contributing_without_an_open_slot_changes_nothing(kind, state):
    parties = advance(kind, state)
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
        [0, 0, 0, 0],
    ],
)
def test_contributing_what_does_not_fit_changes_nothing(vector):
    parties = advance("tolerant", ClientState.OPENED)
    machine = parties.clients[VICTIM]
    with pytest.raises(UsageError):
        machine.contribute(vector, BINDING)
    assert machine.state is ClientState.OPENED
    assert parties.contribute(VICTIM) == device_message("tolerant", "mask 0")


def test_a_binding_that_is_text_is_refused_and_changes_nothing():
    parties = advance("tolerant", ClientState.OPENED)
    machine = parties.clients[VICTIM]
    with pytest.raises(UsageError, match="a binding is bytes, not a str"):
        machine.contribute(parties.inputs[VICTIM][0], "what all were shown")
    assert parties.contribute(VICTIM) == device_message("tolerant", "mask 0")


def test_contributing_leaves_the_callers_vector_alone():
    parties = advance("tolerant", ClientState.OPENED)
    vector = parties.inputs[VICTIM][0]
    before = vector.copy()
    parties.contribute(VICTIM)
    assert np.array_equal(vector, before)


@pytest.mark.parametrize(("kind", "index"), EVERYWHERE)
def test_server_misuse_changes_nothing(kind, index):
    parties = Replay(kind, index)
    server = parties.server
    if index not in collected_at(kind):
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
    assert server.state is record(kind).states[index]
    parties.finish()
    assert server.drops == {}
    check_sums(parties)


def test_a_slot_may_be_skipped_but_not_opened_afterwards():
    parties = Parties(make_params(6, slots=((2, 8),) * 3))
    parties.exchange(parties.advance(ClientState.SHARED))
    result = parties.run_slot(1)
    assert result.vector.tolist() == plain_sum(parties.params, 1, parties.inputs, parties.ids)
    for slot in (0, 1):
        with pytest.raises(UsageError, match="once each"):
            parties.server.open_slot(slot, BINDING)
    last = parties.run_slot(2)
    assert last.vector.tolist() == plain_sum(parties.params, 2, parties.inputs, parties.ids)
    assert parties.server.state is ServerState.DONE


def test_a_slot_opened_with_a_binding_that_is_text_stays_closed():
    parties = Parties(make_params(6, slots=((2, 8),)))
    parties.exchange(parties.advance(ClientState.SHARED))
    with pytest.raises(UsageError, match="a binding is bytes, not a str"):
        parties.server.open_slot(0, "what all were shown")
    result = parties.run_slot(0)
    assert result.vector.tolist() == plain_sum(parties.params, 0, parties.inputs, parties.ids)


@pytest.mark.parametrize("ids", [[1, 2], [1, 2, 3, 4, 5, 6, 7], [1, 1, 2, 3, 4, 5]])
def test_server_refuses_a_wrong_number_of_devices(ids):
    with pytest.raises(UsageError, match="the parameters say 6"):
        Server(PARAMS["tolerant"], ids, TrustedKeys({}))


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_server_refuses_ids_out_of_range(wrong):
    with pytest.raises(UsageError, match="are not in"):
        Server(PARAMS["tolerant"], [1, 2, 3, 4, 5, wrong], TrustedKeys({}))


@pytest.mark.parametrize("kind", KINDS)
def test_largest_ids_make_a_session(kind):
    parties = Parties(PARAMS[kind], ids=[0, 1, 2, 3, 2**31, 2**32 - 1])
    for _ in parties.steps():
        pass
    check_sums(parties)


def test_the_server_says_who_has_still_to_answer():
    parties = Parties(make_params(num_invited=6, degree=5))
    opening = parties.server.start()
    assert all(map(parties.server.is_awaited, parties.ids))
    assert not parties.server.is_awaited(2**32 - 1)
    answers = parties.deliver(opening)
    first, second, *others, silent = parties.ids
    parties.server.receive(first, b"malformed")
    parties.server.receive(second, answers[second])
    assert [one for one in parties.ids if parties.server.is_awaited(one)] == [*others, silent]
    for answering in others:
        parties.server.receive(answering, answers[answering])
    parties.server.close_round()
    awaited = [one for one in parties.ids if parties.server.is_awaited(one)]
    assert awaited == [second, *others]


def test_a_repeated_message_of_an_earlier_round_leaves_its_sender_awaited():
    parties = Parties(make_params(num_invited=6, degree=5))
    answers = parties.deliver(parties.server.start())
    parties.collect(answers)
    client = parties.ids[0]
    parties.server.receive(client, answers[client])
    assert parties.server.is_awaited(client)


@pytest.mark.parametrize("data", ["text", None, 3])
def test_what_is_no_message_is_the_callers_mistake(data):
    parties = Parties(make_params(num_invited=6, degree=5))
    opening = parties.server.start()
    client = parties.ids[0]
    for receive in (
        lambda: parties.server.receive(client, data),
        lambda: parties.clients[client].receive(data),
    ):
        with pytest.raises(UsageError, match="a message is bytes, not a "):
            receive()
    assert parties.server.drops == {}
    assert parties.clients[client].receive(opening[client])


def test_a_sender_that_is_a_text_is_not_taken_for_a_stranger():
    parties = Parties(make_params(num_invited=6, degree=5))
    parties.server.start()
    with pytest.raises(UsageError, match="sender='1' is not a whole number"):
        parties.server.receive("1", b"message")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("1", POLICY, OWN), "client_id='1' is not a whole number"),
        ((-1, POLICY, OWN), r"client_id=-1 is not in \[0, 2\^32\)"),
        ((2**32, POLICY, OWN), "is not in"),
        ((1, None, OWN), "policy=None is no `DevicePolicy`"),
        ((1, type(POLICY), OWN), "is no `DevicePolicy`"),
        ((1, POLICY, None), "credentials=None are no `Credentials`"),
        ((2, POLICY, OWN), "does not accept this identity for device 2"),
    ],
)
def test_a_device_is_made_of_an_id_a_policy_and_credentials(arguments, complaint):
    with pytest.raises(UsageError, match=complaint):
        Client(*arguments)
