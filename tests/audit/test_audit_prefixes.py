"""What the first bytes of a message tell is what the whole message says."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg.codec import write_fields
from deltafl.sim.inspect.audit.prefixes import Prefix, scan

NATURAL = st.integers(0, 2**64 - 1) | st.sampled_from(
    [0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 2**32 - 1, 2**32]
)
LENGTH = st.integers(0, 40) | st.sampled_from([255, 256, 65535, 65536])
PATTERN = bytes(range(251)) * 262
BINARY = LENGTH.map(lambda length: PATTERN[:length])
FIELDS = st.lists(NATURAL | BINARY, max_size=18)


@pytest.mark.slow
@given(FIELDS)
def test_a_whole_message_is_its_fields(fields):
    prefix = scan(write_fields(fields))
    assert prefix == Prefix(len(fields), tuple(fields))
    assert prefix.begins_all


@pytest.mark.slow
@given(FIELDS, st.data())
def test_the_beginning_of_a_message_is_the_beginning_of_its_fields(fields, data):
    whole = write_fields(fields)
    prefix = scan(whole[: data.draw(st.integers(0, len(whole)))])
    if prefix is None:
        return
    assert prefix.num_fields == len(fields)
    assert prefix.begins_all == (len(prefix.fields) == len(fields))
    *before, last = (*prefix.fields,) or (None,)
    assert before == fields[: len(before)]
    if isinstance(last, bytes):
        assert fields[len(before)][: len(last)] == last
    elif last is not None:
        assert fields[len(before)] == last


def test_every_beginning_of_a_message_tells_whole_numbers_alone():
    fields = [0x7F, 0x80, 0xFF, 0x10000, 2**32, b"abc", 5]
    whole = write_fields(fields)
    assert scan(whole).fields == tuple(fields)
    for cut in range(1, len(whole)):
        for told, field in zip(scan(whole[:cut]).fields, fields, strict=False):
            assert field[: len(told)] == told if isinstance(field, bytes) else field == told


@given(FIELDS, st.integers(0, 500))
def test_more_bytes_tell_more(fields, cut):
    whole = write_fields(fields)
    less, more = scan(whole[:cut]), scan(whole[: cut + 1])
    assert len(less.fields if less else ()) <= len(more.fields if more else ())


@pytest.mark.parametrize("num_fields", [0, 1, 15, 16, 300])
def test_nothing_is_known_before_the_number_of_fields_is(num_fields):
    whole = write_fields([7] * num_fields)
    header = 1 if num_fields < 16 else 3
    assert [scan(whole[:cut]) for cut in range(header)] == [None] * header
    assert scan(whole[:header]) == Prefix(num_fields, ())


@given(st.binary(max_size=80))
def test_bytes_of_anybody_are_scanned_or_refused(data):
    prefix = scan(data)
    assert prefix is None or len(prefix.fields) <= prefix.num_fields


@pytest.mark.parametrize("value", [None, True, -1, 1.5, "text", [1], {1: 2}])
def test_a_field_that_is_neither_a_natural_nor_bytes_is_refused(value):
    assert scan(msgpack.packb([1, value, 2])) is None
    assert scan(msgpack.packb(value)) is None or isinstance(value, list)
