"""The filter found from secure sums is that of the exact weighted quantile, whatever the method."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from flat_configs import changed_search, search_of
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from deltafl.protocol.errors import ConfigurationError, SearchError
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.histogram import Bracketed, Histogram
from deltafl.protocol.quantile.mm import MajoriseMinimise
from deltafl.protocol.quantile.search import Ended, Query
from deltafl.protocol.weighting import Weighting
from deltafl.secagg.errors import EncodingError

GRID = LossGrid()
MAX_WEIGHT = 9
METHODS = [MajoriseMinimise(), Bracketed(), Histogram(), Histogram(3), Histogram(1)]
EVERY_METHOD = pytest.mark.parametrize("method", METHODS, ids=repr)
DETERMINISTIC = settings(max_examples=40, deadline=None, derandomize=True)


def exact_quantile(theta, ticks, weights):
    target = (1 - theta) * sum(weights)
    return min(
        tick
        for tick in ticks
        if sum(n for x, n in zip(ticks, weights, strict=True) if x <= tick) >= target
    )


def answer(method, config, query, ticks, weights):
    layout = method.layout(config)
    total = np.zeros(layout.length, dtype=np.uint64)
    for tick, weight in zip(ticks, weights, strict=True):
        vector, num_clipped = layout.encode(method.contribution(config, query, tick, weight))
        assert num_clipped == 0
        total += vector
    return layout.decode(total & np.uint64((1 << layout.ring_bits) - 1))


def searches(method, config, ticks, weights):
    """Every state of a search, from the start to the end."""
    states = [method.start(config)]
    while (query := states[-1].query) is not None:
        states.append(states[-1].update(answer(method, config, query, ticks, weights)))
    return states


def kept(result, ticks, weights=None):
    """Who passes, of those that count: a device of weight zero adds nothing if it does."""
    return [
        tick
        for tick, weight in zip(ticks, weights or [1] * len(ticks), strict=True)
        if weight and result.passes(tick)
    ]


def expected(config, ticks, weights):
    """Algorithm 2's tail, or the smallest larger one of `min_tail` devices."""
    counted = sorted(tick for tick, weight in zip(ticks, weights, strict=True) if weight)
    threshold = exact_quantile(config.theta, ticks, weights)
    if config.min_tail:
        threshold = min(threshold, counted[-min(config.min_tail, len(counted))])
    return [tick for tick, n in zip(ticks, weights, strict=True) if n and tick >= threshold]


def changed_state(state, **settings):
    """A search under way, of a configuration that differs in what changes no query."""
    return replace(state, config=changed_search(state.config, **settings))


@st.composite
def cohorts(draw, grid=GRID):
    """A configuration, ticks and weights: ties, clusters, the ends of the grid, weights of zero."""
    centre = draw(st.integers(0, grid.max_tick))
    tick = st.one_of(
        st.sampled_from([0, grid.max_tick, centre]),
        st.integers(max(centre - 5, 0), min(centre + 5, grid.max_tick)),
        st.integers(0, min(3 * 2**grid.resolution_bits, grid.max_tick)),
        st.integers(0, grid.max_tick),
    )
    ticks = draw(st.lists(tick, min_size=1, max_size=8))
    num_devices = len(ticks)
    weights = draw(
        st.one_of(
            st.lists(st.integers(0, MAX_WEIGHT), min_size=num_devices, max_size=num_devices),
            st.just([1] * num_devices),
        )
    )
    theta = draw(
        st.one_of(
            st.sampled_from([Fraction(x) for x in ("4/5", "1/2", "1/10", "1/3", "1/1000")]),
            st.fractions(min_value=Fraction(1, 50), max_value=1, max_denominator=50),
        )
    )
    return (
        search_of(
            theta=theta,
            grid=grid,
            max_weight=MAX_WEIGHT,
            cohort_size=num_devices + draw(st.integers(0, 3)),
            max_queries=0,
            warm_start=draw(st.one_of(st.none(), tick)),
        ),
        ticks,
        weights,
    )


@pytest.mark.slow
@EVERY_METHOD
@DETERMINISTIC
@given(cohort=cohorts())
def test_the_kept_set_is_that_of_the_exact_quantile(method, cohort):
    config, ticks, weights = cohort
    assume(sum(weights) > 0)
    config = changed_search(config, max_queries=method.default_max_queries)
    result = searches(method, config, ticks, weights)[-1].result()
    assert result.certified
    assert result.ended in (Ended.EXACT, Ended.LAST_DEVICE)
    assert kept(result, ticks, weights) == expected(config, ticks, weights)


@pytest.mark.slow
@EVERY_METHOD
@DETERMINISTIC
@given(cohort=st.integers(0, 3).flatmap(lambda bits: cohorts(LossGrid(bits, 2))))
def test_the_kept_set_is_exact_on_tiny_grids(method, cohort):
    config, ticks, weights = cohort
    assume(sum(weights) > 0)
    config = changed_search(config, max_queries=method.default_max_queries)
    result = searches(method, config, ticks, weights)[-1].result()
    assert result.certified
    assert kept(result, ticks, weights) == expected(config, ticks, weights)


@pytest.mark.slow
@EVERY_METHOD
@DETERMINISTIC
@given(cohort=cohorts(), weighting=st.sampled_from(Weighting))
def test_the_kept_set_is_that_of_the_quantile_of_rounded_weights(method, cohort, weighting):
    config, ticks, weights = cohort
    assume(sum(weights) > 0)
    config = changed_search(config, weighting=weighting, max_queries=method.default_max_queries)
    rounded = [weighting.of(weight) for weight in weights]
    result = searches(method, config, ticks, rounded)[-1].result()
    assert result.certified
    assert kept(result, ticks, weights) == expected(config, ticks, rounded)


def test_the_quantile_of_equal_weights_is_another_one():
    ticks, weights = [10_000, 20_000, 30_000], [1, 1, 9]
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 30)
    equal = changed_search(config, weighting=Weighting.EQUAL)
    for method in METHODS[:3]:
        assert kept(searches(method, config, ticks, weights)[-1].result(), ticks) == ticks[2:]
        assert kept(searches(method, equal, ticks, [1, 1, 1])[-1].result(), ticks) == ticks[1:]


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [66, 655, 6554, 65_536])  # 0.001 to 1 nat
@DETERMINISTIC
@given(cohort=cohorts())
def test_with_an_epsilon_the_kept_set_is_exact_and_certified_in_time(epsilon, cohort):
    config, ticks, weights = cohort
    assume(sum(weights) > 0)
    method = MajoriseMinimise()
    config = changed_search(config, epsilon_ticks=epsilon, max_queries=method.default_max_queries)
    result = searches(method, config, ticks, weights)[-1].result()
    assert result.certified
    assert kept(result, ticks, weights) == expected(config, ticks, weights)


@pytest.mark.slow
@DETERMINISTIC
@given(
    cohort=st.integers(0, 3).flatmap(lambda bits: cohorts(LossGrid(bits, 2))),
    share=st.floats(0, 1),
)
def test_with_an_epsilon_the_kept_set_is_exact_on_tiny_grids(cohort, share):
    config, ticks, weights = cohort
    assume(sum(weights) > 0)
    epsilon = round(share * config.search.grid.max_tick)
    config = changed_search(config, epsilon_ticks=epsilon, max_queries=30)
    result = searches(MajoriseMinimise(), config, ticks, weights)[-1].result()
    assert result.certified
    assert kept(result, ticks, weights) == expected(config, ticks, weights)


@pytest.mark.slow
@EVERY_METHOD
@DETERMINISTIC
@given(
    losses=st.lists(st.floats(0, 40), min_size=1, max_size=8),
    theta=st.sampled_from([Fraction(4, 5), Fraction(1, 2), Fraction(1, 10)]),
    warm_loss=st.none() | st.floats(0, 32),
)
def test_the_kept_set_is_that_of_the_float_losses_up_to_the_resolution(
    method, losses, theta, warm_loss
):
    ticks = [GRID.tick(loss)[0] for loss in losses]
    weights = [1 + index % MAX_WEIGHT for index in range(len(losses))]
    config = search_of(
        theta,
        GRID,
        MAX_WEIGHT,
        len(losses),
        method.default_max_queries,
        None if warm_loss is None else GRID.tick(warm_loss)[0],
    )
    result = searches(method, config, ticks, weights)[-1].result()
    threshold = min(exact_quantile(theta, losses, weights), GRID.bound)
    for loss, tick in zip(losses, ticks, strict=True):
        if abs(min(loss, GRID.bound) - threshold) > 2.0**-GRID.resolution_bits:
            assert result.passes(tick) == (loss > threshold)
        if loss == threshold:
            assert result.passes(tick)


@pytest.mark.slow
@EVERY_METHOD
@DETERMINISTIC
@given(cohort=cohorts(), max_queries=st.integers(0, 12))
@example(
    cohort=(search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 0), [0, 0, 0], [0, 0, 0]),
    max_queries=3,
)
def test_a_search_pivot_short_has_a_result_and_never_a_false_certificate(
    method, cohort, max_queries
):
    config, ticks, weights = cohort
    config = changed_search(config, max_queries=max_queries)
    states = searches(method, config, ticks, weights)
    assert len(states) <= max_queries + 1
    for num_queries, state in enumerate(states):
        for shrank in (False, True):
            result = state.result(shrank=shrank)
            assert result.num_queries == num_queries
            if result.certified:
                assert result.ended in (Ended.EXACT, Ended.LAST_DEVICE)
                assert not sum(weights) or kept(result, ticks, weights) == expected(
                    config, ticks, weights
                )
            elif result.ended is Ended.NO_WEIGHT:
                assert sum(weights) == 0
                assert kept(result, ticks) == ticks
            else:
                assert result.ended is (Ended.SHRANK if shrank else Ended.BUDGET)
                assert result.half_width_half_ticks == 0
                assert 0 <= result.eta <= GRID.bound
    assert states[-1].query is None


@pytest.mark.slow
@EVERY_METHOD
@DETERMINISTIC
@given(cohort=cohorts(), min_tail=st.integers(2, 8), data=st.data())
def test_a_tail_that_is_too_small_is_widened_to_the_smallest_that_is_not(
    method, cohort, min_tail, data
):
    config, ticks, weights = cohort
    counted = sum(weight > 0 for weight in weights)
    assume(counted >= 2 and config.theta < 1)
    least = min(min_tail, counted)
    config = changed_search(config, max_queries=method.default_max_queries, min_tail=least)
    states = searches(method, config, ticks, weights)
    result, plain = states[-1].result(), changed_search(config, min_tail=0)
    passing = kept(result, ticks, weights)
    assert passing == expected(config, ticks, weights)
    assert (result.tail.fewest, result.tail.most) == (len(passing), len(passing))
    is_wider = passing != expected(plain, ticks, weights)
    assert (result.ended is Ended.WIDENED) == is_wider
    assert result.certified == (not is_wider)
    # whenever it ends, and whoever of those counted is lost, the tail is known and large enough
    state = data.draw(st.sampled_from(states[1:]))
    lost = data.draw(st.integers(0, counted - least))
    verified = data.draw(st.booleans())
    early = changed_state(state, verified=verified).result(shrank=True, num_lost=lost)
    passing = kept(early, ticks, weights)
    assert (early.tail.fewest, early.tail.most) == (len(passing), len(passing))
    assert len(passing) - lost >= least
    if verified:
        assert set(expected(plain, ticks, weights)) <= set(passing)


def test_the_smallest_tail_that_is_large_enough_need_not_be_everybody():
    ticks, weights = [10_000, 20_000, 30_000, 40_000, 50_000], [1, 1, 1, 1, 9]
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 5, 30)
    for method in METHODS:
        heavy = searches(method, config, ticks, weights)[-1].result()
        assert (kept(heavy, ticks), heavy.ended) == (ticks[4:], Ended.LAST_DEVICE)
        assert heavy.certified
        for least in (2, 3, 5):
            counted = changed_search(config, min_tail=least)
            result = searches(method, counted, ticks, weights)[-1].result()
            assert (kept(result, ticks), result.ended) == (ticks[-least:], Ended.WIDENED)
            assert not result.certified  # another tail than Algorithm 2's


@EVERY_METHOD
@pytest.mark.parametrize("theta", [Fraction(1, 5), Fraction(1, 2), Fraction(4, 5)])
def test_a_verified_search_that_ends_early_keeps_whoever_may_be_in_the_tail(method, theta):
    ticks, weights = [1000 * (number + 1) ** 2 for number in range(9)], [1] * 9
    config = search_of(theta, GRID, MAX_WEIGHT, 9, method.default_max_queries, min_tail=2)
    tail = expected(changed_search(config, min_tail=0), ticks, weights)
    for state in searches(method, config, ticks, weights)[1:]:
        early = changed_state(state, verified=True).result(shrank=True, num_lost=0)
        assert set(tail) <= set(kept(early, ticks, weights))


@EVERY_METHOD
def test_too_few_devices_for_a_tail_are_all_kept_and_counted(method):
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 5, 30, min_tail=4)
    config = changed_search(config, max_queries=method.default_max_queries)
    ticks = [10_000, 20_000, 30_000, 40_000, 50_000]
    result = searches(method, config, ticks, [1, 0, 1, 0, 1])[-1].result()
    assert (result.ended, result.num_queries) == (Ended.TOO_FEW, 1)
    assert (result.tail.fewest, kept(result, ticks)) == (3, ticks)


@EVERY_METHOD
def test_a_search_that_is_cut_short_takes_a_pivot_whose_rank_is_known(method):
    ticks, weights = [10_000, 20_000, 30_000, 40_000], [1, 2, 3, 4]
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 4, 30, warm_start=25_000)
    nothing_yet = method.start(config).result()
    assert (kept(nothing_yet, ticks), nothing_yet.tail) == (ticks, None)
    for state in searches(method, config, ticks, weights)[1:-1]:
        known = {0, state.bracket.high.pivot, *(low.pivot for low in state.bracket.lows)}
        assert state.result().eta_half_ticks / 2 in known
        safe = changed_state(state, verified=True).result()
        assert safe.eta_half_ticks == 2 * state.bracket.low.pivot


@EVERY_METHOD
@pytest.mark.parametrize("theta", ["4/5", "1/2", "1/10"])
@pytest.mark.parametrize("weights", [[3] * 6, [0, 9, 1, 0, 2, 5]])
def test_ties_keep_everybody(method, theta, weights):
    ticks = [GRID.tick(4.127134)[0]] * 6
    config = search_of(Fraction(theta), GRID, MAX_WEIGHT, 6, method.default_max_queries)
    result = searches(method, config, ticks, weights)[-1].result()
    assert result.certified
    assert result.ended is Ended.EXACT
    assert result.eta == GRID.value(ticks[0])
    assert result.half_width == 0
    assert kept(result, ticks) == ticks


@EVERY_METHOD
def test_a_conformity_of_one_asks_nothing_and_keeps_everybody(method):
    search = method.start(search_of(Fraction(1), GRID, MAX_WEIGHT, 3, 30, warm_start=77))
    assert search.query is None
    result = search.result(shrank=True)
    assert result.certified
    assert result.num_queries == 0
    assert kept(result, [0, 5, GRID.max_tick]) == [0, 5, GRID.max_tick]
    with pytest.raises(SearchError, match="finished"):
        search.update({})


@EVERY_METHOD
def test_a_cohort_without_weight_ends_uncertified_after_one_query(method):
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 30, warm_start=70_000)
    result = searches(method, config, [5, 6, 7], [0, 0, 0])[-1].result()
    assert (result.ended, result.certified, result.num_queries) == (Ended.NO_WEIGHT, False, 1)
    assert kept(result, [0, 5, 6, 7]) == [0, 5, 6, 7]


@EVERY_METHOD
def test_update_leaves_the_search_as_it_was(method):
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 30)
    search = method.start(config)
    before = search.query
    search.update(answer(method, config, before, [1, 70_000, 90_000], [1, 2, 3]))
    assert search.query == before
    assert search.result().num_queries == 0


def test_a_vanished_device_ends_a_search_with_what_it_has():
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 5, 30)
    method = Bracketed()
    ticks, weights = [10_000, 20_000, 60_000, 70_000, 90_000], [1, 2, 3, 4, 5]
    search = method.start(config)
    search = search.update(answer(method, config, search.query, ticks, weights))
    result = search.result(shrank=True)
    assert (result.ended, result.certified) == (Ended.SHRANK, False)
    smaller = answer(method, config, search.query, ticks[:-1], weights[:-1])
    with pytest.raises(SearchError, match=r"weight 10 and count 4, but had weight 15.*shrank=True"):
        search.update(smaller)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"theta": Fraction(0)}, r"theta=0 is not in \(0, 1\]"),
        ({"theta": Fraction(3, 2)}, r"theta=3/2 is not in \(0, 1\]"),
        ({"max_weight": 0}, "max_weight=0"),
        ({"cohort_size": 0}, "cohort_size=0"),
        ({"max_queries": -1}, "max_queries=-1"),
        ({"epsilon_ticks": -1}, r"epsilon_ticks=-1 is not in \[0, 2097152\]"),
        ({"epsilon_ticks": GRID.top_pivot}, "epsilon_ticks=2097153"),
        ({"warm_start": -1}, "warm_start=-1"),
        ({"warm_start": GRID.top_pivot}, "warm_start=2097153"),
    ],
)
def test_configurations_out_of_range_are_refused(changes, message):
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 30)
    with pytest.raises(ConfigurationError, match=message):
        changed_search(config, **changes)


@EVERY_METHOD
def test_a_device_refuses_foreign_queries_and_values_out_of_range(method):
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 30)
    query = method.start(config).query
    num_pivots = len(query.pivots)
    foreign = [
        Query("other", query.pivots),
        Query(method.name, (*query.pivots, GRID.max_tick)),
        Query(method.name, (GRID.top_pivot + 1,) * num_pivots),
        Query(method.name, (-1,) * num_pivots),
    ]
    for other in foreign:
        with pytest.raises(SearchError, match=r"query of method|pivots"):
            method.contribution(config, other, 5, 1)
    for tick, weight in [(-1, 1), (GRID.top_pivot, 1), (5, -1), (5, MAX_WEIGHT + 1)]:
        with pytest.raises(EncodingError, match=r"is not in \[0, "):
            method.contribution(config, query, tick, weight)


@EVERY_METHOD
@pytest.mark.parametrize(("weighting", "largest"), [("equal", 1), ("powers-of-two", 8)])
def test_a_device_refuses_a_weight_that_is_not_rounded(method, weighting, largest):
    config = search_of(Fraction(1, 2), GRID, MAX_WEIGHT, 3, 30, weighting=Weighting(weighting))
    query = method.start(config).query
    method.contribution(config, query, 5, largest)
    with pytest.raises(EncodingError, match=rf"weight={largest + 1} is not in \[0, {largest}\]"):
        method.contribution(config, query, 5, largest + 1)


def test_the_canonical_bytes_tell_queries_apart():
    queries = [Query("mm", (1,)), Query("mm", (2,)), Query("mm", (1, 1)), Query("m", (1,))]
    queries += [Query("bracketed", (1,)), Query("histogram", (1,))]
    assert len({query.canonical() for query in queries}) == len(queries)
    assert queries[0].canonical() == Query("mm", (1,)).canonical()
