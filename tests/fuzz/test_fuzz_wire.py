"""Bytes that are nearly right: each reader refuses with its own error, or they are canonical."""

import msgpack
import pytest
import targets
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import HEADERS, LITTLE, mutants, peak

from deltafl.secagg import SessionParams, wire

CORPUS = targets.corpus()
BY_READER = {
    reader.__name__: [data for data in CORPUS if data[0] == number]
    for number, reader in enumerate(targets.READERS)
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", BY_READER)
def test_what_is_nearly_right_is_refused_or_canonical(reader):
    @settings(max_examples=200)
    @given(data=mutants(BY_READER[reader], start=1))
    def check(data):
        targets.one_input(data)

    check()


def fields_of(data):
    """The fields of a message, each as its own bytes."""
    return [msgpack.packb(field) for field in msgpack.unpackb(data[1:])]


@pytest.mark.parametrize("reader", list(BY_READER)[:-1])
def test_other_fields_in_a_field_s_place(reader):
    lines = [fields_of(data) for data in BY_READER[reader]]
    others = st.one_of(
        st.integers(-(2**63), 2**64 - 1).map(msgpack.packb),
        st.binary(max_size=80).map(msgpack.packb),
        st.sampled_from(sorted({field for line in lines for field in line})),
    )

    @settings(max_examples=100)
    @given(line=st.sampled_from(lines), at=st.integers(0, 20), other=others)
    def check(line, at, other):
        at %= len(line)
        changed = [*line[:at], other, *line[at + 1 :]]
        header = msgpack.packb([None] * len(changed))[: 1 if len(changed) < 16 else 3]
        targets.READERS[[*BY_READER].index(reader)](header + b"".join(changed))

    check()


def bombs(data):
    """The message with every field in turn announced, or given, much larger than it is."""
    line = fields_of(data)
    head = msgpack.packb([None] * len(line))[: 1 if len(line) < 16 else 3]
    for at in range(len(line)):
        for larger in (*HEADERS, msgpack.packb(2**32 - 1), msgpack.packb(2**31)):
            yield head + b"".join([*line[:at], larger, *line[at + 1 :]])


@pytest.mark.parametrize("reader", list(BY_READER)[:-1])
def test_sizes_that_are_only_announced_take_no_memory(reader):
    read = targets.READERS[[*BY_READER].index(reader)]
    for data in BY_READER[reader]:
        for bomb in bombs(data):
            assert peak(read, bomb) < 20 * len(bomb) + LITTLE


@pytest.mark.parametrize("name", ["tolerant", "verified"])
def test_no_message_of_a_vast_session_takes_more_than_it_brings(name):
    vast = SessionParams((*targets.PARAMS[name].slots,), 2**31, 2**31, 3, 3, bytes(32), bytes(32))

    def read(data):
        targets._read_message(data, vast)

    for data in BY_READER[f"read_{name}"]:
        tagged = data[1:].replace(targets.PARAMS[name].tag, vast.tag)
        for bomb in (tagged, *bombs(b"\0" + tagged)):
            assert peak(read, bomb) < 20 * len(bomb) + LITTLE


def test_long_directories_take_no_more_than_they_bring():
    for bomb in (b"1 " * 100_000, b"#" * 200_000, b"9" * 200_000, b"\n" * 100_000):
        assert peak(targets.read_directory, bomb) < 20 * len(bomb) + LITTLE


# Controls.


def test_the_corpus_has_every_kind():
    kinds = {data[0]: set() for data in CORPUS}
    for data in CORPUS:
        kinds[data[0]].add(msgpack.unpackb(data[1:])[1] if data[0] < 4 else None)
        assert targets.one_input(data)
    tolerant = {*range(0x01, 0x07), *range(0x11, 0x17)}
    assert kinds == {
        0: tolerant,
        1: tolerant | {0x07},
        2: {0x01},
        3: set(range(0x21, 0x25)),
        4: {None},
    }


def test_a_reader_that_raises_something_else_is_found(monkeypatch):
    def careless(data, params):
        return wire.decode_open(data).params[0]

    monkeypatch.setattr(targets.wire, "decode", careless)
    opening = BY_READER["read_opening"][0][1:]
    with pytest.raises(TypeError):
        targets.one_input(b"\0" + opening)


def test_an_encoding_that_is_not_canonical_is_found(monkeypatch):
    honest = targets.envelope_wire.decode
    monkeypatch.setattr(targets.envelope_wire, "decode", lambda data: honest(data.rstrip(b"!")))
    data = BY_READER["read_envelope"][0]
    assert targets.one_input(data)
    with pytest.raises(AssertionError, match="not canonical"):
        targets.one_input(data + b"!")


def test_a_reader_that_believes_sizes_is_found():
    assert peak(lambda data: bytearray(int.from_bytes(data, "big")), b"\x01\0\0\0") > 1 << 23
