"""`deltafl reproduce … --budget`: what is run first, what fits, and how far each run has come."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deltafl.sim import cli
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce import budget as budget_module
from deltafl.sim.reproduce.budget import (
    Item,
    Speed,
    Speeds,
    fitting,
    in_order,
    run_within,
    tables,
)
from deltafl.sim.reproduce.catalogue import experiment_named
from deltafl.sim.reproduce.cells import Failure, Finished, Outcome, directories_of
from deltafl.sim.reproduce.experiment import Cell, Request
from deltafl.sim.settings.config_io import build_config

TABLE = experiment_named("table2")


def cell(method="FedAvg", seed=1, algorithm="fedavg", rounds=100):
    federation = {"rounds": rounds, "evaluate_every": rounds, "algorithm": algorithm}
    layers = [{"federation": federation, "experiment": {"seed": seed}}]
    return Cell("task", method, seed, build_config(layers))


def item(method="FedAvg", seed=1, seconds=1.0, algorithm="fedavg", done=0, tmp=Path("nowhere")):
    speed = None if seconds is None else Speed(seconds / 100, 0.0, 0.0)
    place = RunDirectory(tmp / f"{method}{seed}{seconds}")
    return Item(cell(method, seed, algorithm), place, done, 100, speed, True)


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

    def test_what_is_finished_is_not_run(self, tmp_path):
        one = item(tmp=tmp_path)
        one.place.path.mkdir()
        one.place.summary.write_text("{}")
        assert in_order([one]) == []
        assert one.seconds_left == 0


class TestFitting:
    def test_what_does_not_fit_is_passed_over_and_the_first_of_it_is_begun(self):
        long, longer, short = item(seconds=8), item(seconds=9), item(seconds=3)
        assert fitting([long, longer, short], 12) == ([long, short], longer)
        assert fitting([longer, long, short], 7) == ([short], longer)

    def test_a_masked_run_that_does_not_fit_is_not_begun(self):
        masked = item("private Δ-FL θ=0.5", 1, 9, "private-delta-fl")
        clear = item("q-FFL", 1, 9)
        assert fitting([masked, clear], 5) == ([], clear)
        assert fitting([masked, clear], 10) == ([masked], clear)

    def test_a_run_of_which_nothing_is_known_is_left_for_the_next_time(self):
        assert fitting([item(seconds=None)], 100) == ([], None)

    def test_a_run_that_was_begun_needs_only_the_rest(self):
        begun = item(seconds=100, done=90)
        assert begun.seconds_left == pytest.approx(10)
        assert fitting([begun], 10.001) == ([begun], None)

    def test_hours_of_the_papers_rounds_are_those_of_a_shorter_run_times_as_many(self):
        short = Item(cell(rounds=10), RunDirectory(Path("x")), 0, 100, Speed(1, 0, 0), True)
        assert short.seconds == 100


@dataclass
class Machine:
    """Stands in for clock, probes and processes: a round takes as long as its method says."""

    rate: dict
    broken: str = ""
    now: float = 0.0
    deadlines: list = field(default_factory=list)

    def monotonic(self):
        return self.now

    def of(self, one):
        return self.rate.get(one.method)

    def measure(self, until):
        self.deadlines.append(until)
        self.now += 1

    def run(self, cells, out, *, until, **_):
        finished, failed, unfinished = [], [], []
        for one, place in zip(cells, directories_of(cells, out), strict=True):
            rounds = one.config.federation.rounds
            needed = rounds * self.rate[one.method].round_s
            place.path.mkdir(parents=True, exist_ok=True)
            if one.method == self.broken:
                failed.append(Failure(one, "broken", place.path))
            elif self.now + needed <= until:
                self.now += needed
                place.summary.write_text("{}")
                finished.append(Finished(one, place))
            else:
                done = int((until - self.now) / self.rate[one.method].round_s)
                place.events.write_text("{}\n" * done)
                self.now = until
                unfinished.append(one)
        return Outcome(tuple(finished), tuple(failed), tuple(unfinished))


@pytest.fixture
def machine(monkeypatch):
    def install(rate, **others):
        double = Machine({name: Speed(each, 0.0, 0.0) for name, each in rate.items()}, **others)
        monkeypatch.setattr(budget_module.time, "monotonic", double.monotonic)
        monkeypatch.setattr(budget_module, "run_cells", double.run)
        monkeypatch.setattr(Speeds, "of", lambda _, one: double.of(one))
        monkeypatch.setattr(Speeds, "measure", lambda _, __, until: double.measure(until))
        return double

    return install


def request(out):
    methods = ("fedavg", "delta-fl-0.5", "q-ffl")
    return Request(out=out, data={"digits": Path()}, methods=methods, seeds=2, rounds=100)


def plans(wanted):
    return [(TABLE, TABLE.cells(wanted))]


RATES = {"FedAvg": 1.0, "Δ-FL θ=0.5": 2.0, "q-FFL": 1.0}


class TestWithin:
    def test_the_most_telling_are_run_and_the_rest_is_begun(self, tmp_path, machine):
        machine(RATES)
        wanted = request(tmp_path)
        outcome = run_within(plans(wanted), wanted, 550 / 3600, jobs=1, quiet=True)
        names = [(one.cell.method, one.cell.seed) for one in outcome.finished]
        # 100 + 200 + 100 seconds; then 200 do not fit into the 150 left, and 100 do
        assert names == [("FedAvg", 1), ("FedAvg", 2), ("Δ-FL θ=0.5", 1), ("q-FFL", 1)]
        assert outcome.failures == ()
        assert len(outcome.unfinished) == 2
        rounds, hours = tables(plans(wanted), wanted)
        share = {row[0]: row[1:4] for row in rounds.rows}
        assert share["emnist-linear, FedAvg, seed 1"] == ("100", "3000", "3%")
        assert share["emnist-linear, Δ-FL θ=0.5, seed 2"] == ("25", "3000", "1%")
        assert hours.rows == (("table2", "6", "6", f"{2 * 3000 * 4 / 3600:.2g}"),)

    def test_the_same_again_goes_on(self, tmp_path, machine):
        machine(RATES)
        wanted = request(tmp_path)
        for _ in range(2):
            outcome = run_within(plans(wanted), wanted, 550 / 3600, jobs=1, quiet=True)
        assert len(outcome.finished) == 6

    def test_a_run_that_fails_is_told_and_does_not_hold_up_others(self, tmp_path, machine):
        machine(RATES, broken="FedAvg")
        wanted = request(tmp_path)
        outcome = run_within(plans(wanted), wanted, 1, jobs=1, quiet=True)
        assert [one.cell.seed for one in outcome.failures] == [1, 2]
        assert len(outcome.finished) == 4

    def test_a_run_of_unknown_speed_is_taken_for_the_slowest_of_its_task(self, tmp_path, machine):
        machine({name: RATES[name] for name in ("FedAvg", "Δ-FL θ=0.5")})
        wanted = request(tmp_path)
        _, hours = tables(plans(wanted), wanted)
        assert hours.rows == (("table2", "6", "4", f"{2 * 3000 * 5 / 3600:.2g}"),)

    def test_probes_take_a_tenth_of_the_budget(self, tmp_path, machine):
        double = machine({})
        wanted = request(tmp_path)
        run_within(plans(wanted), wanted, 30 / 3600, jobs=1, quiet=True)
        assert double.now == 3.0
        assert double.deadlines == [30.0] * 3  # nothing is known, so each may take what is left
        rounds, hours = tables(plans(wanted), wanted)
        assert rounds.rows == (
            ("emnist-linear: 6 runs not begun", "0", "3000", "0%", "not measured"),
        )
        assert {one["hours left"] for one in rounds.records} == {"not measured"}
        assert len(rounds.records) == 6
        assert hours.rows[0][3] == "not measured"


def test_once_something_is_known_a_probe_takes_half_of_the_share(tmp_path, machine):
    double = machine({"FedAvg": 1.0})
    wanted = request(tmp_path)
    run_within(plans(wanted), wanted, 30 / 3600, jobs=1, quiet=True)
    assert double.deadlines == [1.5, 2.5, 3.0]


WORDS = ["reproduce", "table2", "--data=digits", "--methods=fedavg", "--seeds=1", "--quiet"]


def test_the_command_tells_how_far_it_came(tmp_path, machine, capsys):
    machine({"FedAvg": 1.0})
    assert cli.main([*WORDS, f"--out={tmp_path}", "--budget=0.5"]) == 0
    said = capsys.readouterr().out
    assert "emnist-linear, FedAvg, seed 1" in said
    assert "60%" in said  # 1,800 of 3,000 rounds
    assert "0.83" in said  # hours of all of it
    assert cli.main([*WORDS, f"--out={tmp_path}", "--budget=1", "--dry-run"]) == 0
    assert "0.33" in capsys.readouterr().out  # hours left


def test_the_command_gives_json_alone(tmp_path, machine, capsys):
    machine({"FedAvg": 1.0})
    assert cli.main([*WORDS, f"--out={tmp_path}", "--budget=0.5", "--json"]) == 0
    (spent,) = json.loads(capsys.readouterr().out)
    assert spent["rounds"][0]["share"] == "60%"
    assert spent["hours"][0]["experiment"] == "table2"


@pytest.mark.parametrize("hours", ["0", "-1", "soon", "1e9"])
def test_a_budget_is_a_number_of_hours(hours, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*WORDS, f"--budget={hours}"])
    assert ended.value.code == 2
    assert "--budget" in capsys.readouterr().err
