"""One entry to all data sets: read, assign anew if wanted, split, scale.

Samples are assigned to new devices with skewed labels, as strong as one likes.
Source: Hsu, Qi, Brown 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification" (arXiv 1909.06335), Section 2: each device has its own class proportions
q ~ Dir(α·p), where p are those of all samples, and takes its samples without replacement until the
classes run out. α → ∞ makes devices alike, α → 0 gives each of them one class.

Features are scaled to mean 0 and standard deviation 1, or as the published code does. Constants
come from train samples only. `legacy` is for comparison with arXiv 2002.11223, whose code divides
by the mean instead of the deviation, and scales test devices by the constants of the test set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import (
    DeviceData,
    FederatedDataset,
    Scale,
    Split,
    federate,
    with_numbers,
)
from deltafl.fl.data.lazy import all_changed, changed, ids_of
from deltafl.fl.data.registry import Format, format_of
from deltafl.fl.data.validation import hold_out
from deltafl.fl.errors import DataError

Rows: TypeAlias = npt.NDArray[np.int64]
"""Numbers of samples."""


class Partitioner(StrEnum):
    """Who gets which samples."""

    NATURAL = "natural"
    """Whoever made them."""

    DIRICHLET = "dirichlet"
    """New devices of equal size whose labels differ (`assign_by_label`)."""


STD_FLOOR: Final = 1e-2
"""The smallest divisor. A feature that is (nearly) constant on train devices is not blown up."""

MEAN_FLOOR: Final = 1e-6
"""The smallest divisor of `legacy`, in absolute value; it keeps the sign of the mean."""


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


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """Which data set, and how.

    Attributes:
        source: where it lies, or the name of one that needs no path, such as "digits".
        split: the rule for small devices, and who trains.
        standardise: how features are scaled.
        format: a name of `deltafl.fl.data.registry.FORMATS`, or "auto".
        options: what the loader is told beside, of `deltafl.fl.data.registry.OPTIONS`.
        partitioner: who gets which samples; the split's seed decides.
        concentration: α of the partitioner, above 0.
        validation: the share of the training side that is held out to choose by, in [0, 1).
    """

    source: str
    split: Split = Split()  # noqa: RUF009 (a frozen value, safe to share)
    standardise: Standardise = Standardise.NONE
    format: str = "auto"
    options: Mapping[str, object] = field(default_factory=dict)
    partitioner: Partitioner = Partitioner.NATURAL
    concentration: float = 1.0
    validation: Fraction = Fraction(0)


def load_dataset(spec: DatasetSpec) -> FederatedDataset:
    """Read, check, split and scale a data set.

    Raises:
        ValueError: an unknown format, an option that the format does not use or that is out of
            range.
        DataError: the source is none of the known kinds, or cannot be used as it is.
    """
    kind = format_of(spec.source, spec.format)
    if spec.partitioner is Partitioner.NATURAL:
        dataset = kind.read(spec.source, spec.split, spec.options)
    else:
        dataset = _assigned_anew(spec, kind)
    return standardise(hold_out(dataset, spec.validation, spec.split), spec.standardise)


def _assigned_anew(spec: DatasetSpec, kind: Format) -> FederatedDataset:
    if not kind.needs:
        raise ValueError(
            f"the format {kind.name!r} makes its own devices and cannot be assigned anew: use "
            f"{Partitioner.NATURAL.value!r}"
        )
    options = dict(spec.options)
    count = options.pop("num_devices", None)  # which is for the partitioner
    if not isinstance(count, int):
        raise ValueError(f"partitioner {spec.partitioner.value!r} needs the number of devices")
    # everything is kept that its makers have: the rule is for the new devices
    everything = replace(spec.split, more_than=0, by=kind.split.by)
    whole = kind.read(spec.source, everything, options)
    generator = np.random.default_rng([spec.split.seed, 7])
    y = pooled_labels(whole)
    try:
        rows = assign_by_label(y, count, spec.concentration, generator)
    except ValueError as error:
        raise DataError(f"{whole.name}: {error}") from error
    split = replace(spec.split, num_classes=whole.num_classes, num_users=None, max_samples=None)
    name = f"{whole.name} ({spec.partitioner.value}, α = {spec.concentration:g})"
    assigned = federate(name, assign_again(whole, rows), split)
    return replace(assigned, embedding=whole.embedding)


def assign_by_label(
    y: npt.NDArray[np.int64],
    num_devices: int,
    concentration: float,
    generator: np.random.Generator,
) -> list[Rows]:
    """Assign samples so that devices differ in their labels and not in their sizes.

    Args:
        y: labels [n], integers from 0 on.
        num_devices: in [1, n]; sizes differ by one at most, so nobody goes without.
        concentration: α > 0.
        generator: the source of all that is random.

    Returns:
        For each device the rows of its samples in ascending order; each row is assigned once.

    Raises:
        ValueError: an argument is out of range.
    """
    if not 1 <= num_devices <= len(y):
        told = f"num_devices={num_devices} is not in [1, {len(y)}]"
        raise ValueError(f"{told}, the number of samples")
    if not 0 < concentration < np.inf:
        raise ValueError(f"concentration={concentration} is not a positive number")
    counts = np.bincount(y)
    piles = [generator.permutation(np.flatnonzero(y == label)) for label in range(len(counts))]
    left, prior = counts.copy(), counts / len(y)
    classes = np.flatnonzero(counts)
    assigned = []
    for own in np.array_split(y, num_devices):
        size = len(own)
        proportions = np.zeros(len(counts))
        proportions[classes] = generator.dirichlet(concentration * prior[classes])
        rows: list[Rows] = []
        while size > 0:
            wish = np.where(left > 0, proportions, 0.0)
            if not wish.sum() > 0:  # all that it wants is gone
                wish = left.astype(np.float64)
            taken = np.minimum(generator.multinomial(size, wish / wish.sum()), left)
            for label in np.flatnonzero(taken):
                start = counts[label] - left[label]
                rows.append(piles[label][start : start + taken[label]])
            left -= taken
            size -= int(taken.sum())
        assigned.append(np.sort(np.concatenate(rows)))
    return assigned


def assign_again(dataset: FederatedDataset, rows: list[Rows]) -> list[DeviceData]:
    """Pool everybody's samples and give them to new devices, "device-0000" and so on.

    Args:
        dataset: whose samples; its own split is forgotten.
        rows: for each new device its rows of `pooled_labels`.
    """
    x = np.concatenate([device.x for device in (*dataset.train, *dataset.test)])
    y = pooled_labels(dataset)
    width = len(str(len(rows) - 1))
    return [
        DeviceData(f"device-{number:0{width}}", x[own], y[own]) for number, own in enumerate(rows)
    ]


def pooled_labels(dataset: FederatedDataset) -> npt.NDArray[np.int64]:
    """All labels [n]: those of the train devices in their order, then those of the test devices."""
    return np.concatenate([device.y for device in (*dataset.train, *dataset.test)])


def standardise(
    dataset: FederatedDataset, mode: Standardise = Standardise.TRAIN
) -> FederatedDataset:
    """Scale every feature.

    The result holds float32 inputs, also where the source held bytes. Tokens stay as they are.
    """
    if mode is Standardise.NONE or (dataset := with_numbers(dataset)).train[0].is_tokens:
        return dataset
    had_pixels = dataset.train[0].x.dtype == np.uint8
    dataset = replace(dataset, scaled=mode, had_pixels=had_pixels)
    if mode is Standardise.DEVICE:
        return all_changed(dataset, _scaled_by_own(dataset.train), mode)
    if mode is Standardise.LEGACY:
        sides = dataset.sides.items()
        scales = {name: _legacy_scale(side) for name, side in sides}
        return dataset.with_sides(
            {name: changed(side, scales[name].of_device, mode) for name, side in sides}
        )
    scale = scaling_constants(dataset.train)
    return replace(all_changed(dataset, scale.of_device, mode), scale=scale)


def scaling_constants(devices: Sequence[DeviceData]) -> Scale:
    """Compute the mean and the deviation of every feature over the samples of some devices.

    With those of the train devices, `Standardise.TRAIN` makes (x − mean) / deviation of x.

    Args:
        devices: not scaled yet; their inputs are no tokens.

    Returns:
        No deviation in it is below `STD_FLOOR`.
    """
    mean, count = _mean(devices), sum(device.num_samples for device in devices)
    # a second pass and not E[x²] − E[x]², which cancels
    squares = sum(((device.inputs() - mean) ** 2).sum(axis=0) for device in devices)
    return Scale(mean, np.maximum(np.sqrt(np.asarray(squares) / count), STD_FLOOR))


def _scaled_by_own(train: Sequence[DeviceData]) -> Callable[[DeviceData], DeviceData]:
    places = {device_id: place for place, device_id in enumerate(ids_of(train))}

    def change(device: DeviceData) -> DeviceData:
        own = train[places[device.id]] if device.id in places else device
        return scaling_constants([own]).of_device(device)

    return change


def _mean(devices: Sequence[DeviceData]) -> npt.NDArray[np.float64]:
    count = sum(device.num_samples for device in devices)
    total = sum(device.inputs().sum(axis=0, dtype=np.float64) for device in devices)
    return np.asarray(total) / count


def _legacy_scale(devices: Sequence[DeviceData]) -> Scale:
    mean = _mean(devices)
    return Scale(mean, np.copysign(np.maximum(np.abs(mean), MEAN_FLOOR), mean))
