"""Arrays out of NumPy's files (.npz), without pickle and without NumPy's own reader.

NumPy's reader takes the head of an array for Python source, and allocates what it announces. Here a
head has the one form that `numpy.save` gives it, and an array is as large as its bytes. Objects and
records are refused.
"""

import math
import re
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.read.exact import shortened
from deltafl.fl.read.regular import open_regular
from deltafl.fl.read.zipped import opened_zip, unpacked

MAGIC: Final = b"\x93NUMPY"
"""The first bytes of a bare array."""

MAX_ARRAY_BYTES: Final = 1 << 34
"""The largest array that is read; the images of FEMNIST take 640 million."""

_MAX_HEAD: Final = 1 << 12
_LONGEST_HEAD: Final = _MAX_HEAD + 12  # with what stands before it
_MAX_DIMENSIONS: Final = 32
_ALIGNED: Final = 16  # bytes; as in every file that numpy.save has written
_LAST_CHARACTER: Final = 0x10FFFF
_SUFFIX: Final = ".npy"
_LENGTHS: Final = {b"\1\0": struct.Struct("<H"), b"\2\0": struct.Struct("<I")}
_HEAD: Final = re.compile(
    rb"\{'descr': '(?P<dtype>[<>|][biufSU][1-9][0-9]{0,8})', "
    rb"'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>|[0-9]{1,18},|[0-9]{1,18}(?:, [0-9]{1,18})+)\), \} *\n"
)


@dataclass(frozen=True, slots=True, eq=False)
class Npz:
    """An open archive of arrays.

    Attributes:
        archive: the zip archive.
        entries: its arrays by name; what does not end in .npy is left out.
    """

    archive: zipfile.ZipFile
    entries: dict[str, zipfile.ZipInfo]

    def read(self, name: str, most: int) -> npt.NDArray[np.generic]:
        """Read one array: booleans, integers, floats, byte strings or texts.

        Args:
            name: of the array; a key of `entries`.
            most: bytes that it may have.

        Raises:
            ValueError: it is damaged, too large, or holds anything else.
        """
        data = bytearray()
        for chunk in unpacked(self.archive, self.entries[name], most + _MAX_HEAD):
            data += chunk
        try:
            array = parse_npy(data)
        except ValueError as error:
            raise ValueError(f"array {name!a:.40}: {error}") from error
        if array.nbytes > most:
            raise ValueError(f"array {name!a:.40} has {array.nbytes:,} bytes, more than {most:,}")
        return array


@contextmanager
def open_npz(path: Path) -> Iterator[Npz]:
    """Open an archive of arrays.

    Raises:
        OSError: the file cannot be opened, or is no regular file.
        ValueError: it is no archive, or has two arrays of one name.
    """
    with open_regular(path) as file:
        if file.read(len(MAGIC)) == MAGIC:
            raise ValueError("one bare array, not an archive")
        with opened_zip(file) as archive:
            entries: dict[str, zipfile.ZipInfo] = {}
            for info in archive.infolist():
                name = info.filename.removesuffix(_SUFFIX)
                if name in entries:
                    raise ValueError(f"there are two arrays {name!a:.40}")
                if name != info.filename:
                    entries[name] = info
            yield Npz(archive, entries)


def parse_npy(data: bytes | bytearray) -> npt.NDArray[np.generic]:
    """The array that a .npy file holds; it shares the memory of `data`.

    Raises:
        ValueError: the data are no array, or not all of one and no more.
    """
    head, end = _head_of(bytes(data[:_LONGEST_HEAD]))
    try:
        dtype = np.dtype(head["dtype"].decode())
    except TypeError as error:  # such as integers of three bytes
        raise ValueError(f"there is no type {head['dtype'].decode()}") from error
    shape = tuple(int(size) for size in head["shape"].decode().split(",") if size.strip())
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"it has {len(shape)} dimensions, more than {_MAX_DIMENSIONS}")
    held = len(data) - end
    if math.prod(shape) * dtype.itemsize != held:
        raise ValueError(f"it has {held:,} bytes and states {shortened(shape)} of {dtype}")
    # a product that overflows has a zero in it here; numpy refuses it
    array = np.frombuffer(data, dtype=dtype, offset=end)
    _check_values(array)
    return array.reshape(shape, order="F" if head["fortran"] == b"True" else "C")


def _head_of(data: bytes) -> tuple[re.Match[bytes], int]:
    """What the head of an array says, and where it ends, from the first bytes of a file."""
    form = _LENGTHS.get(data[len(MAGIC) : len(MAGIC) + 2])
    if data[: len(MAGIC)] != MAGIC or form is None:
        raise ValueError("it does not begin as an array of a known version")
    start = len(MAGIC) + 2 + form.size
    if len(data) < start:
        raise ValueError("it is cut short in its head")
    (length,) = form.unpack_from(data, start - form.size)
    head = _HEAD.fullmatch(data[start : start + length]) if length <= _MAX_HEAD else None
    if head is None:
        raise ValueError(
            "its head is not as numpy.save writes it for numbers and texts; objects and records "
            "are not read"
        )
    if (start + length) % _ALIGNED:
        raise ValueError(f"its numbers do not begin at a multiple of {_ALIGNED} bytes")
    return head, start + length


def _check_values(array: npt.NDArray[np.generic]) -> None:
    """Refuse bytes that are no value of their type: numpy would take them for one."""
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise ValueError("a truth value is neither 0 nor 1")
    if array.dtype.kind == "U" and array.size:
        codes = array.view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if codes.max() > _LAST_CHARACTER:
            raise ValueError("a text holds what is no character")
