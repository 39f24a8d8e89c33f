"""How many devices hide one: in a tail, and in the difference of two."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.protocol.anonymity import Tail, expected_apart, expected_tail, least_tail
from deltafl.secagg.threat import at_most

counts = st.integers(0, 6)
tails = st.tuples(counts, counts).map(lambda pair: Tail(min(pair), max(pair)))


def quantile_tail(theta, num_devices):
    """Devices at or above the quantile of so many losses, by its definition."""
    if theta == 1:
        return num_devices
    ranks = range(1, num_devices + 1)
    quantile = next(rank for rank in ranks if rank >= (1 - theta) * num_devices)
    return num_devices - quantile + 1


@pytest.mark.slow
@given(st.integers(1, 60), st.fractions(0, 1, max_denominator=30).filter(bool))
def test_a_level_keeps_one_device_more_than_it_is_sure_to(num_devices, theta):
    sure = expected_tail(theta, num_devices)
    assert quantile_tail(theta, num_devices) == sure + (theta < 1)


@pytest.mark.slow
@given(
    st.integers(1, 30),
    st.lists(
        st.fractions(0, 1, max_denominator=20).filter(bool), min_size=2, max_size=2, unique=True
    ),
)
def test_two_levels_are_no_nearer_in_any_cohort_of_that_size_or_more(num_devices, thetas):
    above, below = max(thetas), min(thetas)
    apart = expected_apart(above, below, num_devices)
    sizes = range(num_devices, num_devices + 25)
    differences = [quantile_tail(above, n) - quantile_tail(below, n) for n in sizes]
    assert apart <= min(differences)
    assert apart >= min(differences) - 1


@pytest.mark.parametrize(
    ("rate", "invited", "honest", "least"),
    [(0.1, 30, 2, 5), (0.1, 29, 2, 4), (0.0, 30, 2, 2), (0.29, 100, 3, 32), (0.5, 30, 0, 0)],
)
def test_colluding_devices_are_counted_of_those_invited(rate, invited, honest, least):
    assert least_tail(at_most(rate, invited), honest) == least


@given(tails, counts, counts, counts)
def test_whoever_was_lost_may_have_been_in_the_tail_or_not(tail, outside, lost_before, lost_after):
    """Against all that may be: a tail among those searched over, and two losses in a row."""
    searched = tail.most + outside
    asked = max(searched - lost_before, 0)
    left = max(asked - lost_after, 0)
    found = tail.among(searched, asked, left)
    possible = [
        size - lost
        for size in range(tail.fewest, tail.most + 1)
        for lost in range(min(size, searched - left) + 1)
        if size - lost <= left
    ]
    assert found.fewest == min(possible)
    assert max(possible) <= found.most <= asked


@given(tails, tails)
def test_two_tails_are_apart_by_what_they_differ_in_at_least(first, second):
    sizes = (range(one.fewest, one.most + 1) for one in (first, second))
    least = min(abs(a - b) for a, b in itertools.product(*sizes))
    assert first.apart(second) == second.apart(first) == least


def test_the_number_before_any_left_is_the_most_there_may_be():
    """A device that is lost outside of the tail leaves it as large as it was."""
    assert Tail(11, 11).among(24, 23, 23) == Tail(10, 11)
    assert Tail(11, 11).apart(Tail(10, 10)) == 1
    assert Tail(11, 11).among(24, 23, 23).apart(Tail(9, 9)) == 1
    assert Tail(10, 10).apart(Tail(9, 11)) == 0
