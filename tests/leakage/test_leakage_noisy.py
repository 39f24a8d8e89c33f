"""A noisy search: what its counts say, what the update adds, and how noise hides losses."""

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leakage_command import command
from searched_cohorts import GRID, MAX_WEIGHT, PRIOR, drawn, mitigation, rows_of

from deltafl.protocol.errors import SearchError
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.search import SearchConfig, SearchParams
from deltafl.protocol.weighting import Weighting
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.leakage import cli
from deltafl.sim.inspect.leakage.consequences import order_intervals
from deltafl.sim.inspect.leakage.counts import bucket_counts, infer_counts
from deltafl.sim.inspect.leakage.experiment import (
    MITIGATIONS,
    Cell,
    Plan,
    Weights,
    draw_cohort,
    noise_source,
    play,
)
from deltafl.sim.inspect.leakage.labels import device_intervals, probabilities
from deltafl.sim.inspect.leakage.measure import Belief, device_bits, order_bits
from deltafl.sim.inspect.leakage.observations import simulate, without_search
from deltafl.sim.inspect.leakage.reconstruction import from_draws, from_ranks, reconstruct


def config_of(size, *, theta=Fraction(1, 2), warm_start=None, **options):
    settings = {"max_queries": 1, "grid": GRID, "weighting": Weighting.EQUAL}
    search = SearchParams(**(settings | options))
    return SearchConfig(theta, search, MAX_WEIGHT, size, warm_start)


def searched(ticks, weights, sigma, *, seed=0, num_pivots=None, with_update=True, **options):
    return simulate(
        config_of(len(ticks), **options),
        "noisy",
        ticks,
        weights,
        num_pivots=num_pivots,
        with_update=with_update,
        noise=Noise(Fraction(sigma) ** 2, len(ticks)),
        randomness=SeededRandomness(seed.to_bytes(32, "big")),
    ).view


def by_counts(view):
    """The belief of an attacker who solves no equation."""
    counts = infer_counts(view, PRIOR)
    places = probabilities(view, counts, PRIOR)
    return Belief(view, PRIOR, counts, places, from_ranks(counts, PRIOR)[0])


def true_counts(counts, ticks):
    lows = [bucket.low for bucket in counts.buckets]
    return np.bincount(np.searchsorted(lows, ticks, "right") - 1, minlength=len(lows))


def marginals(counts):
    return np.array([counts.joint(j).sum(axis=0) for j in range(len(counts.buckets))])


def enumerated(view, counts):
    """The marginals of the numbers in buckets, from all numbers that there may be."""
    size, found = view.devices, counts.buckets
    (answer,) = view.answers
    edges = (0, *answer.pivots, GRID.top_pivot)
    scale = 2.0**-view.noise.resolution_bits
    table = np.zeros((len(found), size + 1))
    for way in itertools.product(range(size + 1), repeat=len(found)):
        tail = sum(c for c, b in zip(way, found, strict=True) if b.low >= view.tail.pivot)
        if sum(way) != size or tail != view.tail.count:
            continue
        likely = math.prod(
            float(PRIOR.mass(b.low, b.high)) ** c / math.factorial(c)
            for b, c in zip(found, way, strict=True)
        )
        for (low, high), seen in zip(itertools.pairwise(edges), answer.sums["bins"], strict=True):
            inside = sum(c for c, b in zip(way, found, strict=True) if low <= b.low < high)
            likely *= math.exp(-((seen * scale - inside) ** 2) / (2 * view.noise.variance))
        table[range(len(found)), way] += likely
    return table / table.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(4))
def test_numbers_are_believed_as_all_cases_taken_together_say(seed):
    ticks, weights = drawn(4, seed)
    view = searched(ticks, weights, 1, seed=seed, num_pivots=3, warm_start=70_000)
    counts = infer_counts(view, PRIOR)
    assert any(bucket.low == view.tail.pivot for bucket in counts.buckets)
    table = enumerated(view, counts)
    assert ((table > 0.01) & (table < 0.99)).any()  # something is open
    assert marginals(counts) == pytest.approx(table, abs=1e-9)
    without_tail = infer_counts(replace(view, tail=None), PRIOR)
    assert len(without_tail.buckets) == len(counts.buckets) - 1
    (answer,) = view.answers
    other = replace(answer, sums={**answer.sums, "bins": answer.sums["bins"][::-1]})
    wrong = infer_counts(replace(view, answers=(other,)), PRIOR)
    assert marginals(wrong) != pytest.approx(table, abs=1e-3)


def test_draws_are_from_that_belief():
    ticks, weights = drawn(6, seed=2)
    counts = infer_counts(searched(ticks, weights, 1, num_pivots=4), PRIOR)
    drawn_counts = counts.draws(np.random.default_rng(1), 4000)
    assert (drawn_counts.sum(axis=1) == 6).all()
    for index in range(len(counts.buckets)):
        shares = np.bincount(drawn_counts[:, index], minlength=7) / 4000
        assert shares == pytest.approx(counts.joint(index).sum(axis=0), abs=0.04)


@pytest.mark.slow
@given(
    st.lists(st.integers(0, GRID.max_tick), min_size=1, max_size=8),
    st.sampled_from(["1/100", "1/2", "3"]),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, GRID.max_tick)),
    st.integers(0, 5),
)
def test_the_truth_is_never_ruled_out(ticks, sigma, with_update, warm_start, seed):
    weights = [(7 * k + seed) % 5 for k in range(len(ticks))]  # some are zero
    view = searched(
        ticks,
        weights,
        sigma,
        seed=seed,
        num_pivots=5,
        with_update=with_update,
        warm_start=warm_start,
    )
    counts = infer_counts(view, PRIOR)
    truth = true_counts(counts, ticks)
    before = 0
    for index, count in enumerate(truth):
        assert np.isfinite(counts.local[index, count])
        assert np.isfinite(counts.forward[index, before])
        before += count
        assert np.isfinite(counts.backward[index + 1, len(ticks) - before])
    for tick, (low, high) in zip(sorted(ticks), order_intervals(view), strict=True):
        assert low <= tick < high
    for tick, (low, high) in zip(ticks, device_intervals(view), strict=True):
        assert low <= tick < high


def test_without_noise_worth_the_name_counts_are_those_of_a_histogram():
    for seed in range(3):
        ticks, weights = drawn(8, seed)
        view = searched(ticks, weights, "1/1000", with_update=False)
        once = replace(view.config, search=replace(view.config.search, max_queries=1))
        exact = simulate(once, "histogram", ticks, weights, num_pivots=16, with_update=False).view
        assert exact.answers[0].pivots == view.answers[0].pivots
        same = bucket_counts(exact, PRIOR)
        likeliest = infer_counts(view, PRIOR).likeliest()
        assert likeliest == same.likeliest() == tuple(true_counts(same, ticks))
        clear = Belief(
            exact, PRIOR, same, probabilities(exact, same, PRIOR), from_ranks(same, PRIOR)[0]
        )
        for bits in (order_bits, device_bits):
            assert bits(by_counts(view), ticks) == pytest.approx(bits(clear, ticks), abs=1e-6)


@pytest.mark.slow
def test_more_noise_gives_away_less():
    bits = {}
    for sigma in ("1/4", "1", "4"):
        cohorts = [(drawn(10, seed), seed) for seed in range(30)]
        bits[sigma] = np.mean(
            [
                order_bits(
                    by_counts(searched(*cohort, sigma, seed=seed, with_update=False)), cohort[0]
                )
                for cohort, seed in cohorts
            ]
        )
    assert bits["1/4"] > bits["1"] + 0.3 > bits["4"] + 0.3 > 0.25
    assert bits["4"] < 0.2


@pytest.mark.slow
def test_a_false_account_of_the_noise_costs_bits():
    right, false = [], []
    for seed in range(20):
        ticks, weights = drawn(10, seed)
        view = searched(ticks, weights, 2, seed=seed, with_update=False)
        right.append(order_bits(by_counts(view), ticks))
        sure = replace(view, noise=replace(view.noise, variance=Fraction(1, 16)))
        # counts are carried in steps of the true noise
        scale = 2 ** (sure.noise.resolution_bits - view.noise.resolution_bits)
        (answer,) = view.answers
        sums = {**answer.sums, "bins": tuple(scale * number for number in answer.sums["bins"])}
        sure = replace(sure, answers=(replace(answer, sums=sums),))
        false.append(order_bits(by_counts(sure), ticks))
    assert np.mean(right) > np.mean(false) + 0.5


@pytest.mark.parametrize("known", [True, False])
def test_a_tail_of_one_device_gives_its_loss_away_whatever_the_noise(known):
    ticks, weights = [20_000, 40_000, 50_000, 200_123], [150, 200, 330, 401]
    for seed in range(40):
        view = searched(ticks, weights, 4, seed=seed, warm_start=60_000, theta=Fraction(1, 4))
        if view.tail.count == 1:
            break
    assert view.tail.count == 1
    view = view if known else view.anonymous()
    found = reconstruct(view, PRIOR, np.random.default_rng(1))
    ticks, radius = Belief.of(view, PRIOR, found).order_claims()
    assert ticks[-1] == pytest.approx(200_123, abs=0.1)
    assert radius[-1] < 5
    _, radius = Belief.of(view, PRIOR, found).device_claims()
    assert (radius[3] < 5) == known  # its weight is its name
    assert not np.isfinite(
        reconstruct(replace(view, tail=None), PRIOR, np.random.default_rng(1)).sorted_radius
    ).any()


@pytest.mark.slow
def test_estimates_by_draws_are_nearer_than_those_by_the_likeliest_numbers():
    errors = np.zeros(2)
    for seed in range(12):
        ticks, weights = drawn(10, seed)
        counts = infer_counts(searched(ticks, weights, 4, seed=seed, with_update=False), PRIOR)
        drawn_, spread = from_draws(counts, PRIOR, np.random.default_rng(seed))
        assert (spread > 0).all()
        for index, found in enumerate((drawn_, from_ranks(counts, PRIOR)[0])):
            errors[index] += np.abs(found.sorted_ticks - np.sort(ticks)).mean()
    assert errors[0] < errors[1]


def test_sums_of_no_cohort_are_refused():
    ticks, weights = drawn(4, seed=1)
    view = searched(ticks, weights, 1)
    (answer,) = view.answers
    fewer = replace(answer, sums={**answer.sums, "count": (3,)})
    with pytest.raises(SearchError, match="3 devices answered, not 4"):
        infer_counts(replace(view, answers=(fewer,)), PRIOR)
    with pytest.raises(SearchError, match="5 of 4 devices"):
        infer_counts(replace(view, tail=replace(view.tail, count=5)), PRIOR)


def test_a_cohort_too_small_to_be_asked_gives_nothing_away():
    ticks, weights = drawn(4, seed=1)
    played = without_search(config_of(4), "noisy", ticks, weights)
    assert order_bits(by_counts(played.view), ticks) == pytest.approx(0, abs=1e-9)


PLAN = Plan(methods=("noisy",), cohorts=(3,), weights=(Weights.EQUAL,), repeats=1)


@pytest.mark.slow
def test_rows_hold_the_price_and_what_the_noisy_answer_gives_away_alone():
    rows = rows_of(replace(PLAN, mitigations=MITIGATIONS, noise=(Fraction(1), Fraction(4))))
    assert [(row["method"], row["noise"], row["mitigation"]) for row in rows] == [
        ("noisy", sigma, name) for sigma in (1, 4) for name in ("none", "warm-start", "combined")
    ]
    none, _, combined, less, *_ = rows
    assert (none["queries"], none["certified"]) == (1, 0)
    assert (none["rho"], less["rho"]) == (pytest.approx(1), pytest.approx(1 / 16))
    assert none["search_bits"] is not None
    assert (combined["queries"], combined["rho"]) == (0, 0)


def test_noise_disturbs_no_other_stream_and_can_be_repeated():
    other = Plan(methods=("bracketed",), cohorts=(3,), weights=(Weights.EQUAL,), repeats=1)
    bare = (mitigation("none"),)
    both = replace(other, methods=("noisy", "bracketed"), mitigations=bare, noise=(Fraction(2),))
    rows = {row["method"]: row for row in rows_of(both)}
    (alone,) = rows_of(replace(other, mitigations=bare))
    assert rows["bracketed"] == alone
    assert (alone["rho"], alone["search_bits"]) == (None, None)
    assert rows_of(replace(both, methods=("noisy",)))[0] == rows["noisy"]
    cohort = draw_cohort(both, 3, Weights.EQUAL, 0)
    cell = Cell(3, Weights.EQUAL, "noisy", bare[0], Fraction(2))
    answers = [
        play(
            both, cell, cohort, np.random.default_rng(1), noise_source(both, 3, 0, draw)
        ).view.answers
        for draw in (0, 0, 1)
    ]
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.slow
def test_the_command_measures_every_noise(capsys):
    arguments = (
        "--methods", "noisy", "--cohort", "2", "--repeats", "1", "--weights", "equal",
        "--mitigations", "none", "--noise", "1/2,3",
    )  # fmt: skip
    assert cli.main(command(*arguments, "--json")) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["noise"]) for row in result["searches"]] == [
        ("noisy", 0.5), ("noisy", 3.0),
    ]  # fmt: skip
    assert [row["rho"] for row in result["searches"]] == pytest.approx([4, 1 / 9], abs=1e-6)
    assert cli.main(command(*arguments[:-1], "1/2")) == 0
    assert "| noisy | 0.5 | none |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("noise", "complaint"),
    [
        ("0", "'0' is not"),
        ("much", "'much' is not"),
        ("2000", "to 1000"),
        (",", "give at least one"),
    ],
)
def test_noise_that_cannot_be_is_refused(noise, complaint, capsys):
    with pytest.raises(SystemExit, match="2"):
        command("--noise", noise)
    assert complaint in capsys.readouterr().err
