"""Attacks by selective failure: a model under which some devices have nothing to give.

A server that crafts a model knows whose loss or update overflows under it, or whose code raises an
exception: whoever owns a sample with some property, or whoever trains. If such a device leaves the
round, its silence says which.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from deltafl.protocol import answering
from deltafl.protocol import device as protocol_device
from deltafl.protocol.answering import Failed, answered
from deltafl.protocol.device import Update
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.round import RoundOutcome
from deltafl.secagg import ClientId, Stage, Step
from deltafl.secagg.errors import EncodingError, present
from deltafl.sim.inspect.attacks.attack import Left, Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    UPDATE_ROUND,
    WHOLE_ROUND,
    Device,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.replaced import replaced

_OWNERS: Final = (ClientId(10), ClientId(24))
"""Devices with a sample under which the loss overflows."""

T = TypeVar("T")

_tick, _clipped = LossGrid.tick, protocol_device._clipped


def _tick_or_leave(grid: LossGrid, loss: float) -> tuple[int, bool]:
    if not math.isfinite(loss):
        raise EncodingError(f"loss={loss}")
    return _tick(grid, loss)


def _update_or_leave(update: Update, clip: float) -> tuple[Update | npt.NDArray[np.float64], int]:
    if not np.isfinite(update).all():
        raise EncodingError("an update that is not finite")
    return _clipped(update, clip)


def _tried_or_leave(work: Callable[[], T], otherwise: T, failed: Failed) -> T:
    del otherwise, failed
    return work()


class _Leaving(RoundDevices):
    """Devices that leave a round in which they have nothing to give that can be encoded."""

    def answer(self, client: ClientId, data: bytes) -> bytes | None:
        """A device's answer, or its silence."""
        try:
            return super().answer(client, data)
        except EncodingError:
            return None


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
    """Devices that work by code of their own, which may raise."""

    def answer(self, client: ClientId, data: bytes) -> bytes | None:
        """A device's answer, or its silence."""
        own = _Reader(self.devices[client], client in _OWNERS)
        try:
            return answered(self.clients[client], data, own, lambda _: None)
        except IndexError:
            return None


def _silent(devices: RoundDevices, slot: int) -> tuple[frozenset[ClientId], RoundOutcome]:
    """Play a round to its end; who sent no vector in a slot, and what the server has learnt."""
    heard = set[ClientId]()

    def listen(step: Step, client: ClientId, data: bytes) -> bytes:
        if step == Step(Stage.MASK, slot):
            heard.add(client)
        return data

    outcome = with_an_honest_server(devices, listen)
    return frozenset(devices.devices) - heard, outcome


def _loot(devices: RoundDevices, silent: frozenset[ClientId], wanted: frozenset[ClientId]) -> Loot:
    presuppose(0 < len(wanted) < len(devices.devices), "some devices are in question, and not all")
    ids = sorted(devices.devices)
    return Loot(
        np.array([client in silent for client in ids]),
        np.array([client in wanted for client in ids]),
        ring_bits=1,
        note="which devices fell silent",
    )


@attack(
    "silence-by-the-loss",
    16,
    "announces a model under which the loss overflows on samples with a certain property",
    power=Power.SERVER,
    gain="one bit about the samples of every device, by name",
    defence="a loss that is not finite counts as the largest, and the device goes on",
    spec="12.4",
    end=Left.NOTHING,
)
def silence_by_the_loss(defended: bool) -> Loot:
    """Without the defence, a device leaves the round if its loss is not finite."""
    given = make_devices(UPDATE_ROUND)
    for owner, loss in zip(_OWNERS, (math.inf, math.nan), strict=True):
        given[owner] = replace(given[owner], loss=loss)
    with replaced(LossGrid, "tick", _tick_or_leave, unless=defended):
        devices = _Leaving(UPDATE_ROUND, given)
        silent, _ = _silent(devices, UPDATE_ROUND.update_slot)
    return _loot(devices, silent, frozenset(_OWNERS))


@attack(
    "silence-by-the-update",
    16,
    "announces a model with finite losses, from which every device that trains diverges",
    power=Power.SERVER,
    gain="who passed the filter, by name",
    defence="an update that is not finite counts as zeros, and the device goes on",
    spec="12.4",
    end=Left.NOTHING,
)
def silence_by_the_update(defended: bool) -> Loot:
    """Without the defence, a device leaves the round if its update is not finite."""
    given = {
        client: Device(device.loss, device.weight, np.full_like(device.update, math.inf))
        for client, device in make_devices(WHOLE_ROUND).items()
    }
    with replaced(protocol_device, "_clipped", _update_or_leave, unless=defended):
        devices = _Leaving(WHOLE_ROUND, given)
        silent, outcome = _silent(devices, WHOLE_ROUND.update_slot)
    threshold = present(outcome.search).threshold
    wanted = [i for i, one in given.items() if one.measured(WHOLE_ROUND).passes(threshold)]
    return _loot(devices, silent, frozenset(wanted))


@attack(
    "silence-by-an-exception",
    16,
    "announces a model under which the device's own code raises an exception on samples with a "
    "certain property",
    power=Power.SERVER,
    gain="one bit about the samples of every device, by name",
    defence="what the device's own code fails to work out counts as what is not finite, and the "
    "device goes on",
    spec="12.4",
    end=Left.NOTHING,
)
def silence_by_an_exception(defended: bool) -> Loot:
    """Without the defence, the exception ends the round on the device where it is raised."""
    with replaced(answering, "_tried", _tried_or_leave, unless=defended):
        devices = _Readers(UPDATE_ROUND)
        silent, _ = _silent(devices, UPDATE_ROUND.update_slot)
    return _loot(devices, silent, frozenset(_OWNERS))
