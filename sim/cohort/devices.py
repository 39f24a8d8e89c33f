"""What does the work of a cohort's devices."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from deltafl.fl.cohort import Later, Pending
from deltafl.fl.local import LocalTraining
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import Backend, SampleReference
from deltafl.sim.cohort.seeds import Purpose, Seeds


class Devices(Protocol):
    """A cohort's devices for one round. Requests to many devices may be worked on together."""

    @property
    def weights(self) -> Mapping[int, int]:
        """n_k by device, ascending."""

    def begin_loss(self, device: int, model: Vector) -> Pending[float]:
        """Ask for F_k(model), in nats."""

    def begin_update(
        self, device: int, model: Vector, objective: LocalObjective = PLAIN
    ) -> Pending[Vector]:
        """Ask for Δ_k, float32 [num_parameters]."""


@dataclass(frozen=True, slots=True, eq=False)
class BackendDevices:
    """Devices whose work a backend does.

    Attributes:
        refs: where each device's samples are, by device, ascending.
        backend: does the work.
        training: how to train in this round.
        seeds: where the shuffles come from.
        round_index: the round, counted from 0.
    """

    refs: Mapping[int, SampleReference]
    backend: Backend
    training: LocalTraining
    seeds: Seeds
    round_index: int

    @property
    def weights(self) -> Mapping[int, int]:
        """The numbers of training samples."""
        return {device: ref.size for device, ref in self.refs.items()}

    def begin_loss(self, device: int, model: Vector) -> Pending[float]:
        """Begin to measure a loss; see `Devices`."""
        return self.backend.begin_loss(model, self.refs[device])

    def begin_update(
        self, device: int, model: Vector, objective: LocalObjective = PLAIN
    ) -> Pending[Vector]:
        """Begin to train; see `Devices`. Asked twice, a device answers the same."""
        shuffle = self.seeds.integer(Purpose.SHUFFLE, round_index=self.round_index, device=device)
        ref = self.refs[device]
        return self.backend.begin_update(model, ref, self.training, shuffle, objective)


class Device(Protocol):
    """A device that is an object of its own."""

    @property
    def id(self) -> int:
        """Who it is, unique in the cohort."""

    @property
    def weight(self) -> int:
        """n_k: its number of training samples."""

    def loss(self, model: Vector) -> float:
        """Evaluate F_k(model), in nats."""

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        """Train from `model`; the difference Δ_k."""


def device_objects(devices: Iterable[Device]) -> "DeviceObjects":
    """Make a cohort's devices from objects.

    Raises:
        ValueError: an id appears twice.
    """
    each = sorted(devices, key=lambda device: device.id)
    ids = [device.id for device in each]
    if len(set(ids)) != len(ids):
        raise ValueError(f"device ids {ids} are not unique: a device counts once in a cohort")
    return DeviceObjects({device.id: device for device in each})


@dataclass(frozen=True, slots=True, eq=False)
class DeviceObjects:
    """Devices that work one after another, when the caller waits for their answer.

    Attributes:
        devices: by id, ascending.
    """

    devices: Mapping[int, Device]

    @property
    def weights(self) -> Mapping[int, int]:
        """The numbers of training samples."""
        return {identity: device.weight for identity, device in self.devices.items()}

    def begin_loss(self, device: int, model: Vector) -> Pending[float]:
        """Ask for a loss; see `Devices`."""
        return Later(lambda: self.devices[device].loss(model))

    def begin_update(
        self, device: int, model: Vector, objective: LocalObjective = PLAIN
    ) -> Pending[Vector]:
        """Ask for an update; see `Devices`."""
        own = self.devices[device]
        if objective == PLAIN:  # a device that knows no other need not take one
            return Later(lambda: own.update(model))
        return Later(lambda: own.update(model, objective))
