"""Paired comparisons: what holds at which level, shown on small seeded simulations.

False alarms: every simulation has a fixed seed, so a test that passes once passes always; the
bounds are about three standard errors from what theory says.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.comparison import compare_methods, comparison_table
from deltafl.sim.reproduce.statistics import (
    by_rank_in_other_seeds,
    compare_over_devices,
    compare_over_seeds,
    compare_worst_served,
    error_matrix,
    holm,
)

Z90 = stats.norm.ppf(0.9)
SIMULATIONS, DEVICES, RESAMPLES = 200, 60, 100
three_se = 3 * (0.05 * 0.95 / SIMULATIONS) ** 0.5


def rng(seed=0):
    return np.random.default_rng(seed)


def evaluation(errors, prefix="device"):
    test = [DeviceMetrics(f"{prefix}-{k}", 10, 0.0, float(e)) for k, e in enumerate(errors)]
    return Evaluation(5, test, test)


# --- over seeds


def test_the_t_interval_is_the_textbooks():
    ours, baseline = [0.26, 0.29, 0.27, 0.25], [0.28, 0.30, 0.31, 0.26]
    found = compare_over_seeds(ours, baseline)
    for alternative in ("two-sided", "less"):
        expected = stats.ttest_rel(ours, baseline, alternative=alternative)
        one = compare_over_seeds(ours, baseline, alternative=alternative)
        assert one.p == pytest.approx(expected.pvalue)
    interval = stats.ttest_rel(ours, baseline).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(interval))
    assert found.mean == pytest.approx(-0.02)


@pytest.mark.slow
@given(st.lists(st.integers(1, 99), min_size=2, max_size=8, unique=True), st.randoms())
def test_the_signed_rank_p_is_scipys_where_there_are_no_ties(sizes, random):
    differences = [random.choice((-1, 1)) * size for size in sizes]
    for alternative in ("two-sided", "less"):
        found = compare_over_seeds(differences, np.zeros(len(differences)), alternative=alternative)
        expected = stats.wilcoxon(differences, alternative=alternative, method="exact")
        assert found.p_signed_rank == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_few_seeds_bound_the_p_of_a_rank_test_from_below(seeds):
    differences = -np.arange(1.0, seeds + 1), np.zeros(seeds)
    clear = compare_over_seeds(*differences)
    assert clear.p_sign == clear.p_signed_rank == clear.smallest_p == 2 * 0.5**seeds
    clear = compare_over_seeds(*differences, alternative="less")
    assert clear.p_sign == clear.p_signed_rank == clear.smallest_p == 0.5**seeds


def test_five_seeds_can_not_reach_five_percent_by_signs_and_six_can():
    assert compare_over_seeds(np.arange(5.0), 2 * np.arange(5.0)).smallest_p > 0.05
    assert compare_over_seeds(np.arange(6.0), 2 * np.arange(6.0)).smallest_p < 0.05


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("shift", [-0.05, 0.05])
def test_equal_differences_are_as_sure_as_their_signs_and_no_surer(size, shift):
    """Errors of few samples are coarse: two runs are often apart by exactly as much."""
    base = rng(size).random(size)
    found = compare_over_seeds(base + shift, base)
    assert found.p == found.p_signed_rank == found.smallest_p == 2.0 ** (1 - size)
    again = compare_over_seeds(base + shift, base, test_share=0.5)
    assert again.p_new_devices == found.p
    assert (found.low < 0 < found.high) == (found.p > 0.05)
    # control: what is apart by unlike differences has a t interval, however few they are
    assert np.isfinite(compare_over_seeds(base + shift * np.arange(1.0, size + 1), base).low)


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95, 0.98])
def test_p_is_below_the_rest_of_the_level_where_the_interval_leaves_out_zero(level):
    """Over seeds, over devices, and of equal differences: on both sides, and near zero."""
    seen = set()
    for seed in range(60):
        generator = rng(seed)
        size, shift = int(generator.integers(2, 9)), generator.choice([-0.6, -0.3, 0.0, 0.3, 0.6])
        ours, theirs = generator.normal(0, 0.3, (2, 2, 5 * size)).round(1)
        for found in (
            compare_over_seeds(ours[0][:size] + shift, theirs[0][:size], level=level),
            compare_over_devices(ours + shift, theirs, rng=generator, level=level),
        ):
            leaves_out_zero = found.low > 0 or found.high < 0
            assert (found.p <= 1 - level) == leaves_out_zero
            seen.add((type(found), leaves_out_zero))
    assert len(seen) == 4


def test_few_devices_are_no_evidence_by_themselves():
    """Drawn again and again, one device is always itself."""
    for devices in range(1, 9):
        ours, theirs = np.zeros((3, devices)), np.full((3, devices), 0.1)
        found = compare_over_devices(ours, theirs, rng=rng(), percentile=None)
        assert found.p == max(2 / 2001, 2.0 ** (1 - devices))
        assert np.isfinite(found.low) == (devices >= 6)


def errors_of_devices(seed, seeds=4, devices=60):
    """Errors of devices that differ, and beside it their noise in every seed; in [0, 1]."""
    generator = rng(seed)
    truth = generator.uniform(0.1, 0.6, devices)
    return [generator.binomial(20, truth, (seeds, devices)) / 20 for _ in range(2)]


def worst_served(ours, theirs):
    return (theirs - ours)[:, -6:].mean()


def test_nobody_is_worst_served_by_chance_alone():
    found, naive = [], []
    for seed in range(40):
        ours, theirs = errors_of_devices(seed)
        one = compare_worst_served(ours, theirs)
        found.append((one.mean, one.low <= 0 <= one.high))
        order = theirs.mean(axis=0).argsort()
        naive.append(worst_served(ours[:, order], theirs[:, order]))
    means, hold = np.array(found).T
    assert abs(means.mean()) < 3 * means.std() / 40**0.5
    assert hold.mean() > 0.85
    # control: ranked by what is measured, chance is a gain
    assert np.mean(naive) > 6 * np.std(naive) / 40**0.5


def test_a_gain_of_the_worst_served_is_found():
    for seed in range(5):
        ours, theirs = errors_of_devices(seed)
        worst = theirs.mean(axis=0).argsort()[-12:]
        ours[:, worst] -= 0.25
        found = compare_worst_served(ours, theirs)
        assert found.high < 0
        assert found.p < 0.05


def test_one_seed_or_few_devices_do_not_tell_who_is_served_worst():
    ours, theirs = errors_of_devices(0)
    assert compare_worst_served(ours[:1], theirs[:1]) is None
    assert compare_worst_served(ours[:, :9], theirs[:, :9]) is None
    assert compare_worst_served(ours[:, :10], theirs[:, :10]) is not None


def test_a_seed_has_no_say_in_its_own_ranks():
    theirs = np.array([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1], [0.3, 0.2, 0.1]])
    ours, base = by_rank_in_other_seeds(theirs + 1, theirs)
    assert base[0].tolist() == [0.5, 0.9, 0.1]
    assert base[1].tolist() == [0.3, 0.1, 0.2]
    assert np.array_equal(ours, base + 1)
    own = rng(0).random(50)
    for tied in (0.1, 0.3, 0.7):  # own + tied − own is not always the same
        (kept, _), _ = by_rank_in_other_seeds(*[np.array([own, np.full(50, tied)])] * 2)
        assert np.array_equal(kept, own)


def test_many_seeds_and_ties_are_no_trouble():
    ours = np.tile([0.1, 0.2], 10)
    assert compare_over_seeds(ours, ours + 0.1 + 0.01 * np.arange(20)).p_signed_rank < 0.001
    tied = compare_over_seeds([0.1, 0.2, 0.3], [0.2, 0.3, 0.3])
    assert tied.p_signed_rank == tied.p_sign == 0.5


@pytest.mark.parametrize("size", [2, 3, 5, 8, 14])
def test_rounding_breaks_no_ties(size):
    """Tenths, whose differences are not exact, are tested as the whole numbers are."""
    for ours, baseline in rng(size).integers(0, 7, (5, 2, size)).astype(float):
        check_that_tenths_are_as_whole_numbers(ours, baseline)
    shifted = np.arange(size) + 1.0
    check_that_tenths_are_as_whole_numbers(shifted, shifted + 1)


def check_that_tenths_are_as_whole_numbers(ours, baseline):
    exact, tenths = (compare_over_seeds(ours * by, baseline * by) for by in (1.0, 0.1))
    assert tenths.p_signed_rank == exact.p_signed_rank
    assert tenths.p_sign == exact.p_sign
    assert tenths.p == pytest.approx(exact.p)
    assert np.isfinite(tenths.effect) == np.isfinite(exact.effect)
    new = (
        compare_over_seeds(ours * by, baseline * by, test_share=0.5).p_new_devices
        for by in (1.0, 0.1)
    )
    assert next(new) == pytest.approx(next(new))


def test_differences_that_are_small_but_real_are_not_rounded_away():
    ours = 0.5 - np.array([1e-9, 2e-9, 4e-9])
    found = compare_over_seeds(ours, [0.5] * 3)
    assert found.p_signed_rank == found.p_sign == 1 / 4
    assert found.mean == pytest.approx(-7e-9 / 3, rel=1e-6)


def test_equal_methods_give_no_evidence():
    found = compare_over_seeds([0.1, 0.2], [0.1, 0.2])
    assert (found.mean, found.low, found.high) == (0, -np.inf, np.inf)
    assert (found.p, found.p_signed_rank, found.p_sign) == (1, 1, 1)


def paired_and_unpaired_p(shift):
    """p of both tests over 5 seeds whose difficulty varies more than the methods do."""
    generator = rng(1)
    paired, unpaired = [], []
    for _ in range(SIMULATIONS):
        seed_effect = generator.normal(0, 1, 5)
        ours, theirs = seed_effect + generator.normal(0, 0.3, (2, 5)) + [[shift], [0]]
        paired.append(compare_over_seeds(ours, theirs).p)
        unpaired.append(stats.ttest_ind(ours, theirs).pvalue)
    return np.array(paired), np.array(unpaired)


@pytest.mark.slow
def test_p_over_seeds_is_uniform_where_methods_do_not_differ():
    paired, unpaired = paired_and_unpaired_p(shift=0)
    assert stats.kstest(paired, "uniform").pvalue > 0.01
    # negative control: without the pairs it is not
    assert stats.kstest(unpaired, "uniform").pvalue < 1e-6


@pytest.mark.slow
def test_pairs_of_seeds_give_power():
    paired, unpaired = paired_and_unpaired_p(shift=-0.6)
    assert (paired <= 0.05).mean() > 0.6
    assert (unpaired <= 0.05).mean() < 0.1


@pytest.mark.parametrize(
    ("ours", "baseline", "message"),
    [
        ([0.1], [0.2], "at least two"),
        ([0.1, 0.2], [0.2], "shapes"),
        ([], [], "shapes"),
        ([0.1, float("nan")], [0.2, 0.2], "not finite"),
    ],
)
def test_pairs_that_are_none_are_refused(ours, baseline, message):
    with pytest.raises(ValueError, match=message):
        compare_over_seeds(ours, baseline)


@pytest.mark.parametrize("level", [0, 1, float("nan")])
def test_a_level_is_between_0_and_1(level):
    with pytest.raises(ValueError, match="level="):
        compare_over_seeds([1, 2], [3, 4], level=level)


# --- over devices


def p_over_devices(kind, *, percentile=90):
    """p of the paired bootstrap, of the unpaired one, and of swapping the labels of devices."""
    generator = rng(2)
    found = {"paired": [], "unpaired": [], "swapped": []}
    for _ in range(SIMULATIONS):
        base = generator.normal(0, 1, DEVICES)
        noise = generator.normal(0, 0.3, (2, DEVICES))
        match kind:
            case "same":
                ours, theirs = base + noise
            case "lower":
                ours, theirs = base + noise + [[-0.4], [0]]
            case "traded":  # half the spread, a higher mean, the same 90th percentile
                ours, theirs = 0.5 * (base - Z90), base - Z90
        both = ours[np.newaxis], theirs[np.newaxis]
        with pytest.MonkeyPatch.context() as patched:  # so that many comparisons take no time
            patched.setattr("deltafl.sim.reproduce.statistics.RESAMPLES", RESAMPLES)
            result = compare_over_devices(*both, rng=generator, percentile=percentile)
        found["paired"].append(result.p)
        statistic = np.mean if percentile is None else lambda x, axis: np.percentile(x, 90, axis)
        one, other = generator.integers(DEVICES, size=(2, RESAMPLES, DEVICES))
        apart = statistic(ours[one], axis=1) - statistic(theirs[other], axis=1)
        found["unpaired"].append(2 * min((apart >= 0).mean(), (apart <= 0).mean()))
        swap = generator.random((RESAMPLES, DEVICES)) < 0.5
        swapped = statistic(np.where(swap, ours, theirs), axis=1) - statistic(
            np.where(swap, theirs, ours), axis=1
        )
        observed = statistic(ours, axis=0) - statistic(theirs, axis=0)
        found["swapped"].append((swapped <= observed).mean())
    return {name: np.array(p) for name, p in found.items()}


def test_p_over_devices_is_uniform_for_means():
    p = p_over_devices("same", percentile=None)
    assert stats.kstest(p["paired"], "uniform").pvalue > 0.01
    # negative control: devices drawn apart for the two methods
    assert stats.kstest(p["unpaired"], "uniform").pvalue < 1e-6


@pytest.mark.slow
def test_p_over_devices_keeps_its_level_for_percentiles():
    p = p_over_devices("same")["paired"]
    assert (p <= 0.05).mean() <= 0.05 + three_se
    assert 0.2 < (p <= 0.5).mean() < 0.6  # cautious


@pytest.mark.slow
def test_where_percentiles_are_equal_and_shapes_are_not_swapping_labels_alarms_falsely():
    p = p_over_devices("traded")
    assert (p["paired"] <= 0.05).mean() <= 0.05 + three_se
    assert (p["swapped"] <= 0.05).mean() > 0.05 + three_se


@pytest.mark.slow
def test_pairs_of_devices_give_power():
    p = p_over_devices("lower")
    assert (p["paired"] <= 0.05).mean() > 0.45
    assert (p["unpaired"] <= 0.05).mean() < (p["paired"] <= 0.05).mean() / 2


def test_a_device_seen_under_five_seeds_is_still_one_device():
    ours, theirs = rng(3).normal(0, 1, (2, 1, 40))
    once = compare_over_devices(ours, theirs, rng=rng())
    often = compare_over_devices(
        np.repeat(ours, 5, axis=0), np.repeat(theirs, 5, axis=0), rng=rng()
    )
    assert (often.low, often.high, often.p) == pytest.approx((once.low, once.high, once.p))


def test_equal_models_get_no_star_and_the_same_seed_the_same_numbers():
    errors = rng(4).random((2, 30))
    equal = compare_over_devices(errors, errors, rng=rng())
    assert (equal.difference, equal.low, equal.high) == (0, 0, 0)
    assert equal.p == 1
    other = compare_over_devices(errors, errors**2, rng=rng())
    assert other == compare_over_devices(errors, errors**2, rng=rng())
    assert other != compare_over_devices(errors, errors**2, rng=rng(9))


def test_a_difference_that_is_only_rounding_is_a_tie_of_the_bootstrap():
    """Two seeds cancel: 0.3 - 0.2 is not 0.2 - 0.1 in floating point."""
    ours, theirs = np.full((2, 20), 0.2), np.full((2, 20), 0.3)
    theirs[1] = 0.1
    for mine, other in ((ours, theirs), (theirs, ours)):
        found = compare_over_devices(mine, other, rng=rng(), percentile=None)
        assert found.p == 1


def test_no_bootstrap_is_certain():
    clear = compare_over_devices(np.zeros((1, 20)), np.ones((1, 20)), rng=rng())
    assert clear.p == 2 / 2001


def test_resamples_in_pieces_are_resamples(monkeypatch):
    monkeypatch.setattr("deltafl.sim.reproduce.statistics._CHUNK", 90)
    ours, theirs = rng(5).random((2, 2, 30))
    in_pieces = compare_over_devices(ours, theirs, rng=rng())
    monkeypatch.undo()
    assert in_pieces == compare_over_devices(ours, theirs, rng=rng())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"percentile": 101}, "percentile=101"),
        ({"level": 2}, "level=2"),
        ({"baseline": np.zeros((1, 3))}, "shapes"),
        ({"ours": np.full((1, 2), np.nan)}, "not finite"),
    ],
)
def test_devices_that_can_not_be_compared_are_refused(changes, message):
    arguments = {"ours": np.zeros((1, 2)), "baseline": np.zeros((1, 2)), "rng": rng()} | changes
    with pytest.raises(ValueError, match=message):
        compare_over_devices(**arguments)


# --- several methods


@given(st.lists(st.floats(0, 0.3), max_size=8), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_steps_reject(p_values, level):
    adjusted = holm(p_values)
    rejected = set()
    for rank, index in enumerate(np.argsort(p_values, kind="stable").tolist()):
        if p_values[index] * (len(p_values) - rank) > level:
            break
        rejected.add(index)
    assert {index for index, p in enumerate(adjusted) if p <= level} == rejected
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))


def test_holm_keeps_the_chance_of_any_false_alarm():
    p = rng(6).random((1000, 6))
    assert np.mean([min(holm(row)) <= 0.05 for row in p.tolist()]) < 0.05 + 0.02
    # negative control: uncorrected, one of six alarms falsely far more often
    assert (p.min(axis=1) <= 0.05).mean() > 0.2


def test_p_values_are_probabilities():
    with pytest.raises(ValueError, match="p_values"):
        holm([0.1, float("nan")])


# --- evaluations


def test_devices_are_paired_by_name_and_not_by_place():
    one = evaluation([0.1, 0.2, 0.3])
    shuffled = Evaluation(5, one.train, one.test[::-1])
    ids, errors = error_matrix([one, shuffled])
    assert ids == ("device-0", "device-1", "device-2")
    assert errors.tolist() == [[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "no evaluations"),
        ([evaluation([])], "no test devices"),
        ([evaluation([0.1]), evaluation([0.1], "other")], "split_seed"),
        ([evaluation([0.1]), evaluation([0.1, 0.2])], "split_seed"),
    ],
)
def test_seeds_with_other_devices_can_not_be_lined_up(runs, message):
    with pytest.raises(ValueError, match=message):
        error_matrix(runs)


def test_methods_with_other_devices_can_not_be_compared():
    with pytest.raises(ValueError, match="split_seed"):
        compare_methods({"a": [evaluation([0.1])], "b": [evaluation([0.1], "other")]}, baseline="a")


def three_methods(seeds):
    base = rng(7).random((seeds, 40)) * 0.5
    return {
        "FedAvg": [evaluation(row) for row in base],
        "better": [evaluation(row * (1 - 0.3 * row - 0.02 * k)) for k, row in enumerate(base)],
        "worse": [evaluation(row * (1 + 0.2 * row)) for row in base],
    }


def better_over_seeds(one):
    return one.seeds.mean, one.seeds.low, one.seeds.high


def test_a_table_of_methods_shows_intervals_and_corrected_p():
    fedavg, better, worse = compare_methods(methods := three_methods(4), baseline="FedAvg")
    del methods["better"]  # devices are drawn alike whoever else is compared
    assert worse.devices == compare_methods(methods, baseline="FedAvg")[-1].devices
    assert fedavg.seeds is fedavg.devices is fedavg.adjusted_p_seeds is None
    assert better.seeds.high < 0 < worse.seeds.low
    assert better.devices.high < 0 < worse.devices.low
    both = holm([better.devices.p, worse.devices.p])
    assert (better.adjusted_p_devices, worse.adjusted_p_devices) == both
    assert worse.adjusted_p_seeds < 0.05  # worse is no chance either
    assert better.estimate == (*better_over_seeds(better), better.adjusted_p_seeds, "runs")
    assert fedavg.estimate is None
    assert better.seeds.mean == pytest.approx(better.mean - fedavg.mean)
    assert better.devices.difference == pytest.approx(better.seeds.mean)
    table = comparison_table("comparison", "title", [fedavg, better, worse])
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert table.rows[0][3:] == ("–",) * 10
    assert table.rows[1][3].startswith("-")
    assert table.rows[2][3].startswith("+")
    assert table.records[1]["smallest_p"] == 1 / 8


def test_one_seed_leaves_only_the_devices_to_compare():
    _, better, _ = compare_methods(three_methods(1), baseline="FedAvg", percentile=None)
    assert better.seeds is better.std is better.adjusted_p_seeds is None
    assert better.adjusted_p_devices <= 2 * better.devices.p < 0.01
    table = comparison_table("n", "t", [better])
    assert better.estimate.over == "devices"
    assert "p over devices (two-sided)" in table.columns
    assert not any("over runs" in name for name in table.columns)


def test_what_all_devices_of_a_run_have_in_common_is_no_difference_of_methods():
    """Two runs of one method are apart on nearly all devices alike, one way or the other."""
    base = rng(8).uniform(0.2, 0.5, 40)
    shift = np.array([0.03, 0.05, -0.02, 0.04, 0.0])[:, np.newaxis]
    methods = {"other": base + shift, "FedAvg": np.tile(base, (5, 1))}
    evaluations = {name: [evaluation(row) for row in rows] for name, rows in methods.items()}
    found, _ = compare_methods(evaluations, baseline="FedAvg", percentile=None)
    assert found.seeds.low < 0 < found.seeds.high
    assert (found.devices.p, found.devices.low) == (found.seeds.p, found.seeds.low)
    # control: as these runs were trained, nothing is surer
    alone = compare_over_devices(methods["other"], methods["FedAvg"], rng=rng(), percentile=None)
    assert alone.p < 0.01


def test_the_baseline_is_one_of_the_methods():
    with pytest.raises(ValueError, match="'SGD' is not among"):
        compare_methods(three_methods(2), baseline="SGD")


# --- effects, and splits of the same devices


def test_the_effect_is_in_standard_deviations_of_the_differences():
    ours, baseline = np.array([0.26, 0.29, 0.27]), np.array([0.28, 0.30, 0.31])
    differences = ours - baseline
    found = compare_over_seeds(ours, baseline)
    assert found.effect == pytest.approx(differences.mean() / differences.std(ddof=1))
    assert compare_over_seeds([0.25, 0.5], [0.5, 0.75]).effect == -np.inf
    assert np.isnan(compare_over_seeds([0.25, 0.5], [0.25, 0.5]).effect)
    # the mean of equal numbers is not always that number
    for size in (3, 5, 6, 7):
        assert compare_over_seeds(np.zeros(size), np.full(size, 0.1)).effect == -np.inf


def test_overlapping_splits_count_as_fewer_than_they_are():
    """The variance of the mean is (1 / n + test / train) times that of a difference."""
    ours, baseline = [0.26, 0.29, 0.27, 0.25], [0.28, 0.30, 0.31, 0.26]
    differences = np.subtract(ours, baseline)
    error = differences.std(ddof=1) * (1 / 4 + 0.2 / 0.8) ** 0.5
    expected = stats.t.cdf(differences.mean() / error, 3)
    found = compare_over_seeds(ours, baseline, test_share=0.2).p_new_devices
    assert found == pytest.approx(2 * expected)
    found = compare_over_seeds(ours, baseline, test_share=0.2, alternative="less").p_new_devices
    assert found == pytest.approx(expected)
    assert found > compare_over_seeds(ours, baseline, alternative="less").p


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="test_share"):
        compare_over_seeds([0.1, 0.2], [0.1, 0.3], test_share=share)
    with pytest.raises(ValueError, match="one pair"):
        compare_over_seeds([0.1], [0.1], test_share=0.5)
