"""Strings that should be random: what random ones give, and what each test finds."""

import numpy as np
import pytest

from deltafl.sim.inspect.audit.field_tests import (
    ColumnCounts,
    Repeats,
    as_rows,
    examine_as_numbers,
    examine_each,
)
from deltafl.sim.inspect.audit.tails import at_least

FOUND = 1e-12
SIZE = 24


def drawn(count, size=SIZE, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size), dtype=np.uint8)


def least(results):
    return min(results, key=lambda result: result.value)


@pytest.mark.parametrize("seed", range(20))
def test_random_strings_pass(seed):
    rows, counts, repeats = drawn(50, seed=seed), ColumnCounts(SIZE), Repeats()
    counts.add(rows)
    repeats.add(rows)
    alone = [*examine_each(rows), *counts.results(), examine_as_numbers(rows), repeats.result()]
    assert least(alone).value > 1e-5


def test_tests_of_single_strings_are_no_surer_than_they_say():
    """Of random strings, at most a share of α has a p-value of α."""
    smallest = np.array([least(examine_each(drawn(1, seed=s))).value for s in range(400)])
    tests = len(examine_each(drawn(1)))
    for alpha in (0.05, 0.01):
        assert np.mean(smallest <= alpha / tests) <= alpha + 3 * np.sqrt(alpha / 400)


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
    ],
    ids=repr,
)
def test_one_string_that_is_not_random_is_found_among_others(string):
    rows = drawn(20)
    rows[7] = np.frombuffer(string, dtype=np.uint8)
    worst = least(examine_each(rows))
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
    counts = ColumnCounts(SIZE)
    counts.add(rows)
    assert least(counts.results()).value < 1e-5
    assert counts.num_rows == len(rows)


def test_a_keystream_that_is_used_again_is_found():
    stream, plain = drawn(1), drawn(60, seed=3) & np.uint8(0x7F)
    counts = ColumnCounts(SIZE)
    counts.add(stream ^ plain)
    changes = [r for r in counts.results() if r.test.startswith("changes by bit")]
    assert changes[0].value < FOUND


def test_few_strings_are_not_compared():
    counts = ColumnCounts(SIZE)
    counts.add(np.zeros((7, SIZE), dtype=np.uint8))
    assert counts.results() == ()


def test_numbers_that_follow_one_another_are_found():
    rows = drawn(30)
    rows[20] = rows[4]
    rows[20, -1] += 1
    found = examine_as_numbers(rows)
    assert found.value < FOUND
    assert found.at == (4, 20)
    assert examine_as_numbers(rows[:1]).value == 1


def test_eight_bytes_that_come_again_are_found():
    first, second = drawn(30), drawn(30, seed=1)
    second[12, 8:16] = first[3, 16:24]
    repeats = Repeats()
    repeats.add(first)
    repeats.add(second)
    assert repeats.result().value < FOUND
    assert repeats.result().at in {(0, 1), (1, 0)}
    only_first_words = Repeats()
    only_first_words.add(first, 1)
    only_first_words.add(second, 1)
    assert only_first_words.result().value == 1
    assert Repeats().result().value == 1


def test_rows_of_strings():
    assert as_rows([b"ab", b"cd"]).tolist() == [[97, 98], [99, 100]]


def test_counts_of_successes_are_exact():
    chances = [at_least(k, 3, 0.25) for k in range(4)]
    assert np.allclose(chances, [1, 1 - 27 / 64, 10 / 64, 1 / 64])
