"""Frames: one encoding each, and nothing else."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg import DecodeError
from deltafl.secagg.codec import read_fields, write_fields
from deltafl.sim.net.frames import (
    MAX_DETAIL,
    MAX_SETTINGS,
    MAX_TRIPS,
    NONCE_SIZE,
    OVERHEAD,
    TASK_SIZE,
    Carry,
    Challenge,
    Decline,
    Hello,
    Over,
    Reason,
    Task,
    Welcome,
    decode,
    encode,
)


def sized(size):
    return st.binary(min_size=size, max_size=size)


rounds = st.integers(0, 1 << 53)
tasks = sized(TASK_SIZE)
FRAMES = st.one_of(
    st.builds(Challenge, sized(NONCE_SIZE)),
    st.builds(Hello, st.integers(0, 2**32 - 1), sized(32), sized(64), sized(32)),
    st.builds(Welcome, rounds, rounds, st.booleans()),
    st.builds(Task, tasks, rounds, st.integers(-4096, 4096), st.binary(max_size=300)),
    st.builds(Carry, tasks, st.integers(0, MAX_TRIPS), st.binary(max_size=5000)),
    st.builds(Decline, tasks, st.sampled_from(Reason), st.binary(max_size=200)),
    st.builds(Over, tasks, rounds),
)


@given(FRAMES)
def test_frames_are_read_as_they_were_written(frame):
    assert decode(encode(frame)) == frame
    kinds = [Challenge, Hello, Welcome, Task, Carry, Decline, Over]
    assert read_fields(encode(frame), most=8)[:2] == [2, 1 + kinds.index(type(frame))]


@given(FRAMES, st.data())
def test_changed_bytes_are_another_frame_or_none(frame, data):
    encoded = bytearray(encode(frame))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        other = decode(bytes(encoded))
    except DecodeError:
        return
    assert other != frame
    assert encode(other) == bytes(encoded)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data):
    with contextlib.suppress(DecodeError):
        assert encode(decode(data)) == data


@pytest.mark.parametrize(
    "fields",
    [
        [1, 3, 0, 0, 0],  # another version
        [2, 0],
        [2, 8],
        [2, 1, bytes(31)],
        [2, 1, bytes(32), 0],
        [2, 2, 2**32, bytes(32), bytes(64), b""],
        [2, 2, 0, bytes(32), bytes(63), b""],
        [2, 2, 0, bytes(32), bytes(64), bytes(31)],
        [2, 3, 0, -1, 0],
        [2, 3, 0, (1 << 53) + 1, 0],
        [2, 4, bytes(15), 0, 0, b"", 0, b""],
        [2, 4, bytes(16), 0, 4097, b"", 0, b""],
        [2, 4, bytes(16), 0, 0, bytes(MAX_SETTINGS + 1), 0, b""],
        [2, 5, bytes(16), -1, b""],
        [2, 5, bytes(16), MAX_TRIPS + 1, b""],
        [2, 5, bytes(16), 0, 7],
        [2, 6, bytes(16), 0, b""],
        [2, 6, bytes(16), 6, b""],
        [2, 6, bytes(16), 1, bytes(MAX_DETAIL + 1)],
        [2, 7, bytes(16)],
    ],
)
def test_values_out_of_their_range_are_refused(fields):
    with pytest.raises(DecodeError):
        decode(write_fields(fields))


@given(st.integers(0, MAX_TRIPS), st.integers(0, 1 << 17))
def test_what_is_carried_is_little_longer_in_its_frame(trip, size):
    assert len(encode(Carry(bytes(TASK_SIZE), trip, bytes(size)))) <= size + OVERHEAD


def test_frames_are_arrays_of_numbers_and_strings():
    assert read_fields(encode(Over(bytes(16), 3)), most=4) == [2, 7, bytes(16), 3]
