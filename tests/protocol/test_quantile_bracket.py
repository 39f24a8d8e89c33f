"""What the bracket claims, and sums that no honest cohort gives."""

from fractions import Fraction

import numpy as np
import pytest
from flat_configs import changed_search, search_of
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.protocol.errors import SearchError
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.bracket import Bracket, Rank, guarded
from deltafl.protocol.quantile.histogram import Bracketed
from deltafl.protocol.quantile.mm import MajoriseMinimise
from deltafl.protocol.quantile.search import Ended
from deltafl.protocol.weighting import Weighting

GRID = LossGrid(resolution_bits=4, bound=8)
CONFIG = search_of(Fraction(1, 2), GRID, max_weight=9, cohort_size=10, max_queries=20)
TOTAL = Rank(GRID.top_pivot, 40, 10)


def whole():
    return Bracket.whole(CONFIG, TOTAL)


def sums(**fields):
    return {name: np.array(value, dtype=np.int64).reshape(-1) for name, value in fields.items()}


def test_the_quantile_reached_exactly_lies_below_the_pivot():
    assert whole().narrowed([Rank(50, 20, 5)], TOTAL).high == Rank(50, 20, 5)
    assert whole().narrowed([Rank(50, 19, 5)], TOTAL).low == Rank(50, 19, 5)


def test_one_device_left_ends_a_search_but_two_do_not():
    below = [Rank(50, 19, 5), Rank(70, 23, 6)]
    assert whole().narrowed(below, TOTAL).ended is Ended.LAST_DEVICE
    below = [Rank(50, 19, 5), Rank(70, 23, 7)]
    assert whole().narrowed(below, TOTAL).ended is None
    below = [Rank(50, 19, 5), Rank(51, 23, 7)]
    assert whole().narrowed(below, TOTAL).ended is Ended.EXACT


@pytest.mark.parametrize(("below", "lost", "pivot"), [(6, 0, 60), (7, 0, 50), (6, 1, 50)])
def test_a_search_that_is_cut_short_keeps_as_many_as_hide_one(below, lost, pivot):
    """The unsafe pivot is nearer to the quantile."""
    bracket = Bracket.whole(changed_search(CONFIG, min_tail=4), TOTAL)
    bracket = bracket.narrowed([Rank(50, 10, 3), Rank(60, 21, below)], TOTAL)
    assert bracket.kept(lost, only_safe=False).pivot == pivot
    assert bracket.kept(lost, only_safe=True).pivot == 50


@pytest.mark.parametrize(
    "ranks",
    [
        [Rank(50, 41, 5)],  # more than everything
        [Rank(50, -1, 5)],
        [Rank(50, 10, 11)],
        [Rank(50, 10, -1)],
        [Rank(50, 10, 1)],  # one device of weight 10
        [Rank(50, 20, 5), Rank(60, 19, 5)],  # falling
        [Rank(50, 20, 6), Rank(60, 20, 5)],
        [Rank(50, 20, 5), Rank(60, 21, 5)],  # weight without a device
        [Rank(50, 20, 5), Rank(50, 20, 6)],  # one pivot, two answers
    ],
)
def test_ranks_that_no_cohort_has_are_refused(ranks):
    with pytest.raises(SearchError, match="answered falsely"):
        whole().narrowed(ranks, TOTAL)


@pytest.mark.parametrize(("weighting", "most"), [("equal", 1), ("powers-of-two", 8)])
def test_more_weight_than_rounded_weights_can_have_is_refused(weighting, most):
    config = changed_search(CONFIG, weighting=Weighting(weighting))
    total = Rank(GRID.top_pivot, 10 * most, 10)
    whole = Bracket.whole(config, total)
    assert whole.narrowed([Rank(50, 5 * most, 5)], total)
    with pytest.raises(SearchError, match=f"weight 0 to {most} fit"):
        whole.narrowed([Rank(50, 5 * most + 1, 5)], total)


@pytest.mark.parametrize("total", [Rank(GRID.top_pivot, 39, 10), Rank(GRID.top_pivot, 40, 9)])
def test_another_cohort_is_refused(total):
    with pytest.raises(SearchError, match="end the search"):
        whole().narrowed([Rank(50, 20, 5)], total)


def mm_sums(beta, signed_weight, count_below=1):
    """Sums of `mm` of four devices of weight 1."""
    return sums(beta=beta, signed_weight=signed_weight, weight=4, count=4, count_below=count_below)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (mm_sums(5, signed_weight=3), "parity"),
        (mm_sums(0, signed_weight=2), "sum of beta is 0"),
        (mm_sums(-1, signed_weight=2), "sum of beta is -1"),
        (mm_sums(5, signed_weight=6), "answered falsely"),
        (mm_sums(5, signed_weight=-6), "answered falsely"),
        (mm_sums(5, signed_weight=2, count_below=5), "answered falsely"),
        (mm_sums(5, signed_weight=2, count_below=0), "answered falsely"),
        (sums(beta=5, signed_weight=2, weight=4), "do not fit"),
        (sums(beta=5, weight=4), "do not fit"),
        (sums(beta=5, signed_weight=[2, 0], weight=4), "do not fit"),
        ({"beta": np.zeros(2, np.int64)}, "do not fit"),
        (mm_sums([5, 0], signed_weight=2), "do not fit"),
    ],
)
def test_mm_refuses_sums_that_contradict_themselves(answer, message):
    with pytest.raises(SearchError, match=message):
        MajoriseMinimise().start(CONFIG).update(answer)


def test_liars_cannot_make_a_search_go_on_for_ever():
    generator = np.random.default_rng(0)
    method = Bracketed()
    for _ in range(50):
        search = method.start(CONFIG)
        num_queries = 0
        try:
            while search.query is not None:
                weight_below, count_below = map(int, generator.integers(0, (41, 11)))
                search = search.update(
                    sums(weight=40, count=10, weight_below=weight_below, count_below=count_below)
                )
                num_queries += 1
                assert num_queries <= CONFIG.search.max_queries
        except SearchError:
            continue


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.integers(2, 1000), st.integers(-10, 2100), st.integers(1, 12))
def test_the_guard_leaves_time_to_bisect_and_moves_no_pivot_without_need(
    low, width, pivot, num_left
):
    high = low + width
    chosen = guarded(pivot, low, high, num_left)
    assert low < chosen < high
    if width <= 2**num_left:
        assert max(chosen - low, high - chosen) <= 2 ** (num_left - 1)
    if low < pivot < high and max(pivot - low, high - pivot) <= 2 ** (num_left - 1):
        assert chosen == pivot
