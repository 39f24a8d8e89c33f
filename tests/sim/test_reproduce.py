"""`deltafl reproduce`: from what is asked for to runs, and runs that survive whatever happens."""

import json
import signal
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from records import note, toml_of, write_run

from deltafl.sim import cli
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce import cells as cells_module
from deltafl.sim.reproduce.catalogue import EXPERIMENTS, experiment_named
from deltafl.sim.reproduce.cells import directories_of, key_of, run_cells
from deltafl.sim.reproduce.experiment import Cell, Request
from deltafl.sim.reproduce.grid import config_of, make_cells, most_telling_first, notes_of
from deltafl.sim.reproduce.methods import (
    DELTA_FL,
    ERROR_TABLES,
    FEDAVG,
    METHODS,
    PRIVATE_DELTA_FL,
    choose_methods,
)
from deltafl.sim.reproduce.tasks import DATA_SETS, TASKS, choose_tasks, task_named
from deltafl.sim.settings.config_io import build_config, flatten, to_toml

DIGITS = {"digits": Path()}
LINEAR = task_named("emnist-linear")


def request(**settings) -> Request:
    return Request(**{"out": Path("unused"), "data": DIGITS, **settings})


def digits_cells(tmp_path, methods=(FEDAVG,), seeds=1) -> tuple[Cell, ...]:
    wanted = request(out=tmp_path, seeds=seeds, rounds=2)
    return make_cells(wanted, choose_tasks(wanted, (LINEAR,)), methods)


class Instantly:
    """Stands in for the process of a cell: it ends at once, as `outcome` says."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.started: list[str] = []
        self.commands: list[list[str]] = []

    def __call__(self, command, *, stderr, **_):
        place = RunDirectory(Path(command[command.index("--out") + 1]))
        self.started.append(place.path.name)
        self.commands.append(command)
        self.returncode = self.outcome(place, stderr)
        return self

    def poll(self):
        return self.returncode

    def wait(self, _):
        return self.returncode


def succeeds(place, _) -> int:
    note(place.path, "summary", {"test_error": {}})
    return 0


def runs(place, _) -> int:
    """Do in this process what the other would."""
    return cli.main(["run", "--out", str(place.path), "--resume", "--no-plots", "--quiet"])


def fails(_, stderr) -> int:
    stderr.write(b"a line before\ndeltafl: training diverged\n")
    return 1


@pytest.fixture
def play(monkeypatch):
    """Replaces processes by something instant."""

    def install(outcome) -> Instantly:
        double = Instantly(outcome)
        monkeypatch.setattr(cells_module.subprocess, "Popen", double)
        return double

    return install


class TestGrid:
    @pytest.mark.slow
    def test_the_whole_of_table_2_on_two_models_is_60_cells(self):
        wanted = request(
            data={"unipen62": Path("u.npz")}, models=("linear", "convnet"), seeds=3, rounds=100
        )
        cells = experiment_named("table2").cells(wanted)
        assert len(cells) == 60
        assert len({key_of(cell.config) for cell in cells}) == 60

    def test_tables_2_and_3_share_all_their_runs(self):
        wanted = request(seeds=2, rounds=4)
        second, third = (experiment_named(name).cells(wanted) for name in ("table2", "table3"))
        assert [one.config for one in second] == [one.config for one in third]

    def test_the_papers_settings_are_those_of_the_paper(self):
        data = {"emnist": Path("femnist")}
        chosen = choose_tasks(request(data=data, models=("convnet",)), TASKS)
        settings = flatten(config_of(request(data=data), chosen[0], FEDAVG, 1))
        wanted = {
            "training.learning_rate": 0.32,
            "training.decay": 0.5,
            "training.decay_every": 400,
            "training.batch_size": 16,
            "federation.rounds": 1000,
            "federation.cohort_size": 100,
            "federation.evaluate_every": 10,
            "data.min_samples": 100,
        }
        assert {key: settings[key] for key in wanted} == wanted

    def test_the_scripts_settings_differ_where_the_script_does(self):
        data = {"emnist": Path("femnist")}
        chosen = choose_tasks(request(data=data), (LINEAR,))[0]
        paper = config_of(request(data=data), chosen, FEDAVG, 1)
        script = config_of(request(data=data, settings="script"), chosen, FEDAVG, 1)
        assert (paper.training.batch_size, script.training.batch_size) == (10, 32)

    def test_lambda_differs_between_fedavg_and_delta_fl_on_the_papers_data_alone(self):
        for name, (ours, theirs) in {"emnist": (1e-9, 1e-7), "digits": (0.03, 0.03)}.items():
            wanted = request(data={name: Path("x")})
            chosen = choose_tasks(wanted, (LINEAR,))[0]
            assert config_of(wanted, chosen, FEDAVG, 1).training.l2 == ours
            assert config_of(wanted, chosen, DELTA_FL[0], 1).training.l2 == theirs

    def test_a_share_of_the_rounds_is_of_each_papers_number(self):
        data, models = {"unipen62": Path("u.npz")}, ("linear", "convnet")
        wanted = request(rounds=Fraction(15, 100), models=models, seeds=1, data=data)
        chosen = choose_tasks(wanted, TASKS)
        cells = make_cells(wanted, chosen, (FEDAVG,))
        assert [cell.config.federation.rounds for cell in cells] == [450, 150]
        assert cells[1].config.training.decay_every == 60

    def test_fewer_rounds_keep_the_shape_of_the_schedule_and_thin_out_evaluations(self):
        wanted = request(data={"unipen62": Path("u.npz")}, rounds=100)
        chosen = choose_tasks(wanted, (task_named("emnist-convnet"),))[0]
        config = config_of(wanted, chosen, FEDAVG, 1)
        assert config.training.decay_every == 40
        assert config.federation.evaluate_every == 25

    def test_overrides_win_over_everything(self):
        wanted = request(rounds=100, overrides={"federation": {"evaluate_every": 3, "rounds": 7}})
        config = config_of(wanted, choose_tasks(wanted, (LINEAR,))[0], PRIVATE_DELTA_FL, 1)
        assert (config.federation.evaluate_every, config.federation.rounds) == (3, 7)

    @pytest.mark.parametrize("method", METHODS, ids=lambda method: method.key)
    def test_every_method_makes_valid_settings_for_every_task(self, method):
        data = {one.name: Path("x") for one in DATA_SETS if one.source is None}
        del data["femnist"], data["unipen62"], data["mnist-writers"]
        for task in TASKS:
            wanted = request(data=data)
            if method.key.startswith("private-") and task.model == "logistic":
                continue  # fewer silos than a private cohort needs
            config = config_of(wanted, choose_tasks(wanted, (task,))[0], method, 1)
            assert config.federation.algorithm == method.layer["federation"]["algorithm"]

    def test_seeds_pair_methods_and_nothing_else_differs_by_seed(self, tmp_path):
        first, second = digits_cells(tmp_path, seeds=2)
        difference = [
            key
            for key, value in flatten(first.config).items()
            if flatten(second.config)[key] != value
        ]
        assert difference == ["experiment.seed"]


class TestChoice:
    def test_what_the_papers_are_about_comes_first_then_first_seeds(self):
        names = [
            *(("FedAvg", 1), ("Δ-FL θ=0.5", 1), ("private Δ-FL θ=0.5", 1), ("FedAvg", 2)),
            *(("Δ-FL θ=0.1", 1), ("Δ-FL θ=0.8", 1), ("q-FFL", 1), ("q-FFL", 2)),
        ]
        wanted = [Cell("task", method, seed, build_config([])) for method, seed in names]
        apart = wanted[4:] + wanted[:4]
        assert most_telling_first(apart) == wanted

    def test_data_restrict_the_tasks_to_those_that_they_serve(self):
        assert [one.task.name for one in choose_tasks(request(), TASKS)] == ["emnist-linear"]

    def test_without_data_tasks_run_on_synthetic_stand_ins(self):
        chosen = choose_tasks(request(data={}), TASKS)
        assert {one.data.name for one in chosen} == {"synthetic-emnist", "synthetic-sent140"}

    def test_word_vectors_alone_are_no_data(self):
        chosen = choose_tasks(request(data={"glove": Path("g.npz")}), TASKS)
        assert {one.data.is_stand_in for one in chosen} == {True}

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"models": ("liner",)}, "did you mean 'linear'"),
            ({"data": {"unipen": Path()}}, "did you mean 'unipen62'"),
            ({"data": {"digits": Path(), "emnist": Path("x")}}, "name one of them"),
            ({"models": ("gru",)}, "NAME one of shakespeare"),
            ({"data": {"sent140": Path("x")}}, "pass --data glove=PATH"),
            ({"models": ("linear", "lstm")}, "no data for sent140-lstm: pass --data NAME=PATH"),
            ({"models": ("linear", "sent140-linear")}, "no data for sent140-linear"),
        ],
    )
    def test_what_is_unknown_is_named_with_the_remedy(self, settings, message):
        with pytest.raises(ConfigError, match=message):
            choose_tasks(request(**settings), TASKS)

    def test_methods_go_by_key_or_label(self):
        found = choose_methods(("delta-fl-0.5", "FedAvg", "Δ-FL θ=0.5"), ERROR_TABLES)
        assert [method.label for method in found] == ["Δ-FL θ=0.5", "FedAvg"]
        with pytest.raises(ConfigError, match="did you mean 'fedprox'"):
            choose_methods(("fedpox",), ERROR_TABLES)

    def test_names_are_unique(self):
        for names in (
            [one.name for one in EXPERIMENTS],
            [one.key for one in METHODS],
            [one.label for one in METHODS],
            [one.name for one in TASKS],
            [one.name for one in DATA_SETS],
        ):
            assert len(set(names)) == len(names)

    def test_every_stand_in_is_declared_in_the_notes(self):
        wanted = request(rounds=2, seeds=2)
        text = "\n".join(notes_of(wanted, choose_tasks(wanted, (LINEAR,)), (FEDAVG,)))
        for part in ("stand-in", "federation.rounds = 2 (paper: 3000)", "2 seeds, the paper's 5"):
            assert part in text

    def test_a_stand_in_says_what_of_the_data_is_other_than_the_papers(self):
        for name, parts in {
            "unipen62": (
                "data.max_samples = 200 (paper: all)",
                "training.batch_size = 32 (paper: 10)",
                "data.standardise = 'none' (published code: 'legacy')",
            ),
            "digits": (
                "data.min_samples = 0 (paper: 100)",
                "training.l2 = 0.03 (published code: 1e-09)",
            ),
        }.items():
            wanted = request(data={name: Path("x")})
            text = "\n".join(notes_of(wanted, choose_tasks(wanted, (LINEAR,)), (FEDAVG,)))
            for part in parts:
                assert part in text

    def test_with_the_scripts_settings_the_scripts_are_what_is_compared_with(self):
        wanted = request(data={"unipen62": Path("x")}, settings="script", rounds=7)
        text = "\n".join(notes_of(wanted, choose_tasks(wanted, (LINEAR,)), (FEDAVG,)))
        assert "federation.rounds = 7 (published code: 3000)" in text
        assert "batch_size" not in text

    def test_lambda_is_said_to_be_the_codes_only_where_it_is(self):
        for name, is_said in {"emnist": True, "unipen62": True, "digits": False}.items():
            wanted = request(data={name: Path("x")})
            text = "\n".join(notes_of(wanted, choose_tasks(wanted, (LINEAR,)), (FEDAVG,)))
            assert ("λ of emnist-linear is the published code's" in text) == is_said

    def test_the_papers_own_settings_need_no_note_of_a_difference(self):
        wanted = request(data={"femnist": Path("femnist")})
        (chosen,) = choose_tasks(wanted, (LINEAR,))
        text = "\n".join(notes_of(wanted, (chosen,), (FEDAVG,)))
        assert "differs" not in text
        assert "stand-in" not in text
        # half of the writers, as the paper has it; LEAF's files are taken whole, which is said
        assert config_of(wanted, chosen, FEDAVG, 1).data.num_users == 1730 == 2 * 865
        wanted = request(data={"emnist": Path("leaf")})
        text = "\n".join(notes_of(wanted, choose_tasks(wanted, (LINEAR,)), (FEDAVG,)))
        assert "differs from the paper's settings in data.num_users = all (paper: 1730)." in text


class TestKeys:
    def test_a_key_changes_with_every_setting_and_with_the_data(self, tmp_path):
        data = tmp_path / "data.npz"
        data.write_bytes(b"one")
        config = build_config([{"data": {"source": str(data)}}])
        other = build_config([{"data": {"source": str(data)}, "training": {"l2": 0.5}}])
        before = key_of(config)
        assert key_of(config) == before
        assert key_of(other) != before
        data.write_bytes(b"three")
        assert key_of(config) != before

    def test_the_files_of_the_data_are_looked_at_once_for_all_cells(self, tmp_path, monkeypatch):
        (tmp_path / "u.npz").touch()
        wanted = request(data={"unipen62": tmp_path / "u.npz"}, seeds=3, rounds=2)
        cells = make_cells(wanted, choose_tasks(wanted, (LINEAR,)), DELTA_FL)
        looks = []
        files = cells_module._files

        def look(path):
            looks.append(path)
            return files(path)

        monkeypatch.setattr(cells_module, "_files", look)
        places = directories_of(cells, tmp_path)
        assert [place.path.name for place in places] == [key_of(cell.config) for cell in cells]
        assert len(looks) == 1 + len(cells)  # once for all, and once for each asked by itself

    def test_a_key_knows_every_file_of_a_folder(self, tmp_path):
        (tmp_path / "train").mkdir()
        config = build_config([{"data": {"source": str(tmp_path)}}])
        before = key_of(config)
        (tmp_path / "train" / "more.json").write_text("{}")
        assert key_of(config) != before

    def test_a_key_knows_the_version_and_the_word_vectors(self, tmp_path, monkeypatch):
        vectors = tmp_path / "glove.txt"
        vectors.write_text("a 1\n")
        config = build_config([{"data": {"source": "digits", "vectors": str(vectors)}}])
        keys = [key_of(config)]
        vectors.write_text("a 1\nb 2\n")
        keys.append(key_of(config))
        monkeypatch.setattr(cells_module.metadata, "version", lambda _: "another")
        keys.append(key_of(config))
        assert len(set(keys)) == 3


class TestRunning:
    def test_finished_cells_are_not_run_again(self, tmp_path, play):
        cells = digits_cells(tmp_path, (FEDAVG, DELTA_FL[0]), seeds=2)
        double = play(succeeds)
        assert len(run_cells(cells, tmp_path, jobs=2, quiet=True).finished) == 4
        assert len(double.started) == 4
        assert all(place.is_finished for place in directories_of(cells, tmp_path))
        assert len(run_cells(cells, tmp_path, jobs=2, quiet=True).finished) == 4
        assert len(double.started) == 4

    def test_equal_cells_are_run_once_and_reported_each(self, tmp_path, play):
        (cell,) = digits_cells(tmp_path)
        double = play(succeeds)
        again = replace(cell, method="another name")
        outcome = run_cells([cell, again, cell], tmp_path, jobs=1, quiet=True)
        assert list(outcome.finished) == [cell, again]
        assert len(double.started) == 1

    def test_a_failed_cell_is_named_and_loses_nothing_else(self, tmp_path, play):
        cells = digits_cells(tmp_path, seeds=3)
        bad = directories_of(cells, tmp_path)[1].path
        play(lambda place, log: (fails if place.path == bad else succeeds)(place, log))
        outcome = run_cells(cells, tmp_path, jobs=2, quiet=True)
        assert [cell.seed for cell in outcome.finished] == [1, 3]
        log = bad.with_suffix(".log")
        told = f"emnist-linear, FedAvg, seed 2 failed: training diverged (all of it: {log})"
        assert outcome.failed == {cells[1]: told}
        assert b"a line before" in log.read_bytes()

    def test_a_killed_cell_is_a_failure(self, tmp_path, play):
        play(lambda *_: -signal.SIGKILL)
        (told,) = run_cells(digits_cells(tmp_path), tmp_path, quiet=True).failed.values()
        assert "failed: it was killed by signal 9 (" in told

    def test_a_cell_that_ends_well_without_a_result_is_a_failure(self, tmp_path, play):
        play(lambda *_: 0)
        (told,) = run_cells(digits_cells(tmp_path), tmp_path, quiet=True).failed.values()
        assert "failed: it ended with exit code 0 (" in told

    def test_a_process_of_its_own_says_what_is_wrong_with_its_directory(self, tmp_path):
        """The only one with a real process; it ends before it has loaded anything heavy."""
        (cell,) = digits_cells(tmp_path)
        (place,) = directories_of([cell], tmp_path)
        write_run(place.path, cell.config)
        note(place.path, "settings", "[data")
        (told,) = run_cells([cell], tmp_path, quiet=True).failed.values()
        assert "is not valid TOML" in told

    def test_a_failed_cell_is_tried_again(self, tmp_path, play):
        cells = digits_cells(tmp_path)
        play(fails)
        assert run_cells(cells, tmp_path, quiet=True).failed
        play(succeeds)
        assert not run_cells(cells, tmp_path, quiet=True).failed

    @pytest.mark.parametrize("system", [{3, 5}, None])
    def test_each_of_two_that_run_at_a_time_has_a_core_of_its_own(
        self, tmp_path, play, monkeypatch, system
    ):
        bound, both = [], threading.Barrier(2)

        def at_a_time(place, log):
            both.wait(20)
            return succeeds(place, log)

        play(at_a_time)
        if system is None:  # as macOS, which cannot
            monkeypatch.delattr(cells_module.os, "sched_getaffinity")
        else:
            monkeypatch.setattr(cells_module.os, "sched_getaffinity", lambda _: system)
        monkeypatch.setattr(cells_module.os, "sched_setaffinity", lambda _, to: bound.extend(to))
        run_cells(digits_cells(tmp_path, seeds=4), tmp_path, jobs=2, quiet=True)
        assert sorted(bound) == ([] if system is None else [3, 5])

    def test_no_jobs_is_an_error(self, tmp_path):
        with pytest.raises(ValueError, match="jobs=0"):
            run_cells(digits_cells(tmp_path), tmp_path, jobs=0)

    def test_a_directory_holds_settings_that_run_it_again(self, tmp_path, play):
        (cell,) = digits_cells(tmp_path)
        play(succeeds)
        run_cells([cell], tmp_path, quiet=True)
        (place,) = directories_of([cell], tmp_path)
        assert toml_of(place.path) == to_toml(cell.config)


class TestCommand:
    ARGUMENTS = ("--data", "digits", "--rounds", "2", "--seeds", "1", "--quiet")

    @pytest.mark.slow
    def test_one_command_runs_reports_and_goes_on(self, tmp_path, capsys, play, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        double = play(runs)
        out = str(tmp_path / "results")
        command = ["reproduce", "table2", *self.ARGUMENTS, "--methods", "fedavg,delta-fl-0.5"]
        assert cli.main([*command, "--out", out]) == 0
        printed = capsys.readouterr().out
        assert "\nFedAvg " in printed
        report = printed[printed.index("90th percentile of the test error") :].split(out)[0]
        assert max(map(len, report.splitlines())) <= 80
        assert "stand-in" in printed
        folder = tmp_path / "results" / "table2"
        assert "| FedAvg" in (folder / "report.md").read_text()
        lines = (folder / "table2.jsonl").read_text().splitlines()
        assert {json.loads(line)["method"] for line in lines} == {"FedAvg", "Δ-FL θ=0.5"}
        assert cli.main([*command, "--out", out, "--dry-run"]) == 0
        assert "2 runs, 2 of them done" in capsys.readouterr().out
        command[1] = "table3"  # is made of the same runs
        assert cli.main([*command, "--out", out]) == 0
        assert len(double.started) == 2
        assert all("--no-plots" in started for started in double.commands)
        assert not list(tmp_path.rglob("plots"))  # of single runs, which nobody looks at

    def test_failed_runs_are_reported_and_the_exit_code_says_so(self, tmp_path, capsys, play):
        play(fails)
        out = str(tmp_path)
        assert cli.main(["reproduce", "table2", *self.ARGUMENTS, "--out", out]) == 1
        assert "every run failed; emnist-linear, FedAvg, seed 1 failed" in capsys.readouterr().err

    def test_an_interruption_says_how_to_go_on(self, tmp_path, capsys, play):
        def interrupt(*_):
            raise KeyboardInterrupt

        play(interrupt)
        assert cli.main(["reproduce", "table2", *self.ARGUMENTS, "--out", str(tmp_path)]) == 130
        assert "run the same command again to continue" in capsys.readouterr().err

    def test_an_interruption_reports_what_is_finished(self, tmp_path, play):
        def one_run(place, stderr):
            if any(RunDirectory(one.parent).is_finished for one in tmp_path.rglob("record.sqlite")):
                raise KeyboardInterrupt
            return runs(place, stderr)

        play(one_run)
        command = ["reproduce", "table2", *self.ARGUMENTS, "--methods", "fedavg,q-ffl"]
        assert cli.main([*command, "--jobs", "1", "--out", str(tmp_path)]) == 130
        report = (tmp_path / "table2" / "report.md").read_text()
        assert "Missing: emnist-linear, q-FFL, seed 1: not finished." in report
        assert "FedAvg, seed 1" not in report

    def test_the_list_names_every_experiment_its_source_and_its_data(self, capsys):
        assert cli.main(["reproduce"]) == 0
        lines = capsys.readouterr().out.splitlines()
        for experiment in EXPERIMENTS:
            (line,) = [line for line in lines if line.split()[:1] == [experiment.name]][:1]
            assert experiment.source in line
        assert any(line.startswith("  fig3 ") and line.endswith("data: none") for line in lines)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["tabel2"], "did you mean 'table2'"),
            (["table2", "--data", "unipen62"], "must have the form unipen62=PATH"),
            (["table2", "--data", "unipen62=nowhere.npz"], "there is no nowhere.npz"),
            (["table2", "--data", "digits=here"], "write --data digits"),
            (["table2", "--data", "digits", "--data", "digits"], "digits is named twice"),
            (["table2", "--rounds", "0"], "--rounds 0: must be at least 1, or a percentage"),
            (["table2", "--rounds", "0%"], "--rounds 0%: must be at least 1, or a percentage"),
            (["table2", "--rounds", "ten"], "--rounds ten: must be at least 1, or a percentage"),
            (["table2", "--methods", ","], "empty list"),
            (["table2", "--set", "federation.theta=7", "--data", "digits"], "must lie in"),
            (["headline-tunin"], "did you mean 'headline-tuning'"),
        ],
    )
    def test_what_cannot_be_is_answered_by_one_sentence(self, arguments, message, capsys):
        assert cli.main(["reproduce", *arguments]) == 2
        errors = capsys.readouterr().err
        assert message in errors
        assert errors.count("\n") == 1
