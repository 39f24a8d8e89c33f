"""Bits and errors: what they are at the extremes, and what mitigations do to them."""

import functools
import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from searched_cohorts import GRID, PRIOR, attacked, config_of, drawn

from deltafl.protocol.quantile.search import SearchConfig, SearchParams
from deltafl.protocol.weighting import Weighting
from deltafl.sim.inspect.leakage.consequences import buckets
from deltafl.sim.inspect.leakage.counts import bucket_counts
from deltafl.sim.inspect.leakage.labels import probabilities
from deltafl.sim.inspect.leakage.measure import (
    Belief,
    _prior,
    measure,
    of_algorithm_two,
    order_laws,
    search_facts,
)
from deltafl.sim.inspect.leakage.observations import Prior, SearchView, simulate, without_search


def leaked(view, ticks, seed=0):
    prior = Prior(view.config.search.grid)
    return measure(Belief.of(view, prior, attacked(view, seed)), ticks)


@functools.cache
def mean_bits(method, size, seeds, **options):
    bits = []
    for seed in seeds:
        ticks, weights = drawn(size, seed)
        view = simulate(config_of(method, size, **options), method, ticks, weights).view
        bits.append(leaked(view, ticks).labelled_bits)
    return float(np.mean(bits))


def test_no_search_gives_nothing_away():
    ticks, weights = drawn(4, seed=1)
    leak = leaked(without_search(config_of("mm", 4), "mm", ticks, weights).view, ticks)
    assert leak.bits == pytest.approx(0, abs=1e-9)
    assert leak.labelled_bits == pytest.approx(0, abs=1e-9)
    assert leak.recovered == leak.labelled_recovered == 0


def test_algorithm_2_loses_every_bit_of_every_loss():
    ticks, _ = drawn(4, seed=1)
    leak = of_algorithm_two(PRIOR, ticks)
    surprise = [-math.log2(float(PRIOR.mass(tick, tick + 1))) for tick in ticks]
    assert leak.labelled_bits == pytest.approx(np.mean(surprise), abs=0.01)
    assert (leak.error, leak.recovered, leak.labelled_recovered) == (0, 1, 1)


def test_equal_weights_leave_it_open_who_has_which_loss():
    ticks, weights = drawn(3, seed=1, equal=256)
    leak = leaked(simulate(config_of("mm", 3), "mm", ticks, weights).view, ticks)
    surprise = [-math.log2(float(PRIOR.mass(tick, tick + 1))) for tick in ticks]
    assert leak.labelled_bits == pytest.approx(np.mean(surprise) - math.log2(3), abs=0.01)
    assert (leak.recovered, leak.labelled_recovered) == (1, 0)


@pytest.mark.slow
def test_beta_gives_away_more_than_ranks():
    seeds = range(3)
    assert mean_bits("mm", 3, seeds) > mean_bits("bracketed", 3, seeds) + 8


@pytest.mark.slow
def test_more_pivots_give_away_more():
    seeds = range(4)
    assert mean_bits("histogram", 5, seeds) > mean_bits("bracketed", 5, seeds) + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"max_queries": 4},
        {"epsilon_ticks": 30_000},
        {"weighting": Weighting.EQUAL},
        {"grid": replace(GRID, resolution_bits=8)},
    ],
    ids=["fewer queries", "larger ε", "equal weights", "coarse grid"],
)
def test_a_mitigation_does_not_make_it_worse(options):
    size, seeds = 5, range(2)
    without = mean_bits("mm", size, seeds)
    grid = options.get("grid", GRID)
    bits = []
    for seed in seeds:
        ticks, weights = drawn(size, seed)
        ticks = [tick >> (GRID.resolution_bits - grid.resolution_bits) for tick in ticks]
        view = simulate(config_of("mm", size, **options), "mm", ticks, weights).view
        bits.append(leaked(view, ticks).labelled_bits)
    assert np.mean(bits) <= without + 0.5


def test_a_false_claim_costs_bits():
    ticks, weights = drawn(3, seed=1, equal=256)
    view = simulate(config_of("mm", 3), "mm", ticks, weights).view
    found = attacked(view)
    wrong = replace(found, sorted_ticks=found.sorted_ticks + 500)
    right, false = (measure(Belief.of(view, PRIOR, one), ticks) for one in (found, wrong))
    assert false.bits < 0 < right.bits
    assert false.recovered == 0


@pytest.mark.slow
def test_the_law_of_order_statistics_sums_to_one():
    ticks = np.arange(GRID.max_tick // 3, dtype=float)
    law = order_laws(PRIOR, 0, GRID.top_pivot, ticks)(4)
    assert law.sum(axis=1) == pytest.approx(np.ones(4), abs=0.01)


def test_a_belief_about_a_device_is_a_probability():
    ticks, weights = drawn(6, seed=3)
    view = simulate(config_of("histogram", 6), "histogram", ticks, weights).view
    belief = Belief.of(view, PRIOR, attacked(view))
    assert belief.places.sum(axis=1) == pytest.approx(np.ones(6))
    assert ((belief.of_devices(ticks) >= 0) & (belief.of_devices(ticks) <= 1)).all()


def test_who_is_where_is_believed_as_all_cases_taken_together_say():
    ticks, weights = [20_000, 40_000, 90_000, 150_000, 60_000], [1, 2, 2, 2, 3]
    config = config_of("bracketed", 5, warm_start=70_000, max_queries=1)
    view = simulate(config, "bracketed", ticks, weights, with_update=False).view
    found = buckets(view)
    mass = PRIOR.mass([b.low for b in found], [b.high for b in found])
    table = np.zeros((5, len(found)))
    for way in itertools.product(range(len(found)), repeat=5):
        held = [sum(weights[k] for k in range(5) if way[k] == j) for j in range(len(found))]
        sizes = [way.count(j) for j in range(len(found))]
        if held == [b.weight for b in found] and sizes == [b.most for b in found]:
            table[range(5), way] += np.prod(mass[list(way)])
    table /= table.sum(axis=1, keepdims=True)
    assert ((table > 0.01) & (table < 0.99)).any()  # something is open
    believed = probabilities(view, bucket_counts(view, PRIOR), PRIOR)
    assert believed == pytest.approx(table, abs=1e-9)


def test_the_prior_is_that_of_rounded_losses():
    pivots = np.array([0, 1, 65_536, GRID.top_pivot])
    above = PRIOR.survival(pivots)
    assert above[0] == 1
    assert above[-1] == 0
    assert above[2] == pytest.approx(3 * math.exp(-2), rel=1e-4)
    shares = np.array([0.01, 0.5, 0.99])
    positions = PRIOR.between(0, GRID.top_pivot, shares)
    assert 1 - PRIOR.survival(positions + 0.5) == pytest.approx(shares, rel=1e-6)


def test_facts_without_truth_take_only_ranks():
    ticks, weights = drawn(30, seed=1)
    view = simulate(config_of("bracketed", 30), "bracketed", ticks, weights).view.anonymous()
    facts = search_facts(view)
    assert facts.queries == len(view.answers)
    assert facts.numbers == 4 * facts.queries
    assert facts.smallest_bucket == 1
    assert facts.bits is facts.error is facts.prior_error is None
    assert facts.threshold_low < facts.threshold_high


@pytest.mark.slow
def test_facts_with_truth_say_how_well_the_attack_did():
    ticks, weights = drawn(3, seed=1)
    view = simulate(config_of("mm", 3), "mm", ticks, weights).view.anonymous()
    facts = search_facts(view, truth_ticks=ticks[::-1], time_limit=5)
    assert facts.error < 1e-3 < facts.prior_error
    assert facts.bits > 12
    assert facts.within < 1e-3


def test_facts_of_a_search_that_asked_nothing():
    ticks, weights = drawn(3, seed=1)
    view: SearchView = without_search(config_of("mm", 3), "mm", ticks, weights).view.anonymous()
    facts = search_facts(replace(view, tail=None))
    assert (facts.queries, facts.numbers, facts.buckets) == (0, 0, 1)
    assert (facts.threshold_low, facts.threshold_high) == (0, 32)


def test_sums_of_any_weights_are_worked_with():
    config = SearchConfig(Fraction(1, 2), SearchParams(max_queries=3), 2**40, 3)
    view = simulate(config, "bracketed", [10, 20_000, 90_000], [2**40, 2**39, 1]).view.anonymous()
    assert _prior(view).heaviest == Prior.HEAVIEST
    assert search_facts(view).queries == len(view.answers)
