"""Devices and servers keep nothing of messages that are not for them, however many come."""

from dataclasses import replace

import pytest
from kept import kept_bytes
from malicious_clients import at_step
from parties import BINDING, STEPS, Parties, make_params

from deltafl.secagg import PeerError, UsageError, wire
from deltafl.secagg.states import ClientState

PARAMS = make_params(5)


@pytest.fixture(scope="module")
def foreign_log():
    """All messages to the devices of another session."""
    params = replace(PARAMS, context=b"another session".ljust(32))
    return [data for pending in Parties(params).steps() for data in pending.values()]


def retagged(data, count):
    """The same bytes as messages of other sessions."""
    tag = wire.tag_of(data)
    at = data.index(tag)
    for i in range(1, count + 1):
        yield data[:at] + i.to_bytes(len(tag), "big") + data[at + len(tag) :]


STATES = [ClientState.ADVERTISED, ClientState.SHARED, ClientState.LINKED, ClientState.MASKED]


@pytest.mark.parametrize("state", STATES)
def test_a_device_keeps_nothing_of_other_sessions(state, foreign_log):
    parties = Parties(PARAMS)
    parties.advance(state)
    machine = parties.clients[parties.ids[0]]
    before, was = kept_bytes(machine), machine.state
    for data in foreign_log:
        for foreign in retagged(data, 20):
            assert machine.receive(foreign) is None
    assert kept_bytes(machine) == before
    assert machine.state is was


def test_a_device_that_has_no_session_yet_keeps_nothing_and_is_over(foreign_log):
    for data in foreign_log[PARAMS.num_invited :]:  # without the openings
        parties = Parties(PARAMS)
        machine = parties.clients[parties.ids[0]]
        with pytest.raises(PeerError):
            machine.receive(data)
        before = kept_bytes(machine)
        for foreign in retagged(data, 20):
            with pytest.raises(UsageError):
                machine.receive(foreign)
        assert kept_bytes(machine) == before


def test_a_device_keeps_nothing_of_repeats_nor_once_its_session_is_over():
    parties, taken = Parties(PARAMS), []
    victim = parties.ids[0]
    for pending in parties.steps():
        taken += [pending[victim]] if victim in pending else []
    machine = parties.clients[victim]
    before = kept_bytes(machine)
    for data in taken * 20:
        assert machine.receive(data) is None
    assert kept_bytes(machine) == before
    machine.close()
    closed = kept_bytes(machine)
    assert closed < before
    for data in taken:
        with pytest.raises(UsageError):
            machine.receive(data)
    assert kept_bytes(machine) == closed


@pytest.mark.parametrize("index", range(len(STEPS)))
def test_a_server_keeps_nothing_of_strangers_repeats_and_other_sessions(index):
    params = PARAMS
    parties, _, pending = at_step(index, params)
    replies = parties.deliver(pending)
    server = parties.server
    for client, data in replies.items():
        server.receive(client, data)
    before, state = kept_bytes(server), server.state
    for client, data in replies.items():
        for foreign in retagged(data, 20):
            server.receive(client, foreign)
            server.receive(10**6 + len(foreign), foreign)
        for _ in range(20):
            server.receive(client, data)
        server.receive(99, data)
    assert kept_bytes(server) == before
    assert server.state is state
    assert server.drops == {}


def test_a_server_keeps_nothing_of_late_messages():
    params = PARAMS
    parties = Parties(params)
    pending, told = parties.server.start(), []
    for _ in range(3):
        replies = parties.deliver(pending)
        told += replies.items()
        pending = parties.collect(replies)
    pending = parties.server.open_slot(0, BINDING)
    before = kept_bytes(parties.server)
    for client, data in told * 10:
        parties.server.receive(client, data)
    assert kept_bytes(parties.server) == before
    assert parties.server.drops == {}


def test_a_dropped_device_costs_no_more_memory_whatever_it_sends():
    parties, _, pending = at_step(1, PARAMS)
    client, data = next(iter(parties.deliver(pending).items()))
    parties.server.receive(client, b"nonsense")
    before = kept_bytes(parties.server)
    for size in range(100):
        parties.server.receive(client, data + bytes(size))
    assert kept_bytes(parties.server) == before


def test_what_is_kept_is_counted():
    """The tests above can fail: a machine that notes what it ignores is found out."""
    parties = Parties(PARAMS)
    parties.advance(ClientState.SHARED)
    machine = parties.clients[parties.ids[0]]
    before = kept_bytes(machine)
    machine._seen.add(b"one more fingerprint of 32 bytes")
    assert kept_bytes(machine) >= before + 32
    assert kept_bytes(machine, beside=(machine._seen,)) < before
