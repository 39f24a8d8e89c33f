"""The figures of the paper: what each needs, shows and says."""

import io
import json
from fractions import Fraction
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from doubles import Silent
from hypothesis import given, settings
from hypothesis import strategies as st
from records import write_run

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.superquantile import conformity, superquantile
from deltafl.sim.errors import ConfigError, RunDirectoryError
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.catalogue import EXPERIMENTS
from deltafl.sim.reproduce.device_figures import per_device
from deltafl.sim.reproduce.experiment import Finished, Request, last_evaluation
from deltafl.sim.reproduce.figure import TEST, TRAIN
from deltafl.sim.reproduce.mixture import (
    ACUTE,
    OBTUSE,
    RIGHT,
    THETA,
    draw_mixtures,
    gaussians,
    illustrate,
    solve_dual,
    violations,
)
from deltafl.sim.reproduce.round_figures import course
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.settings.config_io import build_config

ONE = "fig16-emnist-linear"  # a figure of one panel, soon drawn
BY_NAME = {one.name: one for one in EXPERIMENTS if one.name.startswith("fig")}
coordinate = st.floats(-3, 3).map(lambda number: round(number, 2))
triangles = st.lists(st.tuples(coordinate, coordinate), min_size=3, max_size=3).filter(
    lambda points: abs(np.linalg.det(np.subtract(points[1:], points[0]))) > 0.5
)


def devices(values, prefix, num_samples=10):
    return [
        DeviceMetrics(f"{prefix}{k}", num_samples * (k + 1), float(value), float(value) / 10)
        for k, value in enumerate(values)
    ]


def run_directory(path, *, seed=0, rounds=4, sums=1, kept=3, start=4.0, prefix="d", every=2):
    """A run that was never run: losses that fall by the round, errors a tenth of them."""
    evaluations = []
    for number in range(0, rounds + 1, every):
        values = np.linspace(start, start + 2, 8) / (1 + number) + 0.01 * seed
        train, test = devices(values, "train-"), devices(values, prefix)
        evaluations.append(Evaluation(number, train, test))
    events = [
        {"round": number, "kept_devices": kept, "secure_sums": sums}
        for number in range(1, rounds + 1)
    ]
    federation = {"rounds": rounds, "evaluate_every": every}
    return write_run(path, build_config([{"federation": federation}]), *evaluations, events=events)


def request(**changes):
    data = {"digits": Path("digits")}
    return Request(Path("out"), data=data, models=("linear",), seeds=2, rounds=4, **changes)


def finish(cells, folder):
    """Pretend that the cells were run; methods differ in where their losses start."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    return [
        Finished(
            cell,
            run_directory(
                folder / str(number),
                seed=cell.seed,
                sums=5 if "private" in cell.method else 1,
                kept=None if "private" in cell.method else 3 + cell.seed,
                start=4.0 - 0.5 * methods.index(cell.method),
            ),
        )
        for number, cell in enumerate(cells)
    ]


def report(name, folder, **changes):
    wanted = request(**changes)
    if name in {"fig4", "fig5", "fig6", "fig8"}:  # of the ConvNet, which takes no 8 x 8 images
        data = {"unipen62": Path("unipen62.npz")}
        wanted = Request(Path("out"), data=data, seeds=2, rounds=4, **changes)
    figure = BY_NAME[name]
    return figure.report(wanted, finish(figure.cells(wanted), folder))


def as_bytes(figure):
    files = io.BytesIO(), io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "deltafl"}):
        figure.savefig(files[0], format="png", dpi=40)
        figure.savefig(files[1], format="svg", metadata={"Date": None})
    return tuple(file.getvalue() for file in files)


def texts(figure):
    return [text.get_text() for text in figure.findobj(mpl.text.Text)]


# --- Figure 3


@pytest.mark.parametrize("means", [OBTUSE, RIGHT])
def test_without_an_acute_angle_everything_is_as_the_paper_says(means):
    found = illustrate(means)
    assert violations(found.numbers) == []
    longest = means[0], means[2]
    assert np.allclose(found.w_theta, np.mean(longest, axis=0), atol=1e-7)
    assert np.allclose(found.w_1, np.mean(means, axis=0), atol=1e-7)
    assert found.numbers["worst_loss_w_theta"] < found.numbers["worst_loss_w_1"]


def test_in_an_acute_triangle_the_minimiser_is_the_circumcentre_and_not_the_midpoint():
    found = illustrate(ACUTE)
    assert violations(found.numbers) == ["w_2/3 is the midpoint of the longest side"]
    assert found.numbers["w_theta_to_midpoint"] == pytest.approx(0.5, abs=0.01)
    assert np.ptp([np.linalg.norm(found.w_theta - mean) for mean in ACUTE]) < 1e-6


@pytest.mark.slow
@settings(max_examples=20)
@given(triangles)
def test_the_minimiser_depends_on_the_largest_angle(means):
    found = illustrate(means).numbers
    is_acute = found["largest_angle_degrees"] < 90
    assert found["w_theta_to_circumcentre" if is_acute else "w_theta_to_midpoint"] < 1.5e-4
    assert -1e-9 < found["duality_gap"] < 1e-6


def test_the_dual_bound_tells_a_minimiser_from_its_neighbours():
    problem = gaussians(OBTUSE)
    bound, best = solve_dual(problem, THETA)
    for step in ((0.01, 0), (0, 0.01), (0, -0.01)):
        losses, _ = problem(best + step)
        assert superquantile(losses, [1, 1, 1], THETA) - bound >= 1e-4 - 1e-9


def test_mixtures_are_drawn_from_all_that_conform_and_from_no_others():
    drawn = draw_mixtures(500, THETA, np.random.default_rng(0))
    assert drawn.shape == (500, 3)
    found = [conformity([1 / 3] * 3, pi.tolist()) for pi in drawn]
    assert min(found) >= 2 / 3 - 1e-12
    assert max(found) > 0.95
    assert np.allclose(drawn.mean(axis=0), 1 / 3, atol=0.02)


def test_figure_3_prints_its_numbers():
    found = BY_NAME["fig3"].report(Request(Path("out")), ())
    (table,) = found.tables
    assert [row[0] for row in table.rows] == ["obtuse (drawn)", "right", "acute (control)"]
    drawn = table.records[0]
    assert drawn["w_theta_to_midpoint"] < 1e-7
    assert drawn["w_1_to_mean"] < 1e-7
    assert not any("FAILED" in note for note in found.notes)
    assert BY_NAME["fig3"].cells(Request(Path("out"))) == ()


@pytest.mark.slow
def test_figure_3_says_so_loudly_where_it_is_not_as_in_the_paper(monkeypatch):
    monkeypatch.setattr("deltafl.sim.reproduce.mixture.OBTUSE", ACUTE)
    first, *_ = BY_NAME["fig3"].report(Request(Path("out")), ()).notes
    assert first.startswith("FAILED")


# --- the numbers behind the other figures


def test_a_device_is_averaged_over_the_seeds_in_which_it_appears():
    one = Evaluation(4, devices([1.0, 2.0], "t"), devices([1.0, 2.0], "d"))
    other = Evaluation(4, devices([3.0], "t"), devices([4.0], "d"))
    found = per_device({"FedAvg": [one, other]}, (TRAIN, TEST)).values.tolist()
    assert found[2:] == [[TEST, "FedAvg", "d0", 10, 0.25], [TEST, "FedAvg", "d1", 20, 0.2]]
    assert [value for *_, value in found[:2]] == [2.0, 2.0]


def test_a_course_counts_all_secure_sums(tmp_path):
    plain = {1: run_directory(tmp_path / "a")}
    private = {
        1: run_directory(tmp_path / "b", sums=4),
        2: run_directory(tmp_path / "c", sums=6),
    }
    assert course(plain).sums.tolist() == course(plain).rounds.tolist() == [0, 2, 4]
    assert course(private).sums.tolist() == [0, 10, 20]
    assert course(private).of(TEST, "p90").shape == (2, 3)


def test_seeds_that_were_evaluated_after_other_rounds_make_no_course(tmp_path):
    runs = {1: run_directory(tmp_path / "a"), 2: run_directory(tmp_path / "b", every=4)}
    with pytest.raises(RunDirectoryError, match="evaluations of rounds"):
        course(runs)


def test_a_run_without_evaluations_is_damaged(tmp_path):
    with pytest.raises(RunDirectoryError, match="no evaluation"):
        last_evaluation(write_run(tmp_path, build_config([])))


# --- the figures


def test_there_is_an_experiment_for_every_figure_that_shows_results():
    assert list(BY_NAME) == [f"fig{number}" for number in range(3, 19)]
    assert all(f"Figure {figure.name[3:]}" in figure.source for figure in BY_NAME.values())


def test_figures_share_their_runs():
    cells = {name: set(map(repr, BY_NAME[name].cells(request()))) for name in ("fig7", "fig12")}
    assert cells["fig7"] == cells["fig12"]
    first = [cell for cell in BY_NAME["fig17"].cells(request()) if "T_η" not in cell.method]
    assert set(map(repr, first)) <= cells["fig7"]


def test_the_period_is_a_setting_of_the_run():
    cells = BY_NAME["fig17"].cells(request())
    periods = {cell.method: cell.config.strategy.eta_every for cell in cells}
    assert periods == {
        "FedAvg": 1,
        "Δ-FL θ=0.5": 1,
        "Δ-FL θ=0.5, T_η=5": 5,
        "Δ-FL θ=0.5, T_η=10": 10,
    }
    assert all(cell.config.federation.theta == Fraction(1, 2) for cell in cells[2:])
    chosen = BY_NAME["fig17"].cells(request(methods=("delta-fl-0.5-every-5", "fedavg")))
    assert [cell.method for cell in chosen[::2]] == ["Δ-FL θ=0.5, T_η=5", "FedAvg"]


@pytest.mark.parametrize("name", ["fig7", "fig16", "fig17"])
def test_unknown_methods_are_refused(name):
    with pytest.raises(ConfigError, match="--methods"):
        BY_NAME[name].cells(request(methods=("nonsense",)))


@pytest.mark.parametrize("name", ["fig4", "fig5", "fig7", "fig16"])
def test_a_figure_is_labelled_and_has_its_numbers_beside_it(name, tmp_path):
    found = report(name, tmp_path)
    assert found.figures
    assert all(one.startswith(f"{name}-emnist") for one in found.figures)
    for figure in found.figures.values():
        assert any("stand-in" in text for text in texts(figure))
        for axes in figure.axes:
            assert axes.get_xlabel()
        assert any(axes.get_ylabel() for axes in figure.axes)
    (table,) = found.tables
    assert table.rows
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert table.records
    assert any("stand-in" in note for note in found.notes)
    json.dumps(table.records, allow_nan=False)


@pytest.mark.slow
def test_figures_are_the_same_bytes_each_time(tmp_path):
    first, second, other = (
        as_bytes(report("fig16", tmp_path / run, methods=("fedavg", method)).figures[ONE])
        for run, method in (("a", "delta-fl-0.5"), ("b", "delta-fl-0.5"), ("c", "delta-fl-0.1"))
    )
    assert first == second
    # negative control: what is in the legend is in the bytes
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_histograms_hold_every_device(tmp_path):
    found = report("fig12", tmp_path)
    test_rows = [record for record in found.tables[0].records if record["split"] == TEST]
    assert [record["devices"] for record in test_rows] == [8] * 4
    assert test_rows[0]["mean"] == pytest.approx(100 * (0.5 / 5 + 0.0015))
    assert found.tables[0].rows[4][4] == f"{test_rows[0]['mean']:.2f}"
    figure = found.figures["fig12-emnist-linear"]
    assert len(figure.axes) == 2 * 3  # a panel for each θ, FedAvg behind it
    for axes in figure.axes:
        for patch in axes.patches:
            assert patch.get_data().values.sum() == 8


def test_one_method_makes_a_histogram_too(tmp_path):
    figure = report("fig12", tmp_path, methods=("fedavg",)).figures["fig12-emnist-linear"]
    assert [len(axes.patches) for axes in figure.axes] == [1, 1]


def test_curves_are_means_over_seeds(tmp_path):
    found = report("fig7", tmp_path)
    figure = found.figures["fig7-emnist-linear"]
    line = figure.axes[0].lines[0]
    weights = np.arange(1, 9)  # of the devices, by their samples
    means = [
        np.average(np.linspace(4, 6, 8), weights=weights) / (1 + number) + 0.015
        for number in (0, 2, 4)
    ]
    assert found.tables[0].records[0]["mean_mean"] == pytest.approx(means[-1])
    assert line.get_xdata().tolist() == [0, 2, 4]
    assert line.get_ydata().tolist() == pytest.approx(means)
    error = figure.axes[4].yaxis
    error.axes.set_ylim(0.981, 0.989)  # ticks that lie close together read differently
    first, second = error.get_major_formatter().format_ticks([0.982, 0.984])
    assert first != second


@pytest.mark.parametrize("name", ["fig4", "fig6"])
def test_a_figure_whose_task_the_paper_does_not_name_says_which_it_shows(name):
    (note, *_) = BY_NAME[name].further_notes
    assert f"which task{'s' * (name == 'fig4')} Figure {name[3:]} shows" in note
    assert BY_NAME[name].tasks[0].name in note


@pytest.mark.slow
def test_figure_6_counts_calls_as_the_paper_does_and_as_they_are(tmp_path):
    found = report("fig6", tmp_path)
    ends = {
        name: {line.get_label(): line.get_xdata()[-1] for line in figure.axes[0].lines}
        for name, figure in found.figures.items()
    }
    assert ends["fig6-emnist-convnet"]["private Δ-FL θ=0.5"] == 4
    assert ends["fig6-emnist-convnet-sums"]["private Δ-FL θ=0.5"] == 20
    assert ends["fig6-emnist-convnet-sums"]["Δ-FL θ=0.5"] == 4


def test_the_band_of_kept_devices_reaches_from_the_lowest_to_the_highest_seed(tmp_path):
    found = report("fig16", tmp_path, methods=("fedavg", "private-delta-fl-0.5"))
    (row,) = found.tables[0].rows
    assert row[1:] == ("FedAvg", "4.5", "4", "5")
    (band,) = found.figures["fig16-emnist-linear"].axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (4, 5)
    assert any("private Δ-FL θ=0.5 is left out" in note for note in found.notes)


def test_the_scatter_counts_devices_with_little_data(tmp_path):
    found = report("fig14", tmp_path)
    assert found.tables[0].rows[0][-1] == "8 of 8 (below 200)"
    spread = found.tables[0].records[0]
    expected = np.std(np.linspace(4, 6, 8) / 5, ddof=1)
    assert spread["std_train_loss"] == pytest.approx(expected)
    assert spread["std_test_error"] == pytest.approx(expected / 10)


def test_what_was_not_run_is_not_drawn():
    found = BY_NAME["fig12"].report(request(), ())
    assert found.figures == {}
    assert found.tables[0].rows == ()


def test_runs_that_were_really_run_can_be_drawn(tmp_path, no_figures):
    tiny = {
        "data": {"num_devices": 8},
        "federation": {"cohort_size": 3, "evaluate_every": 1},
        "training": {"batch_size": 64, "device": "cpu"},
    }
    wanted = Request(
        tmp_path,
        data={"digits": Path("digits")},
        models=("linear",),
        methods=("fedavg", "delta-fl-0.5"),
        seeds=1,
        rounds=2,
        overrides=tiny,
    )
    finished = []
    for number, cell in enumerate(BY_NAME["fig7"].cells(wanted)):
        path = tmp_path / str(number)
        run_experiment(cell.config, path, resume=False, progress=Silent(), warn=pytest.fail)
        finished.append(Finished(cell, RunDirectory(path)))
    reports = {name: BY_NAME[name].report(wanted, finished) for name in ("fig7", "fig12", "fig16")}
    assert all(len(one.figures) == 1 for one in reports.values())
    fedavg, delta_fl = reports["fig16"].tables[0].records
    assert (fedavg["fewest"], fedavg["most"]) == (3, 3)
    assert 1 <= delta_fl["fewest"] <= delta_fl["most"] <= 3
    line = reports["fig7"].figures["fig7-emnist-linear"].axes[0].lines[0]
    assert line.get_ydata()[0] == pytest.approx(np.log(10))


@pytest.mark.slow
def test_the_papers_own_data_are_no_stand_in(tmp_path):
    data = {name: Path(name) for name in ("sent140", "glove", "shakespeare")}
    wanted = Request(Path("out"), data=data, seeds=1)
    figure = BY_NAME["fig15"]
    found = figure.report(wanted, finish(figure.cells(wanted), tmp_path))
    assert len(found.figures) == 3
    for drawn in found.figures.values():
        assert not any("stand-in" in text for text in texts(drawn))
    # of roles the paper does not say what is little data
    assert [row[-1] for row in found.tables[0].rows[::2]] == ["8 of 8 (below 100)"] * 2 + ["–"]
