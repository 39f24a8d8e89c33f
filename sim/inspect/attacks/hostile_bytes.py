"""Attacks with bytes that are not messages, and with false shares."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgpack
import numpy as np

from deltafl.secagg import (
    Client,
    ClientId,
    Fault,
    PeerError,
    Refusal,
    Server,
    SessionAborted,
    complaints,
    shamir,
    wire,
)
from deltafl.secagg.errors import DecodeError
from deltafl.secagg.messages import Message, ShareKeys, UnmaskShares
from deltafl.secagg.unmasking import Promises
from deltafl.sim.inspect.attacks.attack import Harm, Power, attack
from deltafl.sim.inspect.attacks.own_session import (
    ONE_SLOT,
    POLICY,
    Devices,
    make_params,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.replaced import replaced

_DEPTH, _WIDTH = 200, 8000
MOST: Final = 1 << 20
"""The most memory that a message of 9 kB may take, in bytes."""

_NESTED: Final = b"\x93\x01\x11" + (b"\xdc" + _WIDTH.to_bytes(2, "big")) * _DEPTH + bytes(_WIDTH)
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


def _read_trustingly(data: bytes, *, most: int) -> object:
    """Parse anything."""
    del most
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise DecodeError(str(error)) from None


def _memory_note(peak: int) -> str:
    return f"a message of {len(_NESTED) / 1000:.1f} kB took {peak / 1000:,.1f} kB of memory"


_MEMORY = "memory use of a thousand times the message's size"
_FLAT = "flat messages, whose sizes are checked before anything is allocated"


@attack(
    "nested-arrays-to-the-server",
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
    with replaced(wire, "read_fields", _read_trustingly, unless=defended):
        peak = peak_memory(lambda: server.receive(LIAR, _NESTED))
    harmed = peak > MOST
    return Harm(harmed, frozenset() if harmed else _culprits(server), _memory_note(peak))


@attack(
    "nested-arrays-to-a-device",
    21,
    "sends a device nested arrays that claim to be long",
    power=Power.SERVER,
    gain=_MEMORY,
    defence=_FLAT,
    spec="7.1",
    end=Refusal.MALFORMED,
)
def nested_arrays_to_a_device(defended: bool) -> Harm:
    """Without the defence, the device also refuses, but too late."""
    client, refusals = Client(LIAR, POLICY), list[PeerError]()

    def give() -> None:
        try:
            client.receive(_NESTED)
        except PeerError as refusal:
            refusals.append(refusal)

    with replaced(wire, "read_fields", _read_trustingly, unless=defended):
        peak = peak_memory(give)
    if refusals and peak <= MOST:
        raise refusals[0]
    return Harm(peak > MOST, note=_memory_note(peak))


Lie = Callable[[Message], Message]


def _spoiled(lie: Lie) -> Harm:
    """Run a session in which one device lies: is a sum wrong or missing, and which device is named?

    Args:
        lie: Changes the liar's messages.
    """
    devices = Devices(make_params(5, 3, slots=ONE_SLOT * 2))
    server = Server(devices.params, devices.roster, devices.enrolment)

    def tamper(client: ClientId, data: bytes) -> bytes:
        return devices.encode(lie(devices.decode(data))) if client == LIAR else data

    right = []
    try:
        for result in with_an_honest_server(devices, server, tamper):
            vectors = [devices.inputs[client][result.slot] for client in result.contributors]
            right.append(np.array_equal(result.vector, np.sum(vectors, axis=0, dtype=np.uint32)))
    except SessionAborted as aborted:
        note = f"the session ended: {aborted}"
    else:
        note = f"{sum(right)} of {len(right)} sums are right"
    return Harm(right != [True, True], _culprits(server), note)


def _culprits(server: Server) -> frozenset[tuple[int, Fault]]:
    return frozenset((int(client), drop.fault) for client, drop in server.drops.items())


def _wrong_shares(message: Message) -> Message:
    """Every share is off by one."""
    if not isinstance(message, UnmaskShares):
        return message
    shares = message.shares.astype(np.uint64)
    # Limb 3: the lowest bits of a secret key do not matter, X25519 clears them.
    shares[:, 3] = (shares[:, 3] + 1) % shamir.PRIME
    return replace(message, shares=shares.astype(np.uint32))


@attack(
    "wrong-shares",
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
    """Without the defence, the server trusts what it has rebuilt."""
    with replaced(Promises, "is_seed", lambda *_: True, unless=defended):
        return _spoiled(_wrong_shares)


def _junk_boxes(message: Message) -> Message:
    """Boxes that do not open."""
    if not isinstance(message, ShareKeys):
        return message
    boxes = {p: box[:-1] + bytes([box[-1] ^ 1]) for p, box in message.boxes.items()}
    return replace(message, boxes=boxes)


@attack(
    "boxes-without-shares",
    22,
    "sends boxes that contain no shares",
    power=Power.PEER,
    gain="no sum, and nobody is blamed",
    defence="before the first slot, devices report whose boxes held no shares",
    spec="10.6",
    end=Fault.BAD_BOX,
    culprit=LIAR,
)
def boxes_without_shares(defended: bool) -> Harm:
    """Without the defence, the server ignores complaints."""
    with replaced(complaints, "judge", lambda *_: {}, unless=defended):
        return _spoiled(_junk_boxes)
