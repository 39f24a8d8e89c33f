"""Byte strings of equal size, one per device, stored as a single array.

In a large session a device sends a thousand sealed boxes, and the server passes each to a different
device. As arrays, a thousand boxes can be split and joined at a time.
"""

from collections.abc import ItemsView, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg.errors import DecodeError

Rows = npt.NDArray[np.uint8]

_POSITION_SIZE: Final = 4


class _Items(ItemsView[int, bytes]):
    """The items of records, read in one pass instead of looked up one by one."""

    def __init__(self, records: "Records") -> None:
        super().__init__(records)
        self._records = records

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        size, joined = self._records.rows.shape[1], self._records.rows.tobytes()
        for index, position in enumerate(self._records.positions.tolist()):
            yield position, joined[index * size : (index + 1) * size]


class Records(Mapping[int, bytes]):
    """Byte strings by roster position; on the wire, each is its position (uint32 LE), then itself.

    Spec: §1.3.

    Args:
        positions: Ascending, in [0, 2^32), shape (n,).
        rows: The strings, shape (n, size).
    """

    __slots__ = ("positions", "rows")

    def __init__(self, positions: npt.NDArray[np.int64], rows: Rows) -> None:
        self.positions = positions
        self.rows = rows

    @classmethod
    def of(cls, strings: Mapping[int, bytes], size: int) -> "Records":
        """Records of some strings, all of `size` bytes."""
        if isinstance(strings, cls):
            return strings
        positions = np.array(sorted(strings), dtype=np.int64)
        joined = b"".join(strings[position] for position in positions.tolist())
        return cls(positions, np.frombuffer(joined, dtype=np.uint8).reshape(len(positions), size))

    @classmethod
    def decode(cls, data: bytes, size: int) -> "Records":
        """Read what `encode` wrote: complete records, each a position and `size` bytes.

        Raises:
            DecodeError: the positions do not ascend.
        """
        if not data:
            return cls(np.zeros(0, dtype=np.int64), np.zeros((0, size), dtype=np.uint8))
        table = np.frombuffer(data, dtype=np.uint8).reshape(-1, _POSITION_SIZE + size)
        positions = np.ascontiguousarray(table[:, :_POSITION_SIZE]).view("<u4").reshape(-1)
        if not (positions[1:] > positions[:-1]).all():
            raise DecodeError("the positions of the records do not ascend")
        return cls(positions.astype(np.int64), table[:, _POSITION_SIZE:])

    def encode(self) -> bytes:
        """All records, one after the other."""
        num, size = self.rows.shape
        table = np.empty((num, _POSITION_SIZE + size), dtype=np.uint8)
        own = self.positions.astype("<u4").view(np.uint8)
        table[:, :_POSITION_SIZE] = own.reshape(num, _POSITION_SIZE)
        table[:, _POSITION_SIZE:] = self.rows
        return table.tobytes()

    def __getitem__(self, position: int) -> bytes:
        index = int(np.searchsorted(self.positions, position))
        if index == len(self.positions) or self.positions[index] != position:
            raise KeyError(position)
        return bytes(self.rows[index])

    def items(self) -> ItemsView[int, bytes]:
        """Positions and strings, in ascending order of the positions."""
        return _Items(self)

    def __iter__(self) -> Iterator[int]:
        return iter(self.positions.tolist())

    def __len__(self) -> int:
        return len(self.positions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]  # equal to dictionaries, which have no hash either


def record_size(size: int) -> int:
    """Bytes of a record whose string has `size` bytes."""
    return _POSITION_SIZE + size
