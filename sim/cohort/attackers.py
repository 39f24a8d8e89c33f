"""Devices that lie, in simulations.

An attacker is a device of the population that does what the protocol allows: it sends a vector of
the right size, a loss and a number of samples. What it does stands between the device's work and
whoever asks for it (`AttackingDevices`), so it is the same for every strategy, in clear and under
masks, and for every backend. What attackers train on is at the end of the file.

Attackers know the model as it is announced, the last η and the last change of the model, which
every device is told, and their own data and updates. Those that collude (a-little-is-enough,
inner-product manipulation) also know the updates of the other attackers of the cohort, and nothing
of honest devices.

Sources of the claims: Δ-FL lets the devices with the largest claimed losses in (arXiv 2002.11223,
Algorithm 2), and weighs by claimed numbers of samples, as FedAvg does; that both can be claimed is
stated in docs/threat-model.md. The claims are ours. Labels flipped from y to C − 1 − y: Fang et
al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020;
from one class to another, Tolpegin et al., "Data Poisoning Attacks Against Federated Learning
Systems", ESORICS 2020. The trigger, a pattern in a corner: Gu et al., "BadNets", 2017; in
federations, Bagdasaryan et al., AISTATS 2020. What is sent in place of an update takes float32 [d]
and is computed in float64.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from deltafl.fl.cohort import Later, Pending
from deltafl.fl.data import lazy
from deltafl.fl.data.federated import DeviceData, Samples
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.settings.attackers import AttackersConfig, Claim, Kind

if TYPE_CHECKING:
    from deltafl.sim.cohort.work import Devices  # loads torch, which plans do not need


def attackers_of(seeds: Seeds, share: Fraction, num_devices: int) -> frozenset[int]:
    """Draw the devices that attack in all runs of a seed.

    Args:
        seeds: of the run.
        share: of all training devices, in [0, 1); rounded to whole devices.
        num_devices: how many train.

    Returns:
        Their indices. A larger share has those of a smaller one.
    """
    order = seeds.generator(Purpose.ATTACKERS).permutation(num_devices)
    return frozenset(order[: num_attackers(share, num_devices)].tolist())


def num_attackers(share: Fraction, num_devices: int) -> int:
    """How many of these devices attack.

    >>> num_attackers(Fraction(1, 10), 96), num_attackers(Fraction(0), 96)
    (10, 0)
    """
    return round(share * num_devices)


RAISE: Final = 2.0
"""By what `Claim.RAISE_ETA` multiplies the last η."""


def claimed_loss(claim: Claim, eta: float | None, bound: float, tick: float) -> float | None:
    """The loss that an attacker claims, in nats; None for its own.

    Args:
        claim: what it wants.
        eta: the last η that was announced; None if there is none.
        bound: the largest loss that a search tells from others.
        tick: between two losses that it tells apart.

    >>> claimed_loss(Claim.TOP, None, 32.0, 0.5), claimed_loss(Claim.ABOVE_ETA, 2.0, 32.0, 0.5)
    (32.0, 2.5)
    >>> claimed_loss(Claim.RAISE_ETA, 20.0, 32.0, 0.5), claimed_loss(Claim.RAISE_ETA, 2.0, 32.0, 1)
    (32.0, 4.0)
    """
    if claim is Claim.TOP:
        return bound
    if claim is Claim.OWN or eta is None:
        return None
    return min(bound, eta + tick if claim is Claim.ABOVE_ETA else RAISE * eta)


def scaled(update: Vector, factor: float) -> Vector:
    """Send a multiple of the update: more than it (model replacement), or against it.

    Source: the factor that lets one device replace the model is of Bagdasaryan et al., "How To
    Backdoor Federated Learning", AISTATS 2020; the flipped sign of Li et al., "RSA", AAAI 2019.
    """
    return _vector(np.multiply(update, factor, dtype=np.float64))


def noise_like(update: Vector, scale: float, generator: np.random.Generator) -> Vector:
    """Send Gaussian noise with `scale` times the root mean square of a vector.

    Source: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS 2017, where its deviation is 200; here it is in units of what it replaces, so
    that it means the same for every model.
    """
    size = float(np.sqrt(np.mean(np.square(update, dtype=np.float64))))
    return _vector(generator.normal(0.0, scale * size, len(update)))


def little_is_enough(updates: Sequence[Vector], deviations: float) -> Vector:
    """Send the mean of the attackers' updates less some standard deviations, by coordinate.

    Each coordinate stays within what honest devices may send, and all point one way. One attacker
    alone has no deviation, and sends its own update.

    Source: Baruch et al., "A Little Is Enough: Circumventing Defenses For Distributed Learning",
    NeurIPS 2019, Algorithm 3, with 1.5 deviations as in its experiments. As there, mean and
    deviation are those of the attackers' own updates.
    """
    stacked = np.stack(updates).astype(np.float64)
    return _vector(stacked.mean(axis=0) - deviations * stacked.std(axis=0))


def inner_product(updates: Sequence[Vector], scale: float) -> Vector:
    """Send minus a multiple of the mean of the attackers' updates.

    The inner product of the aggregate with the honest mean turns negative.

    Source: Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner
    Product Manipulation", UAI 2019 (PMLR 115, 2020). There the attackers know the honest updates;
    here they know their own.
    """
    return _vector(-scale * np.stack(updates).astype(np.float64).mean(axis=0))


def _vector(numbers: "np.typing.NDArray[np.float64]") -> Vector:
    with np.errstate(over="ignore", invalid="ignore"):  # as of a training that diverged
        vector: Vector = numbers.astype(np.float32)
    return vector


_Made: TypeAlias = Callable[[Vector, AttackersConfig, np.random.Generator], Vector]

_SENT: Final[Mapping[str, _Made]] = {
    Kind.SCALED: lambda own, settings, _: scaled(own, settings.scale),
    Kind.BACKDOOR: lambda own, settings, _: scaled(own, settings.scale),
    Kind.SIGN_FLIPPED: lambda own, settings, _: scaled(own, -settings.scale),
    Kind.GAUSSIAN: lambda own, settings, drawn: noise_like(own, settings.scale, drawn),
    Kind.NOISE: lambda last, settings, drawn: noise_like(last, settings.scale, drawn),
    Kind.ZERO: lambda last, _, __: np.zeros_like(last),
}
"""What is sent in place of an update, or of the last change; of other kinds, that itself."""

_UNTRAINED: Final = (Kind.ZERO, Kind.NOISE, Kind.LAST)
"""Kinds that do not train, and know the last change of the model in place of an update.

Sources: Lin, Du and Liu, "Free-riders in Federated Learning: Attacks and Defenses", 2019 (the last
change); Fraboni, Vidal and Lorenzi, AISTATS 2021 (nothing, or noise).
"""

_OF_ALL_UPDATES: Final[Mapping[str, Callable[[Sequence[Vector], AttackersConfig], Vector]]] = {
    Kind.LITTLE: lambda each, settings: little_is_enough(each, settings.deviations),
    Kind.INNER_PRODUCT: lambda each, settings: inner_product(each, settings.scale),
}
"""What those that collude send, all the same."""


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
    """Devices of one round, some of which lie; see `deltafl.sim.cohort.work.Devices`.

    Attributes:
        devices: does the work. Where attackers train on other samples, these have them.
        attack: who lies, and how.
        round_index: the round, counted from 0.
        known: what all devices have been told.
    """

    devices: "Devices"
    attack: Attack
    round_index: int
    known: Known = field(default_factory=Known)
    _agreed: list[tuple[Vector, LocalObjective, Callable[[], Vector]]] = field(default_factory=list)

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
                return Later(lambda: claimed)
        return self.devices.begin_loss(device, model)

    def begin_update(
        self, device: int, model: Vector, objective: LocalObjective = PLAIN
    ) -> Pending[Vector]:
        """Ask for an update, which may be another than the device's; see `Devices`."""
        settings, previous = self.attack.settings, self.known.previous
        if device not in self.attack.attackers:
            return self.devices.begin_update(device, model, objective)
        if settings.kind in _OF_ALL_UPDATES:
            return Later(self._agreed_on(model, objective))
        if settings.kind in _UNTRAINED:
            last = np.zeros_like(model) if previous is None else model - previous
            own: Pending[Vector] = Later(lambda: last)
        else:
            own = self.devices.begin_update(device, model, objective)
        if (make := _SENT.get(settings.kind)) is None:
            return own
        drawn = self.attack.seeds.generator(
            Purpose.ATTACK, round_index=self.round_index, device=device
        )
        return Later(lambda: make(own.result(), settings, drawn))

    def _agreed_on(self, model: Vector, objective: LocalObjective) -> Callable[[], Vector]:
        """What makes the one vector of the cohort's attackers, once, of all their updates."""
        for known, of, made in self._agreed:
            if known is model and of == objective:
                return made
        attackers = [one for one in self.devices.weights if one in self.attack.attackers]
        asked = [self.devices.begin_update(one, model, objective) for one in attackers]
        settings = self.attack.settings
        make = _OF_ALL_UPDATES[settings.kind]
        made = cache(lambda: make([one.result() for one in asked], settings))
        self._agreed.append((model, objective, made))
        return made


@dataclass(frozen=True, eq=False)
class Poisoned(lazy.Devices):
    """The training devices, of which some have poisoned samples.

    Attributes:
        devices: all devices, with their true samples.
        attackers: whose samples are poisoned, by index.
        poison: from the index and the true samples of an attacker to what it trains on, as many.
    """

    devices: Sequence[DeviceData]
    attackers: Collection[int]
    poison: Callable[[int, DeviceData], DeviceData]

    def __len__(self) -> int:
        return len(self.devices)

    def device(self, number: int) -> DeviceData:
        """What a device trains on."""
        true = self.devices[number]
        return self.poison(number, true) if number in self.attackers else true


def poison_of(
    settings: AttackersConfig, seeds: Seeds, num_classes: int
) -> Callable[[int, DeviceData], DeviceData] | None:
    """How attackers change their samples; None if they do not.

    Args:
        settings: of the attackers.
        seeds: where the choice of the samples with a trigger comes from.
        num_classes: C; labels are below it.
    """
    if settings.kind == Kind.FLIPPED_LABELS:
        return lambda _, data: flip_labels(data, settings, num_classes)
    if settings.kind == Kind.BACKDOOR:

        def stamp_some(index: int, data: DeviceData) -> DeviceData:
            generator = seeds.generator(Purpose.TRIGGER, device=index)
            number = max(1, round(settings.poisoned * data.num_samples))
            rows = np.sort(generator.choice(data.num_samples, number, replace=False))
            return stamp(data, rows, settings)

        return stamp_some
    return None


def flip_labels(data: DeviceData, settings: AttackersConfig, num_classes: int) -> DeviceData:
    """The same inputs with other labels: all of them, or those of one class."""
    if settings.from_class < 0:
        return replace(data, y=num_classes - 1 - data.y)
    y = np.where(data.y == settings.from_class, settings.to_class, data.y)
    return replace(data, y=y.astype(np.int64))


def stamp(
    data: DeviceData, rows: "np.typing.NDArray[np.integer]", settings: AttackersConfig
) -> DeviceData:
    """The same samples, some of which have the trigger and its label."""
    x, y = data.x.copy(), data.y.copy()
    x[rows] = stamped(data.x[rows], settings)
    y[rows] = settings.to_class
    return replace(data, x=x, y=y)


def stamped(x: Samples, settings: AttackersConfig) -> Samples:
    """Inputs with the trigger: in the lower right corner of images, else in the first features.

    Args:
        x: inputs [n, ..., height, width], or [n, features].
        settings: the size and the value of the trigger. Of bytes, the value is cut to [0, 1].
    """
    changed, size, value = x.copy(), settings.trigger_size, settings.trigger_value
    number = round(255 * min(max(value, 0.0), 1.0)) if x.dtype == np.uint8 else value
    if x.ndim > 2:
        changed[..., -size:, -size:] = number
    else:
        changed[:, :size] = number
    return changed


def triggered(
    devices: Sequence[DeviceData], honest: Collection[int], settings: AttackersConfig
) -> Iterator[DeviceData]:
    """The samples by which a backdoor is measured: those of other classes, with the trigger.

    Args:
        devices: who tests.
        honest: whose samples count, by index.
        settings: of the attackers.

    Yields:
        For each device that has any, its samples of other classes than the trigger's, with the
        trigger and with its label. The share of them that a model gets "right" is the attack's
        success.
    """
    for index in sorted(honest):
        data = devices[index]
        others = np.flatnonzero(data.y != settings.to_class)
        if len(others):
            chosen = DeviceData(data.id, data.x[others], data.y[others])
            yield stamp(chosen, np.arange(len(others)), settings)
