"""Attacks with bytes that are not messages, and with false shares."""

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgpack
import numpy as np

from deltafl.secagg import ClientId, Fault, Server, shamir
from deltafl.secagg.messages import UnmaskShares
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Harm, Power, attack
from deltafl.sim.inspect.attacks.evil_server import EvilServer
from deltafl.sim.inspect.attacks.own_session import Devices, make_params, with_an_honest_server

_DEPTH, _WIDTH = 200, 8000
MOST: Final = 1 << 20
"""The most memory that a message of 9 kB may take, in bytes."""

NESTED: Final = b"\x93\x01\x11" + (b"\xdc" + _WIDTH.to_bytes(2, "big")) * _DEPTH + bytes(_WIDTH)
"""Nested arrays, each of which claims to be as long as everything that follows."""

LIAR: Final = ClientId(3)


def peak_memory(work: Callable[[], object]) -> int:
    """The most bytes allocated at once while a function runs, whatever it raises."""
    tracemalloc.start()
    try:
        work()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def _read_trustingly(data: bytes) -> None:
    """Parse anything, as the library does."""
    with suppress(ValueError, msgpack.UnpackException):
        msgpack.unpackb(data, strict_map_key=False)


def _memory_note(peak: int) -> str:
    return f"a message of {len(NESTED) / 1000:.1f} kB took {peak / 1000:,.1f} kB of memory"


_MEMORY = "memory use of a thousand times the message's size"
_FLAT = "flat messages, whose sizes are checked before anything is allocated"


@attack(
    21,
    "sends the server nested arrays that claim to be long",
    power=Power.PEER,
    gain=_MEMORY,
    defence=_FLAT,
    spec="7.1",
    end=Fault.MALFORMED,
    culprit=LIAR,
)
def nested_arrays_to_the_server(defended: bool) -> Harm:
    """Without the defence, the server parses anything."""
    devices = Devices(make_params(5, 3))
    server = Server(devices.params, devices.roster, devices.enrolment)
    peak = peak_memory(
        lambda: server.receive(LIAR, NESTED) if defended else _read_trustingly(NESTED)
    )
    harmed = peak > MOST
    return Harm(harmed, frozenset() if harmed else _culprits(server), _memory_note(peak))


def _culprits(server: Server) -> frozenset[tuple[int, Fault]]:
    return frozenset((int(client), drop.fault) for client, drop in server.drops.items())


def _wrong_shares(devices: Devices, data: bytes) -> bytes:
    """A message of a device; every share in it is off by one."""
    message = devices.decode(data)
    if not isinstance(message, UnmaskShares):
        return data
    shares = message.shares.astype(np.uint64)
    # Limb 3: the lowest bits of a secret key do not matter, X25519 clears them.
    shares[:, 3] = (shares[:, 3] + 1) % shamir.PRIME
    return devices.encode(replace(message, shares=shares.astype(np.uint32)))


@attack(
    22,
    "releases wrong shares of its peers' secrets",
    power=Power.PEER,
    gain="a wrong sum, and nobody is blamed",
    defence="the server compares rebuilt secrets with what was promised, and decodes shares",
    spec="10.10",
    end=Fault.BAD_SHARE,
    culprit=LIAR,
)
def wrong_shares(defended: bool) -> Harm:
    """Without the defence, the server believes what it has rebuilt."""
    devices = Devices(make_params(5, 3))
    right: Vector = sum((devices.vector(p) for p in range(1, 5)), devices.vector(0))
    server = Server(devices.params, devices.roster, devices.enrolment)

    def tamper(client: ClientId, data: bytes) -> bytes:
        return _wrong_shares(devices, data) if client == LIAR else data

    def answer(client: ClientId, data: bytes) -> bytes | None:
        reply = devices.answer(client, data)
        return None if reply is None else tamper(client, reply)

    if defended:
        (summed,) = with_an_honest_server(devices, server, tamper)
        found: Vector = summed.vector
    else:
        credulous = EvilServer(devices.params, devices.roster, answer)
        credulous.set_up()
        credulous.open_slot(0)
        credulous.unmask(0, credulous.everyone)
        found = credulous.sum_over(0, credulous.everyone)
    is_right = np.array_equal(found, right)
    note = f"the sum is {'right' if is_right else 'wrong'}"
    return Harm(not is_right, _culprits(server), note)
