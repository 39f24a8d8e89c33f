"""Image sets in one NumPy archive: x, y, and the index of the user who made each sample.

Arrays: x [N, ...] (uint8 pixels; other integers, which a model may take as tokens; or numbers), y
[N] integer labels, user [N] integer index. Optional are users, the names behind the index, without
which the index is the name, and embedding [vocabulary, dimension], frozen vectors of the tokens.
Nothing is ever unpickled.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.checks import checked_device, rows_by_user, with_embedding
from deltafl.fl.data.federated import FederatedDataset, Split, check_classes, federate
from deltafl.fl.data.files import bounded
from deltafl.fl.data.registry import Format
from deltafl.fl.errors import DataError
from deltafl.fl.read.npz import MAX_ARRAY_BYTES, open_npz

_HOW: Final = "write it anew with np.savez, without object arrays"


def read_arrays(
    path: Path, required: Collection[str], optional: Collection[str] = ()
) -> Mapping[str, npt.NDArray[np.generic]]:
    """Read arrays of an archive by their names; others are left alone.

    Args:
        path: the archive.
        required: must be there.
        optional: are read if they are there.

    Raises:
        DataError: the file is missing, broken, or needs pickle; a required array is not there, or
            an array is too large.
    """
    if not path.exists():
        where = "`deltafl presets NAME` says where a preset's data come from"
        raise DataError(f"{path}: no such file: check the path; {where}")
    with bounded(path, ".npz archive", mend=_HOW), open_npz(path) as archive:
        size = sum(entry.file_size for entry in archive.entries.values())
        if size > MAX_ARRAY_BYTES:
            raise ValueError(f"it unpacks to {size:,} bytes, more than {MAX_ARRAY_BYTES:,}")
        if missing := [name for name in required if name not in archive.entries]:
            raise DataError(
                f"{path}: no array {missing[0]!r} (found: "
                f"{', '.join(archive.entries)[:200] or 'none'}): store {', '.join(required)}"
            )
        names = [name for name in (*required, *optional) if name in archive.entries]
        return {name: archive.read(name, MAX_ARRAY_BYTES) for name in names}


def load_npz(path: Path, split: Split, *, unit: str = "") -> FederatedDataset:
    """Read the archive and assign its samples to their users.

    Args:
        path: the archive.
        split: the rule for small devices, and who trains.
        unit: of labels that are numbers to be predicted; "" if they are classes.

    Raises:
        DataError: the file is missing, broken, or needs pickle; an array is missing or its length
            or dtype is wrong; a user's samples cannot be used; too few devices remain.
    """
    needed, optional = (("x", "y"), ("user",)) if split.alone else (("x", "y", "user"), ())
    arrays = read_arrays(path, needed, (*optional, "users", "embedding"))
    x, y = arrays["x"], arrays["y"]
    user = arrays.get("user", np.zeros(y.shape[:1], np.int64))
    for name in ("x", "y"):
        if arrays[name].shape[:1] != user.shape[:1]:
            raise DataError(
                f"{path}: array {name!r} has shape {arrays[name].shape} and 'user' {user.shape}: "
                "give each one entry per sample"
            )
    names, index = users_of(path, user, arrays.get("users"))
    classes: tuple[str, ...] = ()
    if y.dtype.kind == "U" and y.ndim == 1 and not unit:
        texts, y = np.unique(y, return_inverse=True)
        classes = tuple(texts.tolist())
        check_classes(str(path), classes)
    devices = [
        checked_device(str(path), name, x[rows], y[rows], numbers=bool(unit), keeps_whole=True)
        for name, rows in rows_by_user(names, index)
    ]
    dataset = replace(federate(path.stem, devices, split), classes=classes)
    return with_embedding(dataset, arrays.get("embedding"))


def users_of(
    path: Path, user: npt.NDArray[np.generic], users: npt.NDArray[np.generic] | None
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Give the users' names, and for each sample the place of its user among them.

    Raises:
        DataError: the arrays of the archive do not say it.
    """
    if user.ndim != 1 or user.dtype.kind not in "iu":
        raise DataError(
            f"{path}: array 'user' has dtype {user.dtype} and shape {user.shape}: store the "
            "integer index of each sample's user, and names in the array 'users'"
        )
    if len(user) == 0:
        raise DataError(f"{path} is empty: it has no samples; store at least some of two users")
    values, index = np.unique(user, return_inverse=True)
    if users is None:
        return [str(value) for value in values], index
    if users.ndim != 1:
        raise DataError(
            f"{path}: array 'users' has shape {users.shape}: store one name per user, in one row"
        )
    if values[0] < 0 or values[-1] >= len(users):
        wrong = values[0] if values[0] < 0 else values[-1]
        raise DataError(
            f"{path}: user index {wrong} is not in 0..{len(users) - 1}: name every user in 'users'"
        )
    return [str(name) for name in users], values.astype(np.int64)[index]


FORMAT: Final = Format(
    "npz",
    "an .npz archive with the arrays x, y and user",
    load_npz,
    needs="an .npz file",
    note="The data unipen62 of some presets and tables are such a file, to be made of UNIPEN: "
    "`deltafl presets unipen62-linear` says how.",
)
