"""Attacks on a session: lists of devices, shares, keys, and masks that are used twice.

A defence is taken away by what devices insist on, by the parameters of the session, by what devices
draw and compute with, or by devices that are put back to what they were before.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from deltafl.secagg import (
    Adversary,
    ClientId,
    Credentials,
    DevicePolicy,
    FirstUse,
    Refusal,
    keys,
    prg,
)
from deltafl.secagg.identity import identity
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.masks import Link
from deltafl.secagg.messages import AdvertiseKeys
from deltafl.secagg.params import SessionId
from deltafl.secagg.primitives import Primitives, add_pairwise
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.sim.inspect.attacks.attack import Attack, Left, Loot, Power, presuppose, told
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer
from deltafl.sim.inspect.attacks.own_session import (
    ONE_WHOLE_SLOT,
    POLICY,
    Devices,
    make_params,
    new_enrolment,
)


def _opened(devices: Devices, num_colluders: int = 0) -> EvilServer:
    """A server that has set a session up and opened its first slot; the last devices collude."""
    own = devices.roster[len(devices.roster) - num_colluders :]
    evil = EvilServer(devices.params, devices.roster, devices.answer, map(Colluder, own))
    evil.set_up()
    evil.open_slot(0)
    return evil


def _against_first(devices: Devices, evil: EvilServer) -> Loot:
    """What the server can make of the first device's masked vector, and that device's vector."""
    refusals = tuple(evil.refusals.values())
    return Loot(evil.sum_over(0, {0}), devices.vector(0), refusals=refusals)


@Attack(1, "3.7", Refusal.POLICY, saying="two quorums")
@told(
    "tells one half of the devices that a device survived and the other half that it dropped out",
    gain="the device's vector",
    defence="devices that expect an active server insist on 2t > (1 + γ)h",
)
def two_survivor_lists(defended: bool) -> Loot:
    """There are six devices, and three are enough to unmask. Each half signs its own list."""
    active = replace(POLICY, adversary=Adversary.ACTIVE)
    devices = Devices(make_params(6, 3, signed=True), policy=active if defended else POLICY)
    evil = _opened(devices)
    lost = evil.everyone - {0}
    evil.unmask(0, {p: evil.everyone if p <= 2 else lost for p in evil.honest})
    return _against_first(devices, evil)


@Attack(2, "9.3", Refusal.BOTH_SHARE_KINDS)
@told(
    "asks devices for one kind of share of a peer, and then for the other kind",
    gain="the peer's vector",
    defence="a device answers one request per slot, and the request names survivors only",
)
def both_shares(defended: bool) -> Loot:
    """At first, all devices have survived. Then the first device has dropped out.

    Without the defence, the second request goes to devices that know of no first one.
    """
    devices = Devices(make_params(5, 3))
    evil = _opened(devices)
    evil.unmask(0, evil.everyone)
    asked = evil if defended else _opened(Devices(devices.params))
    asked.unmask(0, evil.everyone - {0})
    asked.secrets |= evil.secrets
    return _against_first(devices, asked)


def _made_up(client: ClientId) -> Credentials:
    """Credentials that anybody can create."""
    return Credentials(identity(client.to_bytes(32, "big")), FirstUse())


@Attack(3, "6.3", Refusal.BAD_SIGNATURE, power=Power.NETWORK)
@told(
    "answers one device in place of all others, with its own keys (man in the middle)",
    gain="the shares of the device's secrets, and so its vector",
    defence="signed key advertisements",
)
def key_substitution(defended: bool) -> Loot:
    """The attacker keeps the other devices' real answers to itself, and shows their signatures."""
    params = make_params(6, 4, signed=defended)
    devices = Devices(params)
    real = EvilServer(params, devices.roster, Devices(params).answer)
    real.advertise()
    doubles = [Colluder(i, _made_up(i) if defended else None) for i in devices.roster[1:]]
    evil = EvilServer(params, devices.roster, devices.answer, doubles)
    evil.advertise()
    for position in range(1, params.num_invited):
        shown = real.keys[position].credential
        evil.keys[position] = replace(evil.keys[position], credential=shown)
    evil.set_up()
    evil.open_slot(0)
    evil.pool(0)
    return _against_first(devices, evil)


@Attack(5, "5.3", Left.NOISE)
@told(
    "declares a device dropped out, rebuilds its key, and then receives its vector",
    gain="the device's vector",
    defence="a self mask, whose seed is not revealed for devices that dropped out",
)
def late_masked_input(defended: bool) -> Loot:
    """Without the defence, devices add the masks that they share, and no mask of their own."""
    bare = Primitives(add_masks=lambda _total, _added, _subtracted: None)
    devices = Devices(make_params(5, 3), primitives=Primitives() if defended else bare)
    evil = _opened(devices)
    evil.unmask(0, evil.everyone - {0})
    taken = evil.sum_over(0, {0})
    if not defended:  # put back the mask that was taken off on a guess
        prg.add_mask(taken, evil.context(0).self_mask_key(bytes(prg.SEED_SIZE)))
    return Loot(taken, devices.vector(0), refusals=tuple(evil.refusals.values()))


@Attack(6, "9.3", Refusal.SLOT_REUSED)
@told(
    "opens a slot again for another question",
    gain="the difference of a device's two vectors; if it knows one of them, also the other",
    defence="a device uses a slot once and then deletes its secrets",
)
def slot_reuse(defended: bool) -> Loot:
    """The first time, all devices send zeros, and the attacker knows this.

    Without the defence, the second question goes to devices that know of no first one.
    """
    devices = Devices(make_params(5, 3))
    wanted, silent = devices.inputs, {i: [np.zeros_like(v)] for i, (v,) in devices.inputs.items()}
    devices.inputs = silent
    asked = evil = _opened(devices, num_colluders=1)
    evil.unmask(0, evil.everyone)
    first = evil.sum_over(0, {0})
    devices.inputs = wanted
    if defended:  # a repetition would be ignored
        asked.open_slot(0, evil.everyone - {4})
    else:
        asked = _opened(Devices(devices.params), num_colluders=1)
        asked.secrets |= evil.secrets
    taken = asked.sum_over(0, {0}) - first
    return Loot(taken, devices.vector(0), refusals=tuple(asked.refusals.values()))


_SEEDS: Final = 1 << 12


def _of_few_seeds(number: int) -> Randomness:
    return SeededRandomness((number % _SEEDS).to_bytes(32, "little"))


@Attack(7, "2.8", Left.NOISE)
@told(
    "tries all seeds of the generator that a device draws its secrets from",
    gain="all secrets of the device, and so its vector",
    defence="every secret is drawn from a source of 256 bits",
)
def short_seeds(defended: bool) -> Loot:
    """Without the defence, seeds have 12 bits. 28 bits, as in some software, would take hours.

    The keys that a device shows tell which seed is the right one, and the seed all of its secrets.
    """
    devices = Devices(make_params(5, 4), source=None if defended else _of_few_seeds)
    evil = _opened(devices)
    shown = evil.keys[0].sealing_key
    for number in range(_SEEDS):
        if keys.generate(_of_few_seeds(number)).public == shown:
            twin = Colluder(devices.roster[0], randomness=_of_few_seeds(number))
            others = Devices(devices.params).answer
            rehearsal = EvilServer(devices.params, devices.roster, others, [twin])
            rehearsal.set_up()
            evil.secrets |= rehearsal.secrets
    return _against_first(devices, evil)


@Attack(19, "3.7", Refusal.POLICY, saying="threshold=2 is below")
@told(
    "announces a threshold that its own devices reach",
    gain="every device's vector",
    defence="the device's own floors for t and t / h",
)
def low_threshold(defended: bool) -> Loot:
    """Two of eight devices collude, and two shares are enough to rebuild a secret."""
    params = replace(make_params(8, 2), min_cohort=6)
    devices = Devices(params, policy=DevicePolicy() if defended else POLICY)
    evil = _opened(devices, num_colluders=2)
    evil.pool(0)
    return _against_first(devices, evil)


@Attack(20, "9.12", Left.NOISE)
@told(
    "declares a device dropped out, aborts, and declares it a survivor in the retry",
    gain="both secrets of the device, one from each attempt, and so its vector",
    defence="a retry is a new session with new keys and seeds",
)
def abort_and_retry(defended: bool) -> Loot:
    """Without the defence, devices keep their keys and seeds for the retry."""
    devices = Devices(make_params(5, 3))
    aborted = _opened(devices)
    aborted.unmask(0, aborted.everyone - {0})
    again = Devices(make_params(5, 3, number=1), seed=int(defended))
    again.inputs = devices.inputs
    retry = _opened(again)
    retry.unmask(0, retry.everyone)
    kept = [again.mask_keys == aborted.keys[p].mask_keys for p, again in retry.keys.items()]
    presuppose(kept == [not defended] * len(kept), "a retry has fresh keys, or all are kept")
    retry.secrets |= aborted.secrets | retry.secrets
    return _against_first(devices, retry)


def _link(peer: int, one: PublicKey, other: PublicKey, session_id: SessionId) -> Link:
    """What two devices share if the key of one is of small order: zeros, and what is public."""
    return Link(peer, keys.extract(bytes(32), salt=session_id), b"".join(sorted((one, other))))


@Attack(23, "2.3", Refusal.BAD_KEY, saying="low-order")
@told(
    "shows keys of small order as the keys of all other devices",
    gain="masks that anybody can make, and so the device's vector of a whole slot",
    defence="devices refuse points of small order",
)
def low_order_keys(defended: bool) -> Loot:
    """There are three devices, and the first is shown such keys of two.

    Without the defence, the vector is masked as by a device that agrees with such keys.
    """
    devices = Devices(make_params(3, 2, slots=ONE_WHOLE_SLOT))
    evil = EvilServer(devices.params, devices.roster, devices.answer)
    evil.advertise()
    for peer, point in ((1, 0), (2, 1)):
        key = PublicKey(point.to_bytes(32, "little"))
        evil.keys[peer] = AdvertiseKeys(key, ())
    if defended:
        evil.set_up()
    context, taken, own = evil.context(0), devices.vector(0).copy(), evil.keys[0].sealing_key
    info = context.whole_slot_info(evil.members(evil.everyone))
    for peer in (1, 2):
        shown = evil.keys[peer].sealing_key
        presuppose(keys.is_low_order(shown), "everybody knows what is agreed with such a key")
        add_pairwise(taken, 0, [_link(peer, own, shown, context.session_id).whole(info)])
        # The attacker makes the same mask from the public keys alone.
        add_pairwise(taken, peer, [_link(0, shown, own, context.session_id).whole(info)])
    return Loot(taken, devices.vector(0))


_ROUNDS: Final = 6


@Attack(11, "9.5")
@told(
    "collects sums over overlapping cohorts, round after round, and solves for the devices",
    gain="every vector that stays the same over the rounds",
    defence="none: sums are exact; an audit reports whose updates can be solved for",
)
def many_rounds(_defended: bool) -> Loot:
    """Six devices play six rounds. Each round lacks another device, so each sum is over five."""
    sums, enrolment = [], new_enrolment()
    for index in range(_ROUNDS):
        params = make_params(_ROUNDS, 4, number=index, signed=True)
        devices = Devices(params, enrolment=enrolment)
        ids = [client for position, client in enumerate(devices.roster) if position != index]
        evil = EvilServer(params, ids, devices.answer)
        evil.set_up()
        evil.open_slot(0)
        evil.unmask(0, evil.everyone)
        sums.append(evil.sum_over(0, evil.everyone))
    # Every vector is in all sums but one: their total is five times that of the vectors.
    fifth = pow(_ROUNDS - 1, -1, 1 << 32)
    total = np.stack(sums).sum(axis=0, dtype=np.uint32)
    return Loot(total * np.uint32(fifth) - sums[0], devices.vector(0))
