"""Scaling of features: mean 0 and standard deviation 1, or as the published code does.

Constants come from train samples only. `legacy` is for comparison with arXiv 2002.11223, whose
code divides by the mean instead of the deviation, and scales test devices by the constants of
the test set.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData, FederatedDataset
from deltafl.fl.data.lazy import LazyDevices

STD_FLOOR: Final = 1e-2
"""The smallest divisor. A feature that is (nearly) constant on train devices is not blown up."""

MEAN_FLOOR: Final = 1e-6
"""The smallest divisor of `legacy`, in absolute value; it keeps the sign of the mean."""

_Numbers = npt.NDArray[np.float64]


class Standardise(StrEnum):
    """How features are scaled."""

    NONE = "none"
    """As they are; right for pixels in [0, 1]."""

    TRAIN = "train"
    """To mean 0 and standard deviation 1 over the train devices."""

    DEVICE = "device"
    """To mean 0 and standard deviation 1 over each device's own train samples; a device that only
    tests has none and uses its own. So does Fed-Heart-Disease, by hospital."""

    LEGACY = "legacy"
    """(x − mean) / mean, test devices by the test devices' mean: the published code."""


def standardise(
    dataset: FederatedDataset, mode: Standardise = Standardise.TRAIN
) -> FederatedDataset:
    """Scale every feature.

    The result holds float32 inputs, also where the source held bytes. Tokens stay as they are.
    """
    if mode is Standardise.NONE or dataset.train[0].is_tokens:
        return dataset
    if mode is Standardise.DEVICE:
        return _by_device(dataset)
    if mode is Standardise.LEGACY:
        train, test = _mean(dataset.train), _mean(dataset.test)
        return replace(
            dataset,
            train=_scaled(dataset.train, train, _signed_floor(train), mode),
            test=_scaled(dataset.test, test, _signed_floor(test), mode),
        )
    mean, std = scaling_constants(dataset.train)
    return replace(
        dataset,
        train=_scaled(dataset.train, mean, std, mode),
        test=_scaled(dataset.test, mean, std, mode),
    )


def scaling_constants(devices: Sequence[DeviceData]) -> tuple[_Numbers, _Numbers]:
    """Compute the mean and the deviation of every feature over the samples of some devices.

    With those of the train devices, `Standardise.TRAIN` makes (x − mean) / deviation of x.

    Args:
        devices: not scaled yet; their inputs are no tokens.

    Returns:
        Two arrays, float64 of an input's shape; no deviation is below `STD_FLOOR`.
    """
    mean = _mean(devices)
    return mean, _deviation(devices, mean)


def _by_device(dataset: FederatedDataset) -> FederatedDataset:
    train = dataset.train
    ids = train.ids if isinstance(train, LazyDevices) else [device.id for device in train]
    places = {device_id: place for place, device_id in enumerate(ids)}

    def change(device: DeviceData) -> DeviceData:
        place = places.get(device.id)
        return _scale(device, *scaling_constants([device if place is None else train[place]]))

    return replace(
        dataset,
        train=_changed(train, change, Standardise.DEVICE),
        test=_changed(dataset.test, change, Standardise.DEVICE),
    )


def _mean(devices: Sequence[DeviceData]) -> _Numbers:
    count = sum(device.num_samples for device in devices)
    total = sum(device.inputs().sum(axis=0, dtype=np.float64) for device in devices)
    return np.asarray(total) / count


def _deviation(devices: Sequence[DeviceData], mean: _Numbers) -> _Numbers:
    count = sum(device.num_samples for device in devices)
    # a second pass and not E[x²] − E[x]², which cancels
    squares = sum(((device.inputs() - mean) ** 2).sum(axis=0) for device in devices)
    return np.maximum(np.sqrt(np.asarray(squares) / count), STD_FLOOR)


def _signed_floor(mean: _Numbers) -> _Numbers:
    return np.copysign(np.maximum(np.abs(mean), MEAN_FLOOR), mean)


def _scaled(
    devices: Sequence[DeviceData], mean: _Numbers, divisor: _Numbers, mode: Standardise
) -> Sequence[DeviceData]:
    return _changed(devices, lambda device: _scale(device, mean, divisor), mode)


def _changed(
    devices: Sequence[DeviceData], change: Callable[[DeviceData], DeviceData], mode: Standardise
) -> Sequence[DeviceData]:
    if isinstance(devices, LazyDevices):
        return devices.mapped(change, f"standardise={mode}")
    return tuple(change(device) for device in devices)


def _scale(device: DeviceData, mean: _Numbers, divisor: _Numbers) -> DeviceData:
    x = ((device.inputs() - mean) / divisor).astype(np.float32)
    return DeviceData(device.id, x, device.y)
