"""Figures as files, by matplotlib: those of runs, and what figures of studies are drawn with.

PDF files embed their fonts as TrueType; in SVG files, letters are outlines. Equal runs make equal
files. Figures are made without pyplot, which would keep them in a global list and look for a
display.
"""

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from deltafl.fl.simplex import Reals
from deltafl.sim.charts import runs
from deltafl.sim.charts.chart import Chart, Curve, LineStyle, Pairs, round_ticks
from deltafl.sim.record.own_files import make_folder, write_file
from deltafl.sim.record.snapshot import Method
from deltafl.sim.writing import percent

PAPER: Final = {"-one-column": 3.35, "-two-columns": 7.0}
"""Widths in inches, by what they add to names: 85 and 178 mm, as most journals have columns."""

_FORMATS: Final[dict[str, dict[str, Any]]] = {
    "pdf": {"metadata": {"CreationDate": None}},
    "png": {"dpi": 150},
    "svg": {"metadata": {"Date": None}},
}
_STYLE: Final[Any] = {
    "axes.grid": True,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "font.size": 8,
    "grid.alpha": 0.25,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3,
    "pdf.fonttype": 42,  # TrueType; journals refuse type 3
    "svg.fonttype": "path",
    "svg.hashsalt": "deltafl",
}
_PANEL_HEIGHT: Final = 2.1
_WIDE: Final = 5.0  # inches; from here on, two panels are side by side
_MARKERS_ON_A_LINE: Final = 10
_MOST_PAIRS: Final = 6

Panel = Callable[[Axes], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A figure to be drawn.

    Attributes:
        name: of its files.
        caption: what it shows.
        panels: draw its panels.
        legend: labels and numbers of the methods in it.
        is_square: whether its panels are; then it has the width of one column only.
    """

    name: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, int], ...] = ()
    is_square: bool = False


def write_figures(folder: Path, methods: Sequence[Method]) -> list[Path]:
    """Draw the figures that runs have data for, as PNG and SVG; the files.

    They are `error` and `devices`.

    Args:
        folder: where; created where it is missing.
        methods: what to draw.
    """
    return _drawn(folder, _plans_of(methods), {"": 7.0}, ("png", "svg"))


def write_paper(
    folder: Path, methods: Sequence[Method], found: Sequence[tuple[int, Pairs]]
) -> list[Path]:
    """Draw the same for a paper, and `paired`, as PDF and SVG, with captions.txt; the files.

    Args:
        folder: where; created where it is missing.
        methods: what to draw.
        found: devices under methods, by number, and under a baseline.
    """
    plans = _plans_of(methods) + _paired(found)
    written = _drawn(folder, plans, PAPER, ("pdf", "svg"))
    captions = folder / "captions.txt"
    write_file(captions, "".join(f"{one.name}: {one.caption}\n\n" for one in plans).encode())
    return [*written, captions]


def _plans_of(methods: Sequence[Method]) -> list[Plan]:
    errors = [one for one in runs.error_charts(methods) if one.values]
    titles = " and ".join(one.title[0].lower() + one.title[1:] for one in errors)
    found = [_plan("error", f"Test error by round: {titles}", errors)] if errors else []
    return [*found, *_distribution(methods)]


def error_figure(charts: Sequence[Chart]) -> Figure:
    """A figure of charts beside each other, which have the same methods, as those of a run's."""
    with mpl.rc_context(_STYLE):
        return _figure(_plan("error", "", charts), 7.0)


def _drawn(
    folder: Path, plans: Sequence[Plan], widths: Mapping[str, float], formats: Sequence[str]
) -> list[Path]:
    """Draw figures into files, in widths in inches by what they add to names."""
    make_folder(folder)
    written = []
    with mpl.rc_context(_STYLE):
        for plan, (suffix, width) in itertools.product(plans, widths.items()):
            if plan.is_square and width > _WIDE:
                continue
            figure = _figure(plan, width)
            for kind in formats:
                path = folder / f"{plan.name}{suffix}.{kind}"
                write_file(path, encoded(figure, kind))
                written.append(path)
    return written


def encoded(figure: Figure, kind: str) -> bytes:
    """A figure as the bytes of a file: pdf, png or svg; equal figures give equal bytes."""
    with mpl.rc_context({"svg.hashsalt": "deltafl"}):
        drawn = io.BytesIO()
        figure.savefig(drawn, format=kind, **_FORMATS[kind])
        return drawn.getvalue()


def new_figure(
    rows: int, columns: int, size: tuple[float, float] = (4.6, 3.6)
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of panels of this size in inches, by row and column."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    panels: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False).tolist()
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    return figure, panels


def line_style(number: int, *, marked: bool = True) -> dict[str, Any]:
    """How the line of this number looks, as matplotlib's arguments."""
    style = LineStyle(number)
    dashes = (0, style.dashes) if style.dashes else "-"
    looks = {"color": style.colour, "linestyle": dashes}
    return {**looks, "marker": style.marker} if marked else looks


def dot_style(number: int) -> dict[str, Any]:
    """How the dots of this number look, as matplotlib's arguments."""
    return {"color": LineStyle(number).colour, "marker": LineStyle(number).marker}


def titled(panel: Axes, title: str, *, legend: bool = True, **given: Any) -> None:  # noqa: ANN401
    """Say what a panel shows: its title, what `Axes.set` takes, and a legend of what is drawn."""
    panel.set(**given)
    panel.set_title(title, fontsize="medium")
    if legend:
        panel.legend(frameon=False, fontsize="small")


def _paired(found: Sequence[tuple[int, Pairs]]) -> list[Plan]:
    if not found:
        return []
    told = " ".join(_balance(one) for _, one in found[:_MOST_PAIRS])
    caption = (
        "Final test error of each test device under a method, against that under "
        f"{found[0][1].baseline}; means over seeds. Below the line, a device is helped. "
        f"Devices move together from one training to the next. {told}"
    )
    return [Plan("paired", caption, tuple(_scatter(*one) for one in found[:_MOST_PAIRS]), (), True)]


def _balance(one: Pairs) -> str:
    """Who gains and who loses, in a sentence."""
    told = f"{one.method}: {one.helped} helped, {one.hurt} hurt"
    if one.worst is None:
        return f"{told}."
    mean, low, high = (f"{100 * value:+.1f}".replace("inf", "∞") for value in one.worst)
    return (
        f"{told}; the error of the tenth that {one.baseline} serves worst in other seeds changes "
        f"by {mean} points (95% interval over seeds: {low} to {high})."
    )


def _figure(plan: Plan, width: float) -> Figure:
    columns = min(2 if width > _WIDE else 1, len(plan.panels))
    rows = -(-len(plan.panels) // columns)
    in_a_row = max(1, int(width / 1.5))
    legend_rows = -(-len(plan.legend) // in_a_row)
    height = rows * (width if plan.is_square else _PANEL_HEIGHT) + 0.16 * legend_rows
    figure = Figure(figsize=(width, height), layout="constrained")
    for number, panel in enumerate(plan.panels, 1):
        panel(figure.add_subplot(rows, columns, number))
    if plan.legend:
        handles = [Line2D([], [], label=_plain(one), **line_style(at)) for one, at in plan.legend]
        figure.legend(handles=handles, loc="outside lower center", ncols=in_a_row, handlelength=3.6)
    return figure


def _plan(name: str, caption: str, charts: Sequence[Chart]) -> Plan:
    """A figure of charts, which have the same methods."""
    curves = charts[-1].curves
    bands = "One seed."
    if any(one.has_range for one in curves):
        bands = "Lines are means over seeds; bands reach from the lowest seed to the highest."
    values = [0.0, *(value for one in charts for value in one.values)]
    scale = 1.05 * min(values), 1.05 * max(values)  # one for all; of a metric, also below zero
    panels = tuple(_lines(one, scale if any(scale) else (0, 1)) for one in charts)
    legend = tuple((one.label, one.number) for one in curves)
    return Plan(name, f"{caption}. {bands}", panels, legend)


def _lines(chart: Chart, scale: tuple[float, float]) -> Panel:
    def draw(axes: Axes) -> None:
        for one in chart.curves:
            _draw_curve(axes, one)
        axes.set(title=chart.title, xlabel="round", ylabel=chart.unit, ylim=scale)
        axes.set_xticks(round_ticks(*chart.span))
        if chart.write is percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))

    return draw


def _draw_curve(axes: Axes, one: Curve) -> None:
    at = np.array(one.rounds)
    low, mean, high = (np.array(side, dtype=np.float64) for side in (one.low, one.mean, one.high))
    every = max(1, len(at) // _MARKERS_ON_A_LINE)
    axes.plot(at, mean, markevery=every, **line_style(one.number))
    if one.has_range:
        colour = LineStyle(one.number).colour
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def _distribution(methods: Sequence[Method]) -> list[Plan]:
    """The final test errors of devices, sorted, so that the worst served are to the right."""
    finals = _final_errors(methods)
    if not finals:
        return []

    def draw(axes: Axes) -> None:
        for _, number, errors in finals:
            share = (np.arange(errors.size) + 0.5) / errors.size
            every = max(1, errors.size // _MARKERS_ON_A_LINE)
            axes.plot(share, errors, markevery=every, **line_style(number))
        axes.set(xlabel="share of devices, best served first", ylabel="final test error")
        axes.set_ylim(bottom=0)
        _in_percent(axes)

    caption = (
        "Final test error of devices, sorted from the best served to the worst served under each "
        "method; the mean over seeds at each rank."
    )
    return [Plan("devices", caption, (draw,), tuple((label, at) for label, at, _ in finals))]


def _final_errors(methods: Sequence[Method]) -> list[tuple[str, int, Reals]]:
    """The final test errors of devices, sorted, by label and number of the method.

    They are means over seeds at each rank, of methods that were tested on as many devices by each.
    """
    found = []
    for number, method in enumerate(methods):
        rows = [run.tested[-1].errors for run in method.runs if run.tested]
        if rows and len({row.size for row in rows}) == 1 and rows[0].size:
            found.append((method.label, number, np.sort(np.array(rows), axis=1).mean(axis=0)))
    return found


def _scatter(number: int, one: Pairs) -> Panel:
    def draw(axes: Axes) -> None:
        top = 1.05 * max(float(one.ours.max()), float(one.theirs.max()), 0.01)
        axes.plot([0, top], [0, top], color="0.5", linewidth=0.7)
        axes.scatter(one.theirs, one.ours, s=9, linewidths=0.3, **dot_style(number))
        names = (f"test error, {_plain(name)}" for name in (one.baseline, one.method))
        axes.set(**dict(zip(("xlabel", "ylabel"), names, strict=True)))
        axes.set(xlim=(0, top), ylim=(0, top), aspect="equal")
        _in_percent(axes)

    return draw


def _in_percent(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _plain(label: str) -> str:
    """A label that is not read as mathematics."""
    return label.replace("$", r"\$")
