"""Attacks on a session: lists of devices, shares, keys, and masks that are used twice.

A defence is taken away by what devices insist on, by the parameters of the session, by what devices
draw and compute with, or by devices that are put back to what they were before.
"""

from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np

from deltafl.secagg import (
    Adversary,
    ClientId,
    Credentials,
    DevicePolicy,
    Enrolment,
    FirstUse,
    Refusal,
    keys,
    prg,
    shamir,
)
from deltafl.secagg.identity import identity
from deltafl.secagg.messages import ShareKind
from deltafl.secagg.primitives import Primitives
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.sim.inspect.attacks.attack import Attack, Left, Loot, Power, presuppose, told
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer, against_first, opened
from deltafl.sim.inspect.attacks.own_session import (
    POLICY,
    Devices,
    make_params,
    new_enrolment,
)


@Attack(1, "3.7", Refusal.POLICY, saying="two quorums")
@told(
    "tells one half of the devices that a device survived and the other half that it dropped out",
    gain="the device's vector",
    defence="devices that expect an active server insist on 2t > (1 + γ)h",
)
def two_survivor_lists(defended: bool) -> Loot:
    """There are six devices, and three are enough to unmask. Each half signs its own list."""
    active = replace(POLICY, adversary=Adversary.ACTIVE)
    devices = Devices(make_params(6, 3), policy=active if defended else POLICY)
    evil = opened(devices)
    lost = evil.everyone - {0}
    evil.unmask(0, {p: evil.everyone if p <= 2 else lost for p in evil.honest})
    return against_first(devices, evil)


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
    evil = opened(devices)
    evil.unmask(0, evil.everyone)
    asked, lost = evil, evil.everyone - {0}
    lists = dict.fromkeys(lost, lost)
    if not defended:
        asked = opened(Devices(devices.params))
        asked.confirm(0, lists)
    asked.ask(0, lists)
    asked.secrets |= evil.secrets
    return against_first(devices, asked)


class _Strangers(Enrolment):
    """Devices that have never met: each takes the first key that it is shown for a device's."""

    def credentials(self, client: ClientId) -> Credentials:
        """A device's credentials."""
        return replace(super().credentials(client), directory=FirstUse())


@Attack(3, "6.2", Refusal.UNKNOWN_IDENTITY, power=Power.NETWORK)
@told(
    "answers one device in place of all others, with its own keys (man in the middle)",
    gain="the shares of the device's secrets, and so its vector",
    defence="a directory of the identities by which devices sign their keys",
)
def key_substitution(defended: bool) -> Loot:
    """The attacker keeps the other devices' real answers to itself.

    Without the defence, devices have never met before, and know each other by first use.
    """
    params, enrolment = make_params(6, 4), new_enrolment()
    if not defended:
        enrolment = _Strangers(SeededRandomness(bytes(32)))
    devices = Devices(params, enrolment=enrolment)
    doubles = [
        Colluder(i, Credentials(identity(i.to_bytes(32, "big")), FirstUse()))
        for i in devices.roster[1:]
    ]
    evil = EvilServer(params, devices.roster, devices.answer, doubles)
    evil.set_up()
    evil.open_slot(0)
    evil.pool(0)
    return against_first(devices, evil)


@Attack(5, "5.3", Left.NOISE)
@told(
    "declares a device dropped out, opens its masks' keys, and then receives its vector",
    gain="the device's vector",
    defence="a self mask, whose seed is not revealed for devices that dropped out",
)
def late_masked_input(defended: bool) -> Loot:
    """Without the defence, devices add the masks that they share, and no mask of their own."""
    bare = Primitives(add_masks=lambda _total, _added, _subtracted: None)
    devices = Devices(make_params(5, 3), primitives=Primitives() if defended else bare)
    evil = opened(devices)
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

    Without the defence, the second question goes to devices that know of no first one. They seal
    the same boxes again.
    """
    again = Primitives(seal=cache(keys.seal))
    devices = Devices(make_params(5, 3), primitives=again)
    wanted, silent = devices.inputs, {i: [np.zeros_like(v)] for i, (v,) in devices.inputs.items()}
    devices.inputs = silent
    asked = evil = opened(devices, num_colluders=1)
    evil.unmask(0, evil.everyone)
    first = evil.sum_over(0, {0})
    devices.inputs = wanted
    if defended:  # a repetition would be ignored
        asked.open_slot(0, evil.everyone - {4})
    else:
        asked = opened(Devices(devices.params, primitives=again), num_colluders=1)
        asked.secrets |= evil.secrets
    taken = asked.sum_over(0, {0}) - first
    return Loot(taken, devices.vector(0), refusals=tuple(asked.refusals.values()))


_SEEDS: Final = 1 << 8


def _of_few_seeds(number: int) -> Randomness:
    return SeededRandomness((number % _SEEDS).to_bytes(32, "little"))


@Attack(7, "2.8", Left.NOISE)
@told(
    "tries all seeds of the generator that a device draws its secrets from",
    gain="all secrets of the device, and so its vector",
    defence="every secret is drawn from a source of 256 bits",
)
def short_seeds(defended: bool) -> Loot:
    """Without the defence, seeds have 8 bits. 28 bits, as in some software, would take hours.

    The key that a device shows tells which seed is the right one, and the seed all of its secrets.
    """
    devices = Devices(make_params(5, 4), source=None if defended else _of_few_seeds)
    evil = opened(devices)
    shown = evil.keys[0].key
    for number in range(_SEEDS):
        guessed = _of_few_seeds(number)
        if keys.generate(guessed).public == shown:
            own = {(0, kind, 0): guessed(shamir.SECRET_SIZE) for kind in ShareKind}
            evil.secrets |= own
    return against_first(devices, evil)


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
    evil = opened(devices, num_colluders=2)
    evil.pool(0)
    return against_first(devices, evil)


@Attack(20, "9.12", Left.NOISE)
@told(
    "declares a device dropped out, aborts, and declares it a survivor in the retry",
    gain="both secrets of the device, one from each attempt, and so its vector",
    defence="a retry is a new session with new keys and seeds",
)
def abort_and_retry(defended: bool) -> Loot:
    """Without the defence, devices keep their keys and seeds for the retry."""
    devices = Devices(make_params(5, 3))
    aborted = opened(devices)
    aborted.unmask(0, aborted.everyone - {0})
    again = Devices(make_params(5, 3, number=1), seed=int(defended))
    again.inputs = devices.inputs
    retry = opened(again)
    retry.unmask(0, retry.everyone)
    kept = [again.key == aborted.keys[p].key for p, again in retry.keys.items()]
    presuppose(kept == [not defended] * len(kept), "a retry has fresh keys, or all are kept")
    retry.secrets |= aborted.secrets | retry.secrets
    return against_first(devices, retry)


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
        params = make_params(_ROUNDS, 4, number=index)
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
