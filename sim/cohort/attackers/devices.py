"""A cohort's devices, some of which lie: between the devices' work and whoever asks for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import numpy as np

from deltafl.fl.cohort import Pending
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.attackers.claims import claimed_loss
from deltafl.sim.cohort.attackers.updates import (
    inner_product,
    little_is_enough,
    noise_like,
    scaled,
)
from deltafl.sim.cohort.devices import Devices
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.settings.attackers import AttackersConfig, Claim, Kind

T = TypeVar("T")

_COLLUDING: Final = (Kind.LITTLE, Kind.INNER_PRODUCT)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What every device has been told when a round begins.

    Attributes:
        eta: the last η that was announced; None before the first, and without one.
        previous: the model before the last round, float32 [d]; None before the second round.
    """

    eta: float | None = None
    previous: Vector | None = None


@dataclass(frozen=True, slots=True)
class Attack:
    """What the attackers of a run want.

    Attributes:
        settings: their settings.
        attackers: who they are, of all devices.
        loss_bound: the largest loss that a search tells from others, in nats.
        tick: between two losses that it tells apart, in nats.
        max_weight: the largest number of samples that counts.
        seeds: where their noise comes from.
    """

    settings: AttackersConfig
    attackers: frozenset[int]
    loss_bound: float
    tick: float
    max_weight: int
    seeds: Seeds


@dataclass(slots=True, eq=False)
class AttackingDevices:
    """Devices of one round, some of which lie; see `deltafl.sim.cohort.devices.Devices`.

    Attributes:
        devices: does the work. Where attackers train on other samples, these have them.
        attack: who lies, and how.
        round_index: the round, counted from 0.
        known: what all devices have been told.
    """

    devices: Devices
    attack: Attack
    round_index: int
    known: Known = field(default_factory=Known)
    _together: list["_Together"] = field(default_factory=list)

    @property
    def weights(self) -> Mapping[int, int]:
        """The numbers of samples, as they are claimed."""
        true = self.devices.weights
        if self.attack.settings.weight == "own":
            return true
        return {
            device: self.attack.max_weight if device in self.attack.attackers else weight
            for device, weight in true.items()
        }

    def begin_loss(self, device: int, model: Vector) -> Pending[float]:
        """Ask for a loss, which may be a claim; see `Devices`."""
        attack = self.attack
        if device in attack.attackers:
            claim = Claim(attack.settings.loss)
            claimed = claimed_loss(claim, self.known.eta, attack.loss_bound, attack.tick)
            if claimed is not None:
                return _Later(lambda: claimed)
        return self.devices.begin_loss(device, model)

    def begin_update(
        self, device: int, model: Vector, objective: LocalObjective = PLAIN
    ) -> Pending[Vector]:
        """Ask for an update, which may be another than the device's; see `Devices`."""
        settings = self.attack.settings
        if device not in self.attack.attackers:
            return self.devices.begin_update(device, model, objective)
        if settings.kind in _COLLUDING:
            return self._agreed(model, objective)
        if (free := self._of_free_rider(device, model)) is not None:
            return _Later(lambda: free)
        own = self.devices.begin_update(device, model, objective)
        return _Later(lambda: self._changed(device, own.result()))

    def _changed(self, device: int, own: Vector) -> Vector:
        settings = self.attack.settings
        match settings.kind:
            case Kind.SCALED | Kind.BACKDOOR:
                return scaled(own, settings.scale)
            case Kind.SIGN_FLIPPED:
                return scaled(own, -settings.scale)
            case Kind.GAUSSIAN:
                return noise_like(own, settings.scale, self._generator(device))
            case _:
                return own

    def _of_free_rider(self, device: int, model: Vector) -> Vector | None:
        """What a device sends that does not train; None if it does.

        Sources: Lin, Du and Liu, "Free-riders in Federated Learning: Attacks and Defenses", 2019
        (the last change); Fraboni, Vidal and Lorenzi, AISTATS 2021 (nothing, or noise).
        """
        settings, previous = self.attack.settings, self.known.previous
        last = np.zeros_like(model) if previous is None else model - previous
        match settings.kind:
            case Kind.ZERO:
                return np.zeros_like(model)
            case Kind.NOISE:
                return noise_like(last, settings.scale, self._generator(device))
            case Kind.LAST:
                return last
            case _:
                return None

    def _agreed(self, model: Vector, objective: LocalObjective) -> Pending[Vector]:
        """What the attackers of the cohort send, all the same."""
        for made in self._together:
            if made.model is model and made.objective == objective:
                return _Later(made.result)
        attackers = [one for one in self.devices.weights if one in self.attack.attackers]
        asked = [self.devices.begin_update(one, model, objective) for one in attackers]
        self._together.append(_Together(model, objective, asked, self._craft))
        return _Later(self._together[-1].result)

    def _craft(self, updates: Sequence[Vector]) -> Vector:
        settings = self.attack.settings
        if settings.kind == Kind.LITTLE:
            return little_is_enough(updates, settings.deviations)
        return inner_product(updates, settings.scale)

    def _generator(self, device: int) -> np.random.Generator:
        return self.attack.seeds.generator(
            Purpose.ATTACK, round_index=self.round_index, device=device
        )


@dataclass(slots=True, eq=False)
class _Together:
    """One vector that colluding devices make of all their updates, when the first is asked."""

    model: Vector
    objective: LocalObjective
    asked: Sequence[Pending[Vector]]
    craft: Callable[[Sequence[Vector]], Vector]
    made: Vector | None = None

    def result(self) -> Vector:
        if self.made is None:
            self.made = self.craft([one.result() for one in self.asked])
        return self.made


@dataclass(frozen=True, slots=True, eq=False)
class _Later(Generic[T]):
    work: Callable[[], T]

    def result(self) -> T:
        return self.work()
