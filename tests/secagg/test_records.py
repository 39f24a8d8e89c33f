"""Byte strings by position, held in one array: a mapping like any other."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg import DecodeError
from deltafl.secagg.codec import Records, record_size

positions = st.one_of(st.integers(0, 6), st.integers(0, 2**32 - 1))
sizes = st.integers(1, 40)
strings = sizes.flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.dictionaries(positions, st.binary(min_size=size, max_size=size), max_size=6),
    )
)


@pytest.mark.slow
@given(drawn=strings, other=positions)
def test_a_mapping_with_the_same_items(drawn, other):
    size, plain = drawn
    records = Records.of(plain, size)
    assert isinstance(records, Mapping)
    assert len(records) == len(plain)
    assert list(records) == sorted(plain)
    assert dict(records) == plain
    assert list(records.items()) == sorted(plain.items())
    assert all(type(value) is bytes for value in records.values())
    assert (other in records) == (other in plain)
    assert records.get(other, b"none") == plain.get(other, b"none")


@pytest.mark.slow
@given(drawn=strings)
def test_equal_to_a_dictionary_with_the_same_items_only(drawn):
    size, plain = drawn
    records = Records.of(plain, size)
    assert records == plain
    assert plain == records
    assert records == Records.of(dict(reversed(plain.items())), size)
    assert records != {**plain, 7: bytes(size + 1)}
    for position in plain:
        assert records != {p: s for p, s in plain.items() if p != position}
        assert records != {**plain, position: bytes([plain[position][0] ^ 1]) + plain[position][1:]}
    assert records != sorted(plain.items())


@pytest.mark.slow
@given(drawn=strings)
def test_encode_and_decode_round_trip(drawn):
    size, plain = drawn
    data = Records.of(plain, size).encode()
    assert data == b"".join(p.to_bytes(4, "little") + plain[p] for p in sorted(plain))
    assert len(data) == record_size(size) * len(plain)
    again = Records.decode(data, size)
    assert again == plain
    assert again.encode() == data
    assert again.positions.dtype == np.int64
    assert again.rows.shape == (len(plain), size)


@pytest.mark.slow
@given(drawn=strings, data=st.data())
def test_positions_that_do_not_ascend_are_refused(drawn, data):
    size, plain = drawn
    order = data.draw(st.permutations(sorted(plain)))
    joined = b"".join(p.to_bytes(4, "little") + plain[p] for p in order)
    if list(order) == sorted(plain):
        assert list(Records.decode(joined, size)) == list(order)
    else:
        with pytest.raises(DecodeError, match="do not ascend"):
            Records.decode(joined, size)


def test_a_position_named_twice_is_refused():
    one = (5).to_bytes(4, "little") + b"ab"
    assert Records.decode(one, 2) == {5: b"ab"}
    with pytest.raises(DecodeError, match="do not ascend"):
        Records.decode(one * 2, 2)


def test_the_largest_position_comes_last():
    # Positions are unsigned: 2^32 − 1 must not be read as −1.
    plain = {0: b"a", 2**31: b"b", 2**32 - 1: b"c"}
    records = Records.decode(Records.of(plain, 1).encode(), 1)
    assert list(records) == [0, 2**31, 2**32 - 1]
    assert -1 not in records


def test_missing_positions_raise():
    records = Records.of({2: b"a", 4: b"b"}, 1)
    assert records[4] == b"b"
    for missing in (-1, 0, 3, 5):
        with pytest.raises(KeyError):
            records[missing]


def test_records_of_records_are_themselves():
    records = Records.of({2: b"a"}, 1)
    assert Records.of(records, 1) is records


def test_rows_are_those_of_their_positions():
    rows = np.arange(6, dtype=np.uint8).reshape(3, 2)
    records = Records(np.array([1, 4, 9]), rows)
    assert records == {1: b"\0\1", 4: b"\2\3", 9: b"\4\5"}
    # A view with gaps between its rows, as a part of a larger table is.
    table = np.arange(12, dtype=np.uint8).reshape(3, 4)
    view = Records(np.array([1, 4, 9]), table[:, 1:3])
    assert view == {1: b"\1\2", 4: b"\5\6", 9: b"\t\n"}
    assert Records.decode(view.encode(), 2) == view


def test_records_have_no_hash():
    with pytest.raises(TypeError):
        hash(Records.of({}, 1))
