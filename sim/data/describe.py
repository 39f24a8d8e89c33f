"""The contents of a data set, next to its paper's counts (Table 1 of arXiv 2002.11223)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData, FederatedDataset
from deltafl.fl.data.lazy import LazyDevices
from deltafl.fl.data.registry import Format, Published
from deltafl.sim.record.memory import peak_memory_mb

_SILENT: Final = Published("no paper", 0, 0)


@dataclass(frozen=True, slots=True)
class Spread:
    """How many samples a group of devices has.

    Attributes:
        devices: number of devices.
        median: median number of samples per device.
        smallest: smallest number of samples per device.
        largest: largest number of samples per device.
        samples: number of samples of all devices together.
    """

    devices: int
    median: float
    smallest: int
    largest: int
    samples: int


@dataclass(frozen=True, slots=True)
class Description:
    """A data set in numbers.

    Attributes:
        name: name of the data set.
        num_classes: number of classes; labels are smaller.
        input_shape: shape of one input.
        input_dtype: type in which inputs are stored: "uint8" for pixels, signed integers for
            tokens.
        train: counts over the train devices.
        test: counts over the test devices.
        kept: counts over all devices, each with all of its samples.
        dropped: how many devices the rule left out.
        rule: the rule, in words.
        peak_memory_mb: the most memory of this process so far, in MB (10^6 bytes).
    """

    name: str
    num_classes: int
    input_shape: tuple[int, ...]
    input_dtype: str
    train: Spread
    test: Spread
    kept: Spread
    dropped: int
    rule: str
    peak_memory_mb: float


def measure(dataset: FederatedDataset) -> Description:
    """Count devices and samples; of devices generated on demand, only one is generated."""
    train, test = _sizes(dataset.train), _sizes(dataset.test)
    kept: Counter[str] = Counter()
    for side in (train, test):
        kept.update(side)
    return Description(
        name=dataset.name,
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        input_dtype=dataset.train[0].x.dtype.name,
        train=_spread(train),
        test=_spread(test),
        kept=_spread(kept),
        dropped=dataset.dropped,
        rule=dataset.rule,
        peak_memory_mb=peak_memory_mb(),
    )


def as_text(kind: Format, description: Description) -> str:
    """A table, with a column for the paper where there is one."""
    published = kind.published
    rows = counts(description, published)
    width = max(len(name) for name, _, _ in rows) + 2
    head = f"{'':<{width}}{'here':>14}" + (f"{'published':>14}" if published else "")
    lines = [*about(kind), f"rule: {description.rule}", "", head]
    for name, ours, theirs in rows:
        line = f"{name:<{width}}{_number(ours):>14}"
        lines.append((line + f"{_number(theirs):>14}") if published else line)
    lines += ["", f"inputs: {_shape(description)}"]
    if published:
        lines.append(f"published: {published.source}")
    return "\n".join(lines)


def as_json(kind: Format, description: Description) -> dict[str, object]:
    """The same content for programs, with every field."""
    return {
        "format": kind.name,
        "stand_in_for": kind.stands_for or None,
        **asdict(description),
        "published": asdict(kind.published) if kind.published else None,
        "origin": kind.origin,
        "licence": kind.licence,
    }


def about(kind: Format) -> list[str]:
    """What a user should know about a format, one line per fact."""
    lines = [f"{kind.name}: {kind.title}"]
    if kind.stands_for:
        lines.append(f"THIS IS A STAND-IN for {kind.stands_for}: synthetic, only the counts match")
    lines += [f"from: {kind.origin}", f"licence: {kind.licence}"]
    if kind.note:
        lines.append(f"note: {kind.note}")
    return lines


def counts(
    description: Description, published: Published | None
) -> list[tuple[str, float, float | None]]:
    """What is counted, the count, and the paper's."""
    train, kept, paper = description.train, description.kept, published or _SILENT
    return [
        ("classes", description.num_classes, paper.num_classes),
        ("train devices", train.devices, paper.train_devices),
        ("test devices", description.test.devices, paper.test_devices),
        ("samples per train device: median", train.median, paper.median),
        ("samples per train device: min", train.smallest, paper.smallest),
        ("samples per train device: max", train.largest, paper.largest),
        ("devices kept", kept.devices, None),
        ("samples per kept device: median", kept.median, None),
        ("samples per kept device: min", kept.smallest, None),
        ("samples per kept device: max", kept.largest, None),
        ("samples", kept.samples, paper.num_samples),
        ("devices dropped", description.dropped, None),
        ("peak memory, MB", round(description.peak_memory_mb), None),
    ]


def _number(value: float | None) -> str:
    """Format with thousands separators, and with a decimal only if it is not zero."""
    return "–" if value is None else f"{value:,.1f}".removesuffix(".0")


def _shape(description: Description) -> str:
    shape = " × ".join(map(str, description.input_shape))
    return f"{shape} {description.input_dtype}"


def _sizes(devices: Sequence[DeviceData]) -> dict[str, int]:
    if isinstance(devices, LazyDevices):
        return dict(zip(devices.ids, devices.sizes.tolist(), strict=True))
    return {device.id: device.num_samples for device in devices}


def _spread(sizes: dict[str, int]) -> Spread:
    values: npt.NDArray[np.int64] = np.fromiter(sizes.values(), np.int64)
    return Spread(
        devices=len(values),
        median=float(np.median(values)),
        smallest=int(values.min()),
        largest=int(values.max()),
        samples=int(values.sum()),
    )
