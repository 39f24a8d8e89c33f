import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal import CAUGHT, by_test, caught, ideal_words, super_uniform

from deltafl.sim.inspect.audit.uniformity import BitCounts, WordCounts, num_repeated, well_filled

LENGTH = 20_000


def results_of(vectors, bits):
    counts = WordCounts(bits)
    counts.add(vectors)
    return by_test(counts.results())


vectors = st.integers(1, 64).flatmap(
    lambda bits: st.tuples(
        st.just(bits),
        st.lists(st.integers(0, 2**bits - 1), max_size=40).map(
            lambda words: np.array(words, dtype=np.uint32 if bits <= 32 else np.uint64)
        ),
    )
)


@pytest.mark.slow
@given(vectors)
def test_counts_are_those_of_a_plain_reading(case):
    bits, words = case
    counts = BitCounts(bits)
    counts.add(words)
    numbers = words.tolist()
    places = range(bits - 1, -1, -1)
    assert counts.ones_by_bit().tolist() == [sum(n >> p & 1 for n in numbers) for p in places]
    values = [n >> (bits - 8 * k) & 255 for n in numbers for k in range(1, bits // 8 + 1)]
    assert (
        counts.byte_values().tolist()
        == np.bincount(np.array(values, dtype=np.int64), minlength=256).tolist()
    )


@pytest.mark.parametrize("bits", [5, 30, 40])
def test_parts_count_like_the_whole(bits):
    whole = ideal_words(1, 40_000, bits)
    parts, counts = [BitCounts(bits) for _ in range(3)], BitCounts(bits)
    counts.add(whole)
    for part, words in zip(parts, np.array_split(whole, 3), strict=True):
        part.add(words)
        if part is not parts[0]:
            parts[0].merge(part)
    assert (parts[0].ones_by_bit() == counts.ones_by_bit()).all()
    assert (parts[0].byte_values() == counts.byte_values()).all()
    assert parts[0].num_words == 40_000


def test_short_vectors_taken_one_by_one_or_together_are_the_same():
    words = ideal_words(2, (50, 4, 3), 30)
    merged = WordCounts(30)
    for vector in words.reshape(-1, 3):
        one = WordCounts(30)
        one.add(vector)
        merged.merge(one)
    assert by_test(merged.results()) == results_of(words, 30)


@given(st.lists(st.integers(0, 30), max_size=60))
def test_repetitions_are_words_less_distinct_words(numbers):
    assert num_repeated(np.array(numbers, dtype=np.uint64)) == len(numbers) - len(set(numbers))


@pytest.mark.parametrize("bits", [14, 22, 40])
def test_repetitions_in_long_vectors_are_counted_alike(bits):
    words = ideal_words(3, 30_000, bits)
    words[20_000:20_300] = words[:300]
    assert num_repeated(words) == 30_000 - len(set(words.tolist()))


@pytest.mark.parametrize(("bits", "shape"), [(1, 50), (7, 50), (24, (10, 3)), (40, 60)])
def test_ideal_masks_are_small_p_values_no_more_often_than_allowed(bits, shape):
    words = ideal_words(4, (400, *np.atleast_1d(shape)), bits)
    results = [results_of(vector, bits) for vector in words]
    for name in results[0]:
        assert super_uniform([named[name].value for named in results]), name


@pytest.mark.parametrize("bits", [8, 21, 24, 30, 40, 64])
def test_ideal_masks_pass_at_length(bits):
    named = results_of(ideal_words(5, LENGTH, bits), bits)
    assert min(result.value for result in named.values()) > 1e-3


def test_one_unfair_bit_is_caught():
    words = ideal_words(6, LENGTH, 40)
    words |= ideal_words(7, LENGTH, 40) & ideal_words(8, LENGTH, 40) & np.uint64(1 << 7)
    named = results_of(words, 40)
    assert caught(named) >= {"ones by bit"}
    assert "at bit 7 of" in named["ones by bit"].detail


def test_bits_that_are_all_slightly_unfair_are_caught_together():
    words = ideal_words(9, LENGTH, 40)
    rare = np.ones_like(words) * np.uint64((1 << 40) - 1)
    for seed in range(10, 16):
        rare &= ideal_words(seed, LENGTH, 40)
    named = results_of(words | rare, 40)  # ones with probability 1/2 + 1/128
    assert named["ones in all bits"].value < CAUGHT
    assert named["ones by bit"].value > named["ones in all bits"].value


def test_a_value_that_never_comes_up_is_caught_though_bits_are_fair():
    words = ideal_words(16, LENGTH, 8)
    words[(words == 0x0F) | (words == 0xC3)] ^= 0xFF
    assert caught(results_of(words, 8)) == {"values of bytes"}


def test_a_linear_generator_is_caught_by_its_neighbours():
    state, words = 1, []
    for _ in range(2000):
        state = (0x5DEECE66D * state + 11) % 2**40
        words.append(state)
    found = caught(results_of(np.array(words, dtype=np.uint64), 40))
    assert "changes from word to word by bit" in found


def test_a_short_period_is_caught():
    words = np.resize(ideal_words(17, 10_000, 40), LENGTH)
    found = caught(results_of(words, 40))
    assert "repeated words" in found
    assert "changes from word to word by bit" not in found


def test_repetitions_are_as_many_as_expected():
    result = results_of(ideal_words(23, 100_000, 24), 24)["repeated words"]
    assert result.detail.endswith("; expected 298")  # 100,000 · 99,999 / 2 / 2^24
    assert result.value > 1e-3


def test_short_vectors_are_caught_together():
    words = ideal_words(18, (3000, 3), 30)
    assert caught(results_of(words, 30)) == set()
    tilted = words | (ideal_words(19, (3000, 3), 30) & ideal_words(20, (3000, 3), 30) & 1 << 29)
    assert "ones by bit" in caught(results_of(tilted.astype(np.uint32), 30))


def test_an_unmasked_vector_is_caught():
    words = ideal_words(21, 1000, 40) >> np.uint64(12)
    assert caught(results_of(words, 40)) >= {"ones by bit", "ones in all bits"}


def test_no_words_no_tests():
    assert WordCounts(30).results() == ()


def test_one_word_has_no_neighbours():
    named = results_of(ideal_words(22, 1, 30), 30)
    assert set(named) == {"ones in all bits", "ones by bit", "repeated words"}


def test_histograms_are_as_fine_as_their_thinnest_allows():
    full, thin, empty = np.full(256, 20), np.full(256, 2), np.zeros(256, dtype=np.int64)
    assert [len(counts) for counts in well_filled(full)] == [256]
    assert [len(counts) for counts in well_filled(full, thin)] == [16, 16]
    assert [counts.sum() for counts in well_filled(thin)] == [1024]
    assert well_filled(full, empty) is None
