"""Figures for a paper: the right sizes, embedded fonts, the same bytes again, distinct in grey."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from made_runs import SCRIPT, make_run, private

from deltafl.sim.charts import files
from deltafl.sim.charts.chart import COLOURS, DASHES, Chart, Curve, LineStyle, Pairs
from deltafl.sim.charts.files import PAPER, error_figure, write_paper
from deltafl.sim.record.snapshot import Reader
from deltafl.sim.view.pairs import baseline_of, pairs_of
from deltafl.sim.writing import percent


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    make_run(
        folder / "run",
        algorithm="private-delta-fl",
        baselines=("fedavg", "delta-fl", "q-ffl", "afl"),
        make_event=private,
        federation={"cohort_size": 10},
        rounds=6,
    )
    methods = Reader(folder / "run").read().methods
    files = write_paper(folder / "figures", methods, pairs_of(methods, baseline_of(methods)))
    return methods, folder / "figures", files


@pytest.mark.slow
def test_every_figure_is_there_in_both_widths_and_formats(drawn):
    _, folder, files = drawn
    names = [*(n + w for n in ("devices", "error") for w in PAPER), "paired-one-column"]
    expected = {f"{n}.{s}" for n in names for s in ("pdf", "svg")}
    assert {path.name for path in files} == expected | {"captions.txt"}
    assert {path.name for path in folder.iterdir()} == {path.name for path in files}


@pytest.mark.slow
def test_widths_are_those_of_columns(drawn):
    for path in drawn[2]:
        inches = next((w for name, w in PAPER.items() if name in path.name), None)
        if path.suffix == ".pdf":
            (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", path.read_bytes())
            assert float(box[0]) == pytest.approx(72 * inches, abs=0.1)
        elif path.suffix == ".svg":
            root = ElementTree.parse(path).getroot()  # noqa: S314 - our own file
            assert float(root.get("width").removesuffix("pt")) == pytest.approx(72 * inches)


def test_panels_of_errors_have_one_scale_that_begins_at_zero():
    tops = (0.8, 0.2)
    charts = [
        Chart("t", "u", [Curve("m", 0, (0, 3), *[(0.1, top)] * 3)], write=percent) for top in tops
    ]
    assert {panel.get_ylim() for panel in error_figure(charts).axes} == {(0, 1.05 * 0.8)}


@pytest.mark.parametrize(
    ("values", "scale"), [((-0.4, -0.2), (-1.05 * 0.4, 0)), ((-1.0, 2.0), (-1.05, 2.1))]
)
def test_a_metric_below_zero_does_not_turn_the_axis_round(values, scale):
    chart = Chart("t", "u", [Curve("m", 0, (0, 3), values, values, values)])
    (panel,) = error_figure([chart]).axes
    assert panel.get_ylim() == scale


def test_the_caption_tells_of_the_pairs_that_are_drawn():
    errors = np.array([0.1, 0.6])
    found = [Pairs(f"m{at}", "b", errors, errors, errors, None, 1, 2) for at in range(8)]
    (plan,) = files._paired([*enumerate(found)])
    told = [f"m{at}" for at in range(8) if f"m{at}: 0 helped" in plan.caption]
    assert told == [f"m{at}" for at in range(len(plan.panels))]


def test_both_axes_of_pairs_are_alike():
    errors = np.array([0.1, 0.6])
    found = Pairs("a", "b", errors, errors / 2, np.array([errors] * 2), None, 1, 2)
    (plan,) = files._paired([(0, found)])
    figure = files._figure(plan, 3.35)
    (panel,) = figure.axes
    assert panel.get_xlim() == panel.get_ylim()
    assert panel.get_aspect() == 1
    width, height = figure.get_size_inches()
    assert width == height
    worst = Pairs("a", "b", errors, errors, found.ranked, (-0.1, -np.inf, np.inf), 1, 2)
    assert "changes by -10.0 points (95% interval over seeds: -∞ to +∞)" in files._balance(worst)


@pytest.mark.slow
def test_fonts_are_embedded_as_truetype_and_letters_of_svg_are_outlines(drawn):
    for path in drawn[2]:
        data = path.read_bytes()
        if path.suffix == ".pdf":
            assert b"/FontFile2" in data
            assert b"/Type3" not in data
        if path.suffix == ".svg":
            assert b"<text" not in data


@pytest.mark.slow
def test_captions_say_what_bands_are(drawn):
    captions = (drawn[1] / "captions.txt").read_text(encoding="utf-8")
    assert captions.count("bands reach from the lowest seed to the highest") == 1
    assert "against that under fedavg" in captions
    assert "Devices move together" in captions


@pytest.mark.slow
def test_equal_runs_make_equal_files(drawn, tmp_path):
    methods, folder, _ = drawn
    for path in write_paper(tmp_path / "again", methods, pairs_of(methods, baseline_of(methods))):
        assert path.read_bytes() == (folder / path.name).read_bytes()


@pytest.mark.slow
def test_names_are_letters_and_no_mathematics(tmp_path):
    make_run(tmp_path / "run", seeds=1, names=[SCRIPT, "$x_$", "%", "\\frac", "a", "b", "c", "d"])
    methods = Reader(tmp_path / "run").read().methods
    from dataclasses import replace

    odd = [replace(one, label=f"$\\undefined_{at}$") for at, one in enumerate(methods)]
    assert write_paper(tmp_path / "figures", odd, pairs_of(odd, odd[1]))


def test_lines_differ_in_colour_and_dashes_together():
    strokes = [LineStyle(number) for number in range(len(COLOURS) * len(DASHES))]
    assert len({(one.colour, one.dashes) for one in strokes}) == len(strokes) == 56
    for start in range(len(strokes) - len(DASHES)):
        assert len({one.dashes for one in strokes[start : start + len(DASHES)]}) == len(DASHES)
