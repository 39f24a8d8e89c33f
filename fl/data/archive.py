"""Arrays out of a NumPy archive (.npz) that somebody else has written.

An archive says itself how large its arrays are. What it says is checked before anything is
allocated: a file of a kilobyte must not ask for a terabyte. Nothing is ever unpickled.
"""

import math
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import IO, Final

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from deltafl.fl.errors import DataError

MAX_ARRAY_BYTES: Final = 1 << 34
"""The largest array that is read; the images of FEMNIST take 640 million."""

_SUFFIX: Final = ".npy"
_HOW: Final = "write it anew with np.savez, without object arrays"
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those of np.savez
_DEFLATE_RATIO: Final = 1032  # no deflated byte makes more than that


def read_arrays(
    path: Path, required: Collection[str], optional: Collection[str] = ()
) -> Mapping[str, npt.NDArray[np.generic]]:
    """Read arrays by their names; others are left alone.

    Args:
        path: the archive.
        required: must be there.
        optional: are read if they are there.

    Raises:
        DataError: the file is missing, broken, or needs pickle; a required array is not there, or
            an array is too large.
    """
    if not path.is_file():
        raise DataError(
            f"{path}: no such file: check the path; of a preset's data, `deltafl presets NAME` "
            "says where they come from"
        )
    try:
        with path.open("rb") as file:
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise DataError(f"{path}: one bare array, not an archive: write it with np.savez")
            with zipfile.ZipFile(file) as archive:
                return _read(path, archive, required, optional)
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory: take a part of it") from error
    except (
        OSError,
        EOFError,
        ValueError,
        RuntimeError,  # of zipfile, for what it does not support
        SyntaxError,  # of NumPy, for a header that is no Python literal,
        TypeError,  # and for one with a key that cannot be hashed
        TokenError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(f"{path}: not a readable .npz archive ({error}): {_HOW}") from error


def _read(
    path: Path, archive: zipfile.ZipFile, required: Collection[str], optional: Collection[str]
) -> Mapping[str, npt.NDArray[np.generic]]:
    members = {
        info.filename.removesuffix(_SUFFIX): info
        for info in archive.infolist()
        if info.filename.endswith(_SUFFIX)
    }
    missing = [name for name in required if name not in members]
    if missing:
        raise DataError(
            f"{path}: no array {missing[0]!r} (found: {', '.join(members) or 'none'}): "
            f"store {', '.join(required)}"
        )
    arrays = {}
    for name in (*required, *optional):
        if name in members:
            _check_size(path, archive, name, members[name])
            with archive.open(members[name]) as member:
                arrays[name] = npy.read_array(member, allow_pickle=False)
    return arrays


def _check_size(path: Path, archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> None:
    """Check that the header asks for no more than the archive can hold, and not for too much."""
    if info.compress_type not in _METHODS:
        raise ValueError(f"array {name!r} is packed by method {info.compress_type}")
    with archive.open(info) as member:
        size = _size(member)
    if size > MAX_ARRAY_BYTES:
        raise DataError(
            f"{path}: array {name!r} has {size:,} bytes, more than {MAX_ARRAY_BYTES:,}: divide "
            "the data set"
        )
    if size > min(info.file_size, _DEFLATE_RATIO * info.compress_size):
        raise DataError(
            f"{path}: array {name!r} has {size:,} bytes by its header and fewer in the archive: "
            f"{_HOW}"
        )


def _size(member: IO[bytes]) -> int:
    """Read the header of an array and give the bytes that it announces."""
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(
        npy.read_magic(member)
    )
    if read_header is None:
        raise ValueError("an array of a format that np.savez does not write for numbers and text")
    shape, _, dtype = read_header(member)
    if dtype.hasobject:
        raise ValueError("object arrays are not loaded")
    # empty texts take no bytes, and must not be made by the billion either
    return math.prod(shape) * max(1, dtype.itemsize)
