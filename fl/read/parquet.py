"""Parquet files whose pages may lie about themselves.

Every page has a header of its own. It says how many values and bytes the page has, and pyarrow
makes room for them before it looks at the page. So 2 kB can claim all the memory there is. Here
the headers alone are read, before pyarrow reads the pages.

Sources: github.com/apache/parquet-format, parquet.thrift; Thrift's compact protocol
(github.com/apache/thrift, doc/specs/thrift-compact-protocol.md).
"""

import os
from collections.abc import Mapping
from typing import BinaryIO, Final, TypeAlias

import pyarrow.parquet as pq

from deltafl.fl.read.zipped import allowance

Header: TypeAlias = Mapping[int, "int | bytes | Header"]
"""The fields of a Thrift structure by their ids."""

_VALUE_BYTES: Final = 16  # that a value takes at least, once it is read
_USUAL_HEADER_BYTES: Final = 1 << 12
_MAX_HEADER_BYTES: Final = 1 << 20  # the smallest and the largest value of a page are in it
_MAX_DEPTH: Final = 4

_TRUE, _FALSE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 4, 5, 6, 7, 8, 12
_INTEGERS: Final = (_I16, _I32, _I64)

_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_DETAILS: Final = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}
"""By type of page, the id of the field of its header that is about this type."""
_ENCODING: Final = {_DATA: 2, _DICTIONARY: 2, _DATA_2: 4}
_READ: Final = frozenset({0, 2, 3, 4, 8, 9})
"""Encodings whose values are no more than the header says: not the DELTA ones, 5, 6 and 7, which
state numbers of their own, and repeat the beginnings of texts."""


def check_pages(file: BinaryIO, metadata: pq.FileMetaData) -> None:
    """Check that what all pages of a file say of themselves is in proportion to the file.

    Args:
        file: It; its position moves.
        metadata: What pyarrow reads at the end of the same file.

    Raises:
        ValueError: it is not, or pages do not have as many values and bytes as the end of the file
            says.
        OSError: the file cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    most_bytes = allowance(size)
    most_values = most_bytes // _VALUE_BYTES
    num_bytes = num_values = num_packed = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            chunk = row_group.column(index)
            num_packed += chunk.total_compressed_size
            if num_packed > size:
                raise ValueError(f"its columns take {num_packed:,} bytes, and it has {size:,}")
            found = _check_chunk(file, chunk, most_bytes - num_bytes, most_values - num_values)
            num_bytes, num_values = num_bytes + found[0], num_values + found[1]


def _check_chunk(
    file: BinaryIO, chunk: pq.ColumnChunkMetaData, most_bytes: int, most_values: int
) -> tuple[int, int]:
    """The bytes and values of the pages of a column, within bounds.

    All pages must fill the column, and have its values: pyarrow reads no further than that.
    """
    name = f"the column {chunk.path_in_schema!a:.60}"
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < at:
        at = chunk.dictionary_page_offset
    end = at + chunk.total_compressed_size
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


def _header_at(file: BinaryIO, at: int, end: int) -> tuple[Header, int]:
    """The header at a place, and its length. Most are short, and files may have many."""
    for most in (_USUAL_HEADER_BYTES, _MAX_HEADER_BYTES):
        file.seek(at)
        data = file.read(min(most, end - at))
        try:
            return _structure(data, 0, _MAX_DEPTH)
        except IndexError:
            continue
    raise ValueError("the header of a page is cut short, or too long")


def _sizes(page: Header, name: str) -> tuple[int, int, int, bool]:
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


def _number(fields: Header, index: int) -> int:
    number = fields.get(index)
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"the header of a page has no number in its field {index}")
    return number


def _structure(data: bytes, at: int, depth: int) -> tuple[Header, int]:
    """Read a Thrift structure: its fields, and where it ends.

    Lists, sets, maps and single bytes are refused: no page header has any.

    Raises:
        ValueError: it is damaged, or has a field that no page header has.
        IndexError: it goes on where the bytes end.

    >>> _structure(bytes([0x15, 6, 0x1C, 0x11, 0, 0]), 0, 2)
    ({1: 3, 2: {1: True}}, 6)
    """
    if not depth:
        raise ValueError("the header of a page is nested too deeply")
    fields: dict[int, int | bytes | Header] = {}
    last = 0
    while data[at]:
        step, kind = data[at] >> 4, data[at] & 15
        at += 1
        if step:
            last += step
        else:
            last, at = _integer(data, at)
        if last in fields:
            raise ValueError("the header of a page has a field twice")
        value: int | bytes | Header
        if kind in (_TRUE, _FALSE):
            value = kind == _TRUE
        elif kind in _INTEGERS:
            value, at = _integer(data, at)
        elif kind == _BINARY:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        elif kind == _DOUBLE:
            value, at = data[at : at + 8], at + 8
        elif kind == _STRUCT:
            value, at = _structure(data, at, depth - 1)
        else:
            raise ValueError(f"the header of a page has a field of type {kind}")
        fields[last] = value
    return fields, at + 1


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
    raise ValueError("the header of a page has a number of more than 64 bits")
