"""The session of docs/spec.md, section 15: played by the real machines, every message kept."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from hashlib import sha256

import numpy as np

from deltafl.protocol import wire as envelopes
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Ask
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.server import RoundServer
from deltafl.secagg import Credentials, SessionParams, wire
from deltafl.secagg.directory import TrustedKeys
from deltafl.secagg.identity import identity
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.summing import SlotSum

IDS = (3, 10, 17)
LOSSES = {3: 0.5, 10: 1.5, 17: 2.5}
MODEL = np.arange(4, dtype="<f4").tobytes()
CONFIG = RoundConfig(
    round_index=0,
    cohort_size=3,
    theta=Fraction(1, 2),
    method="mm",
    search=SearchParams(1, LossGrid(resolution_bits=8, bound=8), min_cohort=3, verified=True),
    update=UpdateParams(clip=4.0, resolution_bits=10, max_weight=16),
    update_length=4,
)
LEVELS = Levels((CONFIG,))
PARAMS = SessionParams(
    slots=LEVELS.slots(),
    num_invited=3,
    degree=2,
    threshold=3,
    min_cohort=3,
    min_roster=3,
    graph_seed=bytes(32),
    context=LEVELS.context(MODEL),
    signed=True,
)
POLICY = RoundPolicy(
    min_cohort=3,
    min_honest_tail=0,
    max_mm_pivots_per_device=Fraction(1),
)
_SHOWN = 24  # bytes of a message


@dataclass(frozen=True)
class Played:
    """The session.

    Attributes:
        to: What each device got, in order.
        by: What each device sent, in order.
        sums: What the server learned.
    """

    to: dict[int, list[bytes]]
    by: dict[int, list[bytes]]
    sums: list[SlotSum]


def seeds_of(device):
    """The seeds of a device's randomness and of its identity."""
    return bytes([device]) * 32, bytes([0x80 + device]) * 32


def update_of(device):
    loss = LOSSES[device]
    return np.array([loss, 0, 0, -loss], dtype=np.float32)


@cache
def played():
    """Play it, once."""
    identities = {device: identity(seeds_of(device)[1]) for device in IDS}
    directory = TrustedKeys({device: own.public for device, own in identities.items()})
    server = RoundServer(LEVELS, MODEL, PARAMS, IDS, directory)
    clients = {
        device: RoundClient(
            device,
            POLICY,
            SeededRandomness(seeds_of(device)[0]),
            Credentials(identities[device], directory),
        )
        for device in IDS
    }
    session = Played({i: [] for i in IDS}, {i: [] for i in IDS}, [])
    outgoing = server.start()
    while outgoing:
        for device in IDS:
            session.to[device].append(outgoing[device])
            reply = clients[device].receive(outgoing[device])
            if reply is LocalWork.MEASURE_LOSS:
                reply = clients[device].supply_loss(LOSSES[device], 1)
            elif reply is LocalWork.TRAIN:
                reply = clients[device].supply_update(update_of(device))
            elif reply is LocalWork.WAIT:
                reply = clients[device].supply_zeros()
            session.by[device].append(reply)
            server.receive(device, reply)
        outgoing = server.close_round()
        if server.revealed is not None:
            session.sums.append(server.revealed)
    return session


def name_of(data, *, sent):
    """What a message is called: for an envelope, with the session's messages in it."""
    if sent:
        return type(wire.decode(data, PARAMS)).__name__
    envelope = envelopes.decode(data)
    inside = type(wire.decode(envelope.session, PARAMS)).__name__
    if isinstance(envelope, Ask):
        opening = "SumOpening, " if envelope.opening else ""
        return f"{type(envelope.question).__name__} ({opening}{inside})"
    return f"{type(envelope).__name__} ({inside})"


def table():
    """Section 15: values that everybody computes, device 3's messages, and the sums."""
    session = played()
    roster = np.array(IDS, dtype="<u4").tobytes()
    values = [
        ("context (12.6)", PARAMS.context),
        ("params digest (3.3)", PARAMS.digest),
        ("session id (3.3)", PARAMS.session_id(roster)),
        *(
            (f"all that device {device} sent, joined: SHA-256", sha256(b"".join(sent)).digest())
            for device, sent in session.by.items()
        ),
    ]
    lines = ["| value | hex |", "| --- | --- |"]
    lines += [f"| {name} | `{value.hex()}` |" for name, value in values]
    lines += ["", "What device 3 gets (→) and sends (←):", ""]
    lines += ["| | message | bytes | begins | SHA-256 begins |", "| --- | --- | --- | --- | --- |"]
    for got, sent in zip(session.to[3], session.by[3], strict=True):
        for arrow, data in (("→", got), ("←", sent)):
            name, digest = name_of(data, sent=data is sent), sha256(data).hexdigest()[:16]
            start = data[:_SHOWN].hex()
            lines.append(f"| {arrow} | {name} | {len(data)} | `{start}` | `{digest}` |")
    lines += ["", "| slot | sum |", "| --- | --- |"]
    lines += [f"| {total.slot} | {total.vector.tolist()} |" for total in session.sums]
    return "\n".join(lines)
