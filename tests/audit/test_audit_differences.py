"""Sums over cohorts that differ by few devices."""

import re
from collections import namedtuple
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_check import new

from deltafl.sim.inspect.audit.checks.differences import Differences
from deltafl.sim.record.transcript import Sum

MODEL = b"model"


Difference = namedtuple("Difference", "is_same first second devices")


def differences(sums, fewer_than=3):
    """All that is found in (question, model, contributors); the n-th sum lies at record n."""
    check, found = new(Differences, min_difference=fewer_than), []
    for number, (question, model, cohort) in enumerate(sums):
        ids = np.array(list(cohort), np.uint32)
        released = Sum(number, 1, 0, 0, bytes(32), ids, np.zeros(0, np.uint64))
        for finding in check._compared(question, model, released):
            second, first = (place.record for place in finding.evidence)
            devices = re.findall(r"\d+", finding.detail.partition("devices ")[2])
            is_same = "same question" in finding.detail
            found.append(Difference(is_same, first, second, tuple(map(int, devices))))
    return found


@pytest.mark.parametrize(
    ("before", "question", "after", "devices"),
    [
        pytest.param([1, 2, 3, 4], b"q", [1, 2, 4], (3,), id="lost"),
        pytest.param([1, 2, 4], b"q", [1, 2, 3, 4], (3,), id="joined"),
        pytest.param([1, 2, 3], b"q", [1, 2, 4], (3, 4), id="swapped"),
        pytest.param([1, 2, 3, 4], b"r", [1, 2, 4], (3,), id="lost in another query"),
    ],
)
def test_devices_that_are_in_one_of_two_sums_are_named(before, question, after, devices):
    found = differences([(b"q", MODEL, before), (question, MODEL, after)])
    assert found == [(question == b"q", 0, 1, devices)]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ((b"q", MODEL, [3, 2, 1, 1]), "equal cohorts and equal questions"),
        ((b"r", MODEL, [1, 2, 3]), "equal cohorts"),
        ((b"q", b"another model", [1, 2]), "another model"),
        ((b"q", MODEL, [1, 2, 3, 4, 5, 6]), "three devices more"),
        ((b"q", MODEL, [1, 7, 8]), "four devices differ"),
        ((b"q", MODEL, []), "a sum over nobody"),
    ],
)
def test_no_trouble_with(second, why):
    assert differences([(b"q", MODEL, [1, 2, 3]), second]) == []


def test_the_bound_is_exclusive():
    sums = [(b"q", MODEL, [1, 2, 3, 4, 5]), (b"q", MODEL, [1, 2])]
    assert differences(sums, fewer_than=3) == []
    assert len(differences(sums, fewer_than=4)) == 1


def test_a_search_over_a_smaller_cohort_is_reported_once():
    sums = [(b"0", MODEL, range(10))]
    sums += [(bytes([query]), MODEL, range(9)) for query in range(1, 30)]
    [found] = differences(sums)
    assert (found.first, found.second, found.devices) == (0, 1, (9,))


def test_a_search_that_is_repeated_without_a_device_is_reported_for_every_query():
    search = [bytes([query]) for query in range(5)]
    sums = [(q, MODEL, range(10)) for q in search] + [(q, MODEL, range(9)) for q in search]
    found = differences(sums)
    assert [(d.first, d.second) for d in found if d.is_same] == [(n, 5 + n) for n in range(5)]
    assert len(found) == 5


def test_the_later_question_is_compared_though_the_cohorts_are_known():
    sums = [(b"q", MODEL, [1, 2, 3]), (b"r", MODEL, [1, 2]), (b"q", MODEL, [1, 2])]
    assert [d.is_same for d in differences(sums)] == [False, True]


def test_a_model_may_come_again_after_others():
    sums = [(b"q", bytes([n]), range(10)) for n in range(20)] + [(b"q", bytes([3]), range(9))]
    [found] = differences(sums)
    assert (found.first, found.second) == (3, 20)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"q", b"r"]),
            st.sampled_from([b"model", b"other"]),
            st.frozensets(st.integers(0, 5), min_size=2),
        ),
        max_size=8,
    ),
    st.integers(1, 4),
)
def test_every_close_pair_of_cohorts_is_found_and_no_other(sums, fewer_than):
    found = differences(sums, fewer_than)
    for d in found:
        (q, f, a), (r, g, b) = sums[d.first], sums[d.second]
        assert f == g
        assert d.is_same == (q == r)
        assert d.devices == tuple(sorted(a ^ b))
        assert 0 < len(d.devices) < fewer_than
    for (q, f, a), (r, g, b) in combinations(sums, 2):
        if f == g and 0 < len(a ^ b) < fewer_than:
            are_same = {
                d.is_same
                for d in found
                if {sums[d.first][2], sums[d.second][2]} == {a, b} and sums[d.first][1] == f
            }
            assert True in are_same if q == r else are_same
