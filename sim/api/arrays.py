"""Arrays and names of columns that a person gives, or a sentence that says what is wrong."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import check_classes
from deltafl.fl.errors import DataError

Arrays = tuple[npt.ArrayLike, npt.ArrayLike]
"""The inputs of a device's samples, [n, ...], and their labels, [n]."""

Names: TypeAlias = str | Iterable[str]
"""A column, or several."""

Values: TypeAlias = npt.NDArray[np.generic]

NUMBERS: Final = "biuf"
"""The kinds of types that are numbers."""

_NUMERIC: Final = (int, float, np.integer, np.floating, np.bool_)


def named(names: Names) -> list[str]:
    """Names of columns; a text is one name, and so is a number."""
    return list(names) if isinstance(names, Iterable) and not isinstance(names, str) else [names]


def pair_of(name: str, device: object, pair: Arrays) -> tuple[Values, Values]:
    """The inputs and the labels of a device.

    Raises:
        DataError: these are not two, or no arrays.
    """
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


def check_whole(name: str, labels: Mapping[Any, Values]) -> None:
    """Check that labels that are to be classes have no fractions.

    Raises:
        DataError: one has.
    """
    for key, values in labels.items():
        if values.dtype.kind == "f" and values.size and not (values == np.floor(values)).all():
            wrong = values[values != np.floor(values)].flat[0]
            raise DataError(
                f"{name}: user {str(key)!r} has the label {wrong}, which is no class: if numbers "
                "are to be predicted, say targets='numbers'; else encode classes as 0, 1, ..."
            )


def numbered(name: str, labels: Mapping[Any, Values]) -> tuple[dict[Any, Values], tuple[str, ...]]:
    """Labels as numbers from 0, and what they were; whole numbers from 0 stay as they are.

    Raises:
        DataError: a label is missing, there is one class, or two classes are one in two encodings.
    """
    for key, values in labels.items():
        for row, value in enumerate(values.flat if values.dtype.kind == "O" else ()):
            if is_nothing(value):
                raise DataError(
                    f"{name}: user {str(key)!r}: sample {row} has the label {value}: fill it, or "
                    "leave the sample out"
                )
    parts = [one for one in labels.values() if one.ndim == 1 and one.size]
    if all(one.dtype.kind in NUMBERS for one in parts):
        return dict(labels), ()
    classes = np.unique(np.concatenate([one.astype(str) for one in parts]))
    if len(classes) < 2:
        raise DataError(
            f"{name}: all labels are {classes[0]!s:.40}: give samples of at least two classes"
        )
    check_classes(name, classes.tolist())
    places = {
        key: np.searchsorted(classes, one.astype(str)) if one.ndim == 1 and one.size else one
        for key, one in labels.items()
    }
    return places, tuple(classes.tolist())
