"""What users give as devices: arrays, names and shares, checked and made into train and test."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from deltafl.fl.data.checks import checked_device
from deltafl.fl.data.federated import (
    TEST,
    TRAIN,
    VALIDATION,
    DeviceData,
    FederatedDataset,
    Split,
    SplitBy,
    as_numbers,
    check_classes,
    federate,
    federate_sides,
)
from deltafl.fl.data.load import Standardise
from deltafl.fl.data.tables import name_of
from deltafl.fl.data.validation import hold_out, name_validation
from deltafl.fl.errors import DataError

Arrays: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike]
"""The inputs of a device's samples, [n, ...], and their labels, [n]."""

Part: TypeAlias = float | Iterable[Any] | Mapping[Any, Arrays]
"""A share of devices, their names, or they themselves."""

Values: TypeAlias = npt.NDArray[np.generic]

_NUMBERS: Final = "biuf"
"""The kinds of types that are numbers."""

_NUMERIC: Final = (int, float, np.integer, np.floating, np.bool_)


def federation_of(
    name: str, parts: Mapping[str, Part], split: Split, *, of_numbers: bool
) -> tuple[FederatedDataset, tuple[str, ...]]:
    """Divide devices into those that train, choose and test.

    Args:
        name: what to call the data.
        parts: "train" has all devices, or those that train; "validation" and "test" say who else.
        split: how they are drawn, where shares are given.
        of_numbers: whether numbers are to be predicted.

    Returns:
        The data, and the names of the classes; none if labels were numbers.

    Raises:
        DataError: something is wrong with the data; it says where.
        ValueError: a share is out of its range.
    """
    given = {side: part for side, part in parts.items() if isinstance(part, Mapping)}
    sides, classes = _made(name, given, of_numbers=of_numbers)
    how = replace(split, num_classes=len(classes) or None)
    return _divided(name, sides, how, parts[TEST], parts[VALIDATION]), classes


def split_by(test: Part, split: str, seed: int) -> Split:
    """How train and test are divided, with what was said of it checked by the names it has here."""
    if not isinstance(seed, int | np.integer):
        raise ValueError(f"seed={seed!r}: must be a whole number")
    try:
        by = SplitBy(split)
    except ValueError:
        raise ValueError(f"split={split!r}: must be 'devices' or 'samples'") from None
    if _names(test):
        if by is SplitBy.SAMPLES:
            raise ValueError("test names devices and split='samples' divides none: give a share")
        return Split(seed=int(seed))
    return Split(train_fraction=1 - _share("test", test), seed=int(seed), by=by)


def _share(name: str, value: object, least: str = "above 0") -> Fraction:
    try:
        share = Fraction(str(value))
    except ValueError:
        share = Fraction(-1)
    if not 0 <= share < 1 or (share == 0 and least == "above 0"):
        raise ValueError(
            f"{name}={value!r}: must be a share {least} and below 1, names of devices, or devices"
        )
    return share


def scaling(value: str) -> Standardise:
    """How inputs are scaled.

    Raises:
        ValueError: there is no such way here.
    """
    allowed = (Standardise.NONE, Standardise.TRAIN, Standardise.DEVICE)
    if value not in allowed:
        raise ValueError(f"standardise={value!r}: must be one of {', '.join(allowed)}")
    return Standardise(value)


def _made(
    name: str, given: Mapping[str, Mapping[Any, Arrays]], *, of_numbers: bool
) -> tuple[dict[str, list[DeviceData]], tuple[str, ...]]:
    """Checked devices of each side, and the names of the classes over all of them."""
    pairs = {
        (side, key): _pair_of(name, key, pair)
        for side, devices in given.items()
        for key, pair in devices.items()
    }
    labels = {at: y for at, (_, y) in pairs.items()}
    if not of_numbers:
        _check_whole(name, labels)
    targeted, classes = (labels, ()) if of_numbers else _numbered(name, labels)
    made: dict[str, list[DeviceData]] = {side: [] for side in given}
    for (side, key), (x, _) in pairs.items():
        y = targeted[side, key]
        made[side].append(
            checked_device(name, name_of(key), x, y, numbers=of_numbers, keeps_whole=True)
        )
    if any(one.x.dtype == np.float32 for side in made.values() for one in side):
        made = {side: [*map(as_numbers, devices)] for side, devices in made.items()}
    return made, classes


def _divided(
    name: str,
    sides: dict[str, list[DeviceData]],
    split: Split,
    test: Part,
    validation: Part,
) -> FederatedDataset:
    """Who trains, who is chosen by and who tests: as given, as named, or drawn."""
    if TEST in sides:
        dataset = federate_sides(name, sides, split)
    elif VALIDATION in sides:
        raise ValueError("validation gives devices, and test does not: give both so")
    else:
        named = _named_devices(name, "test", test, sides[TRAIN])
        dataset = federate(name, sides[TRAIN], split, test_ids=named)
    if VALIDATION in sides:
        return dataset
    if _names(validation):
        ids = _named_devices(name, "validation", validation, dataset.train)
        return name_validation(dataset, ids or frozenset())
    return hold_out(dataset, _share("validation", validation, "from 0"), split)


def _names(part: Part) -> TypeGuard[Iterable[Any]]:
    """Whether devices are named, or given; a text is a number in quotes."""
    return isinstance(part, Iterable) and not isinstance(part, str)


def _named_devices(
    name: str, what: str, part: Part, devices: Sequence[DeviceData]
) -> frozenset[str] | None:
    """The devices that are named; None for a share."""
    if not _names(part):
        return None
    ids = frozenset(map(name_of, part))
    if unknown := sorted(ids - {device.id for device in devices}):
        raise DataError(f"{name}: {what} names {unknown[0]!a:.60}, which is no device that trains")
    return ids


def _pair_of(name: str, device: object, pair: object) -> tuple[Values, Values]:
    """The inputs and the labels of a device.

    Raises:
        DataError: these are not two, or no arrays.
    """
    if isinstance(pair, Dataset):
        pair = _stacked(pair)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(
            f"{name}: user {str(device)!r}: a {type(pair).__name__} is not inputs and labels: give "
            "(x, y)"
        )
    x, y = (
        array_of(f"{name}: user {str(device)!r}: {which}", values)
        for which, values in zip("xy", pair, strict=True)
    )
    return x, y


def _stacked(samples: Dataset[Any]) -> Arrays:
    """The inputs and the labels of a data set of torch's, such as `TensorDataset` or `Subset`."""
    pairs = [samples[row] for row in range(len(samples))]  # type: ignore[arg-type]
    inputs, labels = zip(*pairs, strict=True) if pairs else ((), ())
    return np.stack([np.asarray(one) for one in inputs]), np.asarray([*map(np.asarray, labels)])


def array_of(where: str, values: npt.ArrayLike) -> Values:
    """An array; numbers that are held as objects become plain ones.

    Raises:
        DataError: it is none, or has hidden elements, which NumPy would take for the others.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(f"{where} is a masked array: fill in what is hidden, or leave it out")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and all(isinstance(one, _NUMERIC) for one in array.flat):
            return np.asarray(array.tolist())
        return array
    except (ValueError, TypeError, RuntimeError) as error:  # a tensor that has a gradient
        raise DataError(f"{where} is no array: {error}") from None


def is_nothing(value: object) -> bool:
    """None, NaN, or a date that is none: what stands where a table has nothing."""
    return value is None or value != value


def _check_whole(name: str, labels: Mapping[Any, Values]) -> None:
    """Check that labels that are to be classes have no fractions.

    Raises:
        DataError: one has.
    """
    for (_, user), values in labels.items():
        if values.dtype.kind == "f" and values.size and not (values == np.floor(values)).all():
            wrong = values[values != np.floor(values)].flat[0]
            raise DataError(
                f"{name}: user {str(user)!r} has the label {wrong}, which is no class: if numbers "
                "are to be predicted, say targets='numbers'; else encode classes as 0, 1, ..."
            )


def check_several(name: str, classes: Sequence[str]) -> None:
    """Check that there is more than one class, or none because labels are numbers.

    Raises:
        DataError: there is one.
    """
    if len(classes) == 1:
        raise DataError(
            f"{name}: all labels are {classes[0]!a:.60}: give samples of at least two classes"
        )


def _numbered(name: str, labels: Mapping[Any, Values]) -> tuple[dict[Any, Values], tuple[str, ...]]:
    """Labels as numbers from 0, and what they were; whole numbers from 0 stay as they are.

    Raises:
        DataError: a label is missing, there is one class, or two classes are one in two encodings.
    """
    for (_, user), values in labels.items():
        for row, value in enumerate(values.flat if values.dtype.kind == "O" else ()):
            if is_nothing(value):
                raise DataError(
                    f"{name}: user {str(user)!r}: sample {row} has the label {value}: fill it, or "
                    "leave the sample out"
                )
    parts = [one for one in labels.values() if one.ndim == 1 and one.size]
    if all(one.dtype.kind in _NUMBERS for one in parts):
        return dict(labels), ()
    classes = np.unique(np.concatenate([one.astype(str) for one in parts]))
    check_several(name, classes.tolist())
    check_classes(name, classes.tolist())
    places = {
        key: np.searchsorted(classes, one.astype(str)) if one.ndim == 1 and one.size else one
        for key, one in labels.items()
    }
    return places, tuple(classes.tolist())
