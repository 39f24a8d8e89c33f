import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg import DecodeError
from deltafl.secagg.codec import FieldReader, read_fields, write_fields

fields = st.lists(st.one_of(st.integers(-(2**63), 2**64 - 1), st.binary(max_size=300)), max_size=20)


@pytest.mark.slow
@given(values=fields)
def test_round_trip(values):
    assert read_fields(write_fields(values), most=20) == values


@pytest.mark.slow
@given(values=fields, more=st.binary(min_size=1, max_size=3))
def test_whatever_follows_or_is_missing_is_refused(values, more):
    data = write_fields(values)
    for wrong in (data + more, data[:-1]):
        with pytest.raises(DecodeError):
            read_fields(wrong, most=20)


@pytest.mark.slow
@given(values=fields.filter(len))
def test_more_fields_than_expected_are_refused(values):
    data = write_fields(values)
    assert read_fields(data, most=len(values)) == values
    with pytest.raises(DecodeError, match="up to"):
        read_fields(data, most=len(values) - 1)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_fields_that_are_announced_and_never_come_are_refused(most):
    with pytest.raises(DecodeError):
        read_fields(b"\x93\x01\x02", most=most)  # an array of three, and two of them


@pytest.mark.parametrize(
    "value", [None, True, 1.5, "", "text", [], [1], {}, {1: 2}, msgpack.ExtType(5, b"")]
)
def test_other_types_are_refused(value):
    with pytest.raises(DecodeError):
        read_fields(msgpack.packb([1, value]), most=2)


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\xc0", b"\x80", b"\xc4\x00", b"\xc1", b"\x91\xc1"]
)
def test_what_is_no_array_is_refused(data):
    with pytest.raises(DecodeError):
        read_fields(data, most=10)


@pytest.mark.parametrize("most", [0, 10, 1 << 16])
@pytest.mark.parametrize(
    "data",
    [b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff" * 3000, b"\x9f" * 9000, b"\xdc\x30\x00" * 3000],
)
def test_lengths_alone_take_no_memory(data, most):
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            read_fields(data, most=most)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def read_plain(data, most):
    """The slow twin of `read_fields`: the library reads, and what it reads has to give the data."""
    try:
        fields = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):  # an array is no key of a map
        return None
    if type(fields) is not list or len(fields) > most:
        return None
    if not all(type(field) in (int, bytes) for field in fields):
        return None
    return fields if msgpack.packb(fields) == data else None


HEADERS = [b"\x90", b"\x92", b"\x9f", b"\xdc\x00\x01", b"\xdc\x00\x10", b"\xdd\x00\x00\x00\x02"]
FIELDS = [
    *(bytes([first]) + rest for first in range(256) for rest in (b"", bytes(8), b"\xff" * 8)),
    *(b"\xc4" + bytes([size]) + bytes(size) for size in (0, 1, 255)),
    *(b"\xc5" + size.to_bytes(2) + bytes(size) for size in (0, 255, 256, 65535)),
    *(b"\xc6" + size.to_bytes(4) + bytes(size) for size in (0, 255, 65535, 65536)),
    *(bytes([0xCC + log]) + value.to_bytes(1 << log)
      for log in range(4) for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63)
      for value in (2**bits - 1, 2**bits) if value.bit_length() <= 8 << log),
    *(bytes([0xD0 + log]) + value.to_bytes(1 << log, signed=True)
      for log in range(4) for bits in (0, 5, 7, 15, 31, 63)
      for value in (-(2**bits), -(2**bits) - 1, 2**bits - 1)
      if -(2 ** (7 + 8 * (1 << log) - 8)) <= value < 2 ** (7 + 8 * (1 << log) - 8)),
]  # fmt: skip


@pytest.mark.parametrize("header", [b"\x91", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"])
def test_every_field_is_read_as_the_library_reads_it(header):
    accepted = 0
    for field in FIELDS:
        expected = read_plain(header + field, 1)
        accepted += expected is not None
        if expected is None:
            with pytest.raises(DecodeError):
                read_fields(header + field, most=1)
        else:
            assert read_fields(header + field, most=1) == expected
    assert accepted > 150 if header == b"\x91" else not accepted


@pytest.mark.slow
@given(
    header=st.sampled_from(HEADERS),
    parts=st.lists(st.sampled_from(FIELDS), max_size=20),
    most=st.integers(0, 20),
)
def test_every_array_is_read_as_the_library_reads_it(header, parts, most):
    data = header + b"".join(parts)
    expected = read_plain(data, most)
    if expected is None:
        with pytest.raises(DecodeError):
            read_fields(data, most=most)
    else:
        assert read_fields(data, most=most) == expected


@pytest.mark.parametrize("num", [15, 16, 65535, 65536])
def test_long_arrays_are_read(num):
    data = write_fields([7] * num)
    assert read_fields(data, most=num) == [7] * num
    with pytest.raises(DecodeError, match="up to"):
        read_fields(data, most=num - 1)


@pytest.mark.parametrize("size", [4095, 4096, 65535, 65536])
@pytest.mark.parametrize("num", [1, 15, 16])
def test_long_strings_are_written_as_the_library_writes_them(size, num):
    fields = [b"a" * size, *([-7, 2**64 - 1, b"b", bytes(size), 300] * 4)][:num]
    assert write_fields(fields) == msgpack.packb(fields)
    assert read_fields(write_fields(fields), most=16) == fields


def test_reader_takes_fields_in_order():
    reader = FieldReader([5, b"abcd", b"abcdef"])
    assert reader.integer(5, 5) == 5
    assert reader.binary(4) == b"abcd"
    assert reader.records(3, most=2) == b"abcdef"
    reader.finish()


@pytest.mark.parametrize(
    ("value", "take"),
    [
        (4, lambda reader: reader.integer(5, 9)),
        (10, lambda reader: reader.integer(5, 9)),
        (b"", lambda reader: reader.integer(0, 9)),
        (True, lambda reader: reader.integer(0, 9)),
        (3, lambda reader: reader.binary(3)),
        (b"ab", lambda reader: reader.binary(3)),
        (b"abcd", lambda reader: reader.binary(3)),
        (0, lambda reader: reader.records(3, most=2)),
        (b"abcd", lambda reader: reader.records(3, most=2)),
        (b"a" * 9, lambda reader: reader.records(3, most=2)),
        (0, lambda reader: reader.finish()),
        (b"", lambda reader: reader.finish()),
    ],
)
def test_reader_refuses(value, take):
    with pytest.raises(DecodeError):
        take(FieldReader([value]))


@pytest.mark.parametrize(
    "take",
    [
        lambda reader: reader.integer(0, 9),
        lambda reader: reader.binary(0),
        lambda reader: reader.records(1, most=9),
    ],
)
def test_reader_refuses_a_missing_field(take):
    with pytest.raises(DecodeError, match="None is not"):
        take(FieldReader([]))
