"""Structures in Thrift's compact protocol, as Parquet files have them.

Source: github.com/apache/thrift, doc/specs/thrift-compact-protocol.md.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

Value: TypeAlias = "int | bytes | Fields | Sequence[Value]"
Fields: TypeAlias = Mapping[int, Value]
"""The fields of a structure by their ids."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64 = range(1, 7)
_DOUBLE, _BINARY, _LIST, _STRUCT = 7, 8, 9, 12
_BYTES: Final = (_TRUE, _FALSE, _BYTE)
_INTEGERS: Final = (_I16, _I32, _I64)
_DOUBLE_SIZE: Final = 8
_LONG: Final = 15  # says that a list's length follows


def read_structure(data: bytes, at: int, depth: int) -> tuple[Fields, int]:
    """Read a structure: its fields, and where it ends.

    What it takes is in proportion to the data, whatever the lengths say that it states. Sets and
    maps are refused: Parquet has none.

    Args:
        data: The bytes.
        at: Where it begins.
        depth: How many structures and lists may lie in each other.

    Raises:
        ValueError: it is damaged, nested more deeply, or has a set or a map.
        IndexError: it goes on where the bytes end.

    >>> read_structure(bytes([0x15, 6, 0x1C, 0x11, 0, 0x19, 0x25, 2, 4, 0]), 0, 2)
    ({1: 3, 2: {1: True}, 3: [1, 2]}, 10)
    """
    if not depth:
        raise ValueError("a structure is nested too deeply")
    fields: dict[int, Value] = {}
    last = 0
    while data[at]:
        step, kind = data[at] >> 4, data[at] & 15
        at += 1
        if step:
            last += step
        else:
            last, at = _integer(data, at)
        if last in fields:
            raise ValueError("a structure has a field twice")
        if kind in (_TRUE, _FALSE):  # in a field, but not in a list, the type is the value
            fields[last] = kind == _TRUE
        else:
            fields[last], at = _value(kind, data, at, depth)
    return fields, at + 1


def _value(kind: int, data: bytes, at: int, depth: int) -> tuple[Value, int]:
    if kind in _INTEGERS:
        return _integer(data, at)
    if kind in _BYTES:
        return data[at], at + 1
    if kind == _DOUBLE:
        return data[at : at + _DOUBLE_SIZE], at + _DOUBLE_SIZE
    if kind == _BINARY:
        length, at = _varint(data, at)
        return data[at : at + length], at + length  # past the end if it is cut short
    if kind == _STRUCT:
        return read_structure(data, at, depth - 1)
    if kind == _LIST:
        return _list(data, at, depth - 1)
    raise ValueError(f"a structure has a field of type {kind}")


def _list(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    if not depth:
        raise ValueError("a structure is nested too deeply")
    length, kind = data[at] >> 4, data[at] & 15
    at += 1
    if length == _LONG:
        length, at = _varint(data, at)
    values: list[Value] = []
    for _ in range(length):  # each takes a byte at least, so the data bound them
        value, at = _value(kind, data, at, depth)
        values.append(value)
    return values, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 64, 7):
        number |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return number, at
    raise ValueError("a structure has a number of more than 64 bits")
