"""A federated data set: who has which samples, and which devices train and which test.

Devices, not samples, are split: a test device has never been seen in training. The split ranks the
devices by SHA-256 of (seed, id), so it depends on the seed and on who is there, and neither on the
order of files nor on the file system.

For a machine on which the whole does not fit or takes too long, a part is taken. Users are drawn by
rank of SHA-256 of (seed, id) among those that the rule for small devices keeps, so that a larger
part contains a smaller one. Samples are drawn (`draw_rows`), for files are often sorted by class.
The part is named in `FederatedDataset.rule`, so no table hides it.
"""

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from deltafl.fl.errors import DataError

TRAIN: Final = "train"
VALIDATION: Final = "validation"
TEST: Final = "test"

MAX_NAME: Final = 1 << 12
"""Most characters of a device's id."""

_WHOLE: Final = re.compile(r"^([0-9]+)\.0*$")

MAX_INFERRED_CLASSES: Final = 10_000
"""Labels from here on are taken for mistakes, unless the number of classes is given."""

Samples: TypeAlias = (
    npt.NDArray[np.float32]
    | npt.NDArray[np.uint8]
    | npt.NDArray[np.int8]
    | npt.NDArray[np.int16]
    | npt.NDArray[np.int32]
    | npt.NDArray[np.int64]
)
"""Features (float32), pixels (uint8, that stand for x / 255) or tokens (a signed integer). Whole
numbers of which only the model knows whether they are tokens are int64 (`with_numbers`)."""

Targets: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float32]
"""Labels of classes, or numbers that are to be predicted."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceData:
    """One device's own samples.

    Attributes:
        id: who it is, unique in the data set.
        x: inputs, shape [n, *input_shape]: float32, or uint8 pixels that stand for x / 255, or
            tokens of a signed integer type. Images stay bytes in memory, a quarter of the size,
            and are scaled when they are used; x may be a view of a text, one row per window.
        y: labels in 0..num_classes − 1, int64, shape [n]; or numbers that are to be predicted,
            float32, shape [n, ...].
    """

    id: str
    x: Samples = field(repr=False)
    y: Targets = field(repr=False)

    @property
    def num_samples(self) -> int:
        """The number of samples n_k."""
        return len(self.y)

    @property
    def has_numbers(self) -> bool:
        """Whether numbers are to be predicted, and not classes."""
        return self.y.dtype.kind == "f"

    @property
    def is_tokens(self) -> bool:
        """Whether the inputs are tokens, which have no mean and no scale."""
        return self.x.dtype.kind == "i"

    def inputs(self) -> npt.NDArray[np.float32] | npt.NDArray[np.int64]:
        """Give the inputs as a model takes them: float32, pixels in [0, 1], or int64 tokens."""
        if self.is_tokens:
            return self.x.astype(np.int64)
        if self.x.dtype == np.uint8:
            return np.multiply(self.x, np.float32(1 / 255), dtype=np.float32)
        return self.x.astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """Constants by which features were scaled for training.

    Attributes:
        mean: float64, the input's shape.
        std: float64, the same shape, above 0.
    """

    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]

    def of(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Scaled inputs, [n, *input_shape]."""
        scaled: npt.NDArray[np.float32] = ((inputs - self.mean) / self.std).astype(np.float32)
        return scaled

    def of_device(self, device: DeviceData) -> DeviceData:
        """A device with its inputs scaled."""
        return replace(device, x=self.of(device.inputs()))


@dataclass(frozen=True, slots=True, eq=False)
class FederatedDataset:
    """Devices that train, that choose and that test, each in the order of their ids.

    They are disjoint, or the same devices with disjoint samples (`SplitBy`).

    Attributes:
        name: what to call it in tables.
        train: the devices that cohorts are drawn from; a sequence may make a device when it is
            asked for (`deltafl.fl.data.lazy`).
        test: the devices that only evaluate.
        num_classes: labels are below it; 0 where numbers are to be predicted.
        input_shape: the shape of one input.
        dropped: how many devices the rule left out.
        rule: the rule, in words.
        embedding: the frozen vectors of the tokens, float32 of shape [vocabulary, dimension], for
            models that read text through them; None where there is nothing to look up.
        validation: the devices by which settings and models are chosen; there may be none
            (`deltafl.fl.data.validation`).
        scale: how inputs were scaled, where all were scaled alike; None where they were not.
        classes: the texts that the labels were, by their numbers; empty if they were numbers.
        scaled: how features were scaled: a `deltafl.fl.data.load.Standardise`.
        had_pixels: whether they were bytes before that.
    """

    name: str
    train: Sequence[DeviceData]
    test: Sequence[DeviceData]
    num_classes: int
    input_shape: tuple[int, ...]
    dropped: int
    rule: str
    embedding: npt.NDArray[np.float32] | None = None
    validation: Sequence[DeviceData] = ()
    scale: Scale | None = None
    classes: tuple[str, ...] = ()
    scaled: str = "none"
    had_pixels: bool = False

    @property
    def sides(self) -> Mapping[str, Sequence[DeviceData]]:
        """All devices by what they are for: "train", "validation" (if there are any) and "test"."""
        held_out = {VALIDATION: self.validation} if len(self.validation) else {}
        return {TRAIN: self.train, **held_out, TEST: self.test}

    def with_sides(self, sides: Mapping[str, Sequence[DeviceData]]) -> "FederatedDataset":
        """The same with other devices, by what they are for."""
        held_out = sides.get(VALIDATION, ())
        return replace(self, train=sides[TRAIN], validation=held_out, test=sides[TEST])


AS_DIVIDED: Final = "as the data are divided"
"""The rule of data that came with their split."""


class SplitBy(StrEnum):
    """What is divided into train and test."""

    DEVICES = "devices"
    """Devices: a test device has never been seen in training, as in arXiv 2002.11223."""

    SAMPLES = "samples"
    """The samples of every device, as between a few hospitals or banks (cross-silo)."""


@dataclass(frozen=True, slots=True)
class Split:
    """The train/test split: which devices stay, and which of them train.

    Attributes:
        more_than: a device stays if it has strictly more samples than this.
        train_fraction: the share of the devices that train, rounded down, in (0, 1).
        seed: of the split.
        num_classes: how many classes there are; None takes the largest label in the data plus one.
        by: whether devices are divided, or the samples of each device.
        alone: whether the data may be those of one device. Then no device is drawn to test: the
            others are on machines of their own.
        num_users: as many of the users that the rule keeps, at least 2; None takes all.
        max_samples: at most so many samples of each, at least 1; None takes all.
    """

    more_than: int = 0
    train_fraction: Fraction = Fraction(1, 2)
    seed: int = 0
    num_classes: int | None = None
    by: SplitBy = SplitBy.DEVICES
    alone: bool = False
    num_users: int | None = None
    max_samples: int | None = None

    def __post_init__(self) -> None:
        least = {"more_than": 0, "num_classes": 2, "num_users": 2, "max_samples": 1}
        for name, number in least.items():
            if (value := getattr(self, name)) is not None and value < number:
                raise ValueError(f"{name}={value} is not at least {number}")
        if not 0 < self.train_fraction < 1:
            raise ValueError(f"train_fraction={self.train_fraction} is not in (0, 1)")

    @property
    def rule(self) -> str:
        """The rule for small devices, in words."""
        return f"keep devices with more than {self.more_than} samples"

    def check_whole(self, name: str) -> None:
        """Check that no part is asked for, of data that are taken whole.

        Raises:
            DataError: one is.
        """
        if self.num_users or self.max_samples:
            raise DataError(f"{name}: it is taken whole: leave num_users and max_samples out")


def with_numbers(dataset: FederatedDataset) -> FederatedDataset:
    """The data with int64 inputs as float32, for models that take numbers; others as they are."""
    if dataset.train[0].x.dtype != np.int64:
        return dataset
    sides = dataset.sides.items()
    return dataset.with_sides({name: tuple(map(as_numbers, side)) for name, side in sides})


def as_numbers(device: DeviceData) -> DeviceData:
    """A device with int64 inputs as float32; any other as it is."""
    if device.x.dtype != np.int64:
        return device
    return replace(device, x=device.x.astype(np.float32))


def choose_users(name: str, counts: Mapping[str, int], split: Split) -> list[str]:
    """Say who stays, in the order of the ids, before anything of theirs is read.

    Args:
        name: of the data set, for messages.
        counts: how many samples each user has.
        split: the rule for small devices, how many users to take, and the seed.

    Raises:
        DataError: fewer than needed, or than asked for, are left by the rule.
    """
    kept = sorted(user for user, count in counts.items() if count > split.more_than)
    least = split.num_users or (1 if split.alone else 2)
    if len(kept) < least:
        raise DataError(too_few(name, [*counts.values()], len(kept), split.rule, least=least))
    if split.num_users is None:
        return kept
    ranked = sorted(kept, key=lambda user: rank_of("subset", split.seed, user))
    return sorted(ranked[: split.num_users])


def draw_rows(user: str, count: int, most: int | None, seed: int) -> npt.NDArray[np.int64]:
    """Draw at most so many of a user's samples, in rising order, by seed and name alone.

    A larger part of one user contains a smaller one.

    >>> draw_rows("a", 3, None, 0).tolist(), len(draw_rows("a", 9, 4, 0))
    ([0, 1, 2], 4)
    """
    return np.sort(_order("rows", seed, user, count)[:most])


def rank_of(what: str, seed: int, user: str) -> bytes:
    """By what users are ranked where some are drawn for something, by a seed."""
    return hashlib.sha256(f"{what}\0{seed}\0{user}".encode()).digest()


def _order(what: str, seed: int, user: str, count: int) -> npt.NDArray[np.int64]:
    """The numbers below `count` at random, by seed and name alone."""
    number = int.from_bytes(rank_of(what, seed, user), "big")
    return np.random.default_rng(number).permutation(count)


def federate(
    name: str,
    devices: Sequence[DeviceData],
    split: Split,
    *,
    test_ids: Collection[str] | None = None,
    counts: Mapping[str, int] | None = None,
) -> FederatedDataset:
    """Drop small devices, take the part that is asked for, and split it into train and test.

    Args:
        name: what to call the data set, in tables and in messages.
        devices: everybody, in any order.
        split: the rule for small devices, which part to take, and who trains.
        test_ids: a split that came with the data, which then holds instead of the seed's.
        counts: how many samples each user of the source has, where `devices` have a part of them.

    Raises:
        DataError: two devices share an id, inputs differ in shape, a label is out of range, or
            there are not enough devices left for a train and a test side.
    """
    _check_together(name, devices, split.num_classes)
    counts = counts or {device.id: device.num_samples for device in devices}
    chosen = frozenset(choose_users(name, counts, split))
    kept = [_part(device, split) for device in devices if device.id in chosen]
    kept.sort(key=lambda device: device.id)
    if split.by is SplitBy.SAMPLES:
        sides = [split_samples(device, split) for device in kept]
        train, test = tuple(side[0] for side in sides), tuple(side[1] for side in sides)
    else:
        if test_ids is None:
            ids = [device.id for device in kept]
            test_ids = frozenset() if split.alone else split_ids(ids, split)[1]
        train = tuple(device for device in kept if device.id not in test_ids)
        test = tuple(device for device in kept if device.id in test_ids)
    if not train or not (test or split.alone):
        raise DataError(
            f"{name}: {len(train)} train and {len(test)} test devices are left by the rule "
            f"'{split.rule}': {'lower the number' if split.more_than else 'give data of both'}"
        )
    num_kept = sum(count > split.more_than for count in counts.values())
    part = "" if split.num_users is None else f"; {split.num_users} of the {num_kept} kept"
    most = "" if split.max_samples is None else f"; at most {split.max_samples} samples of each"
    return FederatedDataset(
        name,
        train,
        test,
        _classes_of(devices, split),
        devices[0].x.shape[1:],
        dropped=len(counts) - num_kept,
        rule=f"{split.rule}{part}{most}",
    )


def _part(device: DeviceData, split: Split) -> DeviceData:
    if split.max_samples is None or device.num_samples <= split.max_samples:
        return device
    rows = draw_rows(device.id, device.num_samples, split.max_samples, split.seed)
    return DeviceData(device.id, device.x[rows], device.y[rows])


def federate_sides(
    name: str, sides: Mapping[str, Sequence[DeviceData]], split: Split
) -> FederatedDataset:
    """A split that the data came with: nobody is drawn, and nobody is dropped.

    Args:
        name: what to call the data set.
        sides: its devices by what they are for, "train", "test" and perhaps "validation", in any
            order; the same device may be on several, with other samples.
        split: only its number of classes counts; no part is taken.

    Raises:
        DataError: as `federate`, or a side is empty.
    """
    split.check_whole(name)
    everybody = [device for devices in sides.values() for device in devices]
    for side, devices in sides.items():
        if not devices:
            raise DataError(f"{name}: nobody is in {side}: give at least one device")
        _check_together(name, devices, split.num_classes)
    _check_together(name, [*{one.id: one for one in everybody}.values()], split.num_classes)
    shape, num_classes = everybody[0].x.shape[1:], _classes_of(everybody, split)
    made = FederatedDataset(name, (), (), num_classes, shape, dropped=0, rule=AS_DIVIDED)
    return made.with_sides(
        {side: tuple(sorted(own, key=lambda device: device.id)) for side, own in sides.items()}
    )


def _classes_of(devices: Sequence[DeviceData], split: Split) -> int:
    """How many classes there are; 0 where numbers are to be predicted."""
    if devices[0].has_numbers:
        return 0
    return split.num_classes or max(2, 1 + max(int(one.y.max(initial=0)) for one in devices))


def too_few(name: str, sizes: Sequence[int], kept: int, rule: str, least: int = 2) -> str:
    """The error where a rule leaves fewer devices than a split needs, with the mend that helps.

    Args:
        name: of the data set.
        sizes: of all devices before the rule, in samples.
        kept: how many devices are left.
        rule: in words.
        least: how many it needs.
    """
    mend = (
        f" (largest device: {max(sizes)} samples): lower the number (data.min_samples)"
        if len(sizes) >= least
        else ": say of each sample whose it is, and give samples of more users"
    )
    return (
        f"{name}: {kept} of {len(sizes)} devices are left by the rule '{rule}' and at least "
        f"{least} {'is' if least == 1 else 'are'} needed{mend}"
    )


def split_ids(ids: Sequence[str], split: Split) -> tuple[frozenset[str], frozenset[str]]:
    """Split device ids into train and test by rank of SHA-256 of (seed, id).

    Both sides get at least one of two or more ids.

    >>> split_ids(["a", "b", "c"], Split()) == split_ids(["c", "a", "b"], Split())
    True
    """
    ranked = sorted(ids, key=lambda device_id: rank_of("split", split.seed, device_id))
    num_train = max(1, int(len(ranked) * split.train_fraction))
    return frozenset(ranked[:num_train]), frozenset(ranked[num_train:])


def split_samples(device: DeviceData, split: Split) -> tuple[DeviceData, DeviceData]:
    """Divide one device's samples at random, by the seed and the device's id alone.

    Both sides get at least one sample.

    Raises:
        DataError: the device has one sample only.
    """
    count = device.num_samples
    if count < 2:
        raise DataError(
            f"user {device.id!r} has {count} sample and a split by samples needs 2: leave the user "
            "out (min_samples), or divide the devices (split = 'devices')"
        )
    order = _order("samples", split.seed, device.id, count)
    num_train = min(max(1, int(count * split.train_fraction)), count - 1)
    train, test = np.sort(order[:num_train]), np.sort(order[num_train:])
    return (
        DeviceData(device.id, device.x[train], device.y[train]),
        DeviceData(device.id, device.x[test], device.y[test]),
    )


def text_under(x: Samples) -> Samples | None:
    """Give the text, shape [n + L − 1], that x [n, L] is a view of; None if x is none.

    >>> from numpy.lib.stride_tricks import sliding_window_view
    >>> windows = sliding_window_view(np.arange(5, dtype=np.int8), 3)
    >>> text_under(windows).tolist(), text_under(windows.copy())
    ([0, 1, 2, 3, 4], None)
    """
    if x.ndim != 2 or len(x) == 0 or x.strides != (x.itemsize, x.itemsize):
        return None
    text: Samples = as_strided(x, (sum(x.shape) - 1,), (x.itemsize,), writeable=False)  # type: ignore[assignment]
    return text


def check_same_shape(device: DeviceData, first: DeviceData, prefix: str = "") -> None:
    """Check that inputs and targets of two devices have one shape, but for how many they are.

    Args:
        device: the one to check.
        first: another one.
        prefix: what the message begins with, such as the data set.

    Raises:
        DataError: they differ in shape.
    """
    pairs = ("inputs", device.x, first.x), ("targets", device.y, first.y)
    for what, mine, others in pairs:
        if mine.shape[1:] != others.shape[1:]:
            raise DataError(
                f"{prefix}{what} of user {device.id!r} have shape {mine.shape[1:]} and those of "
                f"user {first.id!r} {others.shape[1:]}: bring them to one shape"
            )


def check_classes(source: str, classes: Iterable[str]) -> None:
    """Check that classes can be written down, and that no two of them are one in two encodings.

    Raises:
        DataError: a name cannot be encoded, or two are alike.
    """
    seen: dict[str, str] = {}
    for name in classes:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{source}: class {name!a:.60} is no text that can be encoded: rename the class"
            ) from error
        alike = _written_alike(name)
        if alike in seen:
            told = f"classes {seen[alike]!a:.60} and {name!a:.60} are one, written in two ways"
            raise DataError(f"{source}: {told}: write each in one")
        seen[alike] = name


def _written_alike(text: str) -> str:
    """The same for names that people and programs take for one: 1 and 1.0; é in two encodings."""
    return _WHOLE.sub(r"\1", unicodedata.normalize("NFC", text.strip()))


def _check_together(name: str, devices: Sequence[DeviceData], num_classes: int | None) -> None:
    seen: dict[str, str] = {}
    for device in devices:
        alike = _written_alike(device.id)
        if seen.get(alike) == device.id:
            raise DataError(f"{name}: user {device.id!r} appears twice: give every user its own id")
        if alike in seen:
            told = f"users {seen[alike]!a:.60} and {device.id!a:.60} are one, written in two ways"
            raise DataError(f"{name}: {told}: write each in one")
        seen[alike] = device.id
        if len(device.id) > MAX_NAME:
            raise DataError(f"{name}: user {device.id[:20]!r}…: at most {MAX_NAME} characters")
        check_same_shape(device, devices[0], f"{name}: ")
        if device.x.dtype != devices[0].x.dtype:
            raise DataError(
                f"{name}: inputs of user {device.id!r} are {device.x.dtype} and those of user "
                f"{devices[0].id!r} {devices[0].x.dtype}: bring them to one (uint8 are pixels)"
            )
        if device.has_numbers:
            continue
        highest = int(device.y.max(initial=0))
        if highest >= (most := num_classes or MAX_INFERRED_CLASSES):
            raise DataError(
                f"{name}: label {highest} of user {device.id!r} is not in 0..{most - 1}: correct "
                "the label, or say how many classes there are (data.num_classes)"
            )
