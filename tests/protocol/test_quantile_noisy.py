"""The noisy search: one question, answered once with noise, and the likeliest threshold.

What the sums say of the cohort is checked without noise, with no more than a trace of it, and with
as much as a round would have.
"""

import itertools
from dataclasses import dataclass, replace
from fractions import Fraction

import lenient
import numpy as np
import pytest
from flat_configs import search_of
from hypothesis import given, settings
from hypothesis import strategies as st
from lenient import no_query_needed  # noqa: F401
from round_parties import Device as Party
from round_parties import Point, RoundParties, make_config, play_single

from deltafl.protocol import wire
from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.errors import ConfigurationError, SearchError
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.noisy import NoisyHistogram, nearest_counts
from deltafl.protocol.quantile.registry import NOISY, QUANTILE_METHODS, quantile_method
from deltafl.protocol.quantile.search import Ended, Query
from deltafl.protocol.round import Round
from deltafl.protocol.selection import Threshold
from deltafl.protocol.sessions import Sessions
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import (
    Enrolment,
    GraphKind,
    PeerError,
    Refusal,
    SlotSum,
    Stage,
    Step,
    ThreatModel,
    Vanish,
)
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds

GRID = LossGrid()
TRACE = Noise(Fraction(1, 10**12), 1)
"""Noise that no rank notices."""

NOISE = Noise(Fraction(9, 4), 3)
NOISY_ROUND = {"method": NOISY, "weighting": Weighting.EQUAL, "noise": NOISE}
MODEL = np.arange(4, dtype="<f4").tobytes()


def search_config(num_devices, theta=Fraction(1, 2), **changes):
    fields = {"max_queries": 1, "weighting": Weighting.EQUAL}
    return search_of(theta, GRID, 447, num_devices, **(fields | changes))


def seeded(*numbers):
    return SeededRandomness(bytes(numbers).ljust(32, b"n"))


def answered(method, config, ticks, seed=None):
    """The search after the answer of these devices; without noise if there is no seed."""
    layout, search = method.layout(config), method.start(config)
    total = np.zeros(layout.length, dtype=np.uint64)
    source = None if seed is None else seeded(*seed)
    for tick in ticks:
        values = method.contribution(config, search.query, int(tick), 1)
        if source is not None:
            values = method.with_noise(config, values, source)
        words, num_clipped = layout.encode(values)
        assert num_clipped == 0
        total += words
    return search.update(layout.decode(total & np.uint64(2**layout.ring_bits - 1)))


# --- the threshold from exact counts ------------------------------------------------------------

ticks_of_cohorts = st.lists(st.integers(0, GRID.max_tick) | st.integers(60_000, 70_000), min_size=1)
thetas = st.sampled_from([Fraction(99, 100), Fraction(4, 5), Fraction(1, 2), Fraction(1, 10)])


@pytest.mark.slow
@settings(deadline=None)
@given(
    ticks_of_cohorts,
    thetas,
    st.none() | st.just(0) | st.integers(60_000, 70_000) | st.just(GRID.max_tick),
    st.sampled_from([1, 2, 16, 64]),
)
def test_without_noise_the_threshold_lies_in_the_bin_of_the_quantile(
    ticks, theta, warm, num_pivots
):
    method = NoisyHistogram(TRACE, num_pivots)
    config = search_config(len(ticks), theta, warm_start=warm)
    search = answered(method, config, ticks)
    found, pivots = search.result(), search.pivots
    reached = sorted(ticks)[-int(-(1 - theta) * len(ticks) // 1) - 1]
    edges = (0, *pivots, GRID.top_pivot)
    low, high = next(pair for pair in itertools.pairwise(edges) if pair[0] <= reached < pair[1])
    assert 0 <= found.eta_half_ticks < 2 * high
    assert found.passes(max(ticks)) or low <= max(ticks) < high
    for tick in ticks:  # all in the bins above pass, and none of those below
        assert found.passes(tick) or tick < high
        assert not found.passes(tick) or tick >= low
    assert (found.ended, found.certified, found.num_queries) == (Ended.NOISY, False, 1)
    assert found.half_width_half_ticks == 0
    assert search.query is None


def test_a_device_is_in_the_bin_between_the_pivots_around_it():
    method, config, query = NoisyHistogram(TRACE, 3), search_config(1), Query(NOISY, (5, 9, 9))
    for ticks, number in (((0, 4), 0), ((5, 8), 1), ((9, GRID.max_tick), 3)):
        for tick in ticks:
            bins = method.contribution(config, query, tick, 1)["bins"]
            assert bins.tolist() == [number == bin_ for bin_ in range(4)]


@pytest.mark.parametrize("theta", [Fraction(99, 100), Fraction(1, 2), Fraction(1, 100)])
@pytest.mark.parametrize("warm", [None, 0, 65_536, GRID.max_tick])
def test_a_single_device_is_kept(warm, theta):
    for tick in (0, 65_535, 65_536, GRID.max_tick):
        config = search_config(1, theta, warm_start=warm)
        for seed in (None, (8,)):
            search = answered(NoisyHistogram(Noise(Fraction(9), 1)), config, [tick], seed)
            assert search.result().passes(tick)


@pytest.mark.parametrize("theta", [Fraction(4, 5), Fraction(1, 2), Fraction(1, 5)])
def test_devices_that_lie_evenly_in_a_bin_are_split_as_they_should_be(theta):
    method = NoisyHistogram(TRACE, 2)
    config = search_config(100, theta, warm_start=2**20)
    low, high = 2**20 + 2**12, GRID.top_pivot
    ticks = low + (np.arange(100) + 0.5) * (high - low) / 100
    found = answered(method, config, ticks.astype(int)).result()
    assert sum(found.passes(int(tick)) for tick in ticks) == 100 * theta + 1  # and the quantile


def test_where_a_bin_ends_at_the_quantile_it_is_left_out_and_the_next_kept():
    method, config = NoisyHistogram(TRACE, 2), search_config(4, warm_start=2**20)
    search = answered(method, config, [1, 2**20, 2**20 + 1, 2**21])
    assert search.pivots == (2**20 - 2**12, 2**20 + 2**12)
    assert search.result().eta_half_ticks == 2 * search.pivots[0]


def test_all_devices_in_the_last_bin_leave_a_threshold_on_the_grid():
    for num_pivots in (1, 16):
        config = search_config(3, Fraction(1, 10), warm_start=GRID.max_tick)
        found = answered(NoisyHistogram(TRACE, num_pivots), config, [GRID.max_tick] * 3).result()
        assert found.eta_half_ticks <= 2 * GRID.max_tick
        assert found.passes(GRID.max_tick)


# --- the nearest counts -------------------------------------------------------------------------

rationals = st.fractions(min_value=-50, max_value=50, max_denominator=64)
histograms = st.lists(rationals, min_size=1, max_size=12)


@pytest.mark.slow
@given(histograms, st.integers(1, 60))
def test_the_nearest_counts_are_not_negative_and_sum_to_the_number_of_devices(noisy, total):
    counts = nearest_counts(noisy, total)
    assert sum(counts) == total
    assert min(counts) >= 0
    # Projection: what is above zero is moved by one number, and what is not would go below.
    (excess,) = {x - c for x, c in zip(noisy, counts, strict=True) if c > 0}
    assert all(x <= excess for x, c in zip(noisy, counts, strict=True) if c == 0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any))
def test_counts_that_could_be_true_are_nearest_to_themselves(counts):
    assert nearest_counts([Fraction(count) for count in counts], sum(counts)) == counts


@pytest.mark.slow
@given(histograms, st.integers(1, 60), st.integers(0, 2**32))
def test_no_other_counts_are_nearer(noisy, total, seed):
    counts = nearest_counts(noisy, total)
    shares = np.random.default_rng(seed).dirichlet(np.ones(len(noisy)))
    other = [Fraction(float(share)) for share in shares]
    other = [share * total / sum(other) for share in other]

    def distance(these):
        return sum((x - y) ** 2 for x, y in zip(noisy, these, strict=True))

    assert distance(counts) <= distance(other)


# --- noise --------------------------------------------------------------------------------------


def rank_errors(deviation, num_pivots, num_devices=60, num_cohorts=40):
    """How many devices too many or too few pass; a warm start a few per cent off."""
    generator = np.random.default_rng(5)
    method = NoisyHistogram(Noise(Fraction(deviation) ** 2, num_devices), num_pivots)
    errors = []
    for number in range(num_cohorts):
        ticks = np.array([GRID.tick(x)[0] for x in generator.gamma(2, 0.7, num_devices)])
        warm = int(np.median(ticks) * np.exp(0.05 * generator.normal()))
        config = search_config(num_devices, warm_start=warm)
        layout, search = method.layout(config), method.start(config)
        bins = np.searchsorted(search.pivots, ticks, side="right")
        counts = np.bincount(bins, minlength=num_pivots + 1)
        scale = 2**method.noise.resolution_bits
        # The sum of the shares is as good as one draw of all their variance.
        whole = Noise(method.noise.share_variance * num_devices, 1)
        noise = whole.share(num_pivots + 1, 10**9, seeded(7, number))
        search = search.update({"count": np.array([num_devices]), "bins": counts * scale + noise})
        assert layout.fields[1].resolution_bits == method.noise.resolution_bits
        kept = sum(search.result().passes(int(tick)) for tick in ticks)
        errors.append(kept - num_devices / 2)
    return np.array(errors)


@pytest.mark.slow
def test_the_rank_is_off_by_more_the_more_noise_there_is():
    off = [np.abs(rank_errors(Fraction(d), 16)).mean() for d in ("0.01", "2", "8")]
    assert off[0] < 2
    assert off[0] < off[1] < 5
    assert off[1] < off[2] < 12
    # Raw prefix sums of half of 17 bins would be off by 8·√(17/4)·√(2/π) = 13 ranks.


@pytest.mark.slow
def test_the_threshold_is_not_biased_much():
    errors = rank_errors(Fraction(2), 16, num_cohorts=60)
    assert abs(errors.mean()) < 3 * errors.std() / np.sqrt(60) + 0.5


@pytest.mark.slow
def test_the_noise_of_a_sum_is_that_of_the_shares_and_no_bin_is_without():
    method, num_devices = NoisyHistogram(Noise(Fraction(4), 5), 3), 5
    config = search_config(num_devices)
    layout = method.layout(config)
    query = method.start(config).query
    exact = sum(layout.encode(method.contribution(config, query, 7, 1))[0] for _ in range(5))
    exact = layout.decode(exact)["bins"]
    source, errors = seeded(1), []
    for _ in range(250):
        total = np.zeros(layout.length, dtype=np.uint64)
        for _ in range(num_devices):
            values = method.contribution(config, query, 7, 1)
            total += layout.encode(method.with_noise(config, values, source))[0]
        sums = layout.decode(total & np.uint64(2**layout.ring_bits - 1))
        assert sums["count"] == num_devices
        errors.append((sums["bins"] - exact) / 2**method.noise.resolution_bits)
    variances, means = np.var(errors, axis=0), np.mean(errors, axis=0)
    np.testing.assert_allclose(variances, 4, rtol=4 * np.sqrt(2 / 250))
    assert np.abs(means).max() < 4 * 2 / np.sqrt(250)


@pytest.mark.slow
@given(st.integers(1, 3000), st.sampled_from([1, 16, 64]), st.data())
def test_every_sum_of_clipped_shares_fits_its_layout(num_devices, num_pivots, data):
    variance = data.draw(st.fractions(Fraction(1, 100), 100, max_denominator=100))
    noise = Noise(variance, data.draw(st.integers(1, num_devices)))
    method, config = NoisyHistogram(noise, num_pivots), search_config(num_devices)
    layout, bound = method.layout(config), noise.bound((num_pivots + 1) * num_devices)
    one = 1 << noise.resolution_bits
    for extreme in (-bound, one + bound):
        for beyond in (0, 1):
            sum_ = num_devices * extreme + (beyond if extreme > 0 else -beyond)
            total = np.full(layout.length, sum_ % 2**layout.ring_bits, dtype=np.uint64)
            total[0] = num_devices
            if beyond:
                with pytest.raises(EncodingError, match="'bins': sums in"):
                    layout.decode(total)
            else:
                assert set(layout.decode(total)["bins"]) == {sum_}


# --- rounds -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    id: int
    weight: int
    value: float

    def loss(self, model) -> float:
        assert bytes(model) == MODEL
        return self.value

    def update(self, model) -> np.ndarray:
        assert bytes(model) == MODEL
        return np.full(4, 0.25 * (self.id % 5 - 2), dtype=np.float32)


SESSIONS = Sessions(
    policy=RoundPolicy(**lenient.ROUNDS, min_cohort=3),
    threat=ThreatModel(0.1, 0.2),
    graph=GraphKind.COMPLETE,
    min_cohort=4,
)
MEMBERS = [Member(7 * i + 1, 10 * i, 0.4 + 0.45 * i) for i in range(8)]


def config_of(**changes) -> RoundConfig:
    return make_config(**({"cohort_size": 8, **NOISY_ROUND} | changes))


def noise_of(seed):
    return lambda client: seeded(seed, client)


def play(backend, config, vanishing=None, warm=500):
    warmed = replace(config, warm_start=warm)
    outcome = play_single(backend, warmed, MODEL, MEMBERS, vanishing=vanishing).outcome
    update = None if outcome.update is None else outcome.update.tobytes()
    return outcome, (
        outcome.search,
        outcome.secure_sums,
        update,
        outcome.kept_weight,
        outcome.kept_devices,
        outcome.train_loss,
        outcome.drops,
        outcome.aborted,
    )


def masked(sessions, seed):
    enrolment = Enrolment(SeededRandomness(b"i" * 32))
    return MaskedRounds(sessions, seeded(9), enrolment=enrolment, noise=noise_of(seed))


LOSSES = {
    "nobody": ({}, Ended.NOISY),
    "before the query": ({8: Vanish(Step(Stage.RECEIPT))}, Ended.NOISY),
    "from the query": ({8: Vanish(Step(Stage.MASK))}, Ended.NOISY),
    "after the query": ({8: Vanish(Step(Stage.UNMASK))}, Ended.NOISY),
    "from the update": ({8: Vanish(Step(Stage.MASK, 1))}, Ended.NOISY),
}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("gone", "ended"), LOSSES.values(), ids=LOSSES)
def test_masked_and_ideal_rounds_with_the_same_noise_are_the_same(gone, ended, signed):
    sessions, config = replace(SESSIONS, signed=signed), config_of()
    outcome, real = play(masked(sessions, 1), config, gone)
    _, ideal = play(IdealRounds(sessions, noise_of(1)), config, gone)
    assert real == ideal
    assert outcome.search.ended is ended
    assert not outcome.search.certified
    assert (outcome.search.num_queries, outcome.secure_sums) == (1, 2)


def test_other_noise_makes_another_round():
    backends = [IdealRounds(SESSIONS, noise_of(seed)) for seed in range(8)]
    found = {play(backend, config_of())[0].search.eta_half_ticks for backend in backends}
    assert len(found) > 4
    system = {play(IdealRounds(SESSIONS), config_of())[0].search.eta_half_ticks for _ in range(6)}
    assert len(system) > 1


def test_a_whole_query_that_a_device_misses_ends_the_search_in_both_backends():
    gone = {8: Vanish(Step(Stage.MASK))}
    config = config_of(min_search_cohort=6)
    outcome, real = play(masked(SESSIONS, 1), config, gone)
    assert real == play(IdealRounds(SESSIONS, noise_of(1)), config, gone)[1]
    assert outcome.search.ended is Ended.SHRANK
    assert (outcome.search.eta_half_ticks, outcome.search.tail) == (0, None)  # all are kept
    assert outcome.secure_sums == 1


def test_a_device_of_no_weight_counts_as_any_other():
    config = config_of()
    layout, query = config.search_layout, config.start_search().query
    for weight in (0, 1, 500):
        answer = DeviceRound.measured(config, 1.5, weight).answer(query, seeded(3))
        light = DeviceRound.measured(config, 1.5, 0).answer(query, seeded(3))
        np.testing.assert_array_equal(answer, light)
        assert layout.decode(answer)["count"] == 1


@pytest.mark.usefixtures("no_query_needed")
def test_theta_one_and_no_budget_ask_nothing():
    outcome, _ = play(IdealRounds(SESSIONS, noise_of(1)), config_of(theta=Fraction(1)))
    assert (outcome.search.ended, outcome.search.certified) == (Ended.EXACT, True)
    assert (outcome.kept_devices, outcome.secure_sums) == (8, 1)
    outcome, _ = play(IdealRounds(SESSIONS, noise_of(1)), config_of(max_queries=0))
    assert (outcome.search.ended, outcome.search.certified) == (Ended.BUDGET, False)
    assert (outcome.search.eta_half_ticks, outcome.kept_devices) == (0, 8)


def test_a_sum_that_no_noise_explains_ends_the_search():
    config = config_of(cohort_size=3)
    layout = config.search_layout
    bound = NOISE.bound(17 * 3)
    for extreme, ended in ((3 * bound, Ended.NOISY), (2 ** (layout.ring_bits - 1), Ended.SHRANK)):
        round_ = Round(replace(config, warm_start=500))
        total = np.zeros(layout.length, dtype=np.uint64)
        total[0], total[1] = 3, extreme
        round_.take(SlotSum(0, total, (1, 2, 3), (1, 2, 3)))
        assert isinstance(round_.question, Threshold)
        assert round_.outcome({}).search.ended is ended


@pytest.mark.parametrize("verified", [False, True])
def test_before_its_answer_a_search_keeps_everybody_whatever_the_warm_start(verified):
    for warm in (None, 0, 500):
        search = NoisyHistogram(NOISE, 2).start(
            search_config(3, warm_start=warm, verified=verified)
        )
        for shrank in (False, True):
            found = search.result(shrank=shrank)
            assert (found.eta_half_ticks, found.tail) == (0, None)


def tails_of_noisy_searches(min_tail):
    """What 100 searches among 60 devices count at least in their tails, and how many there are."""
    method, generator = NoisyHistogram(Noise(Fraction(4), 40), 16), np.random.default_rng(0)
    for number in range(100):
        ticks = (generator.gamma(2, size=60) * 2**GRID.resolution_bits).astype(int)
        config = search_config(60, Fraction(1, 20), warm_start=100_000, min_tail=min_tail)
        found = answered(method, config, ticks, (number,)).result()
        yield found.tail, sum(found.passes(int(tick)) for tick in ticks)


def test_a_noisy_tail_is_as_large_as_it_is_counted_whatever_the_noise():
    tails = list(tails_of_noisy_searches(5))
    assert all(5 <= tail.fewest <= number <= tail.most == 60 for tail, number in tails)
    assert sum(number < 60 for _, number in tails) > 75  # most leave devices out all the same


@pytest.mark.slow
def test_a_noisy_tail_that_is_not_counted_may_be_of_one_device():
    assert min(number for _, number in tails_of_noisy_searches(0)) < 2


def test_where_noise_hides_every_tail_all_are_kept():
    method = NoisyHistogram(Noise(Fraction(400), 9), 2)
    config = search_config(9, min_tail=3)
    found = answered(method, config, [50_000 * i for i in range(9)], (1,)).result()
    assert (found.eta_half_ticks, found.tail.fewest) == (0, 9)


def test_a_sum_over_nobody_keeps_everybody():
    method, config = NoisyHistogram(NOISE, 2), search_config(3)
    search = method.start(config).update({"count": np.array([0]), "bins": np.array([5, -3, 2])})
    found = search.result()
    assert (found.ended, found.eta_half_ticks, found.certified) == (Ended.NO_WEIGHT, 0, False)


# --- noise is drawn once ------------------------------------------------------------------------


class Counted:
    """A source that counts how often it was asked."""

    def __init__(self, *seed):
        self.calls, self._source = 0, seeded(*seed)

    def __call__(self, size):
        self.calls += 1
        return self._source(size)


def at_query(**changes):
    """A device before the query, the query, and the source of its noise."""
    parties = RoundParties(make_config(**NOISY_ROUND | changes))
    source = Counted(4)
    parties.machine._noise = source
    return parties, parties.bring(Point(3)), source


def test_a_device_draws_its_noise_for_the_query_and_for_nothing_else():
    parties, query, source = at_query()
    assert isinstance(wire.decode(query).question, Query)
    assert source.calls == 0
    reply = parties.machine.receive(query)
    assert isinstance(reply, bytes)
    drawn = source.calls
    assert drawn > 17
    parties.go_on()
    assert source.calls == drawn


def test_a_repeated_query_draws_nothing_and_is_not_answered():
    parties, query, source = at_query()
    parties.machine.receive(query)
    drawn = source.calls
    assert parties.machine.receive(query) is None
    assert source.calls == drawn


def test_a_second_query_is_refused_and_draws_nothing():
    parties, query, source = at_query()
    parties.machine.receive(query)
    drawn, asked = source.calls, wire.decode(query)
    pivots = asked.question.pivots
    other = replace(asked, question=Query(NOISY, (*pivots[:-1], pivots[-1] + 1)))
    with pytest.raises(PeerError):
        parties.machine.receive(wire.encode(other))
    assert source.calls == drawn


def test_a_query_that_is_none_of_the_rounds_draws_nothing():
    for question in (
        Query(NOISY, (1, 2)),
        Query("histogram", (1,) * 16),
        Query(NOISY, (2**20,) * 16),
    ):
        parties, query, source = at_query()
        with pytest.raises(PeerError) as refused:
            parties.machine.receive(wire.encode(replace(wire.decode(query), question=question)))
        assert refused.value.reason is Refusal.MALFORMED
        assert source.calls == 0


@pytest.mark.parametrize("method", QUANTILE_METHODS)
def test_exact_methods_draw_no_noise(method):
    parties = RoundParties(make_config(method=method))
    for client in parties.clients.values():
        client._noise = pytest.fail
    assert parties.play().kept_devices > 0


def test_the_noise_comes_from_the_devices_randomness_unless_it_has_a_source_of_its_own():
    parties, _, _ = at_query()
    machine = RoundClient(3, parties.machine._policy, source := Counted(5))
    assert machine._noise is source
    assert RoundClient(3, machine._policy, source, noise=(own := Counted(6)))._noise is own


def test_an_answer_without_noise_is_not_encoded():
    device = Party(1.5, 10, np.zeros(4)).measured(config_of())
    query = device.config.start_search().query
    with pytest.raises(EncodingError, match="not encoded without its noise"):
        device.answer(query)
    exact = replace(device, config=make_config(method="bracketed"))
    exact.answer(Query("bracketed", (5,)), pytest.fail)


# --- refusals -----------------------------------------------------------------------------------


def test_devices_refuse_noise_from_more_than_are_certain_to_be_honest():
    for cohort_size, num_devices, accepted in ((3, 3, True), (4, 4, False), (4, 3, True)):
        noise = Noise(Fraction(1), num_devices)
        config = make_config(**NOISY_ROUND | {"cohort_size": cohort_size, "noise": noise})
        parties = RoundParties(config)  # a sum may be over three
        if accepted:
            assert parties.play().search.ended is Ended.NOISY
        else:
            with pytest.raises(PeerError, match="only 3 are certain") as refused:
                parties.play()
            assert refused.value.reason is Refusal.POLICY


def test_a_whole_query_lets_all_of_its_devices_bring_noise():
    noise = Noise(Fraction(1), 4)
    changes = {"cohort_size": 4, "noise": noise, "min_search_cohort": 4}
    assert RoundParties(make_config(**NOISY_ROUND | changes)).play().search.ended is Ended.NOISY


def test_backends_refuse_what_devices_would():
    for num_devices, accepted in ((5, True), (6, False)):  # a majority is in every sum
        config = config_of(noise=Noise(Fraction(1), num_devices))
        for backend in (masked(SESSIONS, 1), IdealRounds(SESSIONS, noise_of(1))):
            if accepted:
                assert play(backend, config)[0].search.ended is Ended.NOISY
            else:
                with pytest.raises(PeerError, match="only 5 are certain"):
                    play(backend, config)


def test_noise_is_expected_from_the_smallest_cohort_less_those_that_collude():
    sessions = replace(SESSIONS, threat=ThreatModel(0.2, 0.1), min_cohort=12)
    assert sessions.num_noisy(20, 0) == 8
    assert sessions.num_noisy(20, 15) == 11
    wary = replace(sessions, policy=replace(sessions.policy, colluding_rate=0.3))
    assert wary.num_noisy(20, 15) == 9


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weighting": Weighting.SAMPLES}, "weighting='samples' is not for 'noisy'"),
        ({"weighting": Weighting.POWERS_OF_TWO}, "weighting='powers-of-two' is not for"),
        ({"max_queries": 2}, "max_queries=2 is more than the 1 of 'noisy'"),
        ({"epsilon_ticks": 1}, "epsilon_ticks=1 is an option of 'mm' only"),
        ({"noise": Noise(Fraction(1), 9)}, "noise from 9 devices is from more than cohort_size=8"),
        ({"noise": None}, "the noise of 'noisy' is missing"),
        ({"num_pivots": 0}, "num_pivots=0 is less than 1"),
        ({"method": "histogram"}, "noise is no option of 'histogram'"),
    ],
)
def test_impossible_noisy_rounds_are_refused(changes, named):
    config_of()
    with pytest.raises(ConfigurationError, match=named):
        config_of(**changes)


def test_the_registry_builds_the_noisy_method():
    assert quantile_method(NOISY, noise=NOISE) == NoisyHistogram(NOISE, 16)
    assert quantile_method(NOISY, noise=NOISE, num_pivots=5).num_bins == 6
    assert quantile_method(NOISY, noise=NOISE).name == NOISY
    assert quantile_method(NOISY, noise=NOISE).default_max_queries == 1


def test_wrong_sums_and_sums_too_many_are_refused():
    search = NoisyHistogram(NOISE, 2).start(search_config(3))
    for sums in (
        {},
        {"count": np.array([3])},
        {"count": np.array([3]), "bins": np.zeros(2, dtype=np.int64)},
        {"count": np.array([3, 3]), "bins": np.zeros(3, dtype=np.int64)},
    ):
        with pytest.raises(SearchError, match="are not a count and noisy bins"):
            search.update(sums)
    fine = {"count": np.array([3]), "bins": np.zeros(3, dtype=np.int64)}
    with pytest.raises(SearchError, match=r"finished \(noisy\)"):
        search.update(fine).update(fine)
