"""Bytes that are no messages, and what they cost."""

import pytest

from deltafl.protocol import wire as envelopes
from deltafl.secagg import Client, Fault, PeerError, Server
from deltafl.secagg.errors import DecodeError
from deltafl.sim.inspect.attacks.attack import LIAR
from deltafl.sim.inspect.attacks.lying import MOST, NESTED, peak_memory
from deltafl.sim.inspect.attacks.own_session import (
    POLICY,
    Devices,
    make_params,
    new_enrolment,
)

CLAIMS = {
    "array": b"\xdd\xff\xff\xff\xff",
    "array inside": b"\x93\x01\x11\xdd\xff\xff\xff\xff",
    "map": b"\x93\x01\x11\xdf\xff\xff\xff\xff",
    "bytes": b"\x93\x01\x11\xc6\xff\xff\xff\xff",
    "text": b"\x93\x01\x11\xdb\xff\xff\xff\xff",
    "extension": b"\x93\x01\x11\xc9\xff\xff\xff\xff\x01",
    "nested arrays": NESTED,
}
"""A few bytes that announce four billion elements, or many times as many as there are bytes."""


def make_server():
    devices = Devices(make_params(5, 3))
    return Server(devices.params, devices.roster, devices.enrolment), devices.params


@pytest.mark.parametrize("claim", CLAIMS)
def test_bytes_that_claim_much_cost_nothing(claim):
    server, _ = make_server()
    credentials = new_enrolment().credentials(LIAR)

    def receive():
        server.receive(LIAR, CLAIMS[claim])
        with pytest.raises(PeerError, match="malformed"):
            Client(LIAR, POLICY, credentials).receive(CLAIMS[claim])
        with pytest.raises(DecodeError):
            envelopes.decode(CLAIMS[claim])

    assert peak_memory(receive) <= MOST
    assert server.drops[LIAR].fault is Fault.MALFORMED


def test_a_message_that_is_too_long_is_not_read():
    server, params = make_server()
    message = b"\x94\x01\x11\xc4\x10" + params.tag + b"\xc6\x01\x00\x00\x00" + bytes(1 << 24)
    assert peak_memory(lambda: server.receive(LIAR, message)) <= MOST
    assert server.drops[LIAR].fault is Fault.MALFORMED


def test_memory_that_is_taken_is_seen():
    assert peak_memory(lambda: bytes(2 * MOST)) > MOST
