"""What all devices take their data for: which class is which number, and how inputs are scaled.

A simulation numbers the classes of all devices together. A device on a machine of its own sees no
file but its own, in which a class may be missing. So the session says what the classes are called,
in order, and each device finds its labels among them, by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from deltafl.fl.data.federated import (
    DeviceData,
    FederatedDataset,
    Scale,
    check_classes,
    with_numbers,
)
from deltafl.fl.data.lazy import all_changed
from deltafl.fl.errors import DataError

GIVEN: Final = "given"
"""What scaling by constants is called that were said and not measured."""

_SHOWN: Final = 10  # labels in a message


@dataclass(frozen=True, slots=True)
class Agreed:
    """What is said of the data of all devices; what is empty is not said.

    Attributes:
        classes: what the classes are called, in the order of their numbers.
        shape: of one input.
        means: what is subtracted from inputs, a number for each.
        scales: what they are divided by then, likewise; above 0.
    """

    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    means: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_classes("data.classes", self.classes)
        if len(self.classes) == 1:
            raise ValueError(f"classes={self.classes[0]!r:.60}: name at least two, or none")
        if not all(side > 0 for side in self.shape):
            raise ValueError(f"input_shape={list(self.shape)}: sides must be above 0")
        if not np.isfinite((*self.means, *self.scales)).all() or min(self.scales, default=1) <= 0:
            raise ValueError("means and scales must be finite, and scales above 0")

    def of(self, dataset: FederatedDataset) -> FederatedDataset:
        """The data with labels numbered, and inputs scaled, as is said.

        Raises:
            DataError: a label is none of the classes, an input has another shape, or constants do
                not fit; it says which.
        """
        if self.shape and dataset.input_shape != self.shape:
            raise DataError(
                f"{dataset.name}: an input has the shape {dataset.input_shape}, and must have "
                f"{self.shape} (data.input_shape): bring inputs to it"
            )
        if self.classes:
            dataset = self._numbered(dataset)
        return self._scaled(dataset) if self.is_scaled else dataset

    @property
    def is_scaled(self) -> bool:
        """Whether inputs are scaled."""
        return bool(self.means or self.scales)

    def scale(self, shape: tuple[int, ...]) -> Scale:
        """The constants for inputs of a shape.

        Raises:
            DataError: they are more or fewer.
        """
        size = int(np.prod(shape))
        for name, given in (("means", self.means), ("scales", self.scales)):
            if given and len(given) != size:
                told = f"{len(given)} numbers, and inputs of shape {shape} have {size}"
                raise DataError(f"data.{name} has {told}: give one for each")
        means, scales = self.means or [0.0] * size, self.scales or [1.0] * size
        return Scale(np.reshape(means, shape), np.reshape(scales, shape))

    def _numbered(self, dataset: FederatedDataset) -> FederatedDataset:
        # names of classes that no device has, up to the largest label, count for nothing
        names = dataset.classes or tuple(map(str, range(dataset.num_classes)))
        known = {name: number for number, name in enumerate(self.classes)}
        places = np.array([known.get(name, -1) for name in names], np.int64)

        def change(device: DeviceData) -> DeviceData:
            numbers = places[device.y]
            if (numbers < 0).any():
                labels = [names[one] for one in np.unique(device.y[numbers < 0])]
                raise unknown_label(f"{dataset.name}: user {device.id!r}", labels, self.classes)
            return replace(device, y=numbers)

        made = all_changed(dataset, change, "classes")
        return replace(made, classes=self.classes, num_classes=len(self.classes))

    def _scaled(self, dataset: FederatedDataset) -> FederatedDataset:
        numbers = with_numbers(dataset)
        if numbers.train[0].is_tokens:
            raise DataError(f"{dataset.name}: tokens have no scale: leave data.means out")
        scale = self.scale(dataset.input_shape)

        def change(device: DeviceData) -> DeviceData:
            with np.errstate(over="ignore"):
                scaled = scale.of_device(device)
            if not np.isfinite(scaled.x).all():
                told = f"user {device.id!r}: a scaled input is no finite float32"
                raise DataError(f"{dataset.name}: {told}: correct it, or data.scales")
            return scaled

        return replace(all_changed(numbers, change, GIVEN), scale=scale, scaled=GIVEN)


def unknown_label(where: str, labels: Sequence[str], classes: Sequence[str]) -> DataError:
    """The error for labels that are none of the classes."""
    shown = ", ".join(f"{name:.40}" for name in classes[:20])
    told = ", ".join(f"{label!r:.60}" for label in labels[:_SHOWN])
    more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
    is_one = "a label is" if len(labels) == 1 else "labels are"
    return DataError(
        f"{where}: {is_one} {told}{more}, and the classes are {shown}: correct the label, leave "
        "its rows out, or have the class added (data.classes)"
    )
