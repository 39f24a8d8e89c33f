"""Strict reading and writing of flat msgpack arrays of integers and byte strings, within bounds.

A string may be a list of records: byte strings of equal size, one per device, stored as a single
array. In a large session a device sends a thousand sealed boxes, and the server passes each to a
different device. As arrays, a thousand boxes can be split and joined at a time.

Spec: §7.1.
"""

import struct
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from typing import Final, cast

import msgpack
import numpy as np
import numpy.typing as npt

from deltafl.secagg.errors import DecodeError

Value = int | bytes

_LONG: Final = 1 << 12  # strings from here on are not copied by the packer, which copies twice
_LAST_NATURAL: Final = 0x7F  # a byte up to here, or from 0xE0 on, is an integer by itself
_FIRST_NEGATIVE: Final = 0xE0
_SHORT_ARRAY: Final = 0x90
_ARRAY: Final = {0xDC: struct.Struct(">H"), 0xDD: struct.Struct(">I")}
_BINARY: Final = {0xC4: struct.Struct(">B"), 0xC5: struct.Struct(">H"), 0xC6: struct.Struct(">I")}
_INTEGER: Final = {
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}


def write_fields(fields: Sequence[Value]) -> bytes:
    """A msgpack array of the fields."""
    for field in fields:
        if type(field) is bytes and len(field) >= _LONG:
            break
    else:
        return cast(bytes, msgpack.packb(list(fields)))
    packer = msgpack.Packer()
    parts = [packer.pack_array_header(len(fields))]
    for field in fields:
        if isinstance(field, int):
            parts.append(packer.pack(field))
        else:
            parts += _string_header(len(field)), field
    return b"".join(parts)


def read_fields(data: bytes, *, most: int) -> list[Value]:
    """Parse a msgpack array of at most `most` integers and byte strings, and nothing else.

    Nothing larger than the data is allocated. Only the encoding that `write_fields` produces is
    accepted; any other encoding of the same fields is refused.

    Raises:
        DecodeError: the data is anything else.
    """
    fields: list[Value] = []
    try:
        num_fields, at = _read_header(data)
        if num_fields > most:
            raise DecodeError(f"not exactly one msgpack array of up to {most} fields")
        for _ in range(num_fields):
            start, first = at, data[at]
            at += 1
            if first <= _LAST_NATURAL:
                fields.append(first)
            elif (head := _BINARY.get(first)) is not None:
                (length,) = head.unpack_from(data, at)
                at += head.size
                if start + header_size(length) != at:
                    raise DecodeError("the encoding of a string's length is not canonical")
                fields.append(data[at : at + length])
                at += length  # past the end of the data if the string is cut short
            else:
                value, at = _read_integer(first, data, at)
                if msgpack.packb(value) != data[start:at]:
                    raise DecodeError("the encoding of an integer is not canonical")
                fields.append(value)
    except (IndexError, struct.error) as error:
        raise DecodeError(f"not a msgpack array of up to {most} fields: {error!r}") from None
    if at != len(data):
        raise DecodeError(f"not exactly one msgpack array of up to {most} fields")
    return fields


def _read_header(data: bytes) -> tuple[int, int]:
    """The number of fields in the array, and the offset of the first."""
    first = data[0]
    if first & 0xF0 == _SHORT_ARRAY:
        return first & 0x0F, 1
    head = _ARRAY.get(first)
    if head is None:
        raise DecodeError("not a msgpack array")
    (num_fields,) = head.unpack_from(data, 1)
    at = 1 + head.size
    if msgpack.Packer().pack_array_header(num_fields) != data[:at]:
        raise DecodeError("the encoding of an array's length is not canonical")
    return num_fields, at


def _read_integer(first: int, data: bytes, at: int) -> tuple[int, int]:
    """The integer whose type byte is just before `at`, and its end; not for small naturals."""
    if first >= _FIRST_NEGATIVE:
        return first - 0x100, at
    head = _INTEGER.get(first)
    if head is None:
        raise DecodeError("a field is neither an integer nor a byte string")
    (value,) = head.unpack_from(data, at)
    return value, at + head.size


def header_size(length: int) -> int:
    """Bytes before a string in msgpack's shortest form: 1 of type, and 1, 2 or 4 of length."""
    return 2 if length < 1 << 8 else 3 if length < 1 << 16 else 5


def _string_header(length: int) -> bytes:
    head = 0xC4 if length < 1 << 8 else 0xC5 if length < 1 << 16 else 0xC6
    return bytes([head]) + _BINARY[head].pack(length)


class FieldReader:
    """Reads the fields of a message one by one, and checks each one's type and bounds."""

    def __init__(self, fields: Sequence[Value]) -> None:
        self._fields = iter(fields)

    def integer(self, low: int, high: int) -> int:
        """The next field, an integer in [low, high].

        Raises:
            DecodeError: it is anything else, or there is none.
        """
        value = next(self._fields, None)
        if type(value) is not int or not low <= value <= high:
            raise DecodeError(f"{_shown(value)} is not an integer in [{low}, {high}]")
        return value

    def binary(self, size: int) -> bytes:
        """The next field, a string of exactly `size` bytes.

        Raises:
            DecodeError: it is anything else, or there is none.
        """
        value = next(self._fields, None)
        if type(value) is not bytes or len(value) != size:
            raise DecodeError(f"{_shown(value)} is not a string of {size} bytes")
        return value

    def records(self, size: int, *, most: int) -> bytes:
        """The next field, a byte string of whole records of `size` bytes, at most `most` of them.

        Raises:
            DecodeError: it is anything else, or there is none.
        """
        value = next(self._fields, None)
        if type(value) is not bytes or len(value) % size or len(value) > size * most:
            raise DecodeError(f"{_shown(value)} is not up to {most} records of {size} bytes")
        return value

    def finish(self) -> None:
        """Check that no field is left.

        Raises:
            DecodeError: one is.
        """
        if next(self._fields, None) is not None:
            raise DecodeError("the message has too many fields")


def _shown(value: Value | None) -> str:
    return f"a string of {len(value)} bytes" if isinstance(value, bytes) else repr(value)


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
        check_ascending("the positions of the records", positions)
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


def check_ascending(what: str, numbers: npt.NDArray[np.uint32]) -> None:
    """Check that each number is above the one before.

    Raises:
        DecodeError: one is not; the message has `what`.
    """
    if not (numbers[1:] > numbers[:-1]).all():
        raise DecodeError(f"{what} do not ascend")
