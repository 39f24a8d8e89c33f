import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.secagg import DecodeError, UsageError, ring

LENGTHS = (0, 1, 2, 7, 63, 64, 65, 127, 128, 129, 200)


def uniform(generator, length, bits):
    words = generator.integers(0, 2**64 - 1, length, dtype=np.uint64, endpoint=True)
    return ring.to_words(words >> np.uint64(64 - bits), bits)


@pytest.mark.parametrize("short", [0, 128, 1 << 12])
@pytest.mark.parametrize("bits", range(1, 65))
def test_fast_and_plain_packing_agree(monkeypatch, bits, short):
    monkeypatch.setattr(ring, "_SMALL", 0)
    monkeypatch.setattr(ring, "_SHORT", short)
    generator = np.random.default_rng(bits)
    for length in LENGTHS:
        extremes = np.resize(np.array([2**bits - 1, 0], dtype=np.uint64), length)
        for vector in (uniform(generator, length, bits), ring.to_words(extremes, bits)):
            packed = ring.pack(vector, bits)
            assert packed == ring.pack_plain(vector, bits)
            assert len(packed) == ring.packed_size(length, bits)
            unpacked = ring.unpack(packed, length, bits)
            assert unpacked.dtype == (np.uint32 if bits <= 32 else np.uint64)
            assert unpacked.tolist() == vector.tolist()
            assert ring.unpack_plain(packed, length, bits).tolist() == vector.tolist()


@pytest.mark.parametrize("bits", [20, 51])
@pytest.mark.parametrize("border", [ring._SMALL, ring._SHORT])
def test_packing_is_the_same_on_both_sides_of_a_border(bits, border):
    vector = uniform(np.random.default_rng(bits), border + 1, bits)
    for length in (border, border + 1):
        packed = ring.pack(vector[:length], bits)
        assert packed == ring.pack_plain(vector[:length], bits)
        assert ring.unpack(packed, length, bits).tolist() == vector[:length].tolist()


def test_packing_is_little_endian_without_gaps():
    assert ring.pack(np.array([1, 2, 3], dtype=np.uint32), 4) == bytes([0x21, 0x03])
    assert ring.pack(np.array([0x0102], dtype=np.uint32), 32) == bytes([2, 1, 0, 0])


@pytest.mark.parametrize("bits", range(1, 65))
@pytest.mark.parametrize("length", [1, 3, 65])
def test_wrong_sizes_are_refused(bits, length):
    packed = ring.pack(ring.zeros(length, bits), bits)
    for wrong in (packed[:-1], packed + b"\0", b""):
        with pytest.raises(DecodeError, match="packed vector of"):
            ring.unpack(wrong, length, bits)


@given(bits=st.integers(1, 64), length=st.integers(1, 130), data=st.data())
def test_every_padding_bit_must_be_zero(bits, length, data):
    used = length * bits
    padding = range(used, 8 * ring.packed_size(length, bits))
    packed = bytearray(ring.pack(ring.zeros(length, bits), bits))
    position = data.draw(st.integers(0, used - 1))
    packed[position // 8] |= 1 << (position % 8)
    assert ring.unpack(bytes(packed), length, bits).any()
    for position in padding:
        wrong = bytearray(packed)
        wrong[position // 8] |= 1 << (position % 8)
        with pytest.raises(DecodeError, match="padding bits"):
            ring.unpack(bytes(wrong), length, bits)


@settings(max_examples=60)
@given(bits=st.integers(1, 64), length=st.integers(1, 70), data=st.data())
def test_unpacking_and_packing_are_inverse(bits, length, data):
    size = ring.packed_size(length, bits)
    raw = bytearray(data.draw(st.binary(min_size=size, max_size=size)))
    if spare := 8 * size - length * bits:
        raw[-1] &= 0xFF >> spare
    assert ring.pack(ring.unpack(bytes(raw), length, bits), bits) == raw


@pytest.mark.parametrize("bits", [1, 2, 31, 32, 33, 63, 64])
def test_reduce_gives_the_residue(bits):
    word = 32 if bits <= 32 else 64
    vector = np.array([0, 1, 2 ** (bits - 1), 2**word - 1], dtype=f"uint{word}")
    expected = [element % 2**bits for element in vector.tolist()]
    ring.reduce(vector, bits)
    assert vector.tolist() == expected


def test_as_vector_takes_both_word_sizes_and_copies():
    for dtype in (np.uint32, np.uint64):
        values = np.array([1, 2**16 - 1], dtype=dtype)
        for bits, expected in ((16, np.uint32), (40, np.uint64)):
            vector = ring.as_vector(values, 2, bits)
            assert vector.dtype == expected
            vector += vector.dtype.type(1)
            assert values.tolist() == [1, 2**16 - 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(3, dtype=np.uint32), "shape"),
        (np.zeros((2, 1), dtype=np.uint32), "shape"),
        (np.zeros((), dtype=np.uint32), "shape"),
        (np.zeros(2, dtype=np.int64), "dtype"),
        (np.zeros(2, dtype=np.uint16), "dtype"),
        (np.zeros(2, dtype=np.float64), "dtype"),
        (np.zeros(2, dtype=np.bool_), "dtype"),
        (np.zeros(2, dtype=">u4"), "dtype"),
        (np.array([0, 2**20], dtype=np.uint32), r"element 1048576 is not in \[0, 2\^20\)"),
        (np.array([2**63, 0], dtype=np.uint64), "is not in"),
        ([1, 2], r"not a list: give numpy\.array\(values, dtype=numpy\.uint32\), or what a"),
        (7, "not a int"),
        (None, "not a NoneType"),
        (np.ma.array([1, 2**20], dtype=np.uint32, mask=[False, True]), "not a MaskedArray"),
    ],
)
def test_as_vector_refuses(values, message):
    with pytest.raises(UsageError, match=message):
        ring.as_vector(values, 2, 20)


@pytest.mark.parametrize("bits", range(1, 65))
def test_as_vector_takes_the_largest_element_and_no_larger(bits):
    vector = np.array([2**bits - 1, 0], dtype=np.uint64)
    assert ring.as_vector(vector, 2, bits).tolist() == [2**bits - 1, 0]
    if bits < 64:
        vector[0] += np.uint64(1)
        with pytest.raises(UsageError, match=r"is not in \[0, 2\^"):
            ring.as_vector(vector, 2, bits)
