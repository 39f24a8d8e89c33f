"""Attacks on rounds in which devices add noise to their updates, and what the noise stops.

All devices weigh the same, and send updates of the length that the noise is for.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol import update_noise
from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.update_noise import Sizes, UpdateNoise
from deltafl.secagg import ClientId, Enrolment, Refusal, SlotSum
from deltafl.secagg.randomness import Randomness
from deltafl.sim.inspect.attacks.attack import Harm, Left, Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    POLICY,
    UPDATE_ROUND,
    Device,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.own_session import new_enrolment
from deltafl.sim.inspect.attacks.replaced import replaced

Numbers = npt.NDArray[np.float64]

_SHORT: Final = 16
_LONG: Final = 1024
_HALF: Final = Fraction(1, 2)
_ROUNDS: Final = 80
_NOTHING: Final = Fraction(1, 1000)
_SURE: Final = POLICY.min_cohort
"""Devices that are certain to be in a sum."""


def _config(length: int, noise: UpdateNoise | None, index: int = 3) -> RoundConfig:
    update = UpdateParams(clip=4.0, resolution_bits=16, max_weight=1, noise=noise)
    return replace(UPDATE_ROUND, update=update, update_length=length, round_index=index)


def _noise(multiplier: Fraction, length: int, num_devices: int = _SURE) -> UpdateNoise:
    sizes = Sizes.of(length, UPDATE_ROUND.cohort_size)
    return UpdateNoise.at_least(multiplier, 1.0, num_devices, sizes)


def _devices(length: int) -> dict[ClientId, Device]:
    """Devices whose updates have a norm of 1, with numbers of one size."""
    generator = np.random.default_rng(0)
    size = np.float32(1 / math.sqrt(length) * (1 - 1e-6))
    common = generator.choice((-size, size), length).astype(np.float32)
    made = make_devices(UPDATE_ROUND)
    own = generator.choice((-size, size), length).astype(np.float32)
    updates = [common] * (len(made) - 1) + [own]
    return {
        client: Device(device.loss, 1, update)
        for (client, device), update in zip(made.items(), updates, strict=True)
    }


def _mean(
    config: RoundConfig,
    devices: dict[ClientId, Device],
    policy: RoundPolicy,
    *,
    number: int = 0,
    enrolment: Enrolment | None = None,
    client_type: Callable[..., RoundClient] = RoundClient,
) -> Numbers:
    """The sum of updates that a server learns which follows the protocol, over their number.

    Raises:
        PeerError: a device refuses.
    """
    network = RoundDevices(
        replace(config, cohort_size=len(devices)),
        devices,
        policy=policy,
        model=b"model %d" % number,
        number=number,
        enrolment=enrolment,
        client_type=client_type,
    )
    learnt = list[SlotSum]()
    outcome = with_an_honest_server(network, lambda _step, _client, data: data, learnt)
    presuppose(outcome.update is not None, "there is a sum")
    return np.zeros(config.update_length) if outcome.update is None else outcome.update


def _bits(taken: Numbers, wanted: npt.NDArray[np.float32], note: str = "") -> Loot:
    """The signs of numbers that somebody has read, and those of what he wants to know."""
    return Loot(taken < 0, wanted < 0, 1, note=note)


@attack(
    "little-noise-in-updates",
    18,
    "announces a sum of updates with hardly any noise",
    power=Power.SERVER,
    gain="the sum as if there were none: the signs of the update that most devices have",
    defence="a device works out the noise multiplier from what is announced, and insists on its "
    "own smallest",
    spec="12.16",
    end=Refusal.POLICY,
    saying="is below min_update_noise=1",
)
def little_noise_in_updates(defended: bool) -> Loot:
    """The noise has a thousandth of what one device can change."""
    policy = replace(POLICY, min_update_noise=Fraction(1)) if defended else POLICY
    devices, config = _devices(_LONG), _config(_LONG, _noise(_NOTHING, _LONG))
    return _bits(_mean(config, devices, policy), devices[min(devices)].update)


@attack(
    "noise-of-devices-that-may-be-missing",
    18,
    "counts on noise from all devices that it invites, so that each of them adds less",
    power=Power.SERVER,
    gain="a sum with less noise than the devices insist on, once some of them are missing",
    defence="a device counts those that are certain to be in the sum and honest, and refuses noise "
    "from more",
    spec="12.16",
    end=Refusal.POLICY,
    saying="noise in the update from 5 devices, of which only 3 are certain",
)
def noise_of_devices_that_may_be_missing(defended: bool) -> Harm:
    """A sum is over three of five devices at least; the other two belong to the server.

    Harm is a multiplier of what is left below the 1 that devices insist on.
    """
    devices, noise = _devices(_LONG), _noise(Fraction(1), _LONG, UPDATE_ROUND.cohort_size)
    policy = replace(POLICY, min_update_noise=Fraction(1))
    with replaced(RoundPolicy, "_check_update_noise", lambda *_: None, unless=defended):
        return _left(devices, noise, 2, policy)


@attack(
    "noise-that-colluding-devices-leave-out",
    18,
    "has more devices of its own in the cohort than the others expect, and lets them add no noise",
    power=Power.SERVER,
    gain="a sum with less noise than the devices insist on",
    defence="none beyond γ, for which the noise is made; what helps is who admits devices",
    spec="14.13",
    end=Left.EXPOSED,
)
def noise_that_colluding_devices_leave_out(defended: bool) -> Harm:
    """Noise is enough from three of five devices, and three are the server's own."""
    del defended
    policy = replace(POLICY, min_update_noise=Fraction(1))
    return _left(_devices(_LONG), _noise(Fraction(1), _LONG), 3, policy)


def _left(
    devices: dict[ClientId, Device], noise: UpdateNoise, num_own: int, policy: RoundPolicy
) -> Harm:
    """Play a round in which the server's own devices add none, and measure the noise in the sum."""
    own = sorted(devices)[-num_own:]

    class Silent(RoundClient):
        def _contribute_update(self, update: npt.NDArray[np.float32] | None) -> bytes:
            with replaced(update_noise, "discrete_gaussians", _none, unless=False):
                return super()._contribute_update(update)

    def made(client: ClientId, *arguments: object, **more: object) -> RoundClient:
        kind: Callable[..., RoundClient] = Silent if client in own else RoundClient
        return kind(client, *arguments, **more)

    mean = _mean(_config(_LONG, noise), devices, policy, client_type=made)
    exact = np.mean([device.update for device in devices.values()], axis=0, dtype=np.float64)
    sizes = Sizes.of(_LONG, len(devices))
    steps = (mean - exact) * len(devices) * sizes.clip / noise.norm
    multiplier = float(np.std(steps)) / math.sqrt(sizes.square_sensitivity)
    return Harm(
        multiplier < 0.9 * float(policy.min_update_noise),
        note=f"the noise has a multiplier of {multiplier:.2f}, and devices insist on "
        f"{policy.min_update_noise}",
    )


def _none(deviation: int, size: int, randomness: Randomness) -> npt.NDArray[np.int64]:
    del deviation, randomness
    return np.zeros(size, dtype=np.int64)


@attack(
    "average-of-noisy-sums",
    11,
    "invites the same devices to more rounds than it says, and averages the noise out",
    power=Power.SERVER,
    gain="the signs of what the devices have in common",
    defence="a device counts its participations in its ledger, up to a limit of its own",
    spec="12.16",
    end=Refusal.POLICY,
    saying="exceed the device's max_participations=8",
)
def average_of_noisy_sums(defended: bool) -> Loot:
    """Every round has enough noise for itself, and another model; updates stay the same."""
    devices, noise = _devices(_SHORT), _noise(Fraction(1), _SHORT)
    policy = replace(POLICY, min_update_noise=Fraction(1), max_participations=8 if defended else 0)
    enrolment, total = new_enrolment(), np.zeros(_SHORT)
    for number in range(_ROUNDS):
        config = _config(_SHORT, noise, number)
        total += _mean(config, devices, policy, number=number, enrolment=enrolment)
    note = f"{_ROUNDS} rounds; the noise of their average is {1 / math.sqrt(_ROUNDS):.0%} of one's"
    return _bits(total, devices[min(devices)].update, note)


@attack(
    "difference-of-two-rounds",
    13,
    "subtracts the sums of two rounds over almost one model, of which a device was in one only",
    power=Power.SERVER,
    gain="that device's update: the sign of every number",
    defence="noise that devices add to their updates; where sums are exact, nothing stops it",
    spec="12.16",
    end=Left.ADDED,
)
def difference_of_two_rounds(defended: bool) -> Loot:
    """The noise has half of what one device can change: little, but there are many numbers."""
    devices = _devices(_LONG)
    config = _config(_LONG, _noise(_HALF, _LONG) if defended else None)
    last = max(devices)
    rest = {client: device for client, device in devices.items() if client != last}
    both = _mean(config, devices, POLICY), _mean(config, rest, POLICY, number=1)
    return _bits(both[0] * len(devices) - both[1] * len(rest), devices[last].update)
