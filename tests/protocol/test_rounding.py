"""Rounding at random: next to each number, right on average, and never too long."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.protocol.update_noise import _TRIES, Sizes, rounded
from deltafl.secagg.randomness import SeededRandomness


@given(
    st.integers(1, 200),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["dense", "one"]),
)
def test_no_vector_is_rounded_to_one_beyond_the_bound(length, scale, seed, kind):
    sizes = Sizes.of(length, 100)
    generator = np.random.default_rng(seed)
    values = generator.normal(size=sizes.length)
    if kind == "one":
        values[1:] = 0
    values *= sizes.clip * scale / max(np.linalg.norm(values), 1e-9)
    result = rounded(values, sizes.square_bound, SeededRandomness(seed.to_bytes(32, "big")))
    assert int(result @ result) <= sizes.square_bound
    assert np.all(np.abs(result - values) < 1)


@pytest.mark.slow
@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=50))
def test_the_tightest_bound_holds_too(numbers):
    values = np.array(numbers)
    towards_zero = np.trunc(values).astype(np.int64)
    bound = int(towards_zero @ towards_zero)
    result = rounded(values, bound, SeededRandomness(bytes(32)))
    assert int(result @ result) <= bound


def test_without_the_bound_some_would_be_longer():
    values, source = np.full(64, 0.5), SeededRandomness(bytes(32))
    free = [rounded(values, 64, source) for _ in range(200)]
    lengths = [int(x @ x) for x in free]
    assert max(lengths) > 36
    bounded = [rounded(values, 36, source) for _ in range(200)]
    assert max(int(x @ x) for x in bounded) <= 36


def test_the_mean_is_right():
    values = np.linspace(-3, 3, 61)
    source = SeededRandomness(b"\1" * 32)
    mean = np.mean([rounded(values, 10**6, source) for _ in range(4000)], axis=0)
    assert np.abs(mean - values).max() < 5 * 0.5 / np.sqrt(4000)


def test_it_ends_even_if_the_coins_are_against_it():
    asked = []

    def always_up(size):
        asked.append(size)
        return bytes(size)

    assert rounded(np.full(4, 0.5), 3, always_up).tolist() == [0, 0, 0, 0]
    assert len(asked) == _TRIES
    assert rounded(np.full(4, -1.5), 4, bytes).tolist() == [-1, -1, -1, -1]
    assert rounded(np.full(4, -1.5), 3, bytes).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2.0**31])
def test_numbers_whose_length_cannot_be_checked_are_refused(wrong):
    with pytest.raises(ValueError, match="not finite, or too large"):
        rounded(np.array([1.0, wrong]), 100, SeededRandomness(bytes(32)))
