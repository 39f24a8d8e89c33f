"""Strings that should be random: what random ones give, and what each test finds."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal import CAUGHT, by_test, caught, ideal_words, super_uniform

from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.randomness.strings import (
    FEWEST,
    Block,
    Strings,
    counted,
    one_by_one,
    repeated,
    rows_of_words,
    side_by_side,
)

SIZE = 24
LENGTH = 20_000


def drawn(count, size=SIZE, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size), dtype=np.uint8)


def least(results):
    return min(results, key=lambda result: result.value)


def of_rows(rows):
    return by_test(list(side_by_side(counted(rows), 8 * rows.shape[1])))


def of_words(words, bits):
    return by_test(list(side_by_side(counted(rows_of_words(words, bits)), bits)))


@pytest.mark.parametrize("seed", range(10))
def test_random_strings_pass(seed):
    rows = drawn(50, seed=seed)
    alone = [*one_by_one(rows), *of_rows(rows).values()]
    alone.append(repeated(rows[:, :8].copy()))
    assert least(alone).value > 1e-5


def test_tests_of_single_strings_are_no_surer_than_they_say():
    every = [by_test(list(one_by_one(drawn(1, seed=seed)))) for seed in range(300)]
    for name in every[0]:
        assert super_uniform([named[name].value for named in every]), name


@pytest.mark.parametrize(
    "string",
    [
        b"the loss is 1.234 nats, ",
        b"1.2345678901234567e+00, ",
        b"\x3f\xf3\xc0\xca\x42" + bytes(19),
        b"\x07" * 24,
        bytes(range(24)),
        bytes(range(0, 240, 10)),
        b"\xa1\x07\xf3\x99" * 6,
        b"\xff" * 23 + b"\x01",
        (54_321).to_bytes(24, "little"),
    ],
    ids=repr,
)
def test_one_string_that_is_not_random_is_found_among_others(string):
    rows = drawn(20)
    rows[7] = np.frombuffer(string, dtype=np.uint8)
    worst = least(one_by_one(rows))
    assert worst.value < 1e-9
    assert worst.at == (7,)


def with_column(column, value):
    rows = drawn(40)
    rows[:, column] = value
    return rows


@pytest.mark.parametrize(
    "rows",
    [
        with_column(5, 17),
        drawn(60) & np.uint8(0x7F),
        with_column(0, np.random.default_rng(1).choice([0x3F, 0x40, 0xBF], 40)),
        with_column(3, np.random.default_rng(1).choice(range(0x61, 0x7B), 40)),
        drawn(1).repeat(20, axis=0) ^ (drawn(20) & np.uint8(0xFE)),
    ],
    ids=["a constant", "top bits", "floats", "letters", "lowest bits"],
)
def test_what_is_alike_in_many_strings_is_found(rows):
    assert least(of_rows(rows).values()).value < 1e-5


def test_a_keystream_that_is_used_again_is_found():
    named = of_rows(drawn(1) ^ (drawn(60, seed=3) & np.uint8(0x7F)))
    assert named["changes to the next by bit"].value < 1e-12


def test_few_strings_are_not_compared():
    assert of_rows(np.zeros((FEWEST - 1, SIZE), dtype=np.uint8)) == {}
    assert of_rows(np.zeros((FEWEST, SIZE), dtype=np.uint8)) != {}


def test_bytes_that_come_again_are_found():
    rows = drawn(50, 8)
    assert repeated(rows).value == 1
    rows[41] = rows[12]
    found = repeated(rows)
    assert found.value == pytest.approx(50 * 49 / 2 / 2**64)
    assert found.at == (12, 41)


vectors = st.integers(1, 64).flatmap(
    lambda bits: st.tuples(
        st.just(bits),
        st.lists(st.integers(0, 2**bits - 1), min_size=FEWEST, max_size=40).map(
            lambda words: np.array(words, dtype=np.uint32 if bits <= 32 else np.uint64)
        ),
    )
)


@given(vectors)
def test_words_are_counted_as_a_plain_reading_does(case):
    bits, words = case
    counts = counted(rows_of_words(words, bits))
    steps = [a ^ b for a, b in pairwise(words.tolist())]
    for table, numbers in zip(counts, (words.tolist(), steps), strict=True):
        plain = [sum(n >> p & 1 for n in numbers) for p in range(bits - 1, -1, -1)]
        ones = [(table * (np.arange(256) >> bit & 1)).sum(axis=1) for bit in range(7, -1, -1)]
        assert np.array(ones).T.reshape(-1).tolist()[:bits] == plain


@pytest.mark.parametrize("bits", [5, 30, 40])
def test_parts_count_like_the_whole(bits):
    words = ideal_words(1, 4 * (1 << 14), bits)  # as many as are counted at once
    parts = [counted(rows_of_words(part, bits)) for part in np.split(words, 4)]
    assert (sum(parts) == counted(rows_of_words(words, bits))).all()


@pytest.mark.parametrize(("bits", "shape"), [(1, 50), (7, 50), (24, 30), (40, 60)])
def test_ideal_masks_are_small_p_values_no_more_often_than_allowed(bits, shape):
    results = [of_words(vector, bits) for vector in ideal_words(4, (200, shape), bits)]
    for name in results[0]:
        assert super_uniform([named[name].value for named in results]), name


@pytest.mark.parametrize("bits", [8, 24, 40, 64])
def test_ideal_masks_pass_at_length(bits):
    named = of_words(ideal_words(5, LENGTH, bits), bits)
    assert min(result.value for result in named.values()) > 1e-3


def test_one_unfair_bit_is_caught():
    words = ideal_words(6, LENGTH, 40)
    words |= ideal_words(7, LENGTH, 40) & ideal_words(8, LENGTH, 40) & np.uint64(1 << 7)
    named = of_words(words, 40)
    assert "ones by bit" in caught(named)
    assert "at bit 32," in named["ones by bit"].detail


def test_bits_that_are_all_slightly_unfair_are_caught_together():
    words = ideal_words(9, LENGTH, 40)
    rare = np.ones_like(words) * np.uint64((1 << 40) - 1)
    for seed in range(10, 16):
        rare &= ideal_words(seed, LENGTH, 40)
    named = of_words(words | rare, 40)  # ones with probability 1/2 + 1/128
    assert named["ones in all bits"].value < CAUGHT
    assert named["ones by bit"].value > named["ones in all bits"].value


def test_a_value_that_never_comes_up_is_caught_though_bits_are_fair():
    words = ideal_words(16, LENGTH, 8)
    words[(words == 0x0F) | (words == 0xC3)] ^= 0xFF
    assert "values of bytes" in caught(of_words(words, 8))
    assert "ones by bit" not in caught(of_words(words, 8))


def test_a_linear_generator_is_caught_by_its_neighbours():
    state, words = 1, []
    for _ in range(2000):
        state = (0x5DEECE66D * state + 11) % 2**40
        words.append(state)
    found = caught(of_words(np.array(words, dtype=np.uint64), 40))
    assert "changes to the next by bit" in found


def alarms_of(*rounds):
    """The alarms about the strings of some rounds, one block for each device: what and where."""
    budget = FalseAlarmBudget()
    strings = Strings(budget, "")
    for number, blocks in enumerate(rounds, start=1):
        for device, rows in enumerate(blocks):
            strings.add("strings", Block(f"device {device}'s", rows, Evidence(number, device)))
        strings.end_round()
    strings.end()
    return {one.test: f"{one.evidence[0]}: {one.detail}" for one in budget.alarms()}


def test_a_string_that_comes_again_in_another_round_is_found():
    again = drawn(9, seed=2)
    again[3] = drawn(5, seed=1)[2]
    assert alarms_of([drawn(9), drawn(1, seed=1)], [drawn(9, seed=2)]) == {}
    found = alarms_of([drawn(9), drawn(5, seed=1)], [again])
    assert found.keys() == {"beginnings: the same bytes", "ends: the same bytes"}
    expected = "round 2, record 0: device 1's and device 0's: 1 of 23 times"
    assert all(said.startswith(expected) for said in found.values())


@pytest.mark.parametrize("change", [0x7F, 0xFE])
def test_what_is_alike_in_one_message_or_in_all_is_found(change):
    biased = drawn(60, seed=3) & np.uint8(change)
    alone = alarms_of([drawn(300), biased])["strings: ones by bit"]
    assert alone.startswith("round 1, record 1: device 1's: 0 ones of 60")
    together = alarms_of(*([biased[i : i + 6]] for i in range(0, 60, 6)))["strings: ones by bit"]
    assert together.startswith("round 1, record 0: all strings: 0 ones of 60")
