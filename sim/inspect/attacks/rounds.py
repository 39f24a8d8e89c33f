"""Attacks on a round: inconsistent questions and models, silence, and too little noise."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Final

import numpy as np

from deltafl.protocol.answering import answered
from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.device import Update
from deltafl.protocol.update_noise import Sizes, UpdateNoise
from deltafl.secagg import ClientId, Refusal
from deltafl.secagg.errors import present
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.attacks.attack import Harm, Left, Loot, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    DEAD_MODEL,
    MODEL,
    POLICY,
    UPDATE_ROUND,
    WHOLE_ROUND,
    Device,
    RoundDevices,
    as_update,
    make_devices,
    trusting,
    with_an_honest_server,
)


@attack(
    8,
    "shows a model without a gradient to all devices but one (model inconsistency)",
    gain="that device's update",
    defence="the session is bound to the model that a device was shown",
    spec="12.8",
    end=Refusal.MALFORMED,
    saying="not bound to this model",
)
def model_inconsistency(defended: bool) -> Loot:
    """A whole round with a search; the model is dead for all but the device that fares worst.

    Pasquini, Francati, Ateniese (CCS 2022): the updates of all others are zero. Without the
    defence, devices take the session for one that is bound to the model that they are shown.
    """
    devices = make_devices(WHOLE_ROUND)
    last = max(devices)
    network = RoundDevices(
        WHOLE_ROUND,
        devices,
        models={i: MODEL if i == last else DEAD_MODEL for i in devices},
        runs=lambda i: RoundClient if defended else trusting(WHOLE_ROUND, devices[i]),
    )
    outcome, learnt = with_an_honest_server(network)
    presuppose(outcome.update is not None, "the round has come to an update")
    length, ring_bits = UPDATE_ROUND.update_length, WHOLE_ROUND.update_layout.ring_bits
    mine = devices[last].measured(WHOLE_ROUND).contribution(devices[last].update)
    return Loot(
        learnt[-1].vector[:length].astype(np.uint64),
        mine[:length],
        ring_bits,
        note=f"after {len(learnt) - 1} queries {outcome.kept_devices} devices were in the tail; "
        "their weights are in the sum as well",
        read=as_update(devices[last]),
    )


_OWNERS: Final = (ClientId(10), ClientId(24))
"""Devices with a sample that the device's own code cannot read."""


@dataclass(frozen=True)
class _Reader:
    """A device's own code, which cannot read a sample of one property, or has a bug there."""

    device: Device
    is_owner: bool

    def weight(self) -> int:
        return self.device.weight

    def loss(self, model: bytes) -> float:
        del model
        if self.is_owner:
            raise IndexError("a token that the model does not know")
        return self.device.loss

    def update(self, model: bytes) -> Update:
        del model
        return self.device.update

    def wait(self, model: bytes) -> None:
        """Not a moment: nobody looks at the time here."""


class _Readers(RoundDevices):
    """Devices that work by code of their own, which may raise.

    Attributes:
        catching: Whether they go on if it does.
    """

    catching = True

    def answer(self, client: ClientId, data: bytes) -> bytes | None:
        """A device's answer, or its silence."""
        own = _Reader(self.devices[client], client in _OWNERS)
        if self.catching:
            return answered(self.clients[client], data, own, lambda _: None)
        try:
            own.loss(self.model)
        except IndexError:
            return None
        return super().answer(client, data)


@attack(
    16,
    "announces a model under which the device's own code raises an exception on samples with a "
    "certain property",
    gain="one bit about the samples of every device, by name",
    defence="what the device's own code fails to work out counts as what is not finite, and the "
    "device goes on",
    spec="12.4",
    end=Left.NOTHING,
)
def silence_by_an_exception(defended: bool) -> Loot:
    """Without the defence, the exception ends the round on the device where it is raised."""
    devices = _Readers(UPDATE_ROUND)
    devices.catching = defended
    _, learnt = with_an_honest_server(devices)
    ids = sorted(devices.devices)
    return Loot(
        np.array([client not in learnt[-1].contributors for client in ids]),
        np.array([client in _OWNERS for client in ids]),
        ring_bits=1,
        note="which devices fell silent",
    )


_LENGTH: Final = 1024


def _noisy(multiplier: Fraction) -> RoundConfig:
    """A round with noise from as many devices as are certain to be in its sum."""
    sizes = Sizes.of(_LENGTH, UPDATE_ROUND.cohort_size)
    noise = UpdateNoise.at_least(multiplier, 1.0, POLICY.min_cohort, sizes)
    update = UpdateParams(clip=4.0, resolution_bits=16, max_weight=1, noise=noise)
    return replace(UPDATE_ROUND, update=update, update_length=_LENGTH)


def _alike() -> dict[ClientId, Device]:
    """Devices with one update, of a norm of 1 and numbers of one size."""
    size = np.float32(1 / math.sqrt(_LENGTH) * (1 - 1e-6))
    update = np.random.default_rng(0).choice((-size, size), _LENGTH).astype(np.float32)
    made = make_devices(UPDATE_ROUND)
    return {client: replace(one, weight=1, update=update) for client, one in made.items()}


@attack(
    18,
    "announces a sum of updates with hardly any noise",
    gain="the sum as if there were none: the signs of the update that all devices have",
    defence="a device works out the noise multiplier from what is announced, and insists on its "
    "own smallest",
    spec="12.16",
    end=Refusal.POLICY,
    saying="is below min_update_noise=1",
)
def little_noise_in_updates(defended: bool) -> Loot:
    """The noise has a thousandth of what one device can change."""
    policy = replace(POLICY, min_update_noise=Fraction(1)) if defended else POLICY
    devices, config = _alike(), _noisy(Fraction(1, 1000))
    outcome, _ = with_an_honest_server(RoundDevices(config, devices, policy=policy))
    return Loot(present(outcome.update) < 0, devices[min(devices)].update < 0, 1)


@attack(
    18,
    "has more devices of its own in the cohort than the others expect, and takes off what they add",
    gain="a sum with less noise than the devices insist on",
    defence="none beyond γ, for which the noise is made; what helps is who admits devices",
    spec="14.13",
)
def noise_of_colluding_devices(_defended: bool) -> Harm:
    """Noise is enough from three of five devices, and three are the server's own."""
    config, devices = _noisy(Fraction(1)), _alike()
    policy = replace(POLICY, min_update_noise=Fraction(1))
    own = sorted(devices)[-3:]

    network = RoundDevices(
        config,
        devices,
        policy=policy,
        runs=lambda client: partial(RoundClient, noise=_known(client)),
    )
    _, learnt = with_an_honest_server(network)
    total = learnt[-1].vector.astype(np.uint64)
    for client in own:
        one = devices[client]
        added = one.measured(config).contribution(one.update, _known(client))
        total -= added.astype(np.uint64)
    total &= np.uint64(2**config.update_layout.ring_bits - 1)
    num_left = len(devices) - len(own)
    read = present(config.noisy_updates).read(
        config.update_layout.decode(total), Fraction(1), num_left
    )
    sizes = Sizes.of(_LENGTH, len(devices))
    steps = (
        (present(read.update) - devices[own[0]].update)
        * num_left
        * sizes.clip
        / present(config.update.noise).norm
    )
    multiplier = float(np.std(steps)) / math.sqrt(sizes.square_sensitivity)
    return Harm(
        multiplier < 0.9 * float(policy.min_update_noise),
        note=f"the noise has a multiplier of {multiplier:.2f}, and devices insist on "
        f"{policy.min_update_noise}",
    )


def _known(client: ClientId) -> SeededRandomness:
    """What the noise of a device comes from; the server knows that of its own."""
    return SeededRandomness(client.to_bytes(32, "big"))
