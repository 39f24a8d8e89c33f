"""What attackers train on: flipped labels, and samples with a trigger.

Sources: labels flipped from y to C − 1 − y, Fang et al., "Local Model Poisoning Attacks to
Byzantine-Robust Federated Learning", USENIX Security 2020; from one class to another, Tolpegin et
al., "Data Poisoning Attacks Against Federated Learning Systems", ESORICS 2020. The trigger, a
pattern in a corner, Gu et al., "BadNets", 2017; in federations, Bagdasaryan et al., AISTATS 2020.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from deltafl.fl.data.federated import DeviceData, Samples
from deltafl.fl.data.lazy import Devices
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.settings.attackers import AttackersConfig, Kind


class Poisoned(Devices):
    """The training devices, of which some have poisoned samples.

    Args:
        devices: all devices, with their true samples.
        attackers: whose samples are poisoned, by index.
        poison: from the index and the true samples of an attacker to what it trains on, as many.
    """

    def __init__(
        self,
        devices: Sequence[DeviceData],
        attackers: Collection[int],
        poison: Callable[[int, DeviceData], DeviceData],
    ) -> None:
        self._devices = devices
        self._attackers = attackers
        self._poison = poison

    def __len__(self) -> int:
        return len(self._devices)

    def device(self, number: int) -> DeviceData:
        """What a device trains on."""
        true = self._devices[number]
        return self._poison(number, true) if number in self._attackers else true


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
