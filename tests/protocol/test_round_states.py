"""A device's round as a table: what is legal when, and that nothing else ever happens."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_parties import MODEL, Point, RoundParties, comparable, make_config, make_params

from deltafl.protocol import wire
from deltafl.protocol.client import LocalWork
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import Round
from deltafl.protocol.selection import Threshold
from deltafl.protocol.states import (
    TRANSITIONS,
    RoundState,
    SupplyEarlierUpdate,
    SupplyLoss,
    SupplyUpdate,
)
from deltafl.secagg import PeerError, Refusal, SlotSum, UsageError
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.messages import SessionOpen
from deltafl.secagg.states import ClientState, Close

FAST = settings(deadline=None)
CONFIG = make_config()
UPDATE = np.zeros(CONFIG.update_length, dtype=np.float32)

# Every place in a round, by how far the device has come.
POINTS: Mapping[Point, RoundState] = {
    Point(0): RoundState.IDLE,
    Point(1, task_done=False): RoundState.MEASURING,
    Point(1): RoundState.SEARCHING,  # key advertised
    Point(2): RoundState.SEARCHING,  # boxes sent
    Point(3): RoundState.SEARCHING,  # links derived
    Point(4): RoundState.SEARCHING,  # query answered
    Point(5): RoundState.SEARCHING,  # survivors confirmed
    Point(6): RoundState.SEARCHING,  # unmasked
    Point(7, task_done=False): RoundState.TRAINING,
    Point(7): RoundState.UPDATED,
    Point(8): RoundState.UPDATED,  # survivors confirmed
    Point(9): RoundState.UPDATED,  # unmasked
}
PLACES = list(POINTS)
MESSAGES = (Announce, Relay, Query, Threshold)
CALLS = (SupplyLoss, SupplyUpdate)
OF_SEVERAL_LEVELS = (SupplyEarlierUpdate,)
"""The event of sessions of several levels only, which `test_levels.py` is about."""

places = pytest.mark.parametrize("point", PLACES)


def opening(config, model) -> bytes:
    params = make_params(CONFIG, context=Levels((config,)).context(model))
    return session_wire.encode(SessionOpen(params), params)


def message(event: type) -> bytes:
    """A well-formed envelope of a kind, never sent in a round of these parties."""
    envelopes = {
        Announce: Announce(Levels((CONFIG,)), b"another model", b"no session"),
        Relay: Relay(b"a message"),
        Query: Ask(Query("mm", (5,)), b"a message"),
        Threshold: Ask(Threshold(700, 1), b"a message"),
    }
    return wire.encode(envelopes[event])


def call(machine, event: type) -> bytes:
    return machine.supply_loss(1.0, 5) if event is SupplyLoss else machine.supply_update(UPDATE)


def event_of(data: bytes) -> type:
    envelope = wire.decode(data)
    return type(envelope.question if isinstance(envelope, Ask) else envelope)


def test_the_table_names_every_state_and_no_other_event():
    assert set(TRANSITIONS) == set(RoundState)
    for events in TRANSITIONS.values():
        assert set(events) <= {*MESSAGES, *CALLS, *OF_SEVERAL_LEVELS, Close}
    assert set(POINTS.values()) == set(RoundState) - {RoundState.FAILED}


def test_a_round_is_closed_from_everywhere_but_its_end():
    for state, events in TRANSITIONS.items():
        ends = [event for event, following in events.items() if following is RoundState.FAILED]
        assert ends == ([] if state is RoundState.FAILED else [Close])


@places
def test_closing_ends_the_round_for_good(point):
    parties = RoundParties()
    parties.bring(point)
    for _ in range(2):
        parties.machine.close()
        assert_over(parties.machine)


@places
def test_the_machine_stands_where_the_table_says(point):
    parties = RoundParties()
    parties.bring(point)
    assert parties.machine.state is POINTS[point]


def test_a_round_is_over_after_the_last_point():
    parties = RoundParties()
    parties.bring(max(POINTS, key=lambda point: point.num_taken))
    assert not parties.pending
    assert parties.server.outcomes[0].update is not None


def test_a_round_walks_through_the_table_and_uses_every_legal_pair():
    parties = RoundParties()
    machine, used = parties.machine, set()

    def step(event, action):
        before = machine.state
        reply = action()
        assert machine.state is TRANSITIONS[before][event]
        used.add((before, event))
        return reply

    outgoing = parties.server.start()
    while outgoing:
        data = outgoing.pop(parties.victim)
        replies = {c: parties.answer(c, d) for c, d in outgoing.items()}
        reply = step(event_of(data), lambda data=data: machine.receive(data))
        if isinstance(reply, LocalWork):
            event = SupplyLoss if reply is LocalWork.MEASURE_LOSS else SupplyUpdate
            reply = step(event, lambda reply=reply: parties.do(parties.victim, reply))
        outgoing = dict(parties.collect({**replies, parties.victim: reply}))
    assert used == {
        (state, event)
        for state, events in TRANSITIONS.items()
        for event in events
        if event not in (*OF_SEVERAL_LEVELS, Close)
    }


ILLEGAL_MESSAGES = [
    (point, event)
    for point in PLACES
    for event in MESSAGES
    if event not in TRANSITIONS[POINTS[point]]
]
ILLEGAL_CALLS = [
    (point, event) for point in PLACES for event in CALLS if event not in TRANSITIONS[POINTS[point]]
]


@pytest.mark.parametrize(("point", "event"), ILLEGAL_MESSAGES)
def test_an_illegal_message_ends_the_round_for_good(point, event):
    parties = RoundParties()
    parties.bring(point)
    named = f"{event.__name__} in state {POINTS[point]}"
    with pytest.raises(PeerError, match=named) as refused:
        parties.machine.receive(message(event))
    assert refused.value.reason is Refusal.OUT_OF_ORDER
    assert_over(parties.machine)


def assert_over(machine):
    assert machine.state is RoundState.FAILED
    assert machine._session.state is ClientState.FAILED  # which lets go of its secrets
    for event in MESSAGES:
        with pytest.raises(UsageError, match="ended"):
            machine.receive(message(event))
    for event in CALLS:
        with pytest.raises(UsageError, match="in state failed"):
            call(machine, event)
    assert machine.state is RoundState.FAILED


@pytest.mark.parametrize(("point", "event"), ILLEGAL_CALLS)
def test_an_illegal_call_changes_nothing(point, event):
    with_call, without = RoundParties(), RoundParties()
    for parties in (with_call, without):
        parties.bring(point)
    state = with_call.machine.state
    with pytest.raises(UsageError, match=f"{event.__name__} in state {state}"):
        call(with_call.machine, event)
    assert with_call.machine.state is state
    assert finished(with_call, point) == finished(without, point)


def finished(parties, point):
    """All that comes of a round after the point: the outcome, and every byte that devices sent."""
    if point.task_done:
        outcome = parties.go_on() if parties.pending else parties.server.outcomes[0]
    else:
        task = LocalWork.MEASURE_LOSS if point.num_taken == 1 else LocalWork.TRAIN
        outcome = parties.go_on(parties.do(parties.victim, task))
    return comparable(outcome), parties.sent


def test_what_comes_of_a_round_would_show_a_change():
    outcomes = []
    for loss in (2.5, 2.0):
        parties = RoundParties()
        parties.bring(Point(0))
        parties.devices[parties.victim] = replace(parties.devices[parties.victim], loss=loss)
        outcomes.append(finished(parties, Point(0)))
    assert outcomes[0] != outcomes[1]


@places
def test_repetitions_are_ignored(point):
    repeated, without = RoundParties(), RoundParties()
    for parties in (repeated, without):
        parties.bring(point)
    state = repeated.machine.state
    assert len(repeated.taken) == point.num_taken
    for data in repeated.taken * 2:
        assert repeated.machine.receive(data) is None
    assert repeated.machine.state is state
    assert finished(repeated, point) == finished(without, point)


def with_element(value):
    return np.array([0, value, 0, 0], dtype=np.float32)


NOT_ENCODABLE = [
    (1, "weight=-1", lambda machine: machine.supply_loss(1.0, -1)),
    (1, "weight=nan", lambda machine: machine.supply_loss(1.0, np.nan)),
    (1, "weight=2.0", lambda machine: machine.supply_loss(1.0, 2.0)),
    (7, "'update': shape", lambda machine: machine.supply_update(UPDATE[:-1])),
    (7, "'update': shape", lambda machine: machine.supply_update(UPDATE[None])),
    (7, "of float64 is not", lambda machine: machine.supply_update(UPDATE.astype(float))),
    (7, "of complex64 is not", lambda machine: machine.supply_update(UPDATE * np.complex64(1))),
    (7, "of None is not", lambda machine: machine.supply_update(UPDATE.tolist())),
    (7, "'update'", lambda machine: machine.supply_update(with_element(np.nan)[None])),
    (7, "'update'", lambda machine: machine.supply_update(with_element(np.nan)[1])),
]


@pytest.mark.parametrize(("num_taken", "named", "supply"), NOT_ENCODABLE)
def test_what_cannot_be_encoded_is_refused_by_name_and_changes_nothing(num_taken, named, supply):
    point = Point(num_taken, task_done=False)
    spoiled, without = RoundParties(), RoundParties()
    for parties in (spoiled, without):
        parties.bring(point)
    with pytest.raises(EncodingError, match=named):
        supply(spoiled.machine)
    assert spoiled.machine.state is POINTS[point]
    assert finished(spoiled, point) == finished(without, point)


# --- garbage ------------------------------------------------------------------------------------

pivots = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 2**11), max_size=3).map(tuple)
questions = st.one_of(
    st.builds(Query, st.sampled_from(["mm", "bracketed", "", "m" * 32]), pivots),
    st.builds(Query, st.just("mm"), st.integers(0, 2**11).map(lambda pivot: (pivot,))),
    st.builds(Threshold, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
)
lies = st.fixed_dictionaries(
    {},
    optional={
        "cohort_size": st.integers(1, 2**32 - 1),
        "max_queries": st.integers(0, 2**16),
        "update_length": st.integers(1, 2**32),
        "max_weight": st.integers(1, 2**20),
        "warm_start": st.integers(0, 2048),
        "verified": st.just(True),
    },
)


@st.composite
def garbage(draw, parties, honest) -> bytes:
    """What a server that knows the protocol might send instead of an honest envelope."""
    kind = draw(st.sampled_from(["bytes", "edited", "relay", "ask", "announce"]))
    if kind == "bytes":
        return draw(st.binary(max_size=60))
    if kind == "edited":
        return draw(edits(honest))
    # Session messages, of whatever kind and to whomever, may come in whatever envelope.
    known = [wire.decode(data).session for data in parties.log] + parties.sent + [b""]
    session = st.sampled_from(known)
    session = st.one_of(session, session.flatmap(edits))
    openings = st.just(b"") | session
    if kind == "relay":
        return wire.encode(Relay(draw(session)))
    if kind == "ask":
        return wire.encode(Ask(draw(questions), draw(session), draw(openings)))
    try:
        config = make_config(**draw(lies))
    except ConfigurationError:
        return b""  # a lie that cannot even be told
    return wire.encode(Announce(Levels((config,)), MODEL, opening(config, MODEL)))


def edits(data: bytes):
    def edit(place: int, size: int, piece: bytes) -> bytes:
        return data[:place] + piece + data[place + size :]

    return st.builds(edit, st.integers(0, len(data)), st.integers(0, 3), st.binary(max_size=3))


@pytest.mark.slow
@places
@settings(FAST, max_examples=12)
@given(data=st.data())
def test_garbage_raises_nothing_but_peer_errors(point, data):
    parties = RoundParties()
    honest = parties.bring(point)
    for client, machine in parties.clients.items():
        received = data.draw(garbage(parties, honest))
        before = machine.state
        try:
            reply = machine.receive(received)
        except PeerError:
            assert_over(machine)
        else:
            assert reply is None or type(reply) in (bytes, LocalWork), client
            after = {before, *TRANSITIONS[before].values(), RoundState.UPDATED}
            assert machine.state in after - {RoundState.FAILED}


@pytest.mark.slow
@settings(FAST, max_examples=60)
@given(st.sampled_from(["mm", "bracketed", "histogram"]), st.data())
def test_false_answers_of_devices_never_stop_the_server(method, data):
    warm = data.draw(st.none() | st.integers(0, 2048))
    config = make_config(method=method, max_queries=4, num_pivots=None, warm_start=warm)
    round_ = Round(config)
    ids = (3, 10, 17)
    while round_.question is not None:
        asks = isinstance(round_.question, Query)
        layout = config.search_layout if asks else config.update_layout
        most = data.draw(st.sampled_from([3, 500, 1500, 2**layout.ring_bits - 1]))
        seed = data.draw(st.integers(0, 2**32))
        words = np.random.default_rng(seed).integers(
            0, most, layout.length, dtype=np.uint64, endpoint=True
        )
        round_.take(SlotSum(round_.slot, words, ids, ids))
    outcome = round_.outcome({})
    assert 1 <= outcome.secure_sums <= config.search.max_queries + 1
    assert (outcome.update is None) == (outcome.kept_weight == 0)
    assert outcome.search is not None
