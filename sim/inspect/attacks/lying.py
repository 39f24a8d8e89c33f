"""Devices that lie about what they are asked: losses, updates, shares and lengths.

The liar has nothing to find out; what it wants is to move the threshold, the model or a sum, or to
stop the server. The server and all other devices follow the protocol.
"""

import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import msgpack
import numpy as np

from deltafl.protocol.selection import Threshold
from deltafl.secagg import (
    ClientId,
    Drop,
    Fault,
    Server,
    SessionAborted,
    SessionParams,
    Stage,
    Step,
    ring,
    run_session,
    shamir,
    wire,
)
from deltafl.secagg.errors import present
from deltafl.secagg.messages import ShareReceipt, UnmaskShares
from deltafl.secagg.params import DIGEST_SIZE
from deltafl.secagg.ring import Vector
from deltafl.secagg.session import NoObserver, drive
from deltafl.secagg.states import Vanish, Vanishing
from deltafl.sim.inspect.attacks.attack import (
    LIAR,
    Attack,
    Culprit,
    Left,
    Loot,
    Power,
    harm,
    presuppose,
    signed,
    told,
)
from deltafl.sim.inspect.attacks.evil_server import served
from deltafl.sim.inspect.attacks.own_round import (
    UPDATE_ROUND,
    VERIFIED_ROUND,
    Device,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.own_session import (
    BINDING,
    LENGTH,
    POLICY,
    RING_BITS,
    Devices,
    make_params,
)
from deltafl.sim.inspect.attacks.steering import Steering

# --- losses and updates ------------------------------------------------------------------------

_PROVED_ROUND: Final = replace(VERIFIED_ROUND, search=replace(VERIFIED_ROUND.search, proved=True))


def _summed(vectors: Sequence[Vector], ring_bits: int) -> Vector:
    """The sum of vectors of devices that run code of their own, which mask whatever they like."""
    params = make_params(len(vectors), 3, slots=((len(vectors[0]), ring_bits),))
    inputs = {ClientId(k): [ring.to_words(one, ring_bits)] for k, one in enumerate(vectors)}
    (total,) = run_session(params, inputs, [BINDING], policy=POLICY)
    presuppose(len(total.contributors) == len(vectors), "nobody has noticed anything")
    return total.vector


@Attack(25, "14.14", power=Power.PEER)
@told(
    "claims the largest loss that a search can tell, round after round",
    gain="its part in the aggregate of Δ-FL, whatever its loss is",
    defence="none: nobody can check a loss, and proved votes are those of any loss",
)
def claimed_top_loss(_defended: bool) -> Loot:
    """The search is verified, and all votes are proved."""
    config, devices = _PROVED_ROUND, make_devices(_PROVED_ROUND)
    bound = float(config.search.grid.bound)
    lying = {**devices, LIAR: replace(devices[LIAR], loss=bound)}
    honest, _ = with_an_honest_server(RoundDevices(config))
    outcome, learnt = with_an_honest_server(RoundDevices(config, lying))
    presuppose(not outcome.drops, "nobody is dropped")
    found, true = present(outcome.search).threshold, present(honest.search).threshold
    presuppose(not devices[LIAR].measured(config).passes(true), "it is not in the true tail")
    return harm(
        LIAR in learnt[-1].contributors and lying[LIAR].measured(config).passes(found),
        f"its true loss is {devices[LIAR].loss}, and the tail begins at "
        f"{found.eta_half_ticks / 512:.4g}; "
        "on real data the attackers' share of the aggregate grows from 9 to 17 % "
        "(docs/limitations.md, 3)",
    )


@Attack(25, "14.14", power=Power.PEER)
@told(
    "masks made-up numbers in place of an update: three times what clip and weight allow",
    gain="the sum that it wants, as long as that is one that honest devices could have",
    defence="none: the update has no proof, so that what helps is who admits devices",
)
def numbers_beyond_every_bound(_defended: bool) -> Loot:
    """The server looks at the sum alone, which is within the bounds of five devices."""
    layout, update = UPDATE_ROUND.update_layout, UPDATE_ROUND.update
    allowed = update.clip * update.max_weight
    devices = make_devices(UPDATE_ROUND)
    sent = [one.measured(UPDATE_ROUND).contribution(one.update) for one in devices.values()]
    made_up = np.zeros_like(sent[0])
    made_up[: UPDATE_ROUND.update_length] = round(3 * allowed * 2**update.resolution_bits)
    total = layout.decode(_summed([made_up, *sent[1:]], layout.ring_bits))
    least = float(layout.to_float("update", total["update"]).min())
    return harm(
        least > 2 * allowed,
        f"the smallest number of the sum is {least:.4g}, and a device may add {allowed:g}",
    )


@Attack(17, "12.3", Left.HARMLESS, power=Power.PEER)
@told(
    "sends the largest allowed numbers, so that the sum wraps around",
    gain="a wrong sum that nobody notices",
    defence="the width of the ring is computed from the bounds and the cohort size",
)
def wrap_around(defended: bool) -> Loot:
    """Without the defence, the ring is only as wide as one device needs."""
    config, largest = UPDATE_ROUND, np.full(UPDATE_ROUND.update_length, UPDATE_ROUND.update.clip)
    device = Device(1.0, config.update.max_weight, largest.astype(np.float32))
    sent = device.measured(config).contribution(device.update)
    of = config.update_layout if defended else replace(config, cohort_size=1).update_layout
    words = signed(_summed([sent] * config.cohort_size, of.ring_bits), of.ring_bits)
    unit = config.update.max_weight * config.cohort_size * 2**config.update.resolution_bits
    return harm(
        not np.array_equal(words, sent.astype(np.int64) * config.cohort_size),
        f"every device sent {largest[0]:g} everywhere; the mean came out as {words[0] / unit:g}",
    )


# --- messages -----------------------------------------------------------------------------------

_DEPTH, _WIDTH = 200, 8000
MOST: Final = 1 << 20
"""The most memory that a message of 9 kB may take, in bytes."""

NESTED: Final = b"\x93\x01\x11" + (b"\xdc" + _WIDTH.to_bytes(2, "big")) * _DEPTH + bytes(_WIDTH)
"""Nested arrays, each of which claims to be as long as everything that follows."""


def peak_memory(work: Callable[[], object]) -> int:
    """The most bytes allocated at once while a function runs, whatever it raises."""
    tracemalloc.start()
    try:
        work()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def _read_trustingly() -> None:
    """Parse anything, as the library does."""
    with suppress(ValueError, msgpack.UnpackException):
        msgpack.unpackb(NESTED, strict_map_key=False)


def _culprits(drops: Mapping[ClientId, Drop]) -> frozenset[Culprit]:
    """Whom the server names, and for what."""
    return frozenset((client, drop.fault) for client, drop in drops.items())


@Attack(21, "7.1", Fault.MALFORMED, power=Power.PEER)
@told(
    "sends the server nested arrays that claim to be long",
    gain="memory use of a thousand times the message's size",
    defence="flat messages, whose sizes are checked before anything is allocated",
)
def nested_arrays_to_the_server(defended: bool) -> Loot:
    """Without the defence, the server parses anything."""
    devices = Devices(make_params(5, 3))
    server = Server(devices.params, devices.roster, devices.enrolment)
    peak = peak_memory(partial(server.receive, LIAR, NESTED) if defended else _read_trustingly)
    note = f"a message of {len(NESTED) / 1000:.1f} kB took {peak / 1000:,.1f} kB of memory"
    return harm(peak > MOST, note, _culprits(server.drops))


class _FalseShares(RoundDevices):
    """Devices, one of which releases shares that are off by one."""

    def answer(self, client: ClientId, data: bytes) -> bytes | None:
        """A device's answer."""
        reply = super().answer(client, data)
        message = None if reply is None else wire.decode(reply, self.params)
        if client != LIAR or not isinstance(message, UnmaskShares):
            return reply
        shares = message.shares.astype(np.uint64)
        shares[:, 0] = (shares[:, 0] + 1) % shamir.PRIME
        return wire.encode(replace(message, shares=shares.astype(np.uint32)), self.params)


class _FalseReceipts(Devices):
    """Devices, one of which changes what it says of its links, byte by byte.

    Args:
        params: What they are told.
        lies: By how much each byte of what it says of a link is changed, by exclusive or.
    """

    def __init__(self, params: SessionParams, lies: bytes) -> None:
        super().__init__(params)
        self._lies = lies

    def answer(self, client: ClientId, data: bytes) -> bytes | None:
        """A device's answer."""
        reply = super().answer(client, data)
        message = None if reply is None else wire.decode(reply, self.params)
        if client != LIAR or not isinstance(message, ShareReceipt):
            return reply
        told = {
            peer: bytes(a ^ b for a, b in zip(said, self._lies, strict=True))
            for peer, said in message.links.items()
        }
        return wire.encode(ShareReceipt(told), self.params)


def _under_a_server(devices: Devices, vanishing: Vanishing) -> tuple[Vector, frozenset[Culprit]]:
    """The sum of a server that follows the protocol, zeros if it has none, and the culprits."""
    server = Server(devices.params, devices.roster, devices.enrolment)
    with suppress(SessionAborted):
        drive(server, server.start(), devices.answer, vanishing, NoObserver())
        drive(server, server.open_slot(0, BINDING), devices.answer, vanishing, NoObserver())
    total = server.take_sum().vector if server.has_sum else ring.zeros(LENGTH, RING_BITS)
    return total, _culprits(server.drops)


def _right(devices: Devices) -> Vector:
    """The sum of all vectors but that of the one that lies."""
    total = ring.zeros(LENGTH, RING_BITS)
    for client in devices.roster:
        if client != LIAR:
            total += devices.inputs[client][0]
    return total


@Attack(22, "10.10", Fault.BAD_COMMITMENT, power=Power.PEER)
@told(
    "deposits other keys than those of its links, and drops out",
    gain="a wrong sum, and nobody is blamed",
    defence="the server compares the keys that it opens with the digests that both ends gave",
)
def false_deposits(defended: bool) -> Loot:
    """Without the defence, the server believes what it opens; with it, it has no sum."""
    params = make_params(5, 3)
    lies = bytes(wire.receipt_size(params) - DIGEST_SIZE) + bytes([1]) * DIGEST_SIZE
    devices = _FalseReceipts(params, lies)
    if defended:
        found, culprits = _under_a_server(devices, {LIAR: Vanish(Step(Stage.MASK))})
        return harm(bool(found.any()), culprits=culprits)
    evil = served(devices)
    evil.set_up()
    there = frozenset(evil.honest[1:])
    evil.open_slot(0, dict.fromkeys(there, evil.everyone))
    evil.unmask(0, there)
    return harm(not np.array_equal(evil.sum_over(0, there), _right(devices)))


@Attack(22, "10.6", Fault.ISOLATED, power=Power.PEER)
@told(
    "shows its peers wrong tags",
    gain="the end of the session on all other devices, which refuse its signature",
    defence="the server compares the tags that it passes on with what both ends derived",
)
def wrong_tags(defended: bool) -> Loot:
    """Without the defence, the server takes for linked whoever could read each other's box."""
    params = make_params(5, 3)
    lies = bytes([1]) + bytes(wire.receipt_size(params) - 1)
    devices = _FalseReceipts(params, lies)
    if defended:
        found, culprits = _under_a_server(devices, {})
        return harm(not np.array_equal(found, _right(devices)), culprits=culprits)
    evil = served(devices)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, evil.everyone)
    return harm(evil.refusals.keys() == evil.everyone - {0})


@Attack(22, "10.10", Fault.BAD_SHARE, power=Power.PEER)
@told(
    "releases wrong shares of its peers' secrets",
    gain="a wrong sum, and nobody is blamed",
    defence="the server compares rebuilt secrets with what was promised, and decodes shares",
)
def wrong_shares(defended: bool) -> Loot:
    """Without the defence, the server believes what it has rebuilt."""
    network, culprits = _FalseShares(UPDATE_ROUND), frozenset[Culprit]()
    if defended:
        outcome, learnt = with_an_honest_server(network)
        found, culprits = learnt[-1].vector, _culprits(outcome.drops)
    else:
        found = Steering(network).ask(0, Threshold(0, 0))
    sent = [one.measured(UPDATE_ROUND).contribution(one.update) for one in network.devices.values()]
    right = Loot(found, np.stack(sent).sum(axis=0), UPDATE_ROUND.update_layout.ring_bits)
    note = f"the sum is {'right' if right.is_complete else 'wrong'}"
    return harm(not right.is_complete, note, culprits)
