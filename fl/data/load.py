"""One entry to all data sets: read, assign anew if wanted, split, scale.

Samples are assigned to new devices with skewed labels or skewed sizes, as strong as one likes.
Source: Hsu, Qi, Brown 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification" (arXiv 1909.06335), Section 2: each device has its own class proportions
q ~ Dir(α·p), where p are those of all samples, and takes its samples without replacement until the
classes run out. α → ∞ makes devices alike, α → 0 gives each of them one class.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate
from deltafl.fl.data.registry import DEFAULTS, Format, Options, format_of
from deltafl.fl.data.standardise import Standardise, standardise
from deltafl.fl.errors import DataError

Rows: TypeAlias = npt.NDArray[np.int64]
"""Numbers of samples."""


class Partitioner(StrEnum):
    """Who gets which samples."""

    NATURAL = "natural"
    """Whoever made them."""

    DIRICHLET = "dirichlet"
    """New devices of equal size whose labels differ (`assign_by_label`)."""

    QUANTITY = "quantity"
    """New devices whose sizes differ (`assign_by_size`)."""


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """Which data set, and how.

    Attributes:
        source: where it lies, or the name of one that needs no path, such as "digits".
        split: the rule for small devices, and who trains.
        standardise: how features are scaled.
        format: a name of `deltafl.fl.data.registry.FORMATS`, or "auto".
        options: what the loader is told beside.
        partitioner: who gets which samples; the split's seed decides.
        concentration: α of the partitioner, above 0.
    """

    source: str
    split: Split = Split()  # noqa: RUF009 (a frozen value, safe to share)
    standardise: Standardise = Standardise.NONE
    format: str = "auto"
    options: Options = DEFAULTS
    partitioner: Partitioner = Partitioner.NATURAL
    concentration: float = 1.0


def load_dataset(spec: DatasetSpec) -> FederatedDataset:
    """Read, check, split and scale a data set.

    Raises:
        ValueError: an unknown format, an option that the format does not use or that is out of
            range.
        DataError: the source is none of the known kinds, or cannot be used as it is.
    """
    kind = format_of(spec.source, spec.format)
    options = spec.options
    if spec.partitioner is not Partitioner.NATURAL:
        if not kind.needs:
            raise ValueError(
                f"the format {kind.name!r} makes its own devices and cannot be assigned anew: use "
                f"{Partitioner.NATURAL.value!r}"
            )
        options = replace(options, num_devices=None)  # which is for the partitioner
    if spec.partitioner is Partitioner.NATURAL:
        dataset = kind.read(spec.source, spec.split, options)
    else:
        dataset = _assigned_anew(spec, kind, options)
    return standardise(dataset, spec.standardise)


def _assigned_anew(spec: DatasetSpec, kind: Format, options: Options) -> FederatedDataset:
    count = spec.options.num_devices
    if count is None:
        raise ValueError(f"partitioner {spec.partitioner.value!r} needs the number of devices")
    # everything is kept that its makers have: the rule is for the new devices
    everything = replace(spec.split, more_than=0, by=kind.split.by)
    whole = kind.read(spec.source, everything, options)
    generator = np.random.default_rng([spec.split.seed, 7])
    y = pooled_labels(whole)
    try:
        rows = (
            assign_by_label(y, count, spec.concentration, generator)
            if spec.partitioner is Partitioner.DIRICHLET
            else assign_by_size(len(y), count, spec.concentration, generator)
        )
    except ValueError as error:
        raise DataError(f"{whole.name}: {error}") from error
    split = replace(spec.split, num_classes=whole.num_classes)
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
    _check(len(y), num_devices, concentration)
    counts = np.bincount(y)
    piles = [generator.permutation(np.flatnonzero(y == label)) for label in range(len(counts))]
    left, prior = counts.copy(), counts / len(y)
    classes = np.flatnonzero(counts)
    assigned = []
    for size in _even(len(y), num_devices):
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


def assign_by_size(
    num_samples: int, num_devices: int, concentration: float, generator: np.random.Generator
) -> list[Rows]:
    """Assign samples so that devices differ in their sizes and not, but by chance, in their labels.

    Everybody gets one sample, and of the rest a share: the shares are Dir(α, …, α).

    Args:
        num_samples: n.
        num_devices: in [1, n].
        concentration: α > 0; small ones give nearly all to a few.
        generator: the source of all that is random.

    Returns:
        For each device the rows of its samples in ascending order; each row is assigned once.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(num_samples, num_devices, concentration)
    shares = generator.dirichlet(np.full(num_devices, concentration))
    if not np.isfinite(shares).all():  # so small a concentration underflows: one takes it all
        shares = np.zeros(num_devices)
        shares[generator.integers(num_devices)] = 1
    ends = np.rint(np.cumsum(shares) / shares.sum() * (num_samples - num_devices)).astype(np.int64)
    order = generator.permutation(num_samples)
    cuts = (ends + np.arange(1, num_devices + 1))[:-1]
    return [np.sort(rows) for rows in np.split(order, cuts)]


def assign_again(dataset: FederatedDataset, rows: list[Rows]) -> list[DeviceData]:
    """Pool everybody's samples and give them to new devices, "device-0000" and so on.

    Args:
        dataset: whose samples; its own split is forgotten.
        rows: for each new device its rows of `pooled_labels`.
    """
    everybody = [*dataset.train, *dataset.test]
    if len({device.x.dtype for device in everybody}) == 1:
        x = np.concatenate([device.x for device in everybody])
    else:
        x = np.concatenate([device.inputs() for device in everybody])
    y = pooled_labels(dataset)
    width = len(str(len(rows) - 1))
    return [
        DeviceData(f"device-{number:0{width}}", x[own], y[own]) for number, own in enumerate(rows)
    ]


def pooled_labels(dataset: FederatedDataset) -> npt.NDArray[np.int64]:
    """All labels [n]: those of the train devices in their order, then those of the test devices."""
    return np.concatenate([device.y for device in (*dataset.train, *dataset.test)])


def _even(num_samples: int, num_devices: int) -> list[int]:
    size, larger = divmod(num_samples, num_devices)
    return [size + (number < larger) for number in range(num_devices)]


def _check(num_samples: int, num_devices: int, concentration: float) -> None:
    if not 1 <= num_devices <= num_samples:
        raise ValueError(
            f"num_devices={num_devices} is not in [1, {num_samples}], the number of samples"
        )
    if not 0 < concentration < np.inf:
        raise ValueError(f"concentration={concentration} is not a positive number")
