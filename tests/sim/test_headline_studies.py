"""The headline's studies: equal grids, chosen where nobody is tested, and the first as it was."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from headline_runs import gain, played

from deltafl.fl.data.shakespeare import ALPHABETS
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.reproduce.catalogue import experiment_named
from deltafl.sim.reproduce.declared import (
    MARGIN,
    RATES,
    SMALL_STEPS,
    STUDIES,
    TUNED,
    Setting,
    study_of,
)
from deltafl.sim.reproduce.experiment import Request
from deltafl.sim.reproduce.headline import small_rate_of
from deltafl.sim.reproduce.statistics import holm
from deltafl.sim.reproduce.tasks import task_named
from deltafl.sim.reproduce.tuning import divide
from deltafl.sim.settings.config import DataConfig

MNIST_LINEAR, *OTHERS = STUDIES
DATA = {
    "mnist-linear": "mnist-writers",
    "unipen-digits-linear": "unipen-digits",
    "unipen-lower-linear": "unipen-lower",
    "unipen-all-linear": "unipen-all",
    "schools-logistic": "schools",
    "mnist-convnet": "mnist-writers",
    "plays-gru": "plays",
}


def named(study):
    return study.task


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Sixteen devices of 101 samples for each data set, and one that is too small."""
    user = np.repeat(np.arange(17), [*[101] * 16, 20])
    found = {}
    for name in set(DATA.values()) - {"plays"}:
        found[name] = tmp_path_factory.mktemp("data") / f"{name}.npz"
        shape = (len(user), 5) if name == "schools" else (len(user), 28, 28)
        x = np.zeros(shape, np.float32 if name == "schools" else np.uint8)
        np.savez(found[name], x=x, y=np.arange(len(user)) % 2, user=user)
    found["plays"] = tmp_path_factory.mktemp("data") / "plays.json"
    texts = {f"role {k:03}": {"raw": "To be or not, " * 20} for k in range(200)}
    counts = [280 - 20] * len(texts)
    whole = {"users": list(texts), "num_samples": counts, "user_data": texts}
    found["plays"].write_text(json.dumps(whole))
    return found


def devices_in(source):
    """The names in a file of a part."""
    if source.endswith(".json"):
        return set(json.loads(Path(source).read_text())["users"])
    return set(np.load(source)["users"])


def asked(archives, out, study, **settings) -> Request:
    data = {DATA[study.task]: archives[DATA[study.task]]}
    return Request(out=out, data=data, models=(study.task,), **settings)


@pytest.mark.parametrize("study", OTHERS, ids=named)
class TestDeclaration:
    def test_every_method_has_as_many_settings_and_the_same_rates(self, study):
        rates = {setting.rate for setting in study.grids["FedAvg"]}
        assert [method.label for method in study.tuned] == list(study.grids)
        for grid in study.grids.values():
            assert len(set(grid)) == len(grid) == len(study.grids["FedAvg"])
            assert {setting.rate for setting in grid} == rates
            assert {setting.decay for setting in grid} >= {1.0, 0.6}

    def test_what_was_chosen_is_on_the_grid(self, study):
        assert set(study.chosen) == set(study.grids)
        for label, setting in study.chosen.items():
            assert setting in study.grids[label]

    def test_the_small_rate_was_tried(self, study):
        assert study.small_rate in RATES

    def test_both_families_have_fedavg_to_compare_with(self, study):
        assert {methods[0].label for methods in study.families.values()} == {"FedAvg"}
        assert study.num_tests == sum(len(one) - 1 for one in study.families.values())


@pytest.mark.parametrize("study", STUDIES, ids=named)
class TestCells:
    def test_no_device_that_is_tested_has_tuned(self, study, archives, tmp_path):
        request = asked(archives, tmp_path, study, seeds=1, methods=("fedavg",))
        made = {
            name: experiment_named(name).cells(request)
            for name in ("headline-rates", "headline-tuning", "headline")
            if study is not MNIST_LINEAR or name != "headline-rates"
        }
        sources = {
            name: {cell.config.data.source for cell in cells} for name, cells in made.items()
        }
        devices = {name: devices_in(source) for name, (source,) in sources.items()}
        tested = devices.pop("headline")
        quarter = 50 if study.task == "plays-gru" else 4
        assert len(tested) == 3 * quarter
        for tuning in devices.values():
            assert len(tuning) == quarter
            assert not tuning & tested

    def test_runs_have_the_declared_rounds_and_settings(self, study, archives, tmp_path):
        request = asked(archives, tmp_path, study, seeds=1)
        made = experiment_named("headline").cells(request)
        methods = {
            (family, method.label): method
            for family, own in study.families.items()
            for method in own
        }
        assert [tuple(cell.method.split(": ")) for cell in made] == list(methods)
        for cell in made:
            family, label = cell.method.split(": ")
            setting = study.setting(family, methods[family, label])
            if family == SMALL_STEPS:
                assert setting == Setting(study.small_rate, 1.0)
            else:
                assert setting == study.chosen[label.removeprefix("private ")]
            assert cell.config.training.learning_rate == setting.rate
            assert cell.config.training.decay == setting.decay
            assert cell.config.federation.cohort_size == 10
            assert cell.config.training.backend == "batched"
            of_data = 200 if "unipen" in study.task else 100 if study.task == "plays-gru" else 0
            assert cell.config.data.max_samples == (study.max_samples or of_data)
            method = methods[family, label]
            assert cell.config.federation.rounds == study.rounds_of(family, method)


def test_the_first_study_is_as_it_was_declared():
    assert STUDIES[0] is MNIST_LINEAR is study_of("mnist-linear")
    assert (MNIST_LINEAR.seeds, MNIST_LINEAR.tuning_seeds, len(MNIST_LINEAR.grids["AFL"])) == (
        12,
        2,
        8,
    )
    assert (MNIST_LINEAR.rounds, MNIST_LINEAR.curve, MNIST_LINEAR.every) == (50, 100, 10)
    assert (MNIST_LINEAR.small_rate, MNIST_LINEAR.num_tests) == (0.05, 14)
    assert not MNIST_LINEAR.only_if_named
    assert MNIST_LINEAR.max_samples == 0
    clear = ["Δ-FL θ=0.8", "Δ-FL θ=0.5", "Δ-FL θ=0.1"]
    small, tuned = (
        [method.label for method in MNIST_LINEAR.families[family]]
        for family in (SMALL_STEPS, TUNED)
    )
    assert small == ["FedAvg", *clear, *(f"private {label}" for label in clear)]
    assert tuned == [*MNIST_LINEAR.grids, "private Δ-FL θ=0.5"]
    assert list(MNIST_LINEAR.grids) == ["FedAvg", "FedProx", "q-FFL", "Tilted-ERM", "AFL", *clear]
    constants = {
        "FedProx": (0.01, 0.1),
        "q-FFL": (0.1, 1),
        "Tilted-ERM": (0.5, 2),
        "AFL": (0.01, 0.1),
    }
    for label, grid in MNIST_LINEAR.grids.items():
        own = constants.get(label, (None,))
        rates = (0.3, 1.0) if label in constants else (0.1, 0.3, 1.0, 2.0)
        assert [(one.rate, one.decay, one.constant and one.constant[1]) for one in grid] == [
            (rate, decay, value) for rate in rates for decay in (1.0, 0.6) for value in own
        ]
    assert {str(setting) for setting in MNIST_LINEAR.chosen.values()} == {
        "rate 2, decay 0.6",
        "rate 1, decay 0.6, proximal = 0.01",
        "rate 1, decay 0.6, q = 0.1",
        "rate 1, decay 0.6, tilt = 0.5",
        "rate 1, decay 0.6, mixture_rate = 0.1",
        "rate 1, decay 0.6",
        "rate 0.3, decay 0.6",
        "rate 0.1, decay 1",
    }


def test_data_alone_ask_for_the_first_study_and_not_for_the_long_one(archives, tmp_path):
    data = {"mnist-writers": archives["mnist-writers"]}
    request = Request(out=tmp_path, data=data, seeds=1, methods=("fedavg",))
    made = experiment_named("headline").cells(request)
    assert {cell.task for cell in made} == {"mnist-linear"}
    made = experiment_named("headline").cells(replace(request, models=("convnet",)))
    assert {cell.task for cell in made} == {"mnist-convnet"}
    assert {cell.config.model.name for cell in made} == {"convnet"}


def test_the_small_rate_is_the_smallest_that_is_nearly_as_good():
    assert small_rate_of({0.1: 30.0, 0.2: 20.0 + MARGIN, 0.5: 20.0, 1.0: 40.0}) == 0.2
    assert small_rate_of({0.1: 20.1 + MARGIN, 0.2: 20.0}) == 0.2
    assert small_rate_of({}) is None


def test_tests_of_several_studies_are_corrected_for_all_of_them(archives, tmp_path):
    wanted = {"seeds": 6, "methods": ("fedavg", "delta-fl-0.5")}
    data = {name: archives[name] for name in ("mnist-writers", "schools")}
    request = Request(out=tmp_path, data=data, **wanted)
    made = experiment_named("headline").cells(request)
    assert {cell.task for cell in made} == {"mnist-linear", "schools-logistic"}
    report = experiment_named("headline").report(request, played(tmp_path / "runs", made, gain))
    names = [table.name for table in report.tables]
    assert len(set(names)) == len(names) == 9
    assert set(report.figures) == {
        "headline",
        "headline-tests",
        "headline-devices",
        "headline-schools-logistic",
        "headline-tests-schools-logistic",
        "headline-devices-schools-logistic",
    }
    tests = [table for table in report.tables if "headline-tests" in table.name]
    assert ["p for new writers" in table.columns for table in tests] == [True, False]
    together = report.tables[-1]
    raw = [record["p_runs"] for record in together.records]
    assert len(raw) == sum(len(table.rows) for table in tests) == 4
    assert [record["together_p"] for record in together.records] == list(holm(raw))
    assert [record["adjusted_p_runs"] for record in together.records] == [
        record["adjusted_p_runs"] for table in tests for record in table.records
    ]
    lower = [row[-1] for row in together.rows]
    assert lower == ["lower" if SMALL_STEPS in row else "no" for row in together.rows]
    trials = [note for note in report.notes if "this is a trial" in note]
    assert {note.split(": ")[0] for note in trials} == {"mnist-linear", "schools-logistic"}


def test_rates_are_reported_with_the_one_that_the_rule_chooses(archives, tmp_path):
    study = study_of("schools-logistic")
    request = asked(archives, tmp_path, study)
    rates = experiment_named("headline-rates")
    made = rates.cells(request)
    assert len(made) == len(RATES) * study.tuning_seeds
    assert {cell.config.federation.algorithm for cell in made} == {"fedavg"}

    def worse_when_small(cell, at):
        return 0.2 if cell.config.training.learning_rate < 0.1 else 0.0

    finished = played(tmp_path / "runs", made, worse_when_small)
    whole, cut = (
        rates.report(request, finished),
        rates.report(request, finished[study.tuning_seeds :]),
    )
    for report in (whole, cut):
        (table,) = report.tables
        assert [row[1] for row in table.rows if row[2].startswith("**")] == ["rate 0.1, decay 1"]
    assert cut.tables[0].rows[0][2] == "–"  # the first point diverged
    assert ["without a number" in one.notes[-1] for one in (whole, cut)] == [False, True]


def test_every_task_of_a_study_is_known():
    assert [task_named(study.task).name for study in STUDIES] == list(DATA)


def test_a_part_of_a_text_has_windows_from_all_of_it(tmp_path):
    letters = ALPHABETS["letters"].characters
    lines = "".join(letters[27 + k % 26] + letters[1 + k // 26] for k in range(600))
    texts = {f"role {k}": {"raw": lines} for k in range(4)}
    whole = {"users": list(texts), "num_samples": [1180] * 4, "user_data": texts}
    (tmp_path / "plays.json").write_text(json.dumps(whole))
    data = DataConfig(source=str(tmp_path / "plays.json"), format="shakespeare", max_samples=50)
    parts = divide(data, Fraction(1, 2), tmp_path)
    drawn = []
    for path in (parts.tuning, parts.testing):
        made = build_dataset(replace(data, source=str(path), format=parts.format))
        for device in (*made.train, *made.test):
            assert device.is_tokens
            places = [
                lines.index("".join(letters[code] for code in [*window, label]))
                for window, label in zip(device.x, device.y, strict=True)
            ]
            assert len(set(places)) == 50
            drawn.append(places)
    assert min(map(max, drawn)) > 900
    assert len({tuple(places) for places in drawn}) == 4


def test_runs_read_their_part_of_a_text(archives, tmp_path):
    request = asked(archives, tmp_path, study_of("plays-gru"), methods=("fedavg",))
    made = {name: experiment_named(name).cells(request) for name in ("headline-rates", "headline")}
    for name, size in (("headline-rates", 25), ("headline", 75)):
        data = build_dataset(made[name][0].config.data)
        assert [len(data.train), len(data.test)] == [size, size]
        assert {device.x.shape for device in data.train} == {(100, 20)}
        assert data.num_classes == 53
