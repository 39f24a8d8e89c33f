"""What does the work of a cohort's devices, and what they measure and train in one secure round.

A simulation knows all losses, so it can predict which devices will pass the filter. Once all
devices have reported their losses of a model, these devices begin to train while the server still
searches. This is only a guess (a search may end early, or use rounded weights), and it changes no
answer: the devices still find out themselves whether they pass, and unneeded training is dropped.
One limit: if the data of a device in the guess cannot be read, the round fails, though nobody might
have asked for them.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial
from typing import Final, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from deltafl.fl.cohort import Later, Pending, Weighing
from deltafl.fl.local import LocalTraining
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.aggregation import shaped_update
from deltafl.fl.strategies.weighted_mean import Participant
from deltafl.fl.superquantile import weighted_quantile
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import Backend, SampleReference
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.record.truth import Told


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


T = TypeVar("T")

_Asked: TypeAlias = Callable[[], Pending[T]]
"""Asks a device when it is first called, and gives the same answer each time."""

_MOST_WEIGHT: Final = 2**63 - 1  # an int64; over more, nobody trains before being asked


@dataclass(slots=True, eq=False, repr=False)
class CohortWork:
    """The devices' work of one secure round; the caller waits for every answer once.

    Attributes:
        devices: the cohort.
        models: the model of each conformity level; not to be changed.
        thetas: the levels.
        loss_bound: the largest loss, in nats, that the round tells from larger ones.
        weighing: what devices contribute in place of n_k and Δ_k, of a single level.
        told: where devices note what they tell the protocol; None to note nothing.
        passed: the devices that have been asked for an update, because they passed the filter.
        weights: n_k by device, ascending.
    """

    devices: Devices
    models: Sequence[Vector]
    thetas: Sequence[Fraction]
    loss_bound: float
    weighing: Weighing | None = None
    told: Told | None = None
    passed: set[int] = field(default_factory=set)
    weights: Mapping[int, int] = field(init=False)
    _known: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    _losses: dict[tuple[int, int], "_Asked[float]"] = field(default_factory=dict)
    _updates: dict[tuple[int, int], "_Asked[Vector]"] = field(default_factory=dict)
    _participants: dict[int, "_Weighed"] = field(default_factory=dict)
    _weighed: dict[int, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weights = self.devices.weights

    def begin_losses(self, device: int, levels: Iterable[int]) -> None:
        """A device will be asked for its losses."""
        for level in levels:
            self._loss(device, level)()
            if self.weighing is not None and self.weighing.trains_first:
                self.begin_update(device, level)

    def begin_update(self, device: int, level: int) -> None:
        """A device will be asked for its update."""
        if self.weighing is None or self.weights[device]:
            self._update(device, level)()

    def loss(self, device: int, level: int) -> float:
        """F_k of a level's model, in nats; it may be NaN or infinite."""
        if self.weighing is None:
            loss = self._loss(device, level)().result()
        else:
            loss = self._participant(device).measure()
        self._guess_tail(device, level, loss)
        return loss

    def weight(self, device: int) -> int:
        """What the device weighs: n_k, or what it works out."""
        return self.weights[device] if self.weighing is None else self._weigh(device)[0]

    def update(self, device: int, level: int) -> Vector:
        """Δ_k of a level's model, times the factor that the device works out; it may have NaN.

        Raises:
            DivergenceError: it has another shape than the model, and the device weighs itself.
        """
        self.passed.add(device)
        if self.weighing is None:
            return self._update(device, level)().result()
        weight, step = self._weigh(device)
        if not weight:
            return np.zeros_like(self.models[level])
        update = self._participant(device).take_update()
        with np.errstate(over="ignore", invalid="ignore"):  # the protocol counts it as zeros
            return np.multiply(update, step, dtype=np.float64).astype(np.float32)

    def _loss(self, device: int, level: int) -> "_Asked[float]":
        if (device, level) not in self._losses:
            ask = partial(self.devices.begin_loss, device, self.models[level])
            self._losses[device, level] = cache(ask)
        return self._losses[device, level]

    def _update(self, device: int, level: int) -> "_Asked[Vector]":
        if (device, level) not in self._updates:
            objective = PLAIN if self.weighing is None else self.weighing.objective
            ask = partial(self.devices.begin_update, device, self.models[level], objective)
            self._updates[device, level] = cache(ask)
        return self._updates[device, level]

    def _participant(self, device: int) -> "_Weighed":
        """The device as it weighs itself; of a single level."""
        if device not in self._participants:
            self._participants[device] = _Weighed(
                device,
                self.weights[device],
                Later(lambda: self._loss(device, 0)().result()),
                Later(lambda: self._update(device, 0)().result()),
                self.models[0].shape,
                loss_bound=self.loss_bound,
            )
        return self._participants[device]

    def _weigh(self, device: int) -> tuple[int, float]:
        """The weight and the factor, worked out once: they may take a training."""
        if device not in self._weighed:
            self._weighed[device] = (0, 0.0)
            if self.weighing is not None and self.weights[device]:
                self._weighed[device] = self.weighing.weigh(self._participant(device))
        return self._weighed[device]

    def _guess_tail(self, device: int, level: int, loss: float) -> None:
        """When all devices have reported their loss of a model, let its tail begin to train."""
        known = self._known[level]
        known[device] = loss
        if len(known) < len(self.weights) or not all(map(math.isfinite, known.values())):
            return
        weights = [self.weights[one] for one in known]
        if not 0 < sum(weights) <= _MOST_WEIGHT:
            return
        eta = weighted_quantile(list(known.values()), weights, self.thetas[level])
        for one, measured in known.items():
            if measured >= eta:
                self.begin_update(one, level)


@dataclass(eq=False, repr=False)
class _Weighed(Participant):
    """A device that weighs itself in a secure round, and goes on if its training diverged.

    It weighs itself as the protocol counts it: a loss that is not finite as the bound, and an
    update with such a number as zeros. It is always asked for its loss.
    """

    loss_bound: float = math.inf

    def measure(self) -> float:
        """F_k, which may be NaN or infinite."""
        if self.measured_loss is None:
            self.measured_loss = cast("Pending[float]", self.asked_loss).result()
        return self.measured_loss

    def loss(self) -> float:
        """F_k, or the bound."""
        loss = self.measure()
        return loss if math.isfinite(loss) else self.loss_bound

    def squared_norm(self) -> float:
        """‖Δ_k‖², or zero."""
        squared = super().squared_norm()
        return squared if math.isfinite(squared) else 0.0

    def take_update(self) -> Vector:
        """Δ_k, which may have NaN; see `Participant`."""
        update, self._update = self._update, None
        if update is None:
            return shaped_update(self.device, self.asked_update, self.shape)
        return update
