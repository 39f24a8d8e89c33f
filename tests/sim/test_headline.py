"""The headline: its runs are those that were declared, and its tests are what they say."""

from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from headline_runs import gain, played

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.catalogue import experiment_named
from deltafl.sim.reproduce.declared import (
    SMALL_STEPS,
    STUDIES,
    TUNED,
    TUNING_SHARE,
    Setting,
)
from deltafl.sim.reproduce.experiment import Request, percent_error
from deltafl.sim.reproduce.headline_report import (
    changes_by_rank,
    compare,
    draw_devices,
    draw_tests,
)
from deltafl.sim.reproduce.statistics import compare_over_seeds, holm
from deltafl.sim.reproduce.tuning import divide
from deltafl.sim.settings.config import DataConfig

WRITERS = 24
FIRST = STUDIES[0]
ROUNDS = FIRST.rounds


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Writers with 51 samples each, and one with 50, who is left out."""
    user = np.repeat(np.arange(WRITERS + 1), [*[51] * WRITERS, 50])
    path = tmp_path_factory.mktemp("data") / "w.npz"
    x = np.zeros((len(user), 2, 2), np.uint8)
    np.savez(path, x=x, y=np.arange(len(user)) % 10, user=user)
    return path


def request(archive, out, **settings) -> Request:
    return Request(out=out, data={"mnist-writers": archive}, **settings)


def cells(archive, out, name="headline", **settings):
    return experiment_named(name).cells(request(archive, out, **settings))


class TestDeclaration:
    def test_every_method_has_as_many_settings_to_be_tried_with(self):
        for grid in FIRST.grids.values():
            assert len(set(grid)) == len(grid) == 8

    def test_what_was_chosen_is_on_the_grid(self):
        assert set(FIRST.chosen) == set(FIRST.grids)
        for label, setting in FIRST.chosen.items():
            assert setting in FIRST.grids[label]

    def test_the_smallest_tail_is_chosen_and_the_first_of_equals(self):
        tuning = experiment_named("headline-tuning")
        found = [{"setting": number, "p90_mean": 20.0 + number} for number in range(8)]
        found[3]["p90_mean"] = found[5]["p90_mean"] = 5.0
        assert tuning.best(found) is found[3]
        assert tuning.best([{"setting": 0, "p90_mean": None}]) is None


class TestParts:
    def test_no_device_is_in_both_parts(self, archive, tmp_path):
        parts = divide(DataConfig(source=str(archive), min_samples=50), TUNING_SHARE, tmp_path)
        names = [set(np.load(path)["users"]) for path in (parts.tuning, parts.testing)]
        assert len(names[0]) == WRITERS * TUNING_SHARE
        assert not names[0] & names[1]
        assert names[0] | names[1] == {str(number) for number in range(WRITERS)}

    def test_what_is_there_is_not_written_again(self, archive, tmp_path):
        data = DataConfig(source=str(archive), min_samples=50)
        before = divide(data, TUNING_SHARE, tmp_path).testing.stat().st_mtime_ns
        assert divide(data, TUNING_SHARE, tmp_path).testing.stat().st_mtime_ns == before
        assert divide(replace(data, min_samples=0), TUNING_SHARE, tmp_path).testing.exists()
        assert len(list((tmp_path / "parts").iterdir())) == 4

    def test_data_that_cannot_be_used_are_a_wrong_request(self, archive, tmp_path):
        with pytest.raises(ConfigError, match="51 samples"):
            divide(DataConfig(source=str(archive), min_samples=51), TUNING_SHARE, tmp_path)


class TestCells:
    @pytest.mark.slow
    def test_both_families_run_on_the_devices_that_did_not_tune(self, archive, tmp_path):
        made = cells(archive, tmp_path)
        assert len(made) == FIRST.seeds * sum(map(len, FIRST.families.values()))
        (source,) = {cell.config.data.source for cell in made}
        assert source.endswith("-testing.npz")
        for cell in made:
            small = cell.method.startswith(SMALL_STEPS)
            long = small and "private" not in cell.method
            assert cell.config.federation.rounds == (FIRST.curve if long else ROUNDS)
            assert ROUNDS % cell.config.federation.evaluate_every == 0
            if small:
                assert cell.config.training.learning_rate == FIRST.small_rate
            assert cell.config.federation.cohort_size == 10

    def test_methods_of_a_seed_differ_in_their_own_settings_alone(self, archive, tmp_path):
        made = [cell for cell in cells(archive, tmp_path, seeds=2) if cell.seed == 2]
        assert {cell.config.data.split_seed for cell in made} == {2}
        assert {cell.config.experiment.seed for cell in made} == {2}
        small = [cell.config for cell in made if cell.method.startswith(SMALL_STEPS)]
        assert len({one.data for one in small}) == len({one.training for one in small}) == 1

    def test_private_runs_have_real_masks_and_the_settings_of_delta_fl(self, archive, tmp_path):
        made = {cell.method: cell.config for cell in cells(archive, tmp_path, seeds=1)}
        private = made[f"{TUNED}: private Δ-FL θ=0.5"]
        assert private.privacy.sums == "masked"
        assert private.training == made[f"{TUNED}: Δ-FL θ=0.5"].training

    def test_tuning_reads_the_devices_that_tune(self, archive, tmp_path):
        made = cells(archive, tmp_path, "headline-tuning")
        assert len(made) == len(FIRST.tuned) * 8 * FIRST.tuning_seeds
        (source,) = {cell.config.data.source for cell in made}
        assert source.endswith("-tuning.npz")

    def test_fedavg_is_always_there_to_compare_with(self, archive, tmp_path):
        made = cells(archive, tmp_path, seeds=1, methods=("tilted-erm",))
        assert [cell.method for cell in made] == [
            f"{SMALL_STEPS}: FedAvg",
            f"{TUNED}: FedAvg",
            f"{TUNED}: Tilted-ERM",
        ]

    def test_other_rounds_are_for_all_runs(self, archive, tmp_path):
        made = cells(archive, tmp_path, seeds=1, rounds=3)
        assert {cell.config.federation.rounds for cell in made} == {3}


class TestReport:
    @pytest.fixture
    def report(self, archive, tmp_path):
        wanted = {"seeds": 6, "methods": ("fedavg", "delta-fl-0.5", "private-delta-fl-0.5")}
        made = cells(archive, tmp_path, **wanted)
        finished = played(tmp_path / "runs", made, gain)
        return experiment_named("headline").report(request(archive, tmp_path, **wanted), finished)

    def test_what_is_lower_is_found_lower_and_the_rest_is_not(self, report):
        tests = report.tables[0]
        rows = {row[:2]: row for row in tests.rows}
        assert rows[SMALL_STEPS, "Δ-FL θ=0.5"][8] == "lower"
        assert rows[SMALL_STEPS, "private Δ-FL θ=0.5"][8] == "lower"
        assert rows[TUNED, "Δ-FL θ=0.5"][8] == "no"
        assert [record["round"] for record in tests.records] == [ROUNDS] * 4
        raw = [record["p_runs"] for record in tests.records]
        assert [record["adjusted_p_runs"] for record in tests.records] == list(holm(raw))

    @pytest.mark.slow
    def test_it_has_errors_over_rounds_devices_and_figures(self, report):
        assert [table.name for table in report.tables] == [
            "headline-tests",
            "headline-errors",
            "headline-rounds",
            "headline-devices",
        ]
        assert set(report.figures) == {"headline", "headline-tests", "headline-devices"}
        over_rounds = {row[:2]: row[2:] for row in report.tables[2].rows}
        assert over_rounds[TUNED, "Δ-FL θ=0.5"][-1] == "–"
        assert over_rounds[SMALL_STEPS, "Δ-FL θ=0.5"][-1].startswith(("-1.", "-2."))
        gains = {row[:2]: row[2:] for row in report.tables[3].rows}
        assert all(text.startswith(("-1.", "-2.")) for text in gains[SMALL_STEPS, "Δ-FL θ=0.5"])

    @pytest.mark.slow
    def test_a_trial_says_that_it_is_one(self, report):
        assert any("this is a trial" in note for note in report.notes)
        assert any("Not all of the 14 declared tests" in note for note in report.notes)

    @pytest.mark.slow
    def test_the_declared_runs_are_no_trial_unless_settings_are_given(self, archive, tmp_path):
        made = cells(archive, tmp_path)
        finished = played(tmp_path / "runs", made, gain)
        headline = experiment_named("headline")
        notes = headline.report(request(archive, tmp_path), finished).notes
        assert not any("trial" in note for note in notes)
        given = {"training": {"learning_rate": 3}}
        notes = headline.report(request(archive, tmp_path, overrides=given), finished).notes
        assert any("Settings were given by --set: this is a trial" in note for note in notes)
        fewer = [one for one in finished if one.cell.seed > 1 or "q-FFL" not in one.cell.method]
        notes = headline.report(request(archive, tmp_path), fewer).notes
        assert any("Not all of the 14 declared tests" in note for note in notes)


def arm(errors_of, seeds=range(1, 7), count=30):
    """An arm whose devices err as told, by seed and device."""
    runs = {}
    for seed in seeds:
        devices = [DeviceMetrics(f"d{k}", 9, 1.0, float(errors_of(seed, k))) for k in range(count)]
        runs[seed] = Evaluation(ROUNDS, devices, devices)
    return {ROUNDS: runs}


def test_only_seeds_that_both_have_are_paired():
    arms = {
        (SMALL_STEPS, "FedAvg"): arm(lambda seed, k: 0.2 + (seed * k % 7) / 70),
        (SMALL_STEPS, "Δ-FL θ=0.5"): arm(lambda seed, k: (seed + k) % 9 / 20, (2, 4)),
    }
    (test,) = compare(arms, ROUNDS)
    assert test.tail.pairs == 2
    theirs, ours = (
        [percent_error(one[ROUNDS][seed], 90) / 100 for seed in (2, 4)] for one in arms.values()
    )
    expected = compare_over_seeds(ours, theirs, alternative="less", test_share=0.5)
    assert asdict(test.tail.seeds) == pytest.approx(asdict(expected))
    assert compare(arms, 7) == ()  # nobody was evaluated there


def test_who_seems_worst_served_by_luck_does_not_seem_to_gain():
    """Both methods' errors are noise: ranked in the same seeds, the worst would seem to gain."""
    devices, seeds = 300, range(1, 41)
    ours, theirs = np.random.default_rng(0).uniform(size=(2, 41, devices))
    groups = changes_by_rank(
        arm(lambda seed, k: ours[seed, k], seeds, devices)[ROUNDS],
        arm(lambda seed, k: theirs[seed, k], seeds, devices)[ROUNDS],
    )
    assert groups is not None
    # of 100 devices, each the mean of 20 differences of uniform numbers: four standard deviations
    assert max(map(abs, groups[:3])) < 4 * (2 / 12 / 20 / 100) ** 0.5


def test_the_worst_served_tenth_is_that_of_the_other_tables():
    """Of 19 devices one, as of `compare_worst_served` and `summarise_fairness`."""
    ours, theirs = (arm(of, (1, 2), 19)[ROUNDS] for of in (lambda _, k: k**2, lambda _, k: k))
    assert changes_by_rank(ours, theirs)[-1] == 18**2 - 18


def test_figures_are_drawn_of_what_shows_nothing():
    """No device was tested under both; and two differences that are equal bound nothing."""
    whole = arm(lambda _, k: k / 40, (2, 4))[ROUNDS]
    some, others = (
        {ROUNDS: {seed: replace(one, test=one.test[part]) for seed, one in whole.items()}}
        for part in (slice(3), slice(3, None))
    )
    arms = {(SMALL_STEPS, "FedAvg"): some, (SMALL_STEPS, "Δ-FL θ=0.5"): others}
    draw_devices(arms, ROUNDS, "writers").draw_without_rendering()
    tests = compare(arms, ROUNDS)
    assert np.isinf(tests[0].tail.seeds.low)
    draw_tests(tests, ROUNDS).draw_without_rendering()


def test_settings_say_what_a_run_gets():
    setting = Setting(0.3, 0.6, ("q", 0.1))
    assert str(setting) == "rate 0.3, decay 0.6, q = 0.1"
    assert setting.layer == {
        "training": {"learning_rate": 0.3, "decay": 0.6, "decay_every": 10},
        "strategy": {"q": 0.1},
    }


def test_the_data_must_be_given():
    with pytest.raises(ConfigError, match="mnist-writers"):
        experiment_named("headline").cells(Request(out=Path("unused")))


def test_small_steps_have_the_declared_rate():
    assert FIRST.setting(SMALL_STEPS, FIRST.tuned[0]) == Setting(FIRST.small_rate, 1.0)


def test_a_share_of_rounds_that_no_paper_says_is_refused(archive, tmp_path):
    with pytest.raises(ConfigError, match=r"--rounds 15%: must be a number of rounds"):
        cells(archive, tmp_path, rounds=Fraction(15, 100))
