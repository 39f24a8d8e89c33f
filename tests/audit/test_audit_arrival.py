"""How closely an order follows a value: exact counts, a bound on the tail, and few false alarms."""

from collections import Counter
from itertools import combinations, permutations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal import super_uniform

from deltafl.sim.inspect.audit.arrival import Orders, reversed_pairs

RANDOM = np.random.default_rng(23)


def orders_of(rounds):
    orders = Orders()
    for came, asked in rounds:
        orders.add(came, asked)
    return orders


@given(st.lists(st.integers(0, 5), max_size=12))
def test_reversed_pairs_are_counted(values):
    assert reversed_pairs(values) == sum(a > b for a, b in combinations(values, 2))


@pytest.mark.parametrize("values", [[1, 2, 3, 4, 5, 6], [1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 3, 3, 4]])
def test_the_bound_is_above_the_exact_tail_and_not_far(values):
    """Of all orders of some devices; a bound far below chance is within a factor of ten."""
    neutral = balanced(values)
    counts = Counter(reversed_pairs(order) for order in permutations(values))
    pairs, total = max(counts), sum(counts.values())
    for count in counts:
        far = abs(2 * count - pairs)
        exact = sum(n for other, n in counts.items() if abs(2 * other - pairs) >= far) / total
        orders = Orders()
        orders.add(order_with(values, count), neutral)
        assert orders.num_pairs == pairs
        assert exact <= orders.p_value() * (1 + 1e-9)
        assert orders.p_value() <= 10 * exact


def order_with(values, count):
    return next(order for order in permutations(values) if reversed_pairs(order) == count)


def balanced(values):
    """An order that follows the values as little as one can."""
    pairs = max(map(reversed_pairs, permutations(values)))
    return min(permutations(values), key=lambda order: abs(2 * reversed_pairs(order) - pairs))


def test_sorted_answers_of_three_rounds_are_beyond_chance():
    rounds = []
    for _ in range(3):
        values = RANDOM.normal(size=10)
        rounds.append((np.sort(values).tolist(), values.tolist()))
    assert orders_of(rounds).p_value() < 1e-18


def test_two_groups_that_answer_one_after_the_other_are_beyond_chance():
    """Of all orders of twenty devices that passed and twenty that failed, two are so far off."""
    came, asked = [0.0] * 20 + [1.0] * 20, [0.0, 1.0] * 20
    exact = 2 / comb(40, 20)
    assert exact * (1 - 1e-6) <= orders_of([(came, asked)]).p_value() <= 2 * exact


@pytest.mark.parametrize("turn", [1, -1])
def test_the_order_of_asking_says_nothing(turn):
    """Ids may follow losses, as where devices are numbered by their labels."""
    asked = [float(i) for i in range(20)][::turn]
    assert orders_of([(asked, asked)] * 50).p_value() == 1.0
    swapped = [*asked[1::-1], *asked[2:]]
    assert orders_of([(swapped, asked)] * 50).p_value() == 1.0


def test_unrelated_orders_raise_no_alarm():
    found = []
    for _ in range(400):
        rounds = [(RANDOM.permutation(9).tolist(), list(range(9))[::1]) for _ in range(3)]
        rounds = [(came, RANDOM.permutation(9).tolist()) for came, _ in rounds]
        found.append(orders_of(rounds).p_value())
    assert super_uniform(found)


def test_equal_values_say_nothing():
    assert orders_of([([1.0] * 8, [1.0] * 8)] * 9).p_value() == 1.0
    assert Orders().p_value() == 1.0
