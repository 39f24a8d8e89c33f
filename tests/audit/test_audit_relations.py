from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal import CAUGHT, ideal_words, super_uniform

from deltafl.secagg.ring import reduce, to_words
from deltafl.sim.inspect.audit.relations import (
    MAX_WORDS,
    detectable_bits,
    leading_repeats,
    relate,
    small_words,
)

RANDOM = np.random.default_rng(13)


def masked(inputs, masks, bits):
    """Signed inputs under masks, in Z_2^bits."""
    words = masks + to_words(np.asarray(inputs).astype(np.uint64), bits)
    reduce(words, bits)
    return words


def signed(num_bits, shape):
    """Numbers that fit `num_bits` bits, sign included."""
    return RANDOM.integers(-(1 << (num_bits - 1)), 1 << (num_bits - 1), shape)


@given(st.integers(1, 64).flatmap(lambda b: st.tuples(st.just(b), st.integers(0, 2**b - 1))))
def test_leading_repeats_are_those_of_the_binary_digits(case):
    bits, word = case
    digits = f"{word:0{bits}b}"
    following = digits[1:]
    expected = len(following) - len(following.lstrip(digits[0]))
    dtype = np.uint32 if bits <= 32 else np.uint64
    assert leading_repeats(np.array([word], dtype=dtype), bits).tolist() == [expected]


@given(st.integers(1, 32), st.integers(0, 2**32 - 1))
def test_bits_above_the_ring_do_not_matter(bits, word):
    words = np.array([word, word % 2**bits], dtype=np.uint32)
    above, below = leading_repeats(words, bits).tolist()
    assert above == below


@pytest.mark.parametrize(("bits", "length"), [(1, 5), (4, 3), (30, 3), (40, 50)])
def test_uniform_words_are_small_no_more_often_than_allowed(bits, length):
    assert super_uniform(small_words(ideal_words(1, (3000, length), bits), bits))


@pytest.mark.parametrize(("bits", "shape"), [(30, (40, 8, 3)), (24, (5, 6, 650))])
def test_unrelated_vectors_are_related_no_more_often_than_allowed(bits, shape):
    related = relate(ideal_words(2, shape, bits), bits)
    assert super_uniform(related.differences)
    assert super_uniform(related.sums)
    assert min(related.differences.min(), related.sums.min()) > 1e-6


def test_every_pair_of_every_device_has_its_place():
    vectors = ideal_words(3, (2, 4, 10), 30)
    related = relate(vectors, 30)
    assert related.pairs.tolist() == [list(pair) for pair in combinations(range(4), 2)]
    assert related.differences.shape == related.sums.shape == (2, 6)
    for device in range(2):
        for place, (first, second) in enumerate(related.pairs):
            one, other = vectors[device, first], vectors[device, second]
            assert related.differences[device, place] == small_words(one - other, 30)
            assert related.sums[device, place] == small_words(one + other, 30)


def test_one_vector_has_no_pairs():
    related = relate(ideal_words(4, (3, 1, 10), 30), 30)
    assert related.pairs.shape == (0, 2)
    assert related.differences.shape == (3, 0)


@pytest.mark.parametrize(
    ("bits", "first", "second"),
    [
        # One number the same and two of 18 bits, as in the slots of a search.
        (30, [100, -70_000, 5_000], [100, 60_000, -90_000]),
        (24, signed(16, 650), signed(16, 650)),
        (40, signed(33, 100_000), signed(33, 100_000)),
    ],
    ids=["three words of a search", "650 words of 16 of 24 bits", "an update"],
)
@pytest.mark.parametrize("negated", [False, True])
def test_masks_used_twice_are_caught(bits, first, second, negated):
    masks, fresh = ideal_words(5, (2, len(first)), bits)
    again = np.zeros_like(masks) - masks if negated else masks
    reused = np.stack([masked(first, masks, bits), masked(second, again, bits)])
    related = relate(reused, bits)
    found, other = (
        (related.sums, related.differences) if negated else (related.differences, related.sums)
    )
    assert found[0] < CAUGHT < 1e-3 < other[0]

    twin = np.stack([masked(first, masks, bits), masked(second, fresh, bits)])
    related = relate(twin, bits)
    assert min(related.differences[0], related.sums[0]) > 1e-3


def test_masks_of_one_seed_in_two_rings_agree_in_the_smaller():
    masks = ideal_words(6, 50, 32)
    wide, narrow = masked(signed(16, 50), masks, 32), masked(signed(16, 50), masks, 24)
    assert relate(np.stack([wide, narrow]), 24).differences[0] < CAUGHT
    assert relate(np.stack([wide, narrow]), 32).differences[0] > 1e-3


def test_an_unmasked_vector_is_small():
    inputs = signed(20, 20)
    assert small_words(masked(inputs, np.zeros(20, dtype=np.uint32), 30), 30) < CAUGHT
    assert small_words(masked(inputs, ideal_words(7, 20, 30), 30), 30) > 1e-3


def test_words_beyond_the_first_are_left_out():
    vectors = ideal_words(8, (2, MAX_WORDS + 500), 30)
    vectors[1, MAX_WORDS:] = vectors[0, MAX_WORDS:]
    assert relate(vectors, 30).differences[0] > 1e-3


@pytest.mark.parametrize(("length", "bits"), [(3, 30), (10, 24), (26, 40), (650, 24), (5000, 40)])
def test_differences_that_are_called_detectable_are_found(length, bits):
    num_bits = detectable_bits(length, bits, 1e-12)
    largest = np.full(min(length, MAX_WORDS), 2 ** (num_bits - 1) - 1)
    for value in (largest, -largest - 1):
        words = to_words(value.astype(np.uint64), bits)
        assert small_words(words, bits) <= 1e-12
    wider = to_words((2 * largest).astype(np.uint64), bits)
    assert small_words(wider, bits) > 1e-12


def test_words_beyond_the_first_make_nothing_detectable():
    assert detectable_bits(10 * MAX_WORDS, 40, 1e-200) == detectable_bits(MAX_WORDS, 40, 1e-200)
    assert detectable_bits(MAX_WORDS // 4, 40, 1e-200) < detectable_bits(MAX_WORDS, 40, 1e-200)


def test_in_tiny_vectors_nothing_can_be_found():
    assert detectable_bits(1, 30, 1e-12) is None
