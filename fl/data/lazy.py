"""Devices whose data are made when they are asked for, so that 100,000 of them cost no memory."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import (
    DeviceData,
    FederatedDataset,
    Split,
    SplitBy,
    split_samples,
    too_few,
)
from deltafl.fl.errors import DataError

KEPT_BYTES: Final = 1 << 28
"""How much a sequence remembers of what it made first (256 MiB)."""

RECENT_BYTES: Final = 1 << 26
"""How much it remembers besides of what was asked for last (64 MiB): a cohort, which is asked for
several times in a round. The rest is made again each time."""

_SMALLEST_SHARE: Final = 0.1
"""If less than this share of all devices could be remembered, it would save next to nothing."""


class Devices(Sequence[DeviceData]):
    """A sequence of devices that are looked up by number, one at a time."""

    @abstractmethod
    def device(self, number: int) -> DeviceData:
        """The device of a number in [0, len(self))."""

    @overload
    def __getitem__(self, index: int) -> DeviceData: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DeviceData, ...]: ...
    def __getitem__(self, index: int | slice) -> DeviceData | tuple[DeviceData, ...]:
        numbers = range(len(self))[index]  # negative ones count from the end, others may not exist
        if isinstance(numbers, range):
            return tuple(map(self.device, numbers))
        return self.device(numbers)


class LazyDevices(Devices):
    """Devices by number, each made on access and the same every time.

    Attributes:
        ids: who they are, in order.
        sizes: how many samples each has, int64 [len(ids)].
        identity: a text that says all that the data follow from: name, version and arguments of
            what makes them. Two sequences of one identity hold the same data.
    """

    def __init__(
        self,
        ids: Sequence[str],
        sizes: npt.NDArray[np.int64],
        make: Callable[[int], DeviceData],
        identity: str,
    ) -> None:
        if len(ids) != len(sizes):
            raise ValueError(f"{len(ids)} ids and {len(sizes)} sizes: give one of each per device")
        self.ids = tuple(ids)
        self.sizes = sizes
        self.identity = identity
        self._make = make
        self._kept: dict[int, DeviceData] = {}
        self._room: int | None = None  # until one device tells how large all are
        self._recent: dict[int, DeviceData] = {}  # the one not asked for the longest is the first
        self._recent_room = RECENT_BYTES

    def __len__(self) -> int:
        return len(self.ids)

    def device(self, number: int) -> DeviceData:
        """The device of a number, made anew if it is not remembered."""
        if number in self._kept:
            return self._kept[number]
        if number in self._recent:
            device = self._recent.pop(number)
            self._recent[number] = device
            return device
        device = self._make(number)
        self._remember(number, device)
        return device

    def _remember(self, number: int, device: DeviceData) -> None:
        size = _num_bytes(device)
        if self._room is None:
            total = size / max(1, device.num_samples) * int(self.sizes.sum())
            self._room = KEPT_BYTES if total * _SMALLEST_SHARE <= KEPT_BYTES else 0
        if size <= self._room:
            self._kept[number] = device
            self._room -= size
        elif size <= RECENT_BYTES:
            self._recent[number] = device
            self._recent_room -= size
            while self._recent_room < 0:
                oldest = self._recent.pop(next(iter(self._recent)))
                self._recent_room += _num_bytes(oldest)

    def mapped(self, change: Callable[[DeviceData], DeviceData], identity: str) -> "LazyDevices":
        """Change every device when it is made; ids and sizes stay.

        Args:
            change: gives the changed device.
            identity: what to add to this sequence's identity, which names the change.
        """
        return LazyDevices(
            self.ids,
            self.sizes,
            lambda number: change(self._make(number)),
            f"{self.identity} {identity}",
        )


def ids_of(devices: Sequence[DeviceData]) -> Sequence[str]:
    """Who some devices are, without making one to see."""
    return devices.ids if isinstance(devices, LazyDevices) else [one.id for one in devices]


def sizes_of(devices: Sequence[DeviceData]) -> npt.NDArray[np.int64]:
    """How many samples each device has, int64 [len(devices)], without making one to see."""
    if isinstance(devices, LazyDevices):
        return devices.sizes
    return np.array([device.num_samples for device in devices], dtype=np.int64)


def changed(
    devices: Sequence[DeviceData], change: Callable[[DeviceData], DeviceData], identity: str
) -> Sequence[DeviceData]:
    """Each device changed; those that are made on demand, once they are.

    Args:
        devices: the devices.
        change: of one.
        identity: says which change it is, for the identity of devices that are made on demand.
    """
    if isinstance(devices, LazyDevices):
        return devices.mapped(change, f"standardise={identity}")
    return tuple(map(change, devices))


def all_changed(
    dataset: FederatedDataset, change: Callable[[DeviceData], DeviceData], identity: str
) -> FederatedDataset:
    """A data set with each device changed; see `changed`."""
    sides = dataset.sides.items()
    return dataset.with_sides({name: changed(side, change, identity) for name, side in sides})


def _num_bytes(device: DeviceData) -> int:
    return device.x.nbytes + device.y.nbytes


def federate_lazily(
    name: str, devices: LazyDevices, split: Split, *, num_classes: int
) -> FederatedDataset:
    """Drop small devices and split the others, without making one of them but the first.

    A split by devices takes the first of them for training: whoever made up the devices has put
    them into an order that means nothing.

    Args:
        name: what to call the data set.
        devices: everybody, in the order of their ids.
        split: the rule for small devices, and who trains.
        num_classes: labels are below it.

    Raises:
        DataError: there are not enough devices left for a train and a test side.
    """
    least = max(split.more_than, 1 if split.by is SplitBy.SAMPLES else 0)
    kept = np.flatnonzero(devices.sizes > least)
    split.check_whole(name)
    if len(kept) < 2:
        raise DataError(too_few(name, devices.sizes.tolist(), len(kept), split.rule))
    if split.by is SplitBy.SAMPLES:
        train, test = divided_samples(some_devices(devices, kept), split)
    else:
        num_train = max(1, int(len(kept) * split.train_fraction))
        train = some_devices(devices, kept[:num_train])
        test = some_devices(devices, kept[num_train:])
    shape, dropped = devices[int(kept[0])].x.shape[1:], len(devices) - len(kept)
    return FederatedDataset(name, train, test, num_classes, shape, dropped, split.rule)


def some_devices(
    devices: Sequence[DeviceData], numbers: npt.NDArray[np.int64]
) -> Sequence[DeviceData]:
    """Some of the devices, by their numbers."""
    if not isinstance(devices, LazyDevices):
        return tuple(devices[number] for number in numbers)
    ids = [devices.ids[number] for number in numbers]
    first, last = (ids[0], ids[-1]) if ids else ("", "")
    return LazyDevices(
        ids,
        devices.sizes[numbers],
        lambda place: devices._make(int(numbers[place])),
        f"{devices.identity} devices={first}..{last}({len(ids)})",
    )


def divided_samples(
    devices: Sequence[DeviceData], split: Split
) -> tuple[Sequence[DeviceData], Sequence[DeviceData]]:
    """The samples of each device in two parts, as by `split_samples`."""
    if isinstance(devices, LazyDevices):
        return _half(devices, split, 0), _half(devices, split, 1)
    pairs = [split_samples(device, split) for device in devices]
    return tuple(one for one, _ in pairs), tuple(one for _, one in pairs)


def _half(devices: LazyDevices, split: Split, side: int) -> LazyDevices:
    share, sizes = split.train_fraction, devices.sizes
    num_train = np.clip(sizes * share.numerator // share.denominator, 1, sizes - 1)
    return LazyDevices(
        devices.ids,
        num_train if side == 0 else sizes - num_train,
        lambda place: split_samples(devices._make(place), split)[side],
        f"{devices.identity} samples={share} seed={split.seed} side={side}",
    )
