"""Parquet files that may lie about themselves.

The end of a file, its footer, says where the pages of each column are. Every page has a header of
its own, which says how many values and bytes the page has, and pyarrow makes room for them before
it looks at the page. So 2 kB can claim all the memory there is. Here the footer and the headers
alone are read, before pyarrow reads anything.

pyarrow cannot be asked what the footer says of a column: where a column contradicts itself, it ends
the process. It reads such a file with an exception like any other.

Sources: github.com/apache/parquet-format, parquet.thrift; for the form of its structures,
github.com/apache/thrift, doc/specs/thrift-compact-protocol.md.
"""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, Final, NamedTuple, TypeAlias

from deltafl.fl.read.zipped import allowance

Value: TypeAlias = "int | bytes | Fields | Sequence[Value]"
Fields: TypeAlias = Mapping[int, Value]
"""The fields of a structure by their ids."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64 = range(1, 7)
_DOUBLE, _BINARY, _LIST, _STRUCT = 7, 8, 9, 12
_BYTES: Final = (_TRUE, _FALSE, _BYTE)
_INTEGERS: Final = (_I16, _I32, _I64)
_DOUBLE_SIZE: Final = 8
_LONG: Final = 15  # says that a list's length follows

_VALUE_BYTES: Final = 16  # that a value takes at least, once it is read
_USUAL_HEADER_BYTES: Final = 1 << 12
_MAX_HEADER_BYTES: Final = 1 << 20  # the smallest and the largest value of a page are in it
_MAX_FOOTER_BYTES: Final = 1 << 24
_MAX_DEPTH: Final = 12
_ENDING: Final = struct.Struct("<I4s")
_MAGIC: Final = b"PAR1"

_ROW_GROUPS: Final = 4  # of a file
_COLUMNS: Final = 1  # of a row group
_FILE_PATH, _META_DATA, _ENCRYPTED = 1, 3, (8, 9)  # of a column
_PATH, _NUM_VALUES, _PACKED, _FIRST_DATA, _FIRST_DICTIONARY = 3, 5, 7, 9, 11  # of its meta data

_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_DETAILS: Final = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}
"""By type of page, the id of the field of its header that is about this type."""
_ENCODING: Final = {_DATA: 2, _DICTIONARY: 2, _DATA_2: 4}
_READ: Final = frozenset({0, 2, 3, 4, 8, 9})
"""Encodings whose values are no more than the header says: not the DELTA ones, 5, 6 and 7, which
state numbers of their own, and repeat the beginnings of texts."""


class _Chunk(NamedTuple):
    """The pages of a column in a row group, as the footer has them.

    Attributes:
        name: Of the column, for messages.
        start: Where they begin.
        end: Where they end.
        num_values: Of all of them.
    """

    name: str
    start: int
    end: int
    num_values: int


def check_pages(file: BinaryIO) -> None:
    """Check that what all pages of a file say of themselves is in proportion to the file.

    Args:
        file: It; its position moves.

    Raises:
        ValueError: it is not, or pages do not have as many values and bytes as the end of the file
            says, or that is damaged.
        OSError: the file cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    most_bytes = allowance(size)
    most_values = most_bytes // _VALUE_BYTES
    num_bytes = num_values = num_packed = 0
    for chunk in _chunks(_footer(file, size)):
        num_packed += chunk.end - chunk.start
        if num_packed > size:
            raise ValueError(f"its columns take {num_packed:,} bytes, and it has {size:,}")
        found = _check_chunk(file, chunk, most_bytes - num_bytes, most_values - num_values)
        num_bytes, num_values = num_bytes + found[0], num_values + found[1]
    file.seek(0)


def _footer(file: BinaryIO, size: int) -> Fields:
    """The end of a file: all that it says of its columns."""
    if size < len(_MAGIC) + _ENDING.size:
        raise ValueError(f"it has {size} bytes, and a Parquet file has more")
    file.seek(size - _ENDING.size)
    length, magic = _ENDING.unpack(file.read(_ENDING.size))
    if magic != _MAGIC:
        raise ValueError("it does not end like a Parquet file")
    if length > min(size - len(_MAGIC) - _ENDING.size, _MAX_FOOTER_BYTES):
        raise ValueError(f"its footer has {length:,} bytes, more than the file or this can have")
    file.seek(size - _ENDING.size - length)
    try:
        fields, _ = read_structure(file.read(length), 0, _MAX_DEPTH)
    except IndexError:
        raise ValueError("its footer is cut short") from None
    return fields


def _chunks(footer: Fields) -> Iterator[_Chunk]:
    for group in _structures(footer, _ROW_GROUPS):
        for column in _structures(group, _COLUMNS):
            found = column.get(_META_DATA)
            if _FILE_PATH in column or not isinstance(found, Mapping):
                raise ValueError("a column is in another file")
            if any(field in column for field in _ENCRYPTED):
                raise ValueError("a column is encrypted")
            yield _chunk(found)


def _chunk(column: Fields) -> _Chunk:
    path = column.get(_PATH)
    if not isinstance(path, Sequence):
        raise ValueError("a column has no name")
    start, packed = _number(column, _FIRST_DATA), _number(column, _PACKED)
    if _FIRST_DICTIONARY in column and 0 < (first := _number(column, _FIRST_DICTIONARY)) < start:
        start = first
    name = f"the column {path!a:.60}"
    return _Chunk(name, start, start + packed, _number(column, _NUM_VALUES))


def _structures(fields: Fields, index: int) -> Iterator[Fields]:
    """The structures in a field, which is a list of them."""
    found = fields.get(index)
    if not isinstance(found, Sequence):
        raise ValueError(f"its footer has no list in field {index}")
    for one in found:
        if not isinstance(one, Mapping):
            raise ValueError(f"field {index} of its footer lists no structures")
        yield one


def _check_chunk(
    file: BinaryIO, chunk: _Chunk, most_bytes: int, most_values: int
) -> tuple[int, int]:
    """The bytes and values of the pages of a column, within bounds.

    All pages must fill the column, and have its values: pyarrow reads no further than that.
    """
    name, at, end = chunk.name, chunk.start, chunk.end
    if chunk.num_values > most_values:
        raise ValueError(f"{name} has {chunk.num_values:,} values, which are not in so few bytes")
    num_bytes = num_values = num_pages = 0
    if not chunk.num_values:  # pyarrow reads no page
        return 0, 0
    while at < end:
        page, length = _header_at(file, at, end)
        packed, unpacked, count, is_data = _sizes(page, name)
        at += length + packed
        num_bytes += unpacked + length
        num_values += count if is_data else 0
        if num_bytes > most_bytes:
            raise ValueError(f"{name} unpacks to more bytes than its size explains")
        if num_values > chunk.num_values or (not is_data and (num_pages or count > unpacked)):
            raise ValueError(f"a page of {name} has {count:,} values, which it cannot have")
        num_pages += 1
    if at != end or num_values != chunk.num_values:
        raise ValueError(
            f"the pages of {name} have {num_values:,} values and end at {at}, not "
            f"{chunk.num_values:,} and {end}"
        )
    return num_bytes, num_values


def _header_at(file: BinaryIO, at: int, end: int) -> tuple[Fields, int]:
    """The header at a place, and its length. Most are short, and files may have many."""
    for most in (_USUAL_HEADER_BYTES, _MAX_HEADER_BYTES):
        file.seek(at)
        data = file.read(min(most, end - at))
        try:
            return read_structure(data, 0, _MAX_DEPTH)
        except IndexError:
            continue
    raise ValueError("the header of a page is cut short, or too long")


def _sizes(page: Fields, name: str) -> tuple[int, int, int, bool]:
    """Bytes packed, bytes unpacked, values, and whether it is a page of data."""
    kind = _number(page, 1)
    details = page.get(_DETAILS.get(kind, 0))
    if not isinstance(details, Mapping):
        raise ValueError(f"a page of {name} is neither of data nor a dictionary")
    if (encoding := _number(details, _ENCODING[kind])) not in _READ:
        raise ValueError(
            f"a page of {name} has encoding {encoding}, which is not read: write the file again "
            "without DELTA encodings"
        )
    return _number(page, 3), _number(page, 2), _number(details, 1), kind != _DICTIONARY


def _number(fields: Fields, index: int) -> int:
    number = fields.get(index)
    if type(number) is not int or number < 0:
        raise ValueError(f"a structure has no number in its field {index}")
    return number


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
