"""Memory that processes share: an anonymous file that all of them map.

It has no name, so that nobody else can open it and nothing is left behind when the last process
ends, however it ends. On Linux it is in memory and counts as such; elsewhere it is a temporary
file.
"""

import mmap
import os
import tempfile
from typing import Final

import numpy as np
import numpy.typing as npt

_ALIGNMENT: Final = 64  # a cache line


class SharedMemory:
    """A growing array of bytes.

    Args:
        file: descriptor of the file that holds it, which is inherited; a new one by default.

    Attributes:
        file: the descriptor, for the process that is to map it as well.
    """

    def __init__(self, file: int | None = None) -> None:
        self.file = _new_file() if file is None else file
        self._map: mmap.mmap | None = None

    def reserve(self, size: int) -> None:
        """Make the file at least `size` bytes long; new ones are zero."""
        if os.fstat(self.file).st_size < size:
            os.ftruncate(self.file, size)

    def array(
        self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike, *, writable: bool = False
    ) -> npt.NDArray[np.generic]:
        """View a part of it as an array, without a copy.

        Args:
            offset: the first byte.
            shape: of the array.
            dtype: of its elements.
            writable: whether it may be written to.

        Raises:
            ValueError: the part ends beyond the end.
        """
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return np.zeros(shape, dtype)
        end = offset + count * np.dtype(dtype).itemsize
        if self._map is None or len(self._map) < end:
            # an older map lives on as long as arrays look into it
            self._map = mmap.mmap(self.file, max(os.fstat(self.file).st_size, 1))
        view = np.frombuffer(self._map, dtype=dtype, count=count, offset=offset).reshape(shape)
        if not writable:
            view.flags.writeable = False
        return view

    def close(self) -> None:
        """Close the file; arrays that look into it stay good."""
        os.close(self.file)


def aligned(offset: int) -> int:
    """The next offset at which an array may begin.

    >>> aligned(1), aligned(64)
    (64, 64)
    """
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _new_file() -> int:
    if hasattr(os, "memfd_create"):  # Linux
        return os.memfd_create("deltafl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
