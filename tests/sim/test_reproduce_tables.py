"""The tables of the papers: numbers, marks, tests, and what is written of them."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from records import due, write_run

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.catalogue import experiment_named
from deltafl.sim.reproduce.experiment import Finished, Report, Request, Table, mean_and_std
from deltafl.sim.reproduce.grid import config_of
from deltafl.sim.reproduce.methods import (
    DELTA_FL,
    FEDAVG,
    MEAN_ERROR,
    METHODS,
    PRIVATE_AT_LEVELS,
    TAIL_ERROR,
    WORKSHOP,
    Published,
)
from deltafl.sim.reproduce.output import (
    as_csv,
    as_json_lines,
    as_markdown,
    table_as_markdown,
    write_report,
)
from deltafl.sim.reproduce.tables import off_by
from deltafl.sim.reproduce.tasks import DATA_SETS, TASKS, Chosen
from deltafl.sim.run.algorithms import keeps_enough
from deltafl.sim.run.arms import session_of


def request(**settings) -> Request:
    return Request(**{"out": Path("unused"), "data": {"digits": Path()}, "rounds": 2, **settings})


def devices(errors, losses=None) -> list[DeviceMetrics]:
    losses = [1.0] * len(errors) if losses is None else losses
    return [
        DeviceMetrics(f"device-{number:03}", 10, loss, error)
        for number, (error, loss) in enumerate(zip(errors, losses, strict=True))
    ]


def played(tmp_path, cells, errors_of) -> list[Finished]:
    """Cells whose final models err as `errors_of` says, a number per test device."""
    finished = []
    for number, cell in enumerate(cells):
        directory = RunDirectory(tmp_path / str(number))
        errors = errors_of(cell)
        evaluation = Evaluation(2, devices([0.0], [0.5 + 0.01 * number]), devices(errors))
        write_run(directory.path, due(cell.config), evaluation)
        finished.append(Finished(cell, directory))
    return finished


def report_of(tmp_path, name, errors_of, *, drop=lambda _: False, **settings) -> Report:
    wanted = request(**{"seeds": 3, "methods": ("fedavg", "delta-fl-0.5"), **settings})
    experiment = experiment_named(name)
    cells = [cell for cell in experiment.cells(wanted) if not drop(cell)]
    return experiment.report(wanted, played(tmp_path, cells, errors_of))


def tail(cell, *, better) -> list[float]:
    """40 devices; Δ-FL errs less on the hard quarter of them if `better`, else more."""
    hard = 0.6 + 0.01 * cell.seed
    if cell.method != "FedAvg":
        hard += -0.2 if better else 0.2
    return [0.2] * 30 + [hard] * 10


class TestErrorTable:
    def test_numbers_are_means_and_deviations_over_seeds(self, tmp_path):
        table = report_of(tmp_path, "table2", lambda cell: tail(cell, better=True)).tables[0]
        fedavg, delta_fl = table.rows[:2]
        assert fedavg[:2] == ("FedAvg", "62.00 ± 1.00")
        assert delta_fl[:2] == ("Δ-FL θ=0.5", "**42.00 ± 1.00**")

    def test_the_mean_is_another_table_of_the_same_runs(self, tmp_path):
        table = report_of(tmp_path, "table3", lambda cell: tail(cell, better=True)).tables[0]
        assert table.rows[0][1] == "30.50 ± 0.25"

    def test_published_numbers_stand_beside_with_the_distance(self, tmp_path):
        table = report_of(tmp_path, "table2", lambda cell: tail(cell, better=True)).tables[0]
        assert table.rows[0][2] == "49.66 ± 0.67"
        assert table.rows[0][3] == f"{(62 - 49.66) / math.hypot(1.0, 0.67):+.1f} σ"
        assert table.rows[1][2] == "**48.44 ± 0.38**"

    @pytest.mark.parametrize("better", [True, False])
    def test_the_tests_tell_a_lower_tail_from_a_higher_one(self, tmp_path, better):
        tests = report_of(tmp_path, "table2", lambda cell: tail(cell, better=better)).tables[1]
        row = dict(zip(tests.columns, tests.rows[1], strict=True))
        assert row["method"] == "Δ-FL θ=0.5"
        assert row["p over runs, Holm"] == "0.2500"  # three equal differences
        assert row["difference over devices (points) [95%]"].startswith("-") == better

    def test_every_method_is_compared_with_fedavg(self, tmp_path):
        report = report_of(tmp_path, "table2", lambda cell: tail(cell, better=True))
        assert [row[0] for row in report.tables[1].rows] == ["FedAvg", "Δ-FL θ=0.5"]

    def test_the_note_and_the_columns_tell_of_the_same_p_values(self, tmp_path):
        report = report_of(tmp_path, "table2", lambda cell: tail(cell, better=True))
        assert any("two-sided" in column for column in report.tables[1].columns)
        assert any(note.startswith("p-values are two-sided") for note in report.notes)

    def test_a_missing_run_leaves_the_method_without_a_test(self, tmp_path):
        report = report_of(
            tmp_path,
            "table2",
            lambda cell: tail(cell, better=True),
            drop=lambda cell: cell.method != "FedAvg" and cell.seed == 2,
        )
        assert report.tables[0].rows[1][1] == "**42.00 ± 1.41**"
        assert len(report.tables) == 1

    def test_the_order_in_which_runs_ended_does_not_matter(self, tmp_path):
        wanted = request(seeds=3, methods=("fedavg", "delta-fl-0.5"))
        experiment = experiment_named("table2")
        cells = experiment.cells(wanted)
        finished = played(tmp_path, cells, lambda cell: tail(cell, better=True))
        mixed = [*finished[:3][::-1], *finished[3:]]
        tables = [experiment.report(wanted, runs).tables for runs in (finished, mixed)]
        assert tables[0] == tables[1]
        assert len(tables[0]) == 2

    def test_a_missing_method_is_a_dash(self, tmp_path):
        report = report_of(
            tmp_path,
            "table2",
            lambda cell: tail(cell, better=True),
            drop=lambda cell: cell.method != "FedAvg",
        )
        assert report.tables[0].rows[1][1] == "–"
        assert report.tables[0].records[1]["mean"] is None

    def test_one_seed_shows_no_spread(self, tmp_path):
        report = report_of(tmp_path, "table2", lambda cell: tail(cell, better=True), seeds=1)
        assert report.tables[0].rows[0][1] == "61.00"

    def test_private_delta_fl_has_no_published_number(self, tmp_path):
        report = report_of(
            tmp_path,
            "table2",
            lambda cell: tail(cell, better=True),
            methods=("fedavg", "private-delta-fl-0.5"),
        )
        assert report.tables[0].rows[1][2:] == ("–", "–")


class TestFairnessTable:
    def test_metrics_are_accuracies_and_the_best_is_bold(self, tmp_path):
        report = report_of(
            tmp_path,
            "fairness",
            lambda cell: [0.0] * 9 + [1.0] if cell.method == "FedAvg" else [0.2] * 10,
        )
        (table,) = report.tables
        assert table.columns[1:] == (
            "average ↑",
            "worst 10 % ↑",
            "best 10 % ↑",
            "Gini ↓",
            "parity gap ↓",
        )
        fedavg, delta_fl = table.rows
        assert [text.split(" ±")[0] for text in fedavg[1:]] == [
            "**90.00",
            "0.00",
            "**100.00",
            "10.00",
            "100.00",
        ]
        assert [text.split(" ±")[0] for text in delta_fl[1:]] == [
            "80.00",
            "**80.00",
            "80.00",
            "**0.00",
            "**0.00",
        ]

    def test_hearts_published_numbers_stand_beside(self, tmp_path):
        wanted = {"data": {"heart": Path("heart")}, "methods": ("fedavg", "aaggff-s")}
        report = report_of(tmp_path, "heart", lambda _: [0.1, 0.2, 0.2, 0.3], **wanted)
        (table,) = report.tables
        column = table.columns.index("worst: the paper's AUROC")
        assert [row[column] for row in table.rows] == ["65.22 ± 9.78", "66.56 ± 10.81"]
        assert "off by" not in table.columns  # ours are accuracies
        assert all(record["off_by"] is None for record in table.records)


class TestDataTable:
    def test_data_that_it_cannot_have_are_found_out_before_anything_is_run(self):
        with pytest.raises(ConfigError, match="no data for emnist-linear"):
            experiment_named("table1").cells(request(data={"heart": Path("heart")}))

    def test_our_data_stand_above_the_papers(self):
        experiment = experiment_named("table1")
        assert experiment.cells(request()) == ()
        report = experiment.report(request(), ())
        ours, paper = report.tables[0].rows
        assert ours[:4] == ("digits", "10", "30", "30")
        assert paper == ("emnist, paper", "62", "865", "865", "179", "101", "447")
        assert "digits is a stand-in." in report.notes


class TestPublished:
    @pytest.mark.parametrize("columns", [TAIL_ERROR, MEAN_ERROR])
    def test_all_five_tasks_are_there_with_the_methods_of_their_paper(self, columns):
        assert list(columns) == [task.name for task in TASKS[:5]]
        labels = {method.label for method in WORKSHOP}
        for task in list(columns)[:4]:
            assert set(columns[task]) == labels
        assert set(columns["shakespeare-gru"]) == {m.label for m in (FEDAVG, *DELTA_FL)}

    def test_labels_are_those_of_methods(self):
        labels = {method.label for method in METHODS}
        for columns in (TAIL_ERROR, MEAN_ERROR):
            assert all(set(column) <= labels for column in columns.values())

    def test_the_tail_lies_above_the_mean(self):
        for task, column in TAIL_ERROR.items():
            for label, number in column.items():
                assert number.mean > MEAN_ERROR[task][label].mean

    def test_the_headline_numbers(self):
        column = TAIL_ERROR["emnist-convnet"]
        assert column["FedAvg"] == Published(28.46, 1.07)
        assert column["Δ-FL θ=0.5"] == Published(23.69, 0.94)


class TestOffBy:
    def test_it_is_the_difference_in_standard_deviations_of_both(self):
        ours = mean_and_std((10.0, 16.0))
        expected = (13 - 20) / math.hypot(18**0.5, 4)
        assert off_by(*ours, Published(20, 4)) == pytest.approx(expected)

    def test_a_single_seed_is_measured_by_the_published_spread(self):
        assert off_by(10.0, None, Published(20, 4)) == -2.5

    def test_without_any_spread_there_is_no_measure(self):
        assert off_by(10.0, None, Published(20, 0)) is None


TEXTS = st.text(
    st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp"), blacklist_characters="\\")
)


class TestOutput:
    @pytest.mark.slow
    @given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
    def test_a_table_has_the_same_cells_in_every_line(self, rows):
        table = Table("t", "T", ("a", "b"), tuple(rows))
        lines = table_as_markdown(table).split("\n")
        assert len(lines) == len(rows) + 2
        assert {line.replace("\\|", "").count("|") for line in lines} == {3}
        assert len({len(line) for line in lines}) == 1

    def test_a_bar_in_a_cell_does_not_end_it(self):
        assert r"\|" in table_as_markdown(Table("t", "T", ("a",), (("x|y",),)))

    def test_csv_has_the_records_and_reads_back(self):
        records = ({"a": 1, "b": "x, y"}, {"a": 2, "c": None})
        read = list(csv.DictReader(io.StringIO(as_csv(Table("t", "T", ("a",), (), records)))))
        assert read == [{"a": "1", "b": "x, y", "c": ""}, {"a": "2", "b": "", "c": ""}]

    def test_json_lines_have_no_nan(self):
        table = Table("t", "T", ("a",), (), ({"a": math.nan, "b": math.inf, "c": 1.5},))
        assert json.loads(as_json_lines(table)) == {"a": None, "b": None, "c": 1.5}

    def test_everything_is_written_and_the_same_bytes_again(self, tmp_path):
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot([0, 1])
        report = Report(
            tables=(Table("numbers", "Numbers", ("a",), (("1",),)),),
            figures={"curve": figure},
            notes=("a stand-in",),
        )
        experiment = experiment_named("table2")
        folder = write_report(experiment, report, tmp_path)
        written = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert set(written) == {
            "report.md",
            "numbers.csv",
            "numbers.jsonl",
            "curve.png",
            "curve.svg",
        }
        write_report(experiment, report, tmp_path)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == written

    def test_the_markdown_says_source_tables_figures_and_notes(self):
        report = Report((Table("t", "A table", ("a",), ()),), {"curve": Figure()}, ("a stand-in",))
        text = as_markdown(experiment_named("table2"), report)
        for part in ("arXiv 2002.11223, Table 2", "## A table", "![curve](curve.png)", "- a stand"):
            assert part in text
        assert "Notes" not in as_markdown(experiment_named("table2"), replace(report, notes=()))


SMALL_TAILS = {"methods": ("fedavg", "private-delta-fl-0.1"), "seeds": 1}


def test_a_method_that_is_not_private_at_the_cohort_is_not_run_and_says_so(tmp_path):
    report = report_of(tmp_path, "table3", lambda _: [0.1, 0.2], **SMALL_TAILS)
    cells = experiment_named("table3").cells(request(**SMALL_TAILS))
    assert {cell.method for cell in cells} == {FEDAVG.label}
    row = next(row for row in report.tables[0].rows if row[0] == "private Δ-FL θ=0.1")
    assert row[1] == "not private at this cohort"
    assert any("keeps 1 of 15 devices, and privacy.min_honest_tail is 2" in n for n in report.notes)


@pytest.mark.parametrize(
    "settings", [{"privacy": {"sums": "ideal"}}, {"federation": {"cohort_size": 100}}]
)
def test_with_ideal_sums_or_in_a_larger_cohort_it_is_run(settings):
    cells = experiment_named("table3").cells(request(**SMALL_TAILS, overrides=settings))
    assert {cell.method for cell in cells} == {FEDAVG.label, "private Δ-FL θ=0.1"}
    (private,) = [cell.config for cell in cells if cell.method != FEDAVG.label]
    assert session_of(private, 1000)


@pytest.mark.parametrize("method", PRIVATE_AT_LEVELS, ids=lambda method: method.key)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_papers_tasks_have_sessions_at_each_level_or_too_small_a_cohort(task, method):
    data = next(one for one in DATA_SETS if one.suits(task))
    chosen = Chosen(task, data, Path())
    if task.settings["federation"]["cohort_size"] < 10:  # of tasks of a few silos
        with pytest.raises(ConfigError, match=r"at least privacy\.min_cohort"):
            config_of(request(), chosen, method, 1)
        return
    config = config_of(request(), chosen, method, 1)
    assert not keeps_enough(config) or session_of(config, 1000)
