"""Memory that processes share, and the devices' samples in it: written once, read where they lie.

Shared memory is an anonymous file that all processes map. It has no name, so that nobody else can
open it and nothing is left behind when the last process ends, however it ends. On Linux it is in
memory and counts as such; elsewhere it is a temporary file.

Samples stay there from round to round. There are two buffers. When one is full, the other is
emptied as soon as nobody reads from it, and filled again. Memory is therefore bounded by the size
of both, however many devices there are, and data that fit into one buffer are written only once.
"""

import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData

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
        self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike
    ) -> npt.NDArray[np.generic]:
        """View a part of it as an array that can be written to, without a copy.

        Args:
            offset: the first byte.
            shape: of the array.
            dtype: of its elements.

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
        return np.frombuffer(self._map, dtype=dtype, count=count, offset=offset).reshape(shape)

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


ROOM: Final = 1 << 27
"""Bytes that a buffer takes before the other one is used."""

_STEP: Final = 1 << 26  # a buffer grows by so much, since to grow is to be mapped anew


Place: TypeAlias = tuple[int, tuple[int, ...], str]
"""Where an array lies in a buffer: its offset, its shape, and its dtype in NumPy's spelling."""


class Location(NamedTuple):
    """Where a device's samples lie.

    Attributes:
        buffer: on which of the two.
        id: the device.
        x: the inputs, [n, *input_shape].
        y: the labels, [n, ...].
    """

    buffer: int
    id: str
    x: Place
    y: Place


class DoubleBuffer:
    """Both buffers, for the process that fills them, in several threads.

    Args:
        room: bytes that a buffer takes before the other one is used.

    Attributes:
        memories: those of the two.
    """

    def __init__(self, room: int = ROOM) -> None:
        self.memories = (SharedMemory(), SharedMemory())
        self._room = room
        self._lock = threading.Lock()
        self._current = 0
        self._used = [0, 0]
        self._readers = [0, 0]
        # an owner is kept alive, so that no other gets its identity
        self._found: tuple[dict[tuple[int, int], tuple[Location, object]], ...] = ({}, {})

    def hold(self, owner: object, index: int, make: Callable[[], DeviceData]) -> Location:
        """Put samples into a buffer, unless they are there; they stay until `release`.

        Args:
            owner: whose they are, such as a sequence of devices; it does not change.
            index: which of the owner's.
            make: fetches or makes them.
        """
        with self._lock:
            return self._hold((id(owner), index), owner, make)

    def _hold(
        self, key: tuple[int, int], owner: object, make: Callable[[], DeviceData]
    ) -> Location:
        other = 1 - self._current
        is_full = self._used[self._current] >= self._room
        if is_full and not self._readers[other]:
            self._found[other].clear()
            self._used[other] = 0
            self._current, other, is_full = other, self._current, False
        # a buffer that is to be emptied gets no new readers, or it might never be
        for buffer in (self._current,) if is_full else (self._current, other):
            if key in self._found[buffer]:
                self._readers[buffer] += 1
                return self._found[buffer][key][0]
        location = self._write(make())
        self._found[self._current][key] = location, owner
        self._readers[self._current] += 1
        return location

    def release(self, location: Location) -> None:
        """Somebody does not read there any more."""
        with self._lock:
            self._readers[location.buffer] -= 1

    def close(self) -> None:
        """Let go of the memory."""
        for memory in self.memories:
            memory.close()

    def _write(self, data: DeviceData) -> Location:
        x, y = self._put(data.x), self._put(data.y)
        return Location(self._current, data.id, x, y)

    def _put(self, array: npt.NDArray[np.generic]) -> Place:
        memory, start = self.memories[self._current], aligned(self._used[self._current])
        self._used[self._current] = end = start + array.nbytes
        memory.reserve(-(-end // _STEP) * _STEP)
        memory.array(start, array.shape, array.dtype)[...] = array
        return start, array.shape, array.dtype.str


def read_samples(memories: Sequence[SharedMemory], location: Location) -> DeviceData:
    """View a device's samples where they lie. Nobody writes there.

    The arrays can be written to all the same, for torch takes others only as copies.
    """
    memory = memories[location.buffer]
    x, y = memory.array(*location.x), memory.array(*location.y)
    return DeviceData(location.id, x, y)  # type: ignore[arg-type] # of the types they were made of
