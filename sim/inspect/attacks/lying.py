"""Devices that lie about what they are asked: votes, losses, weights, updates, shares and lengths.

The liar has nothing to find out; what it wants is to move the threshold, the model or a sum, or to
stop the server. The server and all other devices follow the protocol.
"""

import tracemalloc
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import msgpack
import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.ballots import Voter
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ClientId, Drop, Fault, Server, ring, shamir, wire
from deltafl.secagg.errors import present
from deltafl.secagg.messages import UnmaskShares
from deltafl.secagg.openings import Prove
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import (
    LIAR,
    Attack,
    Left,
    Loot,
    Power,
    harm,
    presuppose,
    signed,
)
from deltafl.sim.inspect.attacks.evil_server import EvilServer
from deltafl.sim.inspect.attacks.own_round import (
    UPDATE_ROUND,
    VERIFIED_ROUND,
    Device,
    RoundDevices,
    Say,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.own_session import Devices, honest_sum, make_params

# --- votes and updates --------------------------------------------------------------------------

_PROVED_ROUND: Final = replace(VERIFIED_ROUND, search=replace(VERIFIED_ROUND.search, proved=True))


def _ten_times(vector: Vector) -> Vector:
    """An answer to a query whose vote weighs ten times as much; it is one vote by count."""
    heavier = vector.copy()
    weights = [0, *range(2, 2 + (len(vector) - 2) // 2)]
    heavier[weights] *= heavier.dtype.type(10)
    return heavier


def _heavier(config: RoundConfig) -> Say:
    """The liar's votes, with the proofs of true ones; it trains like an honest device."""
    device, randomness = make_devices(config)[LIAR], SeededRandomness(bytes(32))
    own, search = device.measured(config), config.search_config
    voter = Voter.drawn(search, search.search.weighting.of(own.weight), randomness)
    asked = list[Query]()

    def say(question: Query | Threshold, _model: bytes) -> tuple[Vector, Prove | None]:
        if isinstance(question, Threshold):
            update = device.update if own.passes(question) else None
            return own.contribution(update), None
        prove = partial(
            voter.prove, search, question, own.tick, randomness=randomness, is_first=not asked
        )
        asked.append(question)
        return _ten_times(own.answer(question)), prove if search.search.proved else None

    return say


def _culprits(drops: Mapping[ClientId, Drop]) -> frozenset[tuple[int, Fault]]:
    """Whom the server names, and for what."""
    found = {(int(client), drop.fault) for client, drop in drops.items()}
    return frozenset((client, fault) for client, fault in found if fault is not None)


@Attack(
    25,
    "answers the queries of a search with ten times its weight, which is more than any may have",
    power=Power.PEER,
    gain="another threshold: with it, devices train that the search would have left out",
    defence="devices prove that their votes are valid, and the server drops whoever does not; "
    "without quantile.votes = 'proved', nothing stops it",
    spec="12.17",
    end=Fault.BAD_PROOF,
)
def vote_that_counts_ten_times(defended: bool) -> Loot:
    """The liar commits to what it sends, so that the search is verified all the same.

    Where it is dropped, the search ends early, as if it had vanished: slots of queries are whole.
    """
    config = _PROVED_ROUND if defended else VERIFIED_ROUND
    outcome, learnt = with_an_honest_server(RoundDevices(config, says={LIAR: _heavier(config)}))
    honest, _ = with_an_honest_server(RoundDevices(config))
    presuppose(honest.search is not None and honest.search.certified, "the search succeeds else")
    is_summed = any(LIAR in one.contributors for one in learnt if one.slot < config.update_slot)
    moved = outcome.kept_devices > honest.kept_devices
    presuppose(defended or moved, "the vote lowers the threshold")
    return harm(
        is_summed,
        f"{outcome.kept_devices} devices trained, and {honest.kept_devices} of an honest cohort",
        _culprits(outcome.drops),
    )


@Attack(
    25,
    "claims the largest loss that a search can tell, round after round",
    power=Power.PEER,
    gain="its part in the aggregate of Δ-FL, whatever its loss is",
    defence="none: nobody can check a loss; proved votes are those of some loss, and it need not "
    "be the true one",
    spec="14.14",
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


@Attack(
    25,
    "masks numbers of its own making in place of an update: three times what the clip and the "
    "largest weight allow",
    power=Power.PEER,
    gain="the sum that it wants, as long as that is one that honest devices could have",
    defence="none: the update has no proof, and clip and weight bind only devices that run this "
    "code; what helps is who admits devices",
    spec="14.14",
)
def numbers_beyond_every_bound(_defended: bool) -> Loot:
    """The server looks at the sum alone, which is within the bounds of five devices."""
    layout, update = UPDATE_ROUND.update_layout, UPDATE_ROUND.update
    allowed = update.clip * update.max_weight
    made_up = np.zeros(layout.length, np.uint64)
    made_up[: UPDATE_ROUND.update_length] = round(3 * allowed * 2**update.resolution_bits)
    lying = RoundDevices(UPDATE_ROUND, says={LIAR: lambda _question, _model: (made_up, None)})
    outcome, learnt = with_an_honest_server(lying)
    honest, _ = with_an_honest_server(RoundDevices(UPDATE_ROUND))
    presuppose(outcome.aborted is None and not outcome.drops, "nobody has noticed anything")
    least = float(layout.to_float("update", layout.decode(learnt[-1].vector)["update"]).min())
    return harm(
        least > 2 * allowed,
        f"the smallest number of the sum is {least:.4g}, and a device may add {allowed:g}; "
        f"the largest of an honest mean is {present(honest.update).max():.2g}",
    )


@Attack(
    17,
    "sends the largest allowed numbers, so that the sum wraps around",
    power=Power.PEER,
    gain="a wrong sum that nobody notices",
    defence="the width of the ring is computed from the bounds and the cohort size",
    spec="12.3",
    end=Left.HARMLESS,
)
def wrap_around(defended: bool) -> Loot:
    """Without the defence, the ring is only as wide as one device needs."""
    config, largest = UPDATE_ROUND, np.full(UPDATE_ROUND.update_length, UPDATE_ROUND.update.clip)
    device = Device(1.0, config.update.max_weight, largest.astype(np.float32))
    sent = device.measured(config).contribution(device.update)
    of = config.update_layout if defended else replace(config, cohort_size=1).update_layout
    devices = Devices(make_params(config.cohort_size, 3, slots=((len(sent), of.ring_bits),)))
    devices.inputs = {client: [ring.to_words(sent, of.ring_bits)] for client in devices.roster}
    server = Server(devices.params, devices.roster, devices.enrolment)
    words = signed(honest_sum(server, devices.answer), of.ring_bits)
    presuppose(not server.drops, "nobody has noticed anything")
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


@Attack(
    21,
    "sends the server nested arrays that claim to be long",
    power=Power.PEER,
    gain="memory use of a thousand times the message's size",
    defence="flat messages, whose sizes are checked before anything is allocated",
    spec="7.1",
    end=Fault.MALFORMED,
)
def nested_arrays_to_the_server(defended: bool) -> Loot:
    """Without the defence, the server parses anything."""
    devices = Devices(make_params(5, 3))
    server = Server(devices.params, devices.roster, devices.enrolment)
    peak = peak_memory(partial(server.receive, LIAR, NESTED) if defended else _read_trustingly)
    note = f"a message of {len(NESTED) / 1000:.1f} kB took {peak / 1000:,.1f} kB of memory"
    return harm(peak > MOST, note, _culprits(server.drops))


@Attack(
    22,
    "releases wrong shares of its peers' secrets",
    power=Power.PEER,
    gain="a wrong sum, and nobody is blamed",
    defence="the server compares rebuilt secrets with what was promised, and decodes shares",
    spec="10.10",
    end=Fault.BAD_SHARE,
)
def wrong_shares(defended: bool) -> Loot:
    """Without the defence, the server believes what it has rebuilt."""
    devices = Devices(make_params(5, 3))
    right = np.sum([devices.vector(p) for p in range(5)], axis=0, dtype=np.uint32)
    server = Server(devices.params, devices.roster, devices.enrolment)

    def answer(client: ClientId, data: bytes) -> bytes | None:
        reply = devices.answer(client, data)
        return reply if reply is None or client != LIAR else _wrong(devices, reply)

    if defended:
        found = honest_sum(server, answer)
    else:
        credulous = EvilServer(devices.params, devices.roster, answer)
        credulous.set_up()
        credulous.open_slot(0)
        credulous.unmask(0, credulous.everyone)
        found = credulous.sum_over(0, credulous.everyone)
    is_right = np.array_equal(found, right)
    note = f"the sum is {'right' if is_right else 'wrong'}"
    return harm(not is_right, note, _culprits(server.drops))


def _wrong(devices: Devices, data: bytes) -> bytes:
    """A message of a device; every share in it is off by one."""
    message = wire.decode(data, devices.params)
    if not isinstance(message, UnmaskShares):
        return data
    shares = message.shares.astype(np.uint64)
    # Limb 3: the lowest bits of a secret key do not matter, X25519 clears them.
    shares[:, 3] = (shares[:, 3] + 1) % shamir.PRIME
    return wire.encode(replace(message, shares=shares.astype(np.uint32)), devices.params)
