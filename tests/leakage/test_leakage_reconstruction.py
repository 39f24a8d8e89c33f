"""The attack on the sums of `mm`: what it finds is true, and small cohorts have no secrets."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searched_cohorts import GRID, PRIOR, attacked, config_of, drawn, searched

from deltafl.protocol.losses import LossGrid
from deltafl.protocol.weighting import Weighting
from deltafl.sim.inspect.leakage.counts import bucket_counts
from deltafl.sim.inspect.leakage.equations import Region, set_up
from deltafl.sim.inspect.leakage.observations import Answer, beta_bits, simulate
from deltafl.sim.inspect.leakage.reconstruction import reconstruct


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_the_losses_of_three_devices_of_equal_weight_come_out_exactly(size):
    """Of most cohorts: a search that ends with one device in the bracket may ask too little."""
    exact = 0
    for seed in range(8):
        ticks, weights = drawn(size, seed, equal=256)
        found = attacked(simulate(config_of("mm", size), "mm", ticks, weights).view)
        exact += found.exact
        assert not found.exact or found.sorted_ticks.tolist() == sorted(ticks)
        assert found.ticks is None  # and nothing tells which is whose
    assert exact >= 7


@pytest.mark.slow
def test_the_losses_of_five_devices_of_equal_weight_come_out_exactly():
    exact = 0
    for seed in range(8):
        ticks, weights = drawn(5, seed, equal=256)
        found = attacked(simulate(config_of("mm", 5), "mm", ticks, weights).view)
        exact += found.exact
        assert not found.exact or found.sorted_ticks.tolist() == sorted(ticks)
    assert exact >= 6


@pytest.mark.slow
@pytest.mark.parametrize("max_queries", [6, 30])
def test_known_weights_tell_whose_loss_is_which(max_queries):
    exact = 0
    for seed in range(6):
        ticks, weights = drawn(3, seed)
        config = config_of("mm", 3, max_queries=max_queries)
        found = attacked(simulate(config, "mm", ticks, weights).view)
        exact += found.exact
        if found.exact:
            assert found.ticks is not None
            assert found.ticks.tolist() == ticks
    assert exact >= 4


def test_ranks_alone_do_not_give_losses():
    ticks, weights = drawn(3, seed=4)
    view = simulate(config_of("bracketed", 3), "bracketed", ticks, weights, with_update=False).view
    found = attacked(view)
    assert not found.exact
    assert not np.isfinite(found.sorted_radius).any()


def test_a_tail_of_one_device_gives_its_loss_to_what_the_sum_is_rounded_to():
    ticks = [10_000, 20_000, 150_000]
    config = config_of("bracketed", 3, warm_start=150_000)
    alone = simulate(config, "bracketed", ticks, [100, 100, 400]).view
    assert alone.tail.count == 1
    found = attacked(alone)
    unit = 2.0 ** (GRID.resolution_bits - alone.tail.loss_bits) / 400
    assert abs(found.sorted_ticks[-1] - ticks[-1]) <= unit


def test_a_corrupted_sum_is_reproduced_by_no_losses():
    ticks, weights = drawn(3, seed=2, equal=256)
    view = simulate(config_of("mm", 3), "mm", ticks, weights, with_update=False).view
    assert attacked(view).exact
    for number, answer in enumerate(view.answers[:3]):
        false = {**answer.sums, "beta": (answer.sums["beta"][0] + 40_000,)}
        answers = list(view.answers)
        answers[number] = Answer(answer.pivots, false)
        found = attacked(replace(view, answers=tuple(answers)))
        assert not found.exact


def test_whole_ticks_are_checked_against_every_released_integer():
    ticks, weights = drawn(3, seed=5, equal=256)
    ticks = sorted(ticks)
    view = simulate(config_of("mm", 3), "mm", ticks, weights).view
    sharp = np.eye(3) * 10.0

    def tried(centre):
        region = Region(np.array(centre, dtype=float), sharp, np.full(3, 0.3))
        return region.whole_solutions(view, np.array(weights, dtype=float))[0]

    assert tried(ticks) == (tuple(ticks),)
    assert tried([tick + 2 for tick in ticks]) == ()


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(searched(methods=("mm",), largest=5))
def test_the_equations_hold_at_the_truth(case):
    view, ticks, weights = case
    places = [[(tick, tick + 1) for tick in ticks]]
    mapped = np.array(
        [[view.config.search.weighting.of(weight) for weight in weights]], dtype=float
    )
    own = np.array([weights], dtype=float)
    equations = set_up(view, places, mapped, own, free_weights=False)
    unknowns = equations.unknowns(np.array([ticks], dtype=float))
    assert equations.misfits(unknowns)[0] <= 1 + 1e-6


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([Weighting.SAMPLES, Weighting.EQUAL]))
def test_derivatives_are_those_of_the_equations(seed, weighting):
    ticks, weights = drawn(4, seed)
    config = config_of("mm", 4, weighting=weighting, epsilon_ticks=30_000)
    view = simulate(config, "mm", ticks, weights).view
    free = weighting is Weighting.SAMPLES
    shape = (1, 4)
    bucket_weight = np.full(shape, float(sum(weights) if free else 1))
    places = [[(0, GRID.top_pivot)] * 4]
    equations = set_up(view, places, bucket_weight, None, free_weights=free)
    start = PRIOR.between(0, GRID.top_pivot, np.random.default_rng(seed).uniform(0.1, 0.9, shape))
    unknowns = equations.unknowns(start)
    value, jacobian = equations.predict(unknowns)
    for column in range(unknowns.shape[1]):
        step = np.zeros_like(unknowns)
        step[0, column] = 1e-6
        change = (equations.predict(unknowns + step)[0] - equations.predict(unknowns - step)[0])[0]
        near = np.abs(value[0]) * 1e-6 + 1e-3 * np.abs(jacobian[0, :, column]).max()
        assert (np.abs(change / 2e-6 - jacobian[0, :, column]) <= near).all()


@settings(max_examples=12, deadline=None)
@given(searched(largest=6), st.booleans())
def test_any_cohort_can_be_attacked(case, weights_known):
    view, ticks, _ = case
    seen = view if weights_known else view.anonymous()
    found = reconstruct(
        seen, replace(PRIOR, grid=seen.config.search.grid), np.random.default_rng(1), starts=30
    )
    assert found.sorted_ticks.shape == found.sorted_radius.shape == (len(ticks),)
    assert (np.diff(found.sorted_ticks) >= 0).all()
    assert not np.isnan(found.sorted_radius).any()


def test_the_same_seed_gives_the_same_attack():
    ticks, weights = drawn(10, seed=1)
    view = simulate(config_of("mm", 10), "mm", ticks, weights).view
    first, second = attacked(view), attacked(view)
    assert first.sorted_ticks.tolist() == second.sorted_ticks.tolist()


def test_counts_are_inferred_from_weights():
    ticks, weights = drawn(10, seed=6)
    weights[3] = 0  # it is not counted
    view = simulate(config_of("mm", 10), "mm", ticks, weights, with_update=False).view.anonymous()
    counts = bucket_counts(view, PRIOR)
    assert not counts.are_known
    for numbers in (counts.likeliest(), *counts.draws(np.random.default_rng(1), 2)):
        assert sum(numbers) == 10
    for index, bucket in enumerate(counts.buckets):
        joint = counts.joint(index)
        assert joint.sum() == pytest.approx(1)
        inside = sum(bucket.low <= tick < bucket.high for tick in ticks)
        assert joint[:, inside].sum() > 1e-4


def test_a_simulated_sum_is_that_of_the_encoded_contributions():
    config = config_of("mm", 3, warm_start=1000, max_queries=1)
    (answer,) = simulate(config, "mm", [0, 999, 1000], [3, 5, 7]).view.answers
    assert answer.pivots == (1000,)
    sums = answer.sums
    assert sums["signed_weight"] == (7 - 8,)
    assert sums["weight"] == (15,)
    beta = 2 * 3 / 1999 + 2 * 5 / 1 + 2 * 7 / 1
    assert sums["beta"][0] == pytest.approx(beta * 2 ** beta_bits(config), rel=1e-7)


def test_a_coarse_grid_has_less_to_find():
    grid = LossGrid(resolution_bits=8)
    ticks = [tick >> 8 for tick in drawn(3, seed=1)[0]]
    view = simulate(config_of("mm", 3, grid=grid), "mm", ticks, [256] * 3).view
    found = attacked(view)
    assert found.exact
    assert found.sorted_ticks.tolist() == sorted(ticks)
