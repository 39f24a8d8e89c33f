import numpy as np
import pytest
from ideal import CAUGHT, by_test, caught, ideal_words, super_uniform

from deltafl.secagg.ring import reduce
from deltafl.sim.inspect.audit.independence import InputDependence, compare_groups
from deltafl.sim.inspect.audit.uniformity import BitCounts

BITS = 40
TOP = (1 << BITS) - 1
RANDOM = np.random.default_rng(14)


def inputs_of(shape, num_bits=24):
    """Signed inputs as words; every second one is zero, as in a sparse update."""
    values = RANDOM.integers(-(1 << (num_bits - 1)), 1 << (num_bits - 1), shape)
    values[..., ::2] = 0
    return values.astype(np.uint64) & np.uint64(TOP)


def dependence(masked, inputs):
    counts = InputDependence(BITS)
    counts.add(masked, inputs)
    return by_test(counts.results())


def counted(words):
    counts = BitCounts(BITS)
    counts.add(words)
    return counts


def compared(passed, failed):
    return by_test(compare_groups(counted(passed), counted(failed)))


def test_ideal_masks_depend_on_inputs_no_more_often_than_allowed():
    inputs = inputs_of((500, 50))
    masked = ideal_words(1, (500, 50), BITS) + inputs
    reduce(masked, BITS)
    results = [dependence(*pair) for pair in zip(masked, inputs, strict=True)]
    for name in results[0]:
        assert super_uniform([named[name].value for named in results]), name


def test_ideal_masks_pass_at_length():
    inputs = inputs_of(20_000)
    masked = ideal_words(2, 20_000, BITS) + inputs
    reduce(masked, BITS)
    assert min(result.value for result in dependence(masked, inputs).values()) > 1e-3


@pytest.mark.parametrize(
    ("sign", "test"), [(1, "masked less input"), (-1, "masked plus input")], ids=["plain", "minus"]
)
def test_masks_that_are_too_short_are_caught(sign, test):
    inputs = ideal_words(15, 200, BITS)  # large, so that nothing else is small
    short = ideal_words(3, 200, 32).astype(np.uint64)
    masked = short + inputs if sign > 0 else short - inputs
    reduce(masked, BITS)
    small = {"masked less input", "masked plus input"}
    assert caught(dependence(masked, inputs)) & small == {test}


def test_a_sign_that_shows_is_caught():
    inputs = inputs_of(4000)
    masked = ideal_words(4, 4000, BITS)
    shown = ideal_words(5, 4000, 2) == 0  # in one word of four the top bit is the input's
    top = np.uint64(1 << (BITS - 1))
    masked[shown] = masked[shown] & ~top | inputs[shown] & top
    named = dependence(masked, inputs)
    assert named["signs of masked and input"].value < CAUGHT
    assert "masked less input" not in caught(named)


def test_only_inputs_that_are_not_zero_have_a_sign():
    masked = np.zeros(1000, dtype=np.uint64)
    named = dependence(masked, np.zeros_like(masked))
    assert named["signs of masked and input"].value == 1.0
    assert named["masked less input"].value < CAUGHT


def test_a_bit_of_the_input_that_stays_is_caught():
    inputs = inputs_of(4000)
    masked = ideal_words(6, 4000, BITS)
    named = dependence(masked & ~np.uint64(8) | inputs & np.uint64(8), inputs)
    assert "masked less input" not in caught(named)
    assert named["differences between masked and input by bit"].value < CAUGHT
    assert " at bit 3 of " in named["differences between masked and input by bit"].detail


def test_words_taken_one_vector_at_a_time_are_compared_together():
    inputs = inputs_of((300, 3))
    masked = ideal_words(7, (300, 3), BITS)
    together, apart = InputDependence(BITS), InputDependence(BITS)
    together.add(masked, inputs)
    for pair in zip(masked, inputs, strict=True):
        apart.add(*pair)
    assert together.results() == apart.results()
    assert together.num_words == 900


def test_narrow_words_wrap_around_like_wide_ones():
    inputs = RANDOM.integers(0, 1 << 20, 500).astype(np.uint32)
    masked = ideal_words(8, 500, 24)
    narrow, wide = InputDependence(24), InputDependence(24)
    narrow.add(masked, inputs)
    wide.add(masked.astype(np.uint64), inputs.astype(np.uint64))
    assert narrow.results() == wide.results()


def test_nothing_compared_says_nothing():
    assert InputDependence(BITS).results() == ()
    assert compare_groups(counted(ideal_words(9, 5, BITS)), BitCounts(BITS)) == ()


def test_groups_of_ideal_vectors_differ_no_more_often_than_allowed():
    words = ideal_words(10, (400, 100), BITS)
    results = [compared(row[:30], row[30:]) for row in words]
    for name in ("ones in all bits, passed against failed", "ones by bit, passed against failed"):
        assert super_uniform([named[name].value for named in results]), name


def test_groups_that_send_the_same_pass():
    words = ideal_words(11, 40_000, BITS)
    named = compared(words[:5000], words[5000:])
    assert len(named) == 3
    assert min(result.value for result in named.values()) > 1e-3


def test_groups_that_are_unfair_alike_do_not_differ():
    words = ideal_words(16, 40_000, BITS) & np.uint64(TOP >> 1)
    named = compared(words[:20_000], words[20_000:])
    assert min(result.value for result in named.values()) > 1e-3


@pytest.mark.parametrize("num_passed", [2000, 20_000])
def test_groups_of_which_one_is_half_masked_differ(num_passed):
    words = ideal_words(12, 22_000, BITS)
    passed, failed = words[:num_passed], words[num_passed:]
    failed &= np.uint64(TOP >> 1)  # the top bit is never set
    named = compared(passed, failed)
    assert named["ones by bit, passed against failed"].value < CAUGHT
    assert "bit 39" in named["ones by bit, passed against failed"].detail


def test_groups_that_differ_in_bytes_alone_differ():
    words = ideal_words(13, 40_000, 8)
    failed = words[20_000:]
    failed[(failed == 0x0F) | (failed == 0xC3)] ^= 0xFF
    counts = [BitCounts(8), BitCounts(8)]
    counts[0].add(words[:20_000])
    counts[1].add(failed)
    named = by_test(compare_groups(*counts))
    assert caught(named) == {"values of bytes, passed against failed"}
