"""Attacks on rounds whose updates are scaled down to a radius, by a server that takes several.

Devices keep to the radius that they are told. The server's lie is to tell them several: one after
the other, for models that hardly differ, or each of them another one.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol import wire
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.radius import least_radius
from deltafl.protocol.round import RoundOutcome
from deltafl.secagg import ClientId, Enrolment, Refusal, SlotSum
from deltafl.sim.inspect.attacks.attack import Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    ACTIVE,
    MODEL,
    QUORUM,
    UPDATE_ROUND,
    VERIFIED_ROUND,
    Device,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.own_session import new_enrolment
from deltafl.sim.inspect.attacks.replaced import replaced

Numbers = npt.NDArray[np.float64]

_LENGTH: Final = UPDATE_ROUND.update_length
_BITS: Final = UPDATE_ROUND.update.resolution_bits
_LEAST: Final = least_radius(_LENGTH, _BITS)
_MOST: Final = UPDATE_ROUND.update.clip * _LENGTH**0.5
"""No update is longer than that, because each of its numbers is clipped."""
_ROUNDS: Final = 16
_READ_BITS: Final = 8
"""The update is read to 2^-8; its numbers lie between -1 and 1."""


def _with_radius(config: RoundConfig, radius: float) -> RoundConfig:
    return replace(config, update=replace(config.update, radius=radius))


class _Rounds:
    """Rounds over models of which each differs from the first in a bit, with a radius each."""

    def __init__(self, devices: dict[ClientId, Device], policy: RoundPolicy) -> None:
        self._devices = devices
        self._policy = policy
        self._enrolment: Enrolment = new_enrolment()
        self._number = 0

    def play(self, radius: float) -> tuple[Numbers, RoundOutcome]:
        """Σ n·Δ of a round with a radius, and what else the server learns.

        Raises:
            PeerError: a device refuses.
        """
        model = bytearray(MODEL)
        model[self._number // 8] ^= 1 << self._number % 8
        config = _with_radius(VERIFIED_ROUND, radius)
        network = RoundDevices(
            config,
            self._devices,
            policy=self._policy,
            threshold=QUORUM,
            model=bytes(model),
            signed=True,
            enrolment=self._enrolment,
            number=self._number,
        )
        self._number += 1
        learnt = list[SlotSum]()
        outcome = with_an_honest_server(network, lambda _step, _client, data: data, learnt)
        layout = config.update_layout
        sums = layout.decode(learnt[-1].vector.astype(np.uint64))
        return layout.to_float("update", sums["update"]), outcome


@attack(
    "difference-of-two-radii",
    13,
    "announces models that differ in a bit, each with another radius of updates, and subtracts the "
    "sums",
    power=Power.SERVER,
    gain="the longest update of the tail",
    defence="devices that expect an active server refuse a radius, unless they are told to trust "
    "the server with it (unverified_if_active)",
    spec="14.15",
    end=Refusal.POLICY,
    saying="the server chooses it, and unverified_if_active is not set",
)
def difference_of_two_radii(defended: bool) -> Loot:
    """Searches are verified and nobody drops out; the radius alone changes.

    The server halves an interval of radii until exactly one device says that its update was longer.
    Two such radii give that device's weight and direction, and a radius above all gives its length.
    """
    devices = make_devices(VERIFIED_ROUND)
    rounds = _Rounds(devices, replace(ACTIVE, unverified_if_active=not defended))
    whole, outcome = rounds.play(_MOST)
    presuppose(outcome.longer == 0, "no update is longer than the largest radius")
    low, high = _LEAST, _MOST
    alone = list[tuple[float, Numbers]]()
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        summed, outcome = rounds.play(middle)
        num_longer = 0 if outcome.longer is None else outcome.longer
        low, high = (middle, high) if num_longer > 1 else (low, middle)
        if num_longer == 1:
            alone.append((middle, summed))
        if len(alone) == 2:
            break
    presuppose(len(alone) == 2, "two radii are shorter than one update only")
    (one, scaled_to_one), (other, scaled_to_other) = alone
    weight = np.linalg.norm(scaled_to_one - scaled_to_other) / abs(one - other)
    less = whole - scaled_to_one
    length = one + np.linalg.norm(less) / weight
    tail = sorted(devices.values(), key=lambda device: device.loss)[-outcome.kept_devices :]
    presuppose(1 < len(tail) < len(devices), "some devices are in the tail, and not all")
    longest = max(
        (device.update for device in tail), key=lambda update: float(np.linalg.norm(update))
    )
    return Loot(
        _as_words(less / np.linalg.norm(less) * length),
        _as_words(longest),
        note=f"every number to {2.0**-_READ_BITS}; its length came out as {length:.3f}, and its "
        f"weight as {weight:.1f}",
        read=_as_numbers,
    )


def _as_words(update: Numbers | npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    steps: Numbers = np.rint(update.astype(np.float64) * 2.0**_READ_BITS)
    return steps.astype(np.int64).astype(np.uint32)


def _as_numbers(words: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    return words.view(np.int32) / 2.0**_READ_BITS


class _EachItsOwn(RoundDevices):
    """Devices of which the last is shown the largest radius, and all others the least."""

    def shown(self, client: ClientId, data: bytes) -> bytes:
        """An envelope on its way to a device."""
        envelope = wire.decode(data)
        if not isinstance(envelope, Announce):
            return data
        config = _with_radius(UPDATE_ROUND, _MOST if client == max(self.devices) else _LEAST)
        return wire.encode(replace(envelope, levels=Levels((config,))))


@attack(
    "radius-inconsistency",
    8,
    "announces the least radius of updates to all devices but one",
    power=Power.SERVER,
    gain="the sign of every number of that device's update",
    defence="the session is bound to the radius that a device was shown",
    spec="12.18",
    end=Refusal.MALFORMED,
    saying="not bound to this model and round",
)
def radius_inconsistency(defended: bool) -> Loot:
    """The others send next to nothing, so the sum is the one device's update times its weight."""
    config = _with_radius(UPDATE_ROUND, _MOST)
    devices = make_devices(config)
    with replaced(Levels, "context", lambda *_: bytes(32), unless=defended):
        outcome = with_an_honest_server(
            _EachItsOwn(config, devices), lambda _step, _client, data: data
        )
    presuppose(outcome.longer == len(devices) - 1, "all but one have scaled their updates down")
    taken = np.zeros(_LENGTH) if outcome.update is None else outcome.update
    return Loot(taken < 0, devices[max(devices)].update < 0, 1)
