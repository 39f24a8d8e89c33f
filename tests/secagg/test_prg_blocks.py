"""Masks from a block counter on: pieces of long vectors."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg import UsageError, prg

SEEDS = [bytes([number]) * 32 for number in range(3)]
BLOCK = prg.BLOCK_BYTES


@given(
    dtype=st.sampled_from([np.uint32, np.uint64]),
    length=st.integers(0, 700),
    first=st.integers(0, 40),
)
def test_the_pieces_of_a_vector_have_the_masks_of_the_whole(dtype, length, first):
    whole = np.arange(length, dtype=dtype) * dtype(2654435761)
    pieces = whole.copy()
    prg.add_masks(whole, SEEDS[:1], SEEDS[1:])
    border = first * BLOCK // whole.itemsize
    prg.add_masks(pieces[:border], SEEDS[:1], SEEDS[1:])
    prg.add_masks(pieces[border:], SEEDS[:1], SEEDS[1:], first_block=first)
    assert pieces.tolist() == whole.tolist()


@pytest.mark.parametrize("chunks", [1, 2])
def test_long_pieces_begin_where_they_are_told(chunks):
    words = chunks * prg._CHUNK_BYTES // 4 + 3
    stream = np.frombuffer(prg.keystream(SEEDS[0], 4 * (words + 16)), dtype="<u4")
    piece = np.zeros(words, np.uint32)
    prg.add_masks(piece, SEEDS[:1], [], first_block=1)
    assert np.array_equal(piece, stream[16:])
    assert not np.array_equal(piece, stream[:-16])


def test_the_last_block_of_a_mask_can_be_used():
    last = prg.MAX_BLOCKS - 1
    block = np.zeros(16, np.uint32)
    prg.add_masks(block, SEEDS[1:2], [], first_block=last)
    cipher = Cipher(algorithms.ChaCha20(SEEDS[1], b"\xff" * 4 + bytes(12)), mode=None)
    assert block.astype("<u4").tobytes() == cipher.encryptor().update(bytes(BLOCK))


@pytest.mark.parametrize(
    ("first", "length"),
    [(-1, 1), (prg.MAX_BLOCKS, 1), (prg.MAX_BLOCKS - 1, 17), (prg.MAX_BLOCKS + 1, 0)],
)
def test_there_is_nothing_beyond_it(first, length):
    piece = np.zeros(length, np.uint32)
    with pytest.raises(UsageError, match=f"from block {first} on: a mask has 4294967296 blocks"):
        prg.add_masks(piece, SEEDS, [], first_block=first)
    assert not piece.any()


def test_an_empty_piece_has_no_mask():
    prg.add_masks(np.zeros(0, np.uint32), SEEDS, SEEDS, first_block=prg.MAX_BLOCKS)
