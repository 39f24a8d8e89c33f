"""Statistics by secure sums are those of NumPy, bounds hold, and too few devices are not asked."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.protocol.noise import Noise
from deltafl.secagg import ThreatModel
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.session import NoObserver
from deltafl.secagg.stages import Stage, Step, Vanish
from deltafl.sim.analyse import analysis
from deltafl.sim.analyse.analysis import Guard, analyse_tables
from deltafl.sim.analyse.deduction import Deduction
from deltafl.sim.analyse.plan import Plan
from deltafl.sim.analyse.privacy import noise_of, rho_of_sums
from deltafl.sim.analyse.question import HOLDERS, STATISTICS, Question, sums_of
from deltafl.sim.errors import UserError
from deltafl.sim.run.accounting import DELTA
from deltafl.sim.run.bound import rounded_up

LOW, HIGH, CAP = 0, 100, 4
GUARD = Guard(min_cohort=5, threat=ThreatModel(0.0, 0.1))
TABLES = {
    i: np.random.default_rng(i).integers(-20, 130, size=i % 7).astype(np.float64) for i in range(12)
}


def capped(tables=TABLES):
    return np.concatenate([rows[:CAP] for rows in tables.values()])


def asked(statistic, tables=TABLES, guard=GUARD, **more):
    given_cap = {"cap": CAP, **more}
    return analyse_tables(tables, Question(statistic, LOW, HIGH, **given_cap), guard)


# --- without noise: to the last bit --------------------------------------------------------------


def test_a_mean_of_rows_whose_sum_is_too_large_is_found():
    asked = Question("mean", -10, 10, of="devices")
    many = np.tile([1e308] * 4 + [-1e308] * 4, 20)
    assert asked.of_device(many).values.tolist() == [0.0]
    assert asked.of_device(np.array([1e308] * 3)).values.tolist() == [10.0]


def test_ends_of_ranges_may_be_of_any_type_of_numbers():
    asked = Question("mean", np.float32(-0.5), np.int64(8))
    assert (asked.low, asked.high) == (-0.5, 8.0)
    assert asked == Question("mean", -0.5, 8)
    assert Question("mean", -(10**60), 10**60).of_device(np.zeros(1)).outside == 0
    with pytest.raises(UserError, match="high: it is too large"):
        Question("mean", 0, 10**400)


@pytest.mark.slow
def test_statistics_are_those_of_numpy():
    values = capped()
    clipped = np.clip(values, LOW, HIGH)
    is_outside = values != clipped
    found = {name: asked(name) for name in STATISTICS}
    assert found["count"].value == len(values) - is_outside.sum()
    # whole numbers are not rounded, so that these are the exact quotients
    assert found["mean"].value == float(Fraction(int(clipped.sum()), len(clipped)))
    assert found["variance"].value == pytest.approx(clipped.var(), rel=1e-12)
    assert found["histogram"].value == np.histogram(clipped, 10, (LOW, HIGH))[0].tolist()
    quantile = np.quantile(clipped, 0.5, method="inverted_cdf")
    assert abs(found["quantile"].value - quantile) <= found["quantile"].plus_minus
    for answer in found.values():
        assert answer.outside == is_outside.sum() > 0
        assert answer.left_out == sum(map(len, TABLES.values())) - len(values) > 0
        assert answer.holders == sum(len(rows) > 0 for rows in TABLES.values())
        assert answer.devices == answer.invited == len(TABLES)
        assert answer.epsilon is None


@pytest.mark.slow
@pytest.mark.parametrize("level", [Fraction(1, 100), Fraction(1, 3), Fraction(9, 10)])
def test_quantiles_of_many_levels(level):
    clipped = np.clip(capped(), LOW, HIGH)
    answer = asked("quantile", level=level)
    expected = np.quantile(clipped, float(level), method="inverted_cdf")
    assert abs(answer.value - expected) <= answer.plus_minus
    assert answer.count == len(clipped)


@pytest.mark.slow
def test_of_devices_each_has_one_value_the_mean_of_all_its_rows():
    means = np.array([rows.mean() for rows in TABLES.values() if len(rows)])
    clipped = np.clip(means, LOW, HIGH)
    answer = asked("mean", of="devices")
    assert answer.count == len(means)
    assert abs(answer.value - clipped.mean()) <= answer.step / 2
    assert answer.left_out == 0


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6), max_size=6), min_size=2, max_size=6),
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e3),
)
@settings(max_examples=50)
def test_what_a_device_contributes_is_within_its_bounds(tables, low, width):
    for statistic in STATISTICS:
        question = Question(statistic, low, low + width, cap=3)
        for rows in tables:
            part = question.of_device(np.array(rows))
            assert len(part.values) == min(3, len(rows))
            for one in sums_of(question):
                numbers = one.of(part)
                assert numbers.shape == (one.size,)
                assert numbers.min() >= 0
                assert numbers.max() <= one.most


def test_one_device_can_move_a_mean_no_further_than_its_cap_and_range():
    tables = {i: np.full(3, 50.0) for i in range(9)}
    before = asked("mean", tables).value
    after = asked("mean", {**tables, 9: np.full(1000, 1e300)})
    assert before == 50
    assert after.value == float(Fraction(27 * 50 + CAP * HIGH, 27 + CAP))
    assert (after.outside, after.left_out) == (CAP, 996)


# --- who is asked --------------------------------------------------------------------------------


class Revealed(NoObserver):
    def __init__(self):
        self.sums = []

    def revealed(self, total):
        self.sums.append(total)


@pytest.mark.parametrize("statistic", ["mean", "quantile"])
def test_of_too_few_devices_with_rows_nothing_more_is_asked(statistic):
    tables = {i: np.array([7.0] if i < 4 else []) for i in range(9)}
    observer = Revealed()
    question = Question(statistic, LOW, HIGH)
    with pytest.raises(UserError, match="4 devices have a row that counts"):
        analyse_tables(tables, question, GUARD, observer=observer)
    assert [total.vector.tolist() for total in observer.sums] == [[4]]


def test_one_more_device_with_rows_is_enough():
    tables = {i: np.array([7.0] if i < 5 else []) for i in range(9)}
    assert asked("mean", tables).value == 7


def test_too_few_devices_are_refused():
    with pytest.raises(UserError, match="4 devices are fewer"):
        asked("mean", {i: np.ones(2) for i in range(4)})


@pytest.mark.slow
def test_devices_that_vanish_are_left_out():
    gone = {i: Vanish(Step(Stage.MASK, 1)) for i in (3, 4)}
    question = Question("mean", LOW, HIGH, cap=CAP)
    answer = analyse_tables(TABLES, question, GUARD, vanishing=gone)
    left = {i: rows for i, rows in TABLES.items() if i not in gone}
    clipped = np.clip(capped(left), LOW, HIGH)
    assert answer.devices == len(left)
    assert answer.value == float(Fraction(int(clipped.sum()), len(clipped)))


@pytest.mark.slow
def test_a_search_that_loses_a_device_ends_with_what_is_known():
    question = Question("quantile", LOW, HIGH, cap=CAP)
    gone = {3: Vanish(Step(Stage.MASK, 5))}
    answer = analyse_tables(TABLES, question, GUARD, vanishing=gone)
    assert answer.secure_sums == 5  # holders, bounds, and three queries
    assert LOW <= answer.value <= HIGH


def test_a_threat_that_no_session_withstands_is_refused():
    few = {i: np.ones(2) for i in range(6)}
    with pytest.raises(UserError, match="no threshold is both safe and reachable"):
        asked("mean", few, Guard(5, ThreatModel(0.4, 0.5)))


# --- with noise ----------------------------------------------------------------------------------


@pytest.fixture
def seeded(monkeypatch):
    source = SeededRandomness(b"n" * 32)
    monkeypatch.setattr(analysis, "system_randomness", source)


@pytest.mark.slow
def test_noise_has_the_variance_that_is_accounted_for(seeded):
    bins, sigma = 400, Fraction(3)
    tables = {i: np.array([50.0]) for i in range(8)}
    answer = asked("histogram", tables, bins=bins, cap=1, noise=sigma)
    noise = np.array(answer.value) - np.histogram([50.0] * 8, bins, (LOW, HIGH))[0]
    fewest = 5  # without colluding devices, as many as the smallest cohort
    ratio = noise.var() / (9 * len(tables) / fewest)  # all eight add their share
    assert abs(ratio - 1) < 5 * math.sqrt(2 / bins)
    assert abs(noise.mean()) < 5 * math.sqrt(9 * 8 / 5 / bins)


@pytest.mark.slow
@pytest.mark.parametrize("statistic", STATISTICS)
def test_noise_is_announced_and_hides_what_bounds_have_done(statistic, seeded):
    answer = asked(statistic, noise=Fraction(1, 4))
    assert answer.outside is answer.left_out is None
    assert answer.secure_sums == 2
    assert answer.delta == DELTA
    assert answer.epsilon > 0


def test_rho_is_that_of_gaussians_of_as_many_sums():
    sigma, num = Fraction(2), 10
    for statistic, squares in {"count": 2, "mean": 3, "variance": 4, "histogram": 3}.items():
        question = Question(statistic, LOW, HIGH, cap=CAP, noise=sigma)
        sums = (HOLDERS, *sums_of(question))
        # one for each number, and two of the bins, each changed by a half of σ at most
        assert rho_of_sums(sums, sigma, num) == pytest.approx(squares / (2 * 4), rel=1e-9)


def test_each_device_brings_its_share():
    question = Question("mean", LOW, HIGH, cap=CAP, noise=Fraction(2))
    for one in sums_of(question):
        noise = noise_of(one, question.noise, 10)
        assert noise == Noise(Fraction(2 * one.most) ** 2, 10)


@pytest.mark.slow
def test_colluding_devices_bring_no_noise(seeded):
    bins, sigma, num = 400, Fraction(3), 10
    tables = {i: np.array([50.0]) for i in range(num)}
    guard = Guard(8, ThreatModel(0.5, 0.0))  # of eight, five collude
    answer = asked("histogram", tables, guard, bins=bins, cap=1, noise=sigma)
    noise = np.array(answer.value) - np.histogram([50.0] * num, bins, (LOW, HIGH))[0]
    ratio = noise.var() / (9 * num / 3)
    assert abs(ratio - 1) < 5 * math.sqrt(2 / bins)


# --- what cannot be asked ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"statistic": "mode"}, "mode"),
        ({"low": 3.0, "high": 3.0}, "range 3 3"),
        ({"low": math.nan}, "range nan"),
        ({"high": math.inf}, "range 0 inf"),
        ({"low": -1e308, "high": 1e308}, "range -1e"),
        ({"cap": 0}, "cap 0"),
        ({"bins": 0}, "bins 0"),
        ({"bins": 1 << 20}, "bins 1048576"),
        ({"level": Fraction(1)}, "level 1"),
        ({"level": Fraction(0)}, "level 0"),
        ({"noise": Fraction(-1)}, "noise -1"),
        ({"of": "rows"}, "rows"),
    ],
)
def test_impossible_questions_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        Question(**{"statistic": "mean", "low": 0.0, "high": 1.0, **changes})


def test_sums_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="cannot be found"):
        asked("variance", cap=1 << 20)


@pytest.mark.parametrize(
    ("low", "high", "named"),
    [
        (0, 2e201, "must lie within"),
        (0, 1e-322, "no narrower than 1e-100"),
        (2.0**53, 2.0**53 + 4, "only known to 2"),
        ("0", 1, "low '0'"),
        (0, True, "high True"),
    ],
)
def test_ranges_that_numbers_cannot_fill_are_refused(low, high, named):
    with pytest.raises(UserError, match=named):
        Question("mean", low, high)


@pytest.mark.parametrize("low", [-1e100, -5.0, 2.0**53])
def test_the_widest_and_finest_ranges_are_answered(low):
    tables = {i: np.array([low + 1e100 / 4]) for i in range(12)}
    answer = analyse_tables(tables, Question("variance", low, low + 1e100), GUARD)
    assert answer.value == 0


@pytest.mark.parametrize("count", [True, 1, 2.5])
def test_a_smallest_cohort_is_a_whole_number_from_two_on(count):
    with pytest.raises(UserError, match="min_cohort"):
        Guard(min_cohort=count)


# --- what noise does to an answer -----------------------------------------------------------------


def noisy(statistic, found, **more):
    """What an analysis with noise makes of sums."""
    question = Question(statistic, -5, 5, noise=Fraction(1), cap=1, **more)
    deduced = Deduction(Plan(question, GUARD, 12), lambda *_: None)
    return deduced._found(
        {name: [Fraction(one) for one in numbers] for name, numbers in found.items()}
    )


def test_what_noise_has_moved_out_of_the_range_is_moved_back():
    assert noisy("mean", {"count": [3], "sum": [10**6]})[0] == 5
    assert noisy("mean", {"count": [3], "sum": [-7]})[0] == -5
    variance = noisy("variance", {"count": [3], "sum": [1500], "squares": [10**9]})[0]
    assert variance == pytest.approx(25, rel=0.05)
    assert noisy("count", {"count": [-3]})[0] == -3  # no bias


@settings(max_examples=200)
@given(
    st.lists(st.integers(-50 << 10, 400 << 10), min_size=10, max_size=10),
    st.fractions(min_value=Fraction(1, 100), max_value=Fraction(99, 100), max_denominator=100),
)
def test_a_quantile_of_noisy_bins_is_in_the_range(bins, level):
    found = {"bins": [Fraction(one, 1 << 10) for one in bins]}
    value, plus_minus = noisy("quantile", found, bins=10, level=level)
    assert value is None or -5 <= value <= 5
    assert 0 <= plus_minus <= 10


def test_devices_with_rows_are_at_least_none_and_at_most_those_summed(monkeypatch):
    plan = Plan(Question("count", 0, 2, noise=Fraction(30), cap=1), GUARD, 12)
    monkeypatch.setattr(Deduction, "_sum_all", lambda *_: ({"holders": [told]}, 12))
    deduced = Deduction(plan, lambda *_: None)
    told = Fraction(99)
    assert deduced._count_holders() == 12
    told = Fraction(-9)
    spent = rounded_up(plan.epsilon(HOLDERS))
    with pytest.raises(UserError, match=rf"^0 devices .* has spent ε = {spent} at"):
        deduced._count_holders()


def test_a_noisy_quantile_says_how_far_noise_moves_it():
    """As if counted by hand: ranks off by σ·sqrt(bins/2), and half a bin."""
    value, off = noisy("quantile", {"bins": [10] * 10}, bins=10)
    assert value == pytest.approx(0)
    assert off == pytest.approx(math.sqrt(5) / 10 + 0.5)
    value, off = noisy("quantile", {"bins": [0, 0, 50, -3, 0, 0, 0, 50, 0, 0]}, bins=10)
    assert -3 <= value <= -2
    assert noisy("quantile", {"bins": [0] * 10}, bins=10) == (None, 0.0)


def test_a_noisy_mean_says_how_far_noise_moves_it(seeded):
    """The spread of many answers is about the one that each prints."""
    tables = {i: np.array([float(i % 5)]) for i in range(40)}
    question = Question("mean", 0, 8, noise=Fraction(1), cap=1)
    guard = Guard(min_cohort=30, threat=ThreatModel(0.0, 0.0))
    answers = [analyse_tables(tables, question, guard) for _ in range(40)]
    spread = np.std([one.value for one in answers])
    assert 0.6 < spread / np.mean([one.plus_minus for one in answers]) < 1.5
