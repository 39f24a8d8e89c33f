"""How long runs take, by probes: what is measured, and that it is measured once."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from deltafl.sim.errors import UserError
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce import budget as budget_module
from deltafl.sim.reproduce.budget import ROUNDS, Speed, Speeds, speed_of
from deltafl.sim.reproduce.cells import Outcome, directories_of
from deltafl.sim.reproduce.experiment import Cell, Finished
from deltafl.sim.settings.config_io import build_config

LAYER = {"federation": {"rounds": 100, "evaluate_every": 10}}


def cell(seed=1, **federation):
    layers = [LAYER, {"federation": federation, "experiment": {"seed": seed}}]
    return Cell("task", "FedAvg", seed, build_config(layers))


def finished_probe(place: RunDirectory, walls=(9.0, 1.0, 3.0), start=5.0, evaluation=0.5):
    """The files of a probe, as if they had been written when that would have been."""
    place.metrics.mkdir(parents=True)
    place.checkpoints.mkdir()
    place.config.touch()
    events = [json.dumps({"round": k + 1, "wall_s": wall}) for k, wall in enumerate(walls)]
    place.events.write_text("".join(f"{line}\n" for line in events))
    now = 1_000.0
    written = {place.config: now, place.metrics / "round-000000.csv": now + start + evaluation}
    end = now + start + evaluation + sum(walls)
    written |= {
        place.checkpoints / f"round-{len(walls):06}.npz": end,
        place.metrics / f"round-{len(walls):06}.csv": end + evaluation,
    }
    for path, at in written.items():
        path.touch()
        os.utime(path, (at, at))
    place.summary.write_text("{}")


def test_the_first_round_is_not_counted(tmp_path):
    place = RunDirectory(tmp_path)
    finished_probe(place)
    found = speed_of(place, ROUNDS)
    assert found.round_s == 2.0
    assert found.evaluation_s == pytest.approx(0.5)
    assert found.start_s == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("done", "seconds"),
    [
        (0, 5 + 100 * 2 + 11 * 7),  # before the first round, and every ten
        (1, 5 + 99 * 2 + 10 * 7),
        (95, 5 + 5 * 2 + 7),
        (100, 0),
    ],
)
def test_seconds_of_a_run_count_start_rounds_and_evaluations(done, seconds):
    assert Speed(2.0, 7.0, 5.0).seconds(cell().config, done) == seconds


def test_the_last_evaluation_is_there_when_it_is_not_due():
    assert Speed(0.0, 1.0, 0.0).seconds(cell(rounds=95).config) == 1 + 10


@pytest.fixture
def probed(monkeypatch):
    """Replaces the running of a probe; notes what was probed."""
    cells = []

    def run(asked, out, **_):
        cells.extend(asked)
        (place,) = directories_of(asked, out)
        finished_probe(place)
        return Outcome((Finished(asked[0], place),), ())

    monkeypatch.setattr(budget_module, "run_cells", run)
    return cells


def test_a_probe_is_the_run_with_few_rounds_and_two_evaluations(tmp_path, probed):
    Speeds(tmp_path).measure(cell(7), 1e9)
    (probe,) = probed
    federation = probe.config.federation
    assert (federation.rounds, federation.evaluate_every) == (ROUNDS, ROUNDS)
    assert replace(federation, rounds=100, evaluate_every=10) == cell().config.federation


def test_what_was_measured_holds_for_other_seeds_and_rounds_and_for_who_comes_later(
    tmp_path, probed
):
    speeds = Speeds(tmp_path)
    assert speeds.of(cell()) is None
    found = speeds.measure(cell(), 1e9)
    for same in (cell(2), cell(rounds=7), cell(evaluate_every=3)):
        assert speeds.of(same) == Speeds(tmp_path).of(same) == found
    assert speeds.of(cell(cohort_size=12)) is None
    assert len(probed) == 1


def test_another_machine_measures_anew(tmp_path, probed, monkeypatch):
    Speeds(tmp_path).measure(cell(), 1e9)
    monkeypatch.setattr(budget_module, "machine", lambda: "another")
    assert Speeds(tmp_path).of(cell()) is None


def test_a_probe_that_does_not_finish_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        budget_module, "run_cells", lambda asked, _, **__: Outcome((), (), tuple(asked))
    )
    speeds = Speeds(tmp_path)
    assert speeds.measure(cell(), 1e9) is None
    assert speeds.of(cell()) is None
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.parametrize("number", ["-1", '"fast"', "1e999"])
def test_damaged_seconds_are_named(tmp_path, number):
    (tmp_path / "seconds.json").write_text(
        f'{{"a": {{"round_s": {number}, "evaluation_s": 1, "start_s": 1}}}}'
    )
    with pytest.raises(UserError, match=r"seconds\.json"):
        Speeds(tmp_path)
