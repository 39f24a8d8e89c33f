"""Strict reading and writing of flat msgpack arrays of integers and byte strings, within bounds.

Spec: §7.1.
"""

import struct
from collections.abc import Sequence
from typing import Final, cast

import msgpack

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
