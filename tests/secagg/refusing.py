"""A server that lies to one device: how a lie is told, and what a refusal must look like."""

import pytest
from parties import BINDING, Parties, make_ids, reachable_secrets

from deltafl.secagg import PeerError, UsageError
from deltafl.secagg.states import ClientState

IDS = make_ids(6)
VICTIM = IDS[2]
OTHERS = [client for client in IDS if client != VICTIM]


def refuse(parties, data, reason, victim=VICTIM, match=None):
    """Check the refusal, that it is for good, and that no secret outlives it."""
    machine, randomness = parties.clients[victim], parties.randomness[victim]
    if machine.state is not ClientState.IDLE:
        has_key = machine.state in (ClientState.ADVERTISED, ClientState.SHARED)
        assert ("private key" in reachable_secrets(machine, randomness)) == has_key
    with pytest.raises(PeerError, match=match) as caught:
        machine.receive(data)
    assert caught.value.reason is reason
    assert str(caught.value).startswith(f"{reason}: ")
    assert machine.state is ClientState.FAILED
    assert reachable_secrets(machine, randomness) == set()
    for again in (data, b"", parties.server.start()[victim]):
        with pytest.raises(UsageError, match="has ended this session"):
            machine.receive(again)
    with pytest.raises(UsageError, match="no slot is open"):
        machine.contribute(parties.inputs[victim][0], BINDING)


def lie(state, change, *, params, victim=VICTIM):
    """A session up to `state`, and what the victim is to get next, changed."""
    parties = Parties(params)
    pending = parties.advance(state)
    message = parties.decode(pending[victim])
    return parties, parties.encode(change(parties, message))
