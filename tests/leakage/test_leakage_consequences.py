"""What is said to follow with certainty is true, for any cohort."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searched_cohorts import config_of, drawn, searched

from deltafl.protocol.errors import SearchError
from deltafl.protocol.weighting import Weighting
from deltafl.sim.inspect.leakage.consequences import (
    buckets,
    order_intervals,
    ranks,
    threshold_interval,
)
from deltafl.sim.inspect.leakage.labels import (
    Puzzle,
    assignments,
    candidates,
    device_intervals,
    puzzles,
)
from deltafl.sim.inspect.leakage.observations import Answer, simulate


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(searched(), st.booleans())
def test_every_sorted_loss_lies_in_its_interval(case, weights_known):
    view, ticks, _ = case
    seen = view if weights_known else view.anonymous()
    for tick, (low, high) in zip(sorted(ticks), order_intervals(seen), strict=True):
        assert low <= tick < high


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(searched())
def test_every_device_lies_in_its_interval(case):
    view, ticks, _ = case
    for tick, (low, high) in zip(ticks, device_intervals(view), strict=True):
        assert low <= tick < high


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(searched())
def test_buckets_hold_what_they_are_said_to_hold(case):
    view, ticks, weights = case
    for known in (view, view.anonymous()):
        for bucket in buckets(known):
            inside = [k for k, tick in enumerate(ticks) if bucket.low <= tick < bucket.high]
            assert bucket.fewest <= len(inside) <= bucket.most
            if view.answers:
                counted = sum(view.config.search.weighting.of(weights[k]) for k in inside)
                assert counted == bucket.weight


@settings(max_examples=40, deadline=None)
@given(searched(largest=6))
def test_the_truth_is_among_the_ways_to_place_the_devices(case):
    view, ticks, _ = case
    for puzzle in puzzles(view):
        ways = assignments(puzzle)
        if ways is None:
            continue
        true = [
            next(i for i, box in enumerate(puzzle.boxes) if box.low <= tick < box.high)
            for tick in ticks
        ]
        assert _without_names(true, puzzle) in {_without_names(w, puzzle) for w in ways}


def _without_names(way, puzzle: Puzzle):
    return tuple(sorted(zip(puzzle.weights, way, strict=True)))


def test_the_quantile_lies_between_two_pivots():
    ticks, weights = drawn(10, seed=2)
    for method in ("mm", "bracketed", "histogram"):
        played = simulate(config_of(method, 10), method, ticks, weights)
        low, high = threshold_interval(played.view)
        kept = min(tick for tick in ticks if played.result.passes(tick))
        assert low <= kept < high


def test_a_bucket_with_one_weight_names_its_device():
    config = config_of("bracketed", 3, warm_start=1000)
    view = simulate(config, "bracketed", [10, 2000, 3000], [5, 7, 11]).view
    found = buckets(view)
    for device, open_ in enumerate(candidates(view)):
        assert [found[i].weight for i in open_] == [(5, 7, 11)[device]]


def test_equal_weights_name_nobody():
    view = simulate(config_of("histogram", 3), "histogram", [10, 90_000, 200_000], [9, 9, 9]).view
    assert len({*candidates(view)}) == 1


def test_the_weight_of_the_tail_names_devices_that_the_search_weighs_alike():
    config = config_of("bracketed", 3, weighting=Weighting.EQUAL)
    view = simulate(config, "bracketed", [10, 90_000, 200_000], [5, 7, 11]).view
    assert len({*candidates(replace(view, tail=None))}) == 1
    assert len({*candidates(view)}) == 2


def test_contradictory_answers_are_refused():
    ticks, weights = drawn(5, seed=3)
    view = simulate(config_of("bracketed", 5), "bracketed", ticks, weights, with_update=False).view
    first = view.answers[0]
    below = first.sums["weight_below"][0]
    false = Answer(first.pivots, {**first.sums, "weight_below": (below + 1,)})
    with pytest.raises(SearchError, match="not the same cohort"):
        ranks(replace(view, answers=(*view.answers, false)))


def test_weights_of_another_cohort_are_refused():
    ticks, weights = drawn(5, seed=3)
    view = simulate(config_of("bracketed", 5), "bracketed", ticks, weights, with_update=False).view
    with pytest.raises(SearchError, match="weights"):
        candidates(replace(view, weights=(1, 1, 1, 1, 1)))
