"""From raw arrays of one user to `DeviceData`, or a sentence that says what is wrong with them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData, FederatedDataset, Samples
from deltafl.fl.errors import DataError


def checked_device(
    source: str,
    user: str,
    x: npt.NDArray[np.generic],
    y: npt.NDArray[np.generic],
    *,
    numbers: bool = False,
    keeps_whole: bool = False,
) -> DeviceData:
    """Check one user's samples and give them their final types.

    Args:
        source: the file, for messages.
        user: the device's id.
        x: inputs [n, ...] of any numeric dtype; uint8 stays, everything else becomes float32.
        y: labels [n], integers in any numeric dtype.
        numbers: whether y are numbers that are to be predicted, [n, ...], which become float32.
        keeps_whole: whether integers but uint8 become int64, for a model that takes them as tokens.

    Raises:
        DataError: a name that cannot be encoded, no samples, unequal lengths, inputs that are
            none, not numbers or not finite, labels that are not integers or negative, targets that
            are not finite.
    """
    check_user(source, user)
    where = f"{source}: user {user!r}"
    if x.ndim == 0 or y.ndim == 0 or (y.ndim > 1 and not numbers) or len(x) != len(y):
        several = "; of several, take targets='numbers', and a loss and a metric of your own"
        raise DataError(
            f"{where}: x of shape {x.shape} and y of shape {y.shape} do not pair up: give one "
            f"input and one label per sample{several if y.ndim > 1 else ''}"
        )
    if len(y) == 0:
        raise DataError(f"{where} has no samples: leave the user out")
    targets = _numbers(where, "target", y) if numbers else _labels(where, y)
    inputs = _inputs(where, x)
    if keeps_whole and x.dtype.kind in "iu" and x.dtype not in (np.uint8, np.uint64):
        return DeviceData(user, x.astype(np.int64), targets)
    return DeviceData(user, inputs, targets)


def with_embedding(
    dataset: FederatedDataset, vectors: npt.NDArray[np.generic] | None
) -> FederatedDataset:
    """Data with frozen vectors of their tokens, [vocabulary, dimension], if there are any.

    Raises:
        DataError: they are no table of finite numbers.
    """
    if vectors is None:
        return dataset
    if vectors.ndim != 2:
        told = f"embedding of shape {vectors.shape} is no table"
        raise DataError(f"{dataset.name}: {told}: give a row of numbers for each token")
    return replace(dataset, embedding=_numbers(f"{dataset.name}: embedding", "vector", vectors))


def check_user(source: str, user: str) -> None:
    """Check that a user's name can be written down: JSON can hold half a surrogate pair.

    Raises:
        DataError: it cannot be encoded, or is empty.
    """
    if not user:
        raise DataError(f"{source}: a user has no name: say of each sample whose it is")
    try:
        user.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{source}: user {user!a} is no text that can be encoded: rename the user"
        ) from error


_MOST: Final = 10  # faults in a message


def faulty(source: str | Path, faults: Sequence[tuple[str, str]]) -> DataError:
    """The error for all faults of a file, of which ten are told.

    Args:
        source: the file.
        faults: each what is wrong, and what helps.
    """
    by_mend: dict[str, list[str]] = {}
    for told, mend in faults[:_MOST]:
        by_mend.setdefault(mend, []).append(told)
    said = "; besides, ".join(f"{'; '.join(told)}: {mend}" for mend, told in by_mend.items())
    more = len(faults) - _MOST
    return DataError(f"{source}: {said}{f'; and {more} more faults' if more > 0 else ''}")


def in_rows(rows: npt.NDArray[np.int64]) -> str:
    """Where a fault is: the first of some rows, counted from 0, and how many others there are."""
    others = f" (and in {len(rows) - 1} more)" if len(rows) > 1 else ""
    return f"in row {rows[0] + 1} of the samples{others}"


def check_column(
    source: str | Path,
    name: str,
    values: npt.NDArray[Any],
    present: npt.NDArray[np.bool_] | Literal[True] = True,
) -> None:
    """Check that the numbers of a table's column are finite as float32, where they are present.

    Raises:
        DataError: one is not; it says in which row.
    """
    with np.errstate(over="ignore"):
        wrong = np.flatnonzero(~np.isfinite(values.astype(np.float32)) & present)
    if wrong.size:
        raise DataError(
            f"{source}: column {name!r:.200} has {values[wrong[0]]} in row {wrong[0] + 1} of the "
            "samples, which is not a finite float32: correct it, or leave the row out"
        )


def rows_by_user(
    names: Sequence[str], codes: npt.NDArray[np.int64]
) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Each user's name and rows, in their order.

    Args:
        names: of the users.
        codes: for each row, the place of its user among them.
    """
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))[:-1]
    yield from zip(names, np.split(order, ends), strict=True)


def _inputs(where: str, x: npt.NDArray[np.generic]) -> Samples:
    if x.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: x of dtype {x.dtype} is not numeric (first such value: "
            f"{_first_text(x)!s:.40}): encode it as rows of numbers, such as "
            "numpy.array(x, 'float32')"
        )
    if x.ndim == 1:
        raise DataError(
            f"{where}: x of shape {x.shape} holds no vectors: give one row of numbers per sample"
        )
    if not x.size:
        raise DataError(
            f"{where}: x of shape {x.shape} has samples without a number: give each at least one"
        )
    if x.dtype == np.uint8:
        return x.astype(np.uint8, copy=False)
    return _numbers(where, "input", x)


def _numbers(where: str, what: str, values: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Numbers as float32; `what` they are, for the message."""
    if values.dtype.kind not in "biuf" or not values.size:
        raise DataError(
            f"{where}: {what}s of {values.dtype} and shape {values.shape} are no numbers: give "
            "each sample at least one, such as numpy.array(y, 'float32')"
        )
    with np.errstate(over="ignore"):  # an overflow becomes inf, which is refused below
        numbers = values.astype(np.float32)
    finite = np.isfinite(numbers)
    if not finite.all():
        row = int(np.argwhere(~finite)[0][0])
        bad = np.ravel(values[row])[~np.ravel(finite[row])][0]
        told = f"sample {row} has the {what} {bad}, which is not a finite float32"
        raise DataError(f"{where}: {told}: correct or remove the sample")
    return numbers


def _labels(where: str, y: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    if y.dtype.kind not in "biuf":
        raise DataError(f"{where}: label {y[0]!s:.40} is not a number: encode classes as 0, 1, ...")
    with np.errstate(invalid="ignore"):  # NaN casts to some integer, which then differs
        labels = y.astype(np.int64)
    wrong = np.flatnonzero((labels != y) | (labels < 0))
    if wrong.size:
        row = int(wrong[0])
        told = f"sample {row} has the label {y[row]}, which is not an integer from 0 on"
        raise DataError(f"{where}: {told}: encode classes as 0, 1, ...")
    return labels


def _first_text(x: npt.NDArray[np.generic]) -> object:
    for value in x.flat if x.dtype.kind in "OSU" else ():
        try:
            float(value)
        except (TypeError, ValueError, OverflowError):
            return value
    return x.flat[0]
