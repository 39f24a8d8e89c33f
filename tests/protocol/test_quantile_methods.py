"""What each method sends and asks, and how many queries it takes."""

from fractions import Fraction

import numpy as np
import pytest
from flat_configs import search_of

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.histogram import Bracketed, Histogram, _powers
from deltafl.protocol.quantile.mm import MajoriseMinimise
from deltafl.protocol.quantile.registry import QUANTILE_METHODS, quantile_method
from deltafl.protocol.quantile.search import Ended, Query

GRID = LossGrid()
MAX_WEIGHT = 447
THETAS = [Fraction(4, 5), Fraction(1, 2), Fraction(1, 10)]


def gamma_cohort(num_devices, generator):
    shape, scale = generator.choice([1.0, 2.0, 4.0]), generator.choice([0.3, 0.7, 1.5])
    losses = generator.gamma(shape, scale, num_devices)
    return np.array([GRID.tick(loss)[0] for loss in losses]), generator.integers(
        101, MAX_WEIGHT + 1, num_devices
    )


def exact_quantile(theta, ticks, weights):
    order = np.argsort(ticks, kind="stable")
    reached = np.cumsum(weights[order]) * theta.denominator >= (
        (theta.denominator - theta.numerator) * int(weights.sum())
    )
    return int(ticks[order][np.argmax(reached)])


def sums_of(method, config, query, ticks, weights):
    """The decoded sums, computed for the whole cohort at once."""
    half_ticks = 2 * (ticks - np.array(query.pivots)[:, None]) + 1
    if method.name == "mm":
        resolution = 1 << method.layout(config).fields[0].resolution_bits
        distances = np.maximum(np.abs(half_ticks), 2 * config.search.epsilon_ticks)
        beta = np.rint(2 * weights / distances * resolution)
        answer = {
            "beta": [beta.sum()],
            "signed_weight": [(weights * np.sign(half_ticks)).sum()],
            "weight": [weights.sum()],
            "count": [len(ticks)],
            "count_below": [(half_ticks < 0).sum()],
        }
    else:
        answer = {
            "weight": [weights.sum()],
            "count": [len(ticks)],
            "weight_below": ((half_ticks < 0) * weights).sum(axis=1),
            "count_below": (half_ticks < 0).sum(axis=1),
        }
    return {name: np.asarray(value, dtype=np.int64) for name, value in answer.items()}


def finished(method, config, ticks, weights):
    search = method.start(config)
    while (query := search.query) is not None:
        search = search.update(sums_of(method, config, query, ticks, weights))
    return search.result()


def num_queries(
    method, num_devices, theta, *, warm, num_cohorts, max_queries=None, seed=0, epsilon=0
):
    """Queries until the certificate, one number a cohort; every result is checked."""
    generator = np.random.default_rng(seed)
    numbers = []
    for _ in range(num_cohorts):
        ticks, weights = gamma_cohort(num_devices, generator)
        quantile = exact_quantile(theta, ticks, weights)
        near = round(quantile * (1 + 0.02 * generator.normal()))
        config = search_of(
            theta=theta,
            grid=GRID,
            max_weight=MAX_WEIGHT,
            cohort_size=num_devices,
            max_queries=max_queries or method.default_max_queries,
            warm_start=min(max(near, 0), GRID.max_tick) if warm else None,
            epsilon_ticks=epsilon,
        )
        result = finished(method, config, ticks, weights)
        assert result.certified
        assert [result.passes(int(tick)) for tick in ticks] == (ticks >= quantile).tolist()
        numbers.append(result.num_queries)
    return numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "cold", "warm", "worst"),
    [
        (MajoriseMinimise(), 21, 14, 30),
        (Bracketed(), 8, 5, 22),
        (Histogram(), 3, 2, 5),
    ],
    ids=repr,
)
def test_searches_are_short(method, cold, warm, worst):
    for theta in THETAS:
        numbers = num_queries(method, 50, theta, warm=False, num_cohorts=40)
        assert np.median(numbers) <= cold
        assert max(numbers) <= worst
        numbers = num_queries(method, 50, theta, warm=True, num_cohorts=40)
        assert np.median(numbers) <= warm
        assert max(numbers) <= worst


@pytest.mark.parametrize("epsilon", [66, 655, 6554, 65_536])  # 0.001 to 1 nat
def test_an_epsilon_costs_few_queries(epsilon):
    # Without the halving of narrow brackets, some of these take 23.
    method = MajoriseMinimise()
    for theta in THETAS:
        for warm, median in ((False, 12), (True, 6)):
            numbers = num_queries(method, 50, theta, warm=warm, num_cohorts=20, epsilon=epsilon)
            assert np.median(numbers) <= median
            assert max(numbers) <= 18


def test_equal_weights_whose_minimisers_form_an_interval_are_no_slower():
    generator = np.random.default_rng(3)
    method = MajoriseMinimise()
    numbers = []
    for _ in range(30):
        ticks, _ = gamma_cohort(100, generator)
        weights = np.ones(100, dtype=np.int64)
        config = search_of(Fraction(4, 5), GRID, 1, 100, method.default_max_queries)
        result = finished(method, config, ticks, weights)
        assert result.certified
        assert sum(result.passes(int(tick)) for tick in ticks) >= 81  # one more than θ·m
        numbers.append(result.num_queries)
    assert np.median(numbers) <= 22


def plain_mm(ticks, weights, theta, *, with_total_weight, num_iterations=400):
    """Algorithm 3 in floating point, as printed or with the Σn that the paper leaves out."""
    losses = ticks / 2**GRID.resolution_bits
    mu = np.average(losses, weights=weights) + 2.0**-30
    total = weights.sum() if with_total_weight else 1.0
    for _ in range(num_iterations):
        beta = weights / np.maximum(np.abs(losses - mu), 2.0**-30)
        mu = (beta @ losses + (1 - 2 * float(theta)) * total) / beta.sum()
    return mu


@pytest.mark.parametrize("theta", [Fraction(4, 5), Fraction(1, 10)])
def test_the_quantile_is_missed_without_the_total_weight_in_the_update(theta):
    generator = np.random.default_rng(1)
    for _ in range(5):
        ticks, weights = gamma_cohort(60, generator)
        config = search_of(theta, GRID, MAX_WEIGHT, 60, 30)
        found = finished(MajoriseMinimise(), config, ticks, weights)
        eta, unknown = found.eta, found.half_width  # one device is in the bracket
        median = GRID.value(exact_quantile(Fraction(1, 2), ticks, weights))
        right = plain_mm(ticks, weights, theta, with_total_weight=True)
        wrong = plain_mm(ticks, weights, theta, with_total_weight=False)
        assert abs(right - eta) < unknown + 1e-3
        assert abs(wrong - median) < 1e-3  # the median, whatever θ is
        assert abs(wrong - eta) > unknown + 0.05


def test_beta_is_largest_half_a_tick_from_the_pivot_and_then_at_its_bound():
    method = MajoriseMinimise()
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 30)
    layout = method.layout(config)
    query = Query("mm", (70_000,))
    for tick in (69_999, 70_000):
        contribution = method.contribution(config, query, tick, MAX_WEIGHT)
        assert contribution["beta"] == layout.fields[0].high == 2 * MAX_WEIGHT
        assert layout.encode(contribution)[1] == 0
    for tick in (0, 69_998, 70_001, GRID.max_tick):
        assert method.contribution(config, query, tick, MAX_WEIGHT)["beta"] < 2 * MAX_WEIGHT


@pytest.mark.parametrize("epsilon", [1, 3, 655])
def test_devices_nearer_than_epsilon_cannot_be_told_apart_by_beta(epsilon):
    method = MajoriseMinimise()
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 30, epsilon_ticks=epsilon)
    layout, query = method.layout(config), Query("mm", (70_000,))
    near = [
        method.contribution(config, query, tick, MAX_WEIGHT)
        for tick in (70_000 - epsilon, 69_999, 70_000, 70_000 + epsilon - 1)
    ]
    assert {one["beta"] for one in near} == {layout.fields[0].high} == {MAX_WEIGHT / epsilon}
    assert [one["signed_weight"] for one in near] == [-MAX_WEIGHT] * 2 + [MAX_WEIGHT] * 2
    assert all(layout.encode(one)[1] == 0 for one in near)
    for tick in (70_000 - epsilon - 1, 70_000 + epsilon):
        farther = method.contribution(config, query, tick, MAX_WEIGHT)
        assert farther["beta"] == 2 * MAX_WEIGHT / (2 * epsilon + 1)


@pytest.mark.parametrize("method", [Bracketed(), Histogram(1)], ids=repr)
@pytest.mark.parametrize(
    ("theta", "warm", "asked", "found"),
    [
        (Fraction(1, 2), None, [65536, 110837, 88186], (153721, 22649)),
        (Fraction(1, 5), 70_000, [70000, 120323], (2217475, 1976829)),
        (
            Fraction(9, 10),
            5,
            [5, 6, 8, 14, 36, 147, 1057, 14150, 364705, 118539, 45235, 29692],
            (43841, 15541),
        ),
    ],
)
def test_one_edge_asks_what_it_has_always_asked(method, theta, warm, asked, found):
    """Recorded before histograms with one edge asked the same."""
    config = search_of(theta, GRID, 9, 7, 30, warm)
    ticks = np.array([3, 20_000, 41_000, 65_536, 90_001, 90_001, 1_300_000])
    weights = np.array([1, 5, 2, 9, 3, 4, 7])
    search, pivots = method.start(config), []
    while search.query is not None:
        pivots += search.query.pivots
        search = search.update(sums_of(method, config, search.query, ticks, weights))
    result = search.result()
    assert pivots == asked
    assert (result.eta_half_ticks, result.half_width_half_ticks) == found


@pytest.mark.parametrize("method", [Bracketed(), Histogram()], ids=repr)
def test_ranks_have_no_epsilon(method):
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 30, epsilon_ticks=1)
    with pytest.raises(ConfigurationError, match="epsilon_ticks=1 is an option of 'mm' only"):
        method.layout(config)


def test_the_least_beta_is_not_lost_to_rounding():
    method = MajoriseMinimise()
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 1, 30)
    layout = method.layout(config)
    farthest = method.contribution(config, Query("mm", (GRID.top_pivot,)), 0, 1)
    sums = layout.decode(layout.encode(farthest)[0])
    assert abs(layout.to_float("beta", sums["beta"])[0] / farthest["beta"] - 1) < 1 / 16


def test_mm_sends_the_papers_sums():
    method = MajoriseMinimise()
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 30)
    pivot, tick, weight = 70_000, 60_000, 5
    mu, loss = GRID.value(Fraction(2 * pivot - 1, 2)), GRID.value(tick)
    beta = weight / abs(loss - mu)
    contribution = method.contribution(config, Query("mm", (pivot,)), tick, weight)
    assert contribution["beta"] * 2**GRID.resolution_bits == pytest.approx(beta)
    assert contribution["signed_weight"] + beta * mu == pytest.approx(beta * loss)


def test_a_rung_half_way_between_two_ticks_is_the_even_one():
    """The power is exact there, though its logarithm is not: 236/256·256^(5/8) is 29.5."""
    half, step = Fraction(236, 256), Fraction(256)
    assert _powers(half, step, range(5, 6), 8) == [30]
    halves = [_powers(Fraction(odd, 2), step, range(1), 8) for odd in (1, 3, 5)]
    assert halves == [[0], [2], [2]]


@pytest.mark.parametrize("top", [GRID.max_tick, 2**53 - 1, 2**60 + 7])
@pytest.mark.parametrize("num_steps", [2, 8, 17])
def test_a_rung_is_the_nearest_integer_however_large(top, num_steps):
    """In whole numbers, so that every device finds the same one."""
    for step in range(1, num_steps):
        (rung,) = _powers(Fraction(1), Fraction(top), range(step, step + 1), num_steps)
        double = 2 * rung
        power = 2**num_steps * top**step
        assert (double - 1) ** num_steps <= power <= (double + 1) ** num_steps


@pytest.mark.parametrize("num_pivots", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("warm_start", [None, 0, 1, 3, 70_000, GRID.max_tick])
def test_the_ladder_has_its_declared_length_and_lies_inside_the_grid(num_pivots, warm_start):
    method = Histogram(num_pivots)
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 9, warm_start)
    pivots = method.start(config).query.pivots
    assert len(pivots) == num_pivots
    assert list(pivots) == sorted(pivots)
    assert 0 < pivots[0] <= pivots[-1] < GRID.top_pivot
    if warm_start == 70_000:
        assert any(abs(pivot - warm_start) <= warm_start / 256 + 1 for pivot in pivots)
        assert len(set(pivots)) == num_pivots


def test_pivots_are_repeated_where_the_bracket_has_too_few():
    grid = LossGrid(resolution_bits=1, bound=2)
    config = search_of(Fraction(1, 2), grid, MAX_WEIGHT, 3, 9)
    pivots = Histogram(8).start(config).query.pivots
    assert len(pivots) == 8
    assert pivots[-1] == pivots[-2]
    assert set(pivots) <= set(range(1, grid.top_pivot))


@pytest.mark.parametrize("num_pivots", [1, 2, 8, 64, 1000])
def test_a_histogram_certifies_ties_within_its_default_budget(num_pivots):
    method = Histogram(num_pivots)
    for tick in (0, 1, 123_456, GRID.max_tick):
        for warm_start in (None, 5, GRID.max_tick):
            config = search_of(Fraction(1, 2), GRID, 1, 4, method.default_max_queries, warm_start)
            result = finished(method, config, np.full(4, tick), np.ones(4, dtype=np.int64))
            assert result.ended is Ended.EXACT
            assert result.eta == GRID.value(tick)


def test_the_registry_builds_every_method_by_its_name():
    for name in QUANTILE_METHODS:
        assert quantile_method(name).name == name
    assert quantile_method("histogram", num_pivots=5) == Histogram(5)
    with pytest.raises(ConfigurationError, match=r"'median'.*mm, bracketed, histogram"):
        quantile_method("median")
    with pytest.raises(ConfigurationError, match="num_pivots=5 is no option of 'mm'"):
        quantile_method("mm", num_pivots=5)
    with pytest.raises(ConfigurationError, match="num_pivots=0"):
        quantile_method("histogram", num_pivots=0)
