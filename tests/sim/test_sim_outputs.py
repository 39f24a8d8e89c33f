"""What a run leaves behind: evaluations, events, summary, figures."""

from dataclasses import replace
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
from deltafl.sim.errors import RunDirectoryError
from deltafl.sim.record.evaluations import (
    Evaluation,
    drop_evaluations,
    evaluation_bytes,
    read_evaluations,
    write_evaluation,
)
from deltafl.sim.record.events import EventLog, read_events
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.run.summary import summarise_experiment
from deltafl.sim.settings.config import ExperimentConfig


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    from deltafl.sim.settings.config_io import build_config

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
def test_the_files_of_metrics_are_tables(experiment):
    table = pd.concat(map(pd.read_csv, (experiment / "metrics").iterdir()))
    assert [*table.columns] == ["round", "split", "device", "num_samples", "loss", "error"]
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


def test_evaluations_round_trip_and_can_be_dropped(tmp_path):
    devices = [DeviceMetrics("zoë", 7, 0.1 + 0.2, 1 / 3)]
    for number in (0, 5, 10):
        write_evaluation(tmp_path, Evaluation(number, devices, devices * 2))
    assert read_evaluations(tmp_path)[1] == Evaluation(5, devices, devices * 2)
    drop_evaluations(tmp_path, 5, every=5, rounds=10)
    assert [evaluation.round for evaluation in read_evaluations(tmp_path)] == [0, 5]
    drop_evaluations(tmp_path, None, every=5, rounds=10)
    assert read_evaluations(tmp_path) == []


@pytest.mark.parametrize("number", [-1, 1 << 31, 10**400])
def test_evaluations_are_of_a_round_that_can_be(tmp_path, number):
    rows = f"round,split,device,num_samples,loss,error\n{number},test,zoë,7,0.5,0.5\n"
    (tmp_path / "round-000005.csv").write_text(rows)
    with pytest.raises(RunDirectoryError, match="it is not of one round"):
        read_evaluations(tmp_path)


NAMES = ["zoë", 'a,b"c', "two\nlines", "a\rb", "\r\n", "'", "", " 7", "NA", "\0"]


@pytest.mark.parametrize("value", [0.1 + 0.2, 5e-324, 1e308, float("inf"), -0.0, 1 / 3])
def test_any_name_and_any_number_come_back_to_the_bit(tmp_path, value):
    devices = [DeviceMetrics(name, 7, value, value / 2) for name in NAMES]
    evaluation = Evaluation(1, devices, devices)
    write_evaluation(tmp_path, evaluation)
    assert read_evaluations(tmp_path) == [evaluation]
    (path,) = tmp_path.iterdir()
    assert evaluation_bytes(read_evaluations(tmp_path)[0]) == path.read_bytes()


def test_evaluations_of_an_earlier_version_are_refused(tmp_path):
    (tmp_path / "round-000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunDirectoryError, match=r"round-000001\.parquet: an earlier version wrote"):
        read_evaluations(tmp_path)


@pytest.mark.parametrize("value", [1e308, -1e101])
def test_no_event_is_too_large_to_be_added_up(tmp_path, value):
    path = tmp_path / "events.jsonl"
    path.write_text(f'{{"round": 1, "train_cpu_s": {value}}}\n' * 2)
    with pytest.raises(RunDirectoryError, match=r"train_cpu_s = .* is not a number of at most"):
        read_events(path)
    path.write_text('{"round": 1, "train_cpu_s": 1e100, "clipped": -1}\n')
    assert read_events(path)[0]["train_cpu_s"] == 1e100


def test_event_logs_are_cut_back_and_never_filled_up(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append({"round": 1, "eta": float("nan"), "theta": np.float64(0.5)})
        size = log.flush()
        log.append({"round": 2})
    with EventLog(path, size) as log:
        log.append({"round": 3})
    assert [event["round"] for event in read_events(path)] == [1, 3]
    assert read_events(path)[0]["eta"] is None
    with pytest.raises(RunDirectoryError, match="damaged"):
        EventLog(path, 10_000)
    assert len(read_events(path)) == 2


class Count:
    """A strategy that reports how many devices it was given."""

    name = "count"
    server_sees = Visibility.SUMS

    def apply(self, state, cohort):
        report = RoundReport(None, len(cohort.weights), 0, None, empty=False, secure_sums=1)
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
