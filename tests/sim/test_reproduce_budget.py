"""`deltafl reproduce … --budget`: what is run first, when it ends, and how far runs have come."""

import json
import os
from pathlib import Path

import pytest

from deltafl.sim import cli
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce import cells as cells_module
from deltafl.sim.reproduce.budget import Item, in_order, seconds_per_round, survey, tables
from deltafl.sim.reproduce.catalogue import experiment_named
from deltafl.sim.reproduce.cells import Outcome, directories_of
from deltafl.sim.reproduce.experiment import Cell, Request
from deltafl.sim.settings.config_io import build_config

TABLE = experiment_named("table2")


def cell(method="FedAvg", seed=1, rounds=100):
    federation = {"rounds": rounds, "evaluate_every": rounds}
    layers = [{"federation": federation, "experiment": {"seed": seed}}]
    return Cell("task", method, seed, build_config(layers))


def item(method="FedAvg", seed=1, seconds=1.0, done=0, paper=100, tmp=Path("nowhere")):
    round_s = None if seconds is None else seconds / 100
    place = RunDirectory(tmp / f"{method}{seed}{seconds}")
    return Item(cell(method, seed), place, done, paper, round_s, True)


def evaluated(place, times):
    """Leave the evaluations of a run, from the round to when it was written."""
    place.metrics.mkdir(parents=True)
    for at, written in times.items():
        path = place.metrics / f"round-{at:06}.csv"
        path.touch()
        os.utime(path, (written, written))
    place.events.write_text("{}\n" * max(times))


class TestSpeed:
    def test_it_is_the_median_from_one_evaluation_to_the_next(self, tmp_path):
        place = RunDirectory(tmp_path / "run")
        evaluated(place, {0: 1000, 10: 1020, 20: 9999, 25: 10014})
        assert seconds_per_round(place) == 3.0

    def test_a_run_with_one_evaluation_shows_none(self, tmp_path):
        place = RunDirectory(tmp_path / "run")
        assert seconds_per_round(place) is None
        evaluated(place, {0: 1000})
        assert seconds_per_round(place) is None


class TestOrder:
    def test_what_the_papers_are_about_comes_first_then_seeds_then_the_shortest(self):
        wanted = [
            item("Δ-FL θ=0.5", 1, 2.0),
            item("FedAvg", 1, 3.0),
            item("private Δ-FL θ=0.5", 1, 4.0),
            item("FedAvg", 2, 1.0),
            item("Δ-FL θ=0.1", 1, 1.0),
            item("Δ-FL θ=0.8", 1, 2.0),
            item("q-FFL", 1, 0.1),
            item("q-FFL", 2, 0.1),
        ]
        assert in_order(wanted[::-1]) == wanted

    def test_what_is_finished_takes_no_time(self, tmp_path):
        one = item(tmp=tmp_path)
        one.place.path.mkdir()
        one.place.summary.write_text("{}")
        assert one.seconds_left == 0

    def test_a_run_that_was_begun_needs_only_the_rest(self):
        assert item(seconds=100, done=90).seconds_left == pytest.approx(10)

    def test_hours_of_the_papers_rounds_are_those_of_a_shorter_run_times_as_many(self):
        assert item(seconds=100, paper=1000).seconds == 1000


def request(out):
    methods = ("fedavg", "delta-fl-0.5", "q-ffl")
    return Request(out=out, data={"digits": Path()}, methods=methods, seeds=2, rounds=100)


class TestTables:
    def test_they_say_how_far_runs_are_and_how_long_the_rest_takes(self, tmp_path):
        wanted = request(tmp_path)
        plans = [(TABLE, TABLE.cells(wanted))]
        by_name = {(one.cell.method, one.cell.seed): one.place for one in survey(plans, wanted)}
        evaluated(by_name["FedAvg", 1], {0: 0, 50: 50})
        evaluated(by_name["Δ-FL θ=0.5", 1], {0: 0, 100: 200})
        by_name["Δ-FL θ=0.5", 1].summary.write_text("{}")
        rounds, hours = tables(plans, wanted)
        of = {one["of"]: one for one in rounds.records}
        fedavg = of["emnist-linear, FedAvg"]
        assert (fedavg["runs"], fedavg["finished"], fedavg["of known speed"]) == (2, 0, 2)
        assert (fedavg["rounds"], fedavg["papers'"], fedavg["share"]) == (50, 6000, "1%")
        assert fedavg["hours left"] == f"{(50 + 100) / 3600:.2g}"
        assert fedavg["hours of papers' rounds"] == f"{6000 / 3600:.2g}"
        # a method of which no run has begun is taken for the slowest
        q_ffl = of["emnist-linear, q-FFL"]
        assert q_ffl["of known speed"] == 0
        assert q_ffl["hours of papers' rounds"] == f"{2 * 6000 / 3600:.2g}"
        (whole,) = hours.records
        assert (whole["of"], whole["runs"], whole["finished"]) == ("table2", 6, 1)
        assert whole["hours of papers' rounds"] == f"{(1 + 2 + 2) * 6000 / 3600:.2g}"

    def test_nothing_is_known_before_anything_has_begun(self, tmp_path):
        wanted = request(tmp_path)
        rounds, _ = tables([(TABLE, TABLE.cells(wanted))], wanted)
        assert {one["hours left"] for one in rounds.records} == {"not known"}


WORDS = ["reproduce", "table2", "--data=digits", "--methods=fedavg,q-ffl", "--seeds=1", "--quiet"]


@pytest.fixture
def machine(monkeypatch):
    """Stands in for processes: the first run finishes, and the others are begun."""
    deadlines = []

    def run(cells, out, *, until, **_):
        deadlines.append(until)
        for number, place in enumerate(directories_of(cells, out)):
            evaluated(place, {0: 0, 1800: 1800})
            if number == 0:
                place.summary.write_text("{}")
        return Outcome((), (), tuple(cells))

    monkeypatch.setattr(cells_module, "run_cells", run)
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    return deadlines


def test_the_command_ends_in_time_and_tells_how_far_it_came(tmp_path, machine, capsys):
    assert cli.main([*WORDS, f"--out={tmp_path}", "--budget=0.5"]) == 0
    assert machine == [1000 + 1800]
    said = capsys.readouterr().out
    assert "emnist-linear, q-FFL" in said
    assert "60%" in said  # 1,800 of 3,000 rounds
    assert cli.main([*WORDS, f"--out={tmp_path}", "--budget=1", "--dry-run"]) == 0
    assert "0.33" in capsys.readouterr().out  # hours left


def test_the_command_gives_json_alone(tmp_path, machine, capsys):
    assert cli.main([*WORDS, f"--out={tmp_path}", "--budget=0.5", "--json"]) == 0
    (spent,) = json.loads(capsys.readouterr().out)
    assert [one["share"] for one in spent["rounds"]] == ["100%", "60%"]
    assert spent["hours"][0]["of"] == "table2"


@pytest.mark.parametrize("hours", ["0", "-1", "soon", "1e9"])
def test_a_budget_is_a_number_of_hours(hours, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*WORDS, f"--budget={hours}"])
    assert ended.value.code == 2
    assert "--budget" in capsys.readouterr().err
