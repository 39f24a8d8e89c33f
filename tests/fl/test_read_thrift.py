"""Structures in Thrift's compact protocol, also damaged ones."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.fl.read.parquet import read_structure

# What a field may hold, byte by byte after the protocol's description, and what it stands for.
FIELDS = [
    ([0x11], True),
    ([0x12], False),
    ([0x13, 0xFE], 254),
    ([0x14, 1], -1),
    ([0x15, 0xAC, 2], 150),
    ([0x16, *[0xFF] * 9, 1], -(2**63)),
    ([0x17, 1, 2, 3, 4, 5, 6, 7, 8], bytes(range(1, 9))),
    ([0x18, 2, 65, 66], b"AB"),
    ([0x19, 0x05], []),
    ([0x19, 0x21, 1, 0], [1, 0]),
    ([0x19, 0x35, 1, 2, 3], [-1, 1, -2]),
    ([0x19, 0xF8, 16, *[0] * 16], [b""] * 16),
    ([0x1C, 0x15, 2, 0], {1: 1}),
    ([0x19, 0x2C, 0, 0x15, 2, 0], [{}, {1: 1}]),
]


@pytest.mark.parametrize(("encoded", "value"), FIELDS)
def test_every_type_is_read(encoded, value):
    assert read_structure(bytes([*encoded, 0, 99]), 0, 9) == ({1: value}, len(encoded) + 1)


def test_fields_may_be_named_in_full_or_by_steps():
    assert read_structure(bytes([0x05, 0x80, 1, 2, 0x25, 4, 0]), 0, 9) == ({64: 1, 66: 2}, 7)


@pytest.mark.parametrize(
    ("encoded", "complaint"),
    [
        ([0x1A, 0], "a field of type 10"),
        ([0x1B, 0], "a field of type 11"),
        ([0x1D, 0], "a field of type 13"),
        ([0x19, 0x1A], "a field of type 10"),
        ([0x15, 2, 0x05, 2, 2, 0], "a field twice"),
        ([0x1C] * 9 + [0] * 9, "nested too deeply"),
        ([0x19, *[0x19] * 9, 0], "nested too deeply"),
        ([0x15, *[0xFF] * 10, 1, 0], "more than 64 bits"),
    ],
)
def test_what_no_parquet_file_has_is_refused(encoded, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_structure(bytes(encoded), 0, 4)


@pytest.mark.parametrize(("encoded", "value"), FIELDS)
def test_a_structure_that_is_cut_short_is_told(encoded, value):
    for length in range(len(encoded) + 1):
        with pytest.raises(IndexError):
            read_structure(bytes(encoded[:length]), 0, 9)


@pytest.mark.parametrize("huge", [[0x18], [0x19, 0xF5], [0x19, 0xF1], [0x19, 0xFC]])
def test_lengths_are_not_believed(huge):
    data = bytes([*huge, *[0xFF] * 8, 0x7F]) + bytes([1]) * 1000
    tracemalloc.start()
    try:
        with pytest.raises((IndexError, ValueError)):
            read_structure(data, 0, 9)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data):
    try:
        _, end = read_structure(data, 0, 9)
    except (ValueError, IndexError):
        return
    assert 0 < end <= len(data)
