"""The rotation: orthonormal, as a plain one says, and undone exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.protocol.update_noise import padded, rotate, unrotate
from deltafl.secagg.prg import keystream


def plain(values, seed):
    """By the definition: entry (i, j) of the matrix is -1 to the number of bits in both i and j."""
    size = padded(len(values))
    stream = keystream(seed, -(-size // 8))
    signs = [1 - 2 * (stream[i // 8] >> i % 8 & 1) for i in range(size)]
    given = [signs[i] * float(x) for i, x in enumerate(values)]
    rows = ([(-1) ** (i & j).bit_count() for j in range(len(given))] for i in range(size))
    return [sum(h * x for h, x in zip(row, given, strict=True)) / size**0.5 for row in rows]


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13, 64])
def test_it_is_the_plain_one(length):
    values = np.random.default_rng(length).normal(size=length)
    seed = bytes([length]) * 32
    np.testing.assert_allclose(rotate(values, seed), plain(values, seed), atol=1e-12)
    other = rotate(values, bytes(32))
    assert length < 3 or not np.allclose(other, rotate(values, seed))


@given(st.integers(1, 300), st.binary(min_size=32, max_size=32))
def test_it_keeps_lengths_and_is_undone(length, seed):
    values = np.random.default_rng(length).normal(size=length).astype(np.float32)
    rotated = rotate(values, seed)
    assert rotated.shape == (padded(length),)
    assert np.linalg.norm(rotated) == pytest.approx(np.linalg.norm(values.astype(float)), rel=1e-12)
    np.testing.assert_allclose(unrotate(rotated, seed, length), values, atol=1e-12)


def test_every_axis_becomes_flat():
    for axis in range(0, 256, 37):
        one = np.zeros(256)
        one[axis] = 1.0
        np.testing.assert_allclose(np.abs(rotate(one, b"\7" * 32)), 1 / 16)


@pytest.mark.parametrize(
    ("length", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (48608, 65536)]
)
def test_lengths_are_padded_to_powers_of_two(length, size):
    assert padded(length) == size
