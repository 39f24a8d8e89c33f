import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import prg
from secagg.randomness import SeededRandomness

# RFC 8439, appendix A.1: key and nonce zero, block counters 0 (vector #1) and 1 (vector #2).
BLOCK_0 = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
BLOCK_1 = bytes.fromhex(
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)
CHUNK = 1 << 16
SEED = bytes(range(32))


def test_keystream_is_rfc_8439():
    assert prg.keystream(bytes(32), 128) == BLOCK_0 + BLOCK_1


def test_keystream_of_a_longer_request_starts_with_the_shorter():
    assert prg.keystream(SEED, 1000)[:77] == prg.keystream(SEED, 77)
    assert prg.keystream(SEED, 0) == b""


def test_seeded_randomness_is_the_keystream_in_pieces():
    source = SeededRandomness(SEED)
    assert source(5) + source(0) + source(100) == prg.keystream(SEED, 105)


@given(
    dtype=st.sampled_from([np.uint32, np.uint64]),
    length=st.integers(0, 200),
    seed=st.binary(min_size=32, max_size=32),
    negative=st.booleans(),
)
def test_fast_and_plain_agree(dtype, length, seed, negative):
    start = np.arange(length, dtype=dtype) * dtype(2654435761)
    fast, plain = start.copy(), start.copy()
    prg.add_mask(fast, seed, negative=negative)
    prg.add_mask_plain(plain, seed, negative=negative)
    assert fast.tolist() == plain.tolist()


@pytest.mark.parametrize("word", [4, 8])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("chunks", [1, 3])
def test_fast_agrees_around_chunk_borders(word, offset, chunks):
    length = chunks * CHUNK // word + offset
    little = np.frombuffer(prg.keystream(SEED, length * word), dtype=f"<u{word}")
    total = np.full(length, 2 ** (8 * word) - 3, dtype=f"u{word}")
    start = total.copy()
    prg.add_mask(total, SEED)
    assert np.array_equal(total, start + little)
    prg.add_mask(total, SEED, negative=True)
    assert np.array_equal(total, start)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_different_seeds_do_not_cancel(dtype):
    total = np.zeros(64, dtype=dtype)
    prg.add_mask(total, SEED)
    prg.add_mask(total, bytes(32), negative=True)
    assert np.count_nonzero(total) == 64


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("length", [1, 3, 128, 129, 256, 257, 20_000])
def test_many_masks_at_once_are_the_same_as_one_by_one(length, dtype):
    seeds = [bytes([i]) * 32 for i in range(5)]
    together = np.full(length, 7, dtype=dtype)
    one_by_one = together.copy()
    prg.add_masks(together, seeds[:3], seeds[3:])
    for index, seed in enumerate(seeds):
        prg.add_mask(one_by_one, seed, negative=index >= 3)
    assert together.tolist() == one_by_one.tolist()
    prg.add_masks(together, seeds[3:], seeds[:3])
    assert together.tolist() == [7] * length
    prg.add_masks(together, [], [])
    assert together.tolist() == [7] * length
