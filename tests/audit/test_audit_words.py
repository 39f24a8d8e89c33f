"""Words of masked vectors, in pairs and in groups, and without the masks that are known."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal import CAUGHT, ideal_words, super_uniform

from deltafl.secagg.ring import reduce, to_words
from deltafl.sim.inspect.audit.randomness.words import (
    groups_of,
    leading_repeats,
    signed,
    small_sums,
)

RANDOM = np.random.default_rng(13)
BITS = 24


def masked(inputs, masks, bits):
    """Signed inputs under masks, in Z_2^bits."""
    words = masks + to_words(np.asarray(inputs).astype(np.uint64), bits)
    reduce(words, bits)
    return words


def numbers(num_bits, shape):
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
    vectors = ideal_words(1, (3000, length), bits)
    assert super_uniform(small_sums([(bits, vectors)], np.arange(3000)[:, None]))


def of_pair(one, other, bits):
    """P-values of a sum and of a difference."""
    return small_sums([(bits, [one, other])], signed(np.array([[0, 1]]), 2))


@pytest.mark.parametrize(
    ("bits", "first", "second"),
    [
        # One number the same and two of 18 bits, as in the slots of a search.
        (30, [100, -70_000, 5_000], [100, 60_000, -90_000]),
        (24, numbers(16, 650), numbers(16, 650)),
        (40, numbers(33, 10_000), numbers(33, 10_000)),
    ],
    ids=["three words of a search", "650 words of 16 of 24 bits", "an update"],
)
@pytest.mark.parametrize("negated", [False, True])
def test_masks_used_twice_are_caught(bits, first, second, negated):
    masks, fresh = ideal_words(5, (2, len(first)), bits)
    again = np.zeros_like(masks) - masks if negated else masks
    one, other = masked(first, masks, bits), masked(second, again, bits)
    total, difference = of_pair(one, other, bits)
    related, unrelated = (total, difference) if negated else (difference, total)
    assert related < CAUGHT < 1e-3 < unrelated
    assert min(of_pair(one, masked(second, fresh, bits), bits)) > 1e-3


def test_groups_are_all_of_up_to_half_of_the_devices():
    assert [group.tolist() for group in groups_of(5)] == [
        [[i] for i in range(5)],
        [[i, j + more] for more in (0, 5) for i, j in combinations(range(5), 2)],
    ]
    assert [group.shape for group in groups_of(1)] == [(1, 1)]
    assert [group.shape for group in groups_of(256)] == [(256, 1), (2 * 32_640, 2)]


def vectors(groups, length=200):
    """Small values under masks that cancel in each group of devices, as rows."""
    made = []
    for group in groups:
        masks = RANDOM.integers(0, 1 << BITS, (group, length))
        masks[-1] -= masks.sum(axis=0)
        made.append((masks + RANDOM.integers(-500, 500, (group, length))) % (1 << BITS))
    return np.concatenate(made).astype(np.uint32)


def found_in(*slots):
    """What is found in slots over the same devices."""
    return {
        tuple(groups[i].tolist())
        for groups in groups_of(len(slots[0]))
        for i in np.flatnonzero(small_sums([(BITS, left) for left in slots], groups) < CAUGHT)
    }


def test_masks_that_cancel_over_all_are_not_found():
    assert found_in(vectors([9])) == set()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_masks_that_cancel_over_a_few_are_found(size):
    found = found_in(vectors([size, 9 - size]))
    assert found == {tuple(range(size))}


def test_short_vectors_are_found_over_several_slots():
    slots = [vectors([2, 7], length=2) for _ in range(4)]
    assert found_in(slots[0]) == set()
    assert found_in(*slots) == {(0, 1)}


def test_two_vectors_under_one_mask_are_found():
    rows = vectors([9])
    rows[4] = (rows[3] + np.uint32(5)) % np.uint32(1 << BITS)
    assert found_in(rows) == {(3, 4 + 9)}
