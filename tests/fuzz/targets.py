"""What must hold for any bytes whatever, and a corpus of valid ones to start from.

`one_input` is the one function under test, for Hypothesis in the suite and for atheris outside it.
Its first byte chooses the reader; the rest is what comes from the wire, or from a file.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from deltafl.protocol import wire as envelope_wire
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Announce, Ask, Envelope, Relay
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.radius import Clipped
from deltafl.protocol.selection import Threshold
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.secagg import (
    ClientId,
    DecodeError,
    DevicePolicy,
    Enrolment,
    SessionParams,
    SlotSpec,
    TrustedKeys,
    UsageError,
    run_session,
    wire,
)
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.session import NoObserver

_TOLERANT = (SlotSpec("short", 3, 13), SlotSpec("long", 5, 40))
_WHOLE = (SlotSpec("first", 3, 48, whole=True, verified=True), SlotSpec("last", 5, 40))
PARAMS = {
    name: SessionParams(
        slots=slots,
        num_invited=5,
        degree=4,
        threshold=3,
        min_cohort=3,
        graph_seed=bytes(32),
        context=bytes(32),
    )
    for name, slots in (("tolerant", _TOLERANT), ("verified", _WHOLE))
}
IDS = [ClientId(3 + 7 * i) for i in range(5)]


def read_tolerant(data: bytes) -> bool:
    """A message of a session of tolerant slots."""
    return _read_message(data, PARAMS["tolerant"])


def read_verified(data: bytes) -> bool:
    """A message of a session whose first slot is whole and verified."""
    return _read_message(data, PARAMS["verified"])


def read_opening(data: bytes) -> bool:
    """The message with which a device meets a session."""
    try:
        message = wire.decode_open(data)
    except DecodeError:
        return False
    assert wire.encode(message, message.params) == data, "not canonical"
    return True


def read_envelope(data: bytes) -> bool:
    """The server's envelope around a message."""
    try:
        envelope = envelope_wire.decode(data)
    except DecodeError:
        return False
    assert envelope_wire.encode(envelope) == data, "not canonical"
    return True


def read_directory(data: bytes) -> bool:
    """A list of identities: what is read is what is written, and a written list reads as itself."""
    try:
        directory = TrustedKeys.parse(data.decode(errors="replace"))
    except UsageError:
        return False
    written = directory.dump()
    again = TrustedKeys.parse(written)
    assert (again, again.dump()) == (directory, written), "a list that changes as it is written"
    assert len(again.keys) <= data.count(b"\n") + 1, "more devices than lines"
    return True


READERS = (
    read_tolerant,
    read_verified,
    read_opening,
    read_envelope,
    read_directory,
)


def one_input(data: bytes) -> bool:
    """Read some bytes in the way that the first of them chooses; whether they are accepted.

    Raises:
        AssertionError: they are accepted, and are not canonical.
    """
    return bool(data) and READERS[data[0] % len(READERS)](data[1:])


def _read_message(data: bytes, params: SessionParams) -> bool:
    try:
        message = wire.decode(data, params)
    except DecodeError:
        return False
    assert wire.encode(message, params) == data, "not canonical"
    return True


class _Listener(NoObserver):
    """Keeps every message of a session, one of each kind and size."""

    def __init__(self) -> None:
        self.heard: dict[tuple[int, int], bytes] = {}

    def message(self, *, sent, peer, data) -> None:
        del sent, peer
        self.heard.setdefault((data[2], len(data)), data)

    def revealed(self, total) -> None:
        if total.opening is not None:
            self.message(sent=True, peer=None, data=total.opening)


def session_messages(name: str) -> list[bytes]:
    """Messages of all kinds, overheard in one session."""
    params, listener = PARAMS[name], _Listener()
    vectors: Sequence = [
        np.arange(3, dtype=np.uint32),
        np.arange(5, dtype=np.uint64),
    ]
    run_session(
        params,
        dict.fromkeys(IDS, vectors),
        [b"first", b"second"],
        policy=DevicePolicy(min_cohort=3, colluding_rate=0.0),
        randomness=SeededRandomness(bytes(32)),
        observer=listener,
    )
    return list(listener.heard.values())


def envelopes() -> list[Envelope]:
    """One of each kind."""
    config = RoundConfig(
        round_index=3,
        cohort_size=5,
        theta=Fraction(1, 2),
        method="histogram",
        num_pivots=4,
        search=SearchParams(max_queries=2, grid=LossGrid(resolution_bits=8, bound=8)),
        update=UpdateParams(clip=4.0, resolution_bits=12, max_weight=500),
        update_length=4,
    )
    followed = replace(
        config, method="mm", num_pivots=None, search=replace(config.search, verified=True)
    )
    noisy = replace(config.update, max_weight=1, aggregation=UpdateNoise(1.0, 300, 4))
    bounded = replace(config.update, aggregation=Clipped(0.25))
    thetas = (Fraction(1, 2), Fraction(1, 3))
    return [
        Announce(Levels((config,)), b"model", b"session"),
        Announce(Levels((replace(followed, warm_start=7),)), b"model", b"session"),
        Announce(Levels.at(config, thetas, (None, 5)), b"model1model2", b"session"),
        Relay(b"session"),
        Ask(Query("histogram", (1, 5, 2**40)), b"session"),
        Ask(Query("mm", (5,)), b"session", b"opening"),
        Ask(Threshold(17, 2), b"session"),
        Ask(Threshold(17, 0), b"session", b"opening"),
        Announce(Levels((replace(config, update=noisy),)), b"model", b"session"),
        Announce(Levels((replace(config, update=bounded),)), b"model", b"session"),
    ]


def directories() -> list[bytes]:
    """A list as it is written, and one as people write it."""
    enrolment = Enrolment(SeededRandomness(bytes(32)))
    keys = {i: enrolment.credentials(i).identity.public for i in IDS}
    written = TrustedKeys(keys).dump()
    lines = written.upper().splitlines()
    by_hand = "# our devices\r\n\n" + "\r\n".join(f"\t{line}  # mine" for line in reversed(lines))
    return [written.encode(), by_hand.encode(), b""]


def corpus() -> list[bytes]:
    """Valid inputs of every kind for `one_input`."""
    sessions = [session_messages(name) for name in PARAMS]
    openings = [data for heard in sessions for data in heard if data[2] == 0x01]
    groups = (
        *sessions,
        openings,
        [envelope_wire.encode(envelope) for envelope in envelopes()],
        directories(),
    )
    return [bytes([reader]) + data for reader, group in enumerate(groups) for data in group]
