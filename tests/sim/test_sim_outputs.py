"""What a run leaves behind: evaluations, events, summary, figures."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from doubles import Silent
from records import events_of, said_of

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.strategies.base import RoundReport, TrainingState, Visibility
from deltafl.secagg.states import Stage, Step, Vanish
from deltafl.sim.cohort.dropouts import WithDropouts
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.errors import RunDirectoryError, UserError
from deltafl.sim.record.evaluations import (
    Evaluation,
    read_evaluations,
    read_last_evaluation,
    write_evaluation,
)
from deltafl.sim.record.events import add_event, follow_events, read_events
from deltafl.sim.record.record import write_record
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.run.summary import summarise_experiment
from deltafl.sim.settings.config import ExperimentConfig
from deltafl.sim.settings.config_io import build_config


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    config = build_config(
        [
            {
                "data": {"num_devices": 8},
                "federation": {
                    "algorithm": "delta-fl",
                    "rounds": 2,
                    "cohort_size": 3,
                    "evaluate_every": 1,
                },
                "experiment": {"num_seeds": 2, "baselines": ["fedavg"]},
            }
        ]
    )
    path = tmp_path_factory.mktemp("experiment") / "run"
    run_experiment(config, path, resume=False, progress=Silent(), warn=pytest.fail)
    return path


@pytest.mark.slow
def test_evaluations_are_a_table_of_sql(experiment):
    """As docs/record.md has it."""
    place = f"file:{experiment / 'record.sqlite'}?mode=ro"
    with closing(sqlite3.connect(place, uri=True)) as db:
        table = pd.read_sql("SELECT * FROM evaluations WHERE theta = '0.5'", db)
    names = ["round", "theta", "split", "device", "num_samples", "loss", "error"]
    assert [*table.columns] == ["number", "digest", *names]
    assert {*table["round"]} == {0, 1, 2}
    assert len(table) == 3 * 8
    assert len({*table["device"]}) == 8
    assert np.allclose(table["loss"][table["round"] == 0], np.log(10))


def test_the_summary_aggregates_over_seeds(experiment):
    summary = said_of(experiment, "summary")
    for algorithm, group in (("delta-fl", summary), ("fedavg", summary["baseline"]["fedavg"])):
        seeds = summary["seeds"][algorithm]
        assert list(seeds) == ["1", "2"]
        tails = [seeds[seed]["test_error"]["p90"] for seed in seeds]
        assert group["test_error"]["p90"] == pytest.approx(np.mean(tails))
        assert group["test_error"]["spread"] == pytest.approx(max(tails) - min(tails))
        assert group["test_error"]["percentiles"]["90"] == group["test_error"]["p90"]
    assert (summary["sums"], summary["secure_sums"]) == ("clear", 0)
    assert summary["model_parameters"] == 640
    assert summary["theta"] == 0.5
    assert summary["train_cpu_s"] > 0
    assert len(summary["final_model_sha256"]) == 64
    arm = said_of(experiment / "arms/fedavg-seed-2", "summary")
    assert arm["final_model_sha256"] == summary["seeds"]["fedavg"]["2"]["final_model_sha256"]


def test_one_run_alone_has_no_spread(experiment):
    arm = said_of(experiment / "arms/fedavg-seed-2", "summary")
    assert summarise_experiment([arm])["test_error"]["spread"] == 0


def test_events_say_what_happened(experiment):
    first, second = events_of(experiment)
    assert (first["round"], second["round"]) == (1, 2)
    assert first["eta"] == pytest.approx(np.log(10))  # all losses are equal at the start
    assert first["kept_devices"] == 3
    assert second["kept_devices"] < 3
    assert first["train_cpu_s"] > 0
    assert first["protocol_cpu_s"] > 0


def test_figures_are_drawn_as_png_and_svg(experiment):
    names = {path.name for path in (experiment / "plots").iterdir()}
    assert names == {f"{n}.{s}" for n in ("error", "devices") for s in ("png", "svg")}
    for path in (experiment / "plots").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    for path in (experiment / "plots").glob("*.svg"):
        ElementTree.parse(path)  # noqa: S314 (our own file)


HALF = Fraction(1, 2)


@pytest.fixture
def record(tmp_path):
    with write_record(tmp_path / "record.sqlite") as record:
        federation = {"rounds": 10, "evaluate_every": 5}
        record.note_settings(build_config([{"federation": federation}]))
        yield record


def test_evaluations_round_trip(record):
    devices = [DeviceMetrics("zoë", 7, 0.1 + 0.2, 1 / 3)]
    for number in (0, 5, 10):
        write_evaluation(record, HALF, Evaluation(number, devices, devices * 2))
    write_evaluation(record, Fraction(4, 5), Evaluation(10, devices, devices))
    assert list(read_evaluations(record, HALF))[1] == Evaluation(5, devices, devices * 2)
    assert [one.round for one in read_evaluations(record)] == [0, 5, 10]
    assert [one.round for one in read_evaluations(record, HALF, after=0)] == [5, 10]
    assert [one.round for one in read_evaluations(record, Fraction(4, 5))] == [10]
    assert read_last_evaluation(record, HALF).round == 10
    assert read_last_evaluation(record, Fraction(1, 10)) is None


def test_the_end_of_a_run_that_was_made_longer_is_left_out_unless_it_is_due(record):
    devices = [DeviceMetrics("zoë", 7, 0.1 + 0.2, 1 / 3)]
    for number in (0, 3, 5):
        write_evaluation(record, HALF, Evaluation(number, devices, devices))
    assert [one.round for one in read_evaluations(record, HALF)] == [0, 5]


@pytest.mark.parametrize(
    "change",
    [
        {"round": 1 << 31},
        {"round": "one"},
        {"split": "all"},
        {"device": b"7"},
        {"device": "x" * 100_000},
        {"num_samples": -1},
        {"num_samples": 1 << 31},
        {"loss": None},
        {"error": "none"},
        {"error": float("inf")},
    ],
)
def test_a_row_that_is_none_of_an_evaluation_is_damage(record, change):
    row = {"round": 5, "theta": "0.5", "split": "test", "device": "a", "num_samples": 7}
    row |= {"loss": 0.5, "error": 0.5, **change}
    record.chain.append("evaluations", *row.values())
    with pytest.raises(UserError, match=r"row 0 is no evaluation|at frame 0"):
        list(read_evaluations(record))


NAMES = ["zoë", 'a,b"c', "two\nlines", "a\rb", "\r\n", "'", "", " 7", "NA", "\0"]


@pytest.mark.parametrize("value", [0.1 + 0.2, 5e-324, 1e308, -0.0, 1 / 3, 1.0])
def test_any_name_and_any_number_come_back_to_the_bit(record, value):
    devices = [DeviceMetrics(name, 7, value, value / 2) for name in NAMES]
    evaluation = Evaluation(5, devices, devices)
    write_evaluation(record, HALF, evaluation)
    (found,) = read_evaluations(record, HALF)
    assert repr(found) == repr(evaluation)


@pytest.mark.parametrize("value", [1e308, -1e101])
def test_no_event_is_too_large_to_be_added_up(record, value):
    add_event(record, {"round": 1, "train_cpu_s": 1e100, "clipped": -1})
    assert read_events(record)[0]["train_cpu_s"] == 1e100
    add_event(record, {"round": 2, "train_cpu_s": value})
    with pytest.raises(RunDirectoryError, match=r"train_cpu_s = .* is not a number of at most"):
        read_events(record)


def test_events_are_what_was_added(record):
    told = add_event(record, {"round": 1, "eta": float("nan"), "theta": np.float64(0.5)})
    assert told == {"round": 1, "eta": None, "theta": 0.5}
    add_event(record, {"round": 2})
    assert read_events(record) == [told, {"round": 2}]
    (first, place), _ = follow_events(record)
    assert first == told
    assert [event["round"] for event, _ in follow_events(record, place)] == [2]


class Count:
    """A strategy that reports how many devices it was given."""

    name = "count"
    server_sees = Visibility.SUMS

    def apply(self, state, cohort):
        report = RoundReport(kept_devices=len(cohort.weights), kept_weight=0)
        return replace(state, round=state.round + 1), report


class Named:
    def __init__(self, number):
        self.id = number
        self.weight = 1


def test_survivors_play_and_the_rest_is_counted():
    fates = {
        0: Vanish(Step(Stage.SHARE)),
        2: Vanish(Step(Stage.MASK, 1), late=True),
        3: Vanish(Step(Stage.MASK, 0)),
    }

    def dropouts(round_index, device_ids, num_slots):
        return {number: fates[number] for number in device_ids if number in fates}

    strategy = WithDropouts(Count(), dropouts)
    start = TrainingState(np.zeros(3, dtype=np.float32), round=4)
    state, report = strategy.apply(start, cohort_of(map(Named, range(5))))
    assert (state.round, report.kept_devices, report.aborted) == (5, 2, None)
    assert report.dropped_by_stage == {"share": 1, "mask": 2}
    state, report = strategy.apply(start, cohort_of([Named(0), Named(3)]))
    assert (state.round, state.model is start.model) == (5, True)
    assert report.aborted == "all 2 devices of the cohort vanished"
    assert not report.empty  # given up is not the same as nobody to train


@pytest.mark.slow
def test_an_experiment_of_one_seed_compares_algorithms(tiny, tmp_path):
    config = replace(tiny, experiment=ExperimentConfig(seed=1, baselines=("fedavg",)))
    summary = run_experiment(
        config, tmp_path / "run", resume=False, progress=Silent(), warn=pytest.fail
    )
    assert set(summary["seeds"]) == {"delta-fl", "fedavg"}
    assert summary["test_error"]["spread"] == 0
