"""Attacks with bytes that are no messages, and with messages that are lies."""

import tracemalloc
from contextlib import contextmanager

import msgpack
import pytest
from attack import Harm, Power, attack
from parties import POLICY, Parties, make_params, plain_sum
from rogues import Rogues, lie_about, seal_junk

from protocol import wire as envelopes
from secagg import Client, Fault, PeerError, Refusal, SessionAborted, Stage, complaints, wire
from secagg.errors import DecodeError
from secagg.unmasking import Promises

DEPTH, WIDTH = 200, 8000
MOST = 1 << 20
"""Bytes that a message of 9 kB may cost."""

NESTED = b"\x93\x01\x11" + (b"\xdc" + WIDTH.to_bytes(2, "big")) * DEPTH + bytes(WIDTH)
"""Arrays in an array, each of which says that it is as long as all that follows."""

CLAIMS = {
    "array": b"\xdd\xff\xff\xff\xff",
    "array inside": b"\x93\x01\x11\xdd\xff\xff\xff\xff",
    "map": b"\x93\x01\x11\xdf\xff\xff\xff\xff",
    "bytes": b"\x93\x01\x11\xc6\xff\xff\xff\xff",
    "text": b"\x93\x01\x11\xdb\xff\xff\xff\xff",
    "extension": b"\x93\x01\x11\xc9\xff\xff\xff\xff\x01",
}
"""A few bytes that announce four billion elements."""


@contextmanager
def memory(peaks):
    """Append the most bytes that are allocated at once."""
    tracemalloc.start()
    try:
        yield
    finally:
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


def read_trustingly(data, *, most):
    """Parse whatever comes."""
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise DecodeError(str(error)) from None


@attack(
    21,
    "sends the server arrays in arrays that claim to be long",
    power=Power.PEER,
    gain="a thousand times the memory of the message",
    defence="flat messages, whose sizes are bounded before anything is allocated",
    spec="7.1",
    end=Fault.MALFORMED,
    culprit=3,
)
def test_nested_arrays_to_the_server(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(wire, "read_fields", read_trustingly)
    parties, peaks = Parties(make_params()), []
    with memory(peaks):
        parties.server.receive(3, NESTED)
    culprits = frozenset((i, drop.fault) for i, drop in parties.server.drops.items())
    harmed = peaks[0] > MOST
    return Harm(harmed, frozenset() if harmed else culprits)


@attack(
    21,
    "sends a device arrays in arrays that claim to be long",
    power=Power.SERVER,
    gain="a thousand times the memory of the message",
    defence="flat messages, whose sizes are bounded before anything is allocated",
    spec="7.1",
    end=Refusal.MALFORMED,
)
def test_nested_arrays_to_a_device(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(wire, "read_fields", read_trustingly)
    peaks = []
    try:
        with memory(peaks):
            Client(3, POLICY).receive(NESTED)
    except PeerError:
        if peaks[0] <= MOST:
            raise
    return Harm(peaks[0] > MOST)


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_of_four_billion_elements_costs_nothing(claim):
    parties, peaks = Parties(make_params()), []
    with memory(peaks):
        parties.server.receive(3, CLAIMS[claim])
        with pytest.raises(PeerError, match="malformed"):
            Client(3, POLICY).receive(CLAIMS[claim])
        with pytest.raises(DecodeError):
            envelopes.decode(CLAIMS[claim])
    assert parties.server.drops[3].fault is Fault.MALFORMED
    assert peaks[0] <= MOST


def test_a_message_that_is_too_long_is_not_read():
    parties, peaks = Parties(make_params()), []
    message = (
        b"\x94\x01\x11\xc4\x10" + parties.params.tag + b"\xc6\x01\x00\x00\x00" + bytes(1 << 24)
    )
    with memory(peaks):
        parties.server.receive(3, message)
    assert parties.server.drops[3].fault is Fault.MALFORMED
    assert peaks[0] <= MOST


def spoiled(parties):
    """Run the session to its end: whether a sum is wrong or missing, and who is named for it."""
    try:
        for _ in parties.steps():
            pass
    except SessionAborted:
        pass
    right = [
        result.vector.tolist()
        == plain_sum(parties.params, result.slot, parties.inputs, result.contributors)
        for result in parties.sums
    ]
    harmed = right != [True] * len(parties.params.slots)
    return Harm(harmed, frozenset(parties.faults.items()))


LIAR = 3


@attack(
    22,
    "gives wrong shares of its peers' secrets",
    power=Power.PEER,
    gain="a wrong sum, and nobody to blame",
    defence="rebuilt secrets are compared with what was promised; shares are decoded",
    spec="10.10",
    end=Fault.BAD_SHARE,
    culprit=LIAR,
)
def test_wrong_shares(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(Promises, "is_seed", lambda *_: True)
    return spoiled(Rogues(make_params(), {(LIAR, Stage.UNMASK): lie_about()}))


@attack(
    22,
    "deals boxes without shares",
    power=Power.PEER,
    gain="no sum, and nobody to blame",
    defence="devices say whose box held no shares, before the first slot",
    spec="10.6",
    end=Fault.BAD_BOX,
    culprit=LIAR,
)
def test_boxes_without_shares(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(complaints, "judge", lambda *_: {})
    return spoiled(Rogues(make_params(), {(LIAR, Stage.SHARE): seal_junk}))
