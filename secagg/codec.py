"""Strict reading of flat msgpack arrays: integers and byte strings, each within its bounds.

Spec: §7.1.
"""

from collections.abc import Sequence
from typing import cast

import msgpack

from secagg.errors import DecodeError

Value = int | bytes


def write_fields(fields: Sequence[Value]) -> bytes:
    """A msgpack array of the fields."""
    return cast(bytes, msgpack.packb(list(fields)))


def read_fields(data: bytes, *, most: int) -> list[Value]:
    """Parse a msgpack array of at most `most` integers and byte strings, and nothing else.

    Nothing larger than the data is allocated. What `write_fields` makes of the fields is the data:
    any other encoding of them is refused.

    Raises:
        DecodeError: the data is anything else.
    """
    # Nested arrays are refused at their header: their lengths alone, one inside the other, could
    # ask for thousands of times the data.
    unpacker = msgpack.Unpacker(
        max_buffer_size=len(data), max_array_len=0, max_map_len=0, max_str_len=0, max_ext_len=0
    )
    try:
        unpacker.feed(data)
        num_fields = unpacker.read_array_header()
        fields = [unpacker.unpack() for _ in range(min(num_fields, most))]
    except (ValueError, msgpack.UnpackException) as error:
        raise DecodeError(f"not a msgpack array of up to {most} fields: {error!r}") from None
    if num_fields > most or unpacker.tell() != len(data):
        raise DecodeError(f"not exactly one msgpack array of up to {most} fields")
    if not all(type(field) in (int, bytes) for field in fields):
        raise DecodeError("a field is neither an integer nor a byte string")
    if not _is_canonical(fields, data):
        raise DecodeError("the encoding is not canonical")
    return fields


def _is_canonical(fields: Sequence[Value], data: bytes) -> bool:
    """Whether the data is `write_fields` of the fields that were read from it."""
    packer = msgpack.Packer()
    expected = cast(bytes, packer.pack_array_header(len(fields)))
    at = 0
    for field in fields:
        if not data.startswith(expected, at):
            return False
        at += len(expected)
        if isinstance(field, int):
            expected = cast(bytes, packer.pack(field))
        else:  # what was read is there; only its header may be longer than it must
            at += header_size(len(field))
            at += len(field)
            expected = b""
    return data.startswith(expected, at) and at + len(expected) == len(data)


def header_size(length: int) -> int:
    """Bytes in front of a string in msgpack's shortest form: a type, and 1, 2 or 4 of length."""
    return 2 if length < 1 << 8 else 3 if length < 1 << 16 else 5


class FieldReader:
    """Takes the fields of a message one by one, each with its type and bounds."""

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
