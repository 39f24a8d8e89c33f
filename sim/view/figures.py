"""Figures for a paper: as wide as one column or as two, PDF and SVG, with their captions.

Methods are told apart by colour, dashes and markers together (`deltafl.sim.run.strokes`), so that
figures can be read in grey and by people with any colour vision. PDF files embed their fonts as
TrueType; in SVG files, letters are outlines. Equal runs make equal files.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from deltafl.sim.record.atomic import make_folder, write_file
from deltafl.sim.run.strokes import Stroke
from deltafl.sim.run.ticks import round_ticks
from deltafl.sim.view import series
from deltafl.sim.view.look import Method
from deltafl.sim.view.series import Curve, Pairs

WIDTHS: Final = {"one-column": 3.35, "two-columns": 7.0}
"""Widths in inches: 85 and 178 mm, which fit the columns of most journals and conferences."""

FORMATS: Final[dict[str, dict[str, Any]]] = {
    "pdf": {"metadata": {"CreationDate": None}},
    "svg": {"metadata": {"Date": None}},
}
"""Formats, and how each is written."""

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
_WIDE_PANELS: Final = 2  # side by side in two columns
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
    """

    name: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, int], ...]


def write_figures(folder: Path, methods: Sequence[Method], baseline: Method | None) -> list[Path]:
    """Draw all figures that the runs have data for, and write captions.txt.

    Args:
        folder: where; created where it is missing.
        methods: what to draw.
        baseline: what the others are compared with; None if there is nothing to compare.

    Returns:
        The files.
    """
    make_folder(folder)
    plans = [
        *_errors(methods),
        *_distribution(methods),
        *_paired(methods, baseline),
        *_rounds("kept", "devices that passed the filter", _kept(methods)),
        *_rounds("queries", "secure sums to find η", series.event_curves(methods, "num_queries")),
    ]
    written = []
    with mpl.rc_context(_STYLE):
        for plan in plans:
            for width_name, width in WIDTHS.items():
                figure = _figure(plan, width)
                for suffix, how in FORMATS.items():
                    drawn = io.BytesIO()
                    figure.savefig(drawn, format=suffix, **how)
                    path = folder / f"{plan.name}-{width_name}.{suffix}"
                    write_file(path, drawn.getvalue())
                    written.append(path)
    captions = folder / "captions.txt"
    write_file(captions, "".join(f"{one.name}: {one.caption}\n\n" for one in plans).encode())
    return [*written, captions]


def _figure(plan: Plan, width: float) -> Figure:
    """A figure without pyplot, which would keep it in a global list and look for a display."""
    columns = 1 if width < WIDTHS["two-columns"] else min(_WIDE_PANELS, len(plan.panels))
    rows = -(-len(plan.panels) // columns)
    in_a_row = max(1, int(width / 1.5))
    legend_rows = -(-len(plan.legend) // in_a_row)
    height = rows * _PANEL_HEIGHT + 0.16 * legend_rows
    figure = Figure(figsize=(width, height), layout="constrained")
    for number, panel in enumerate(plan.panels, 1):
        panel(figure.add_subplot(rows, columns, number))
    if plan.legend:
        handles = [Line2D([], [], label=_plain(label), **_looks(at)) for label, at in plan.legend]
        figure.legend(handles=handles, loc="outside lower center", ncols=in_a_row, handlelength=3.6)
    return figure


def _looks(number: int) -> dict[str, Any]:
    stroke = Stroke(number)
    return {"color": stroke.colour, "linestyle": stroke.style, "marker": stroke.marker}


def _plain(label: str) -> str:
    """A label that is not read as mathematics."""
    return label.replace("$", r"\$")


def _lines(title: str, label: str, curves: Sequence[Curve], *, is_share: bool) -> Panel:
    def draw(axes: Axes) -> None:
        for one in curves:
            at, mean = np.array(one.rounds), np.array(one.mean, dtype=np.float64)
            every = max(1, len(at) // _MARKERS_ON_A_LINE)
            axes.plot(at, mean, markevery=every, **_looks(one.number))
            if one.has_range:
                low, high = (np.array(side, dtype=np.float64) for side in (one.low, one.high))
                colour = Stroke(one.number).colour
                axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(title)
        axes.set_xlabel("round")
        axes.set_ylabel(label)
        first, last = min(one.rounds[0] for one in curves), max(one.rounds[-1] for one in curves)
        axes.set_xticks(round_ticks(first, last))
        axes.set_ylim(bottom=0)
        if is_share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        else:
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    return draw


def _legend(curves: Sequence[Curve]) -> tuple[tuple[str, int], ...]:
    return tuple((one.label, one.number) for one in curves)


def _bands(curves: Sequence[Curve]) -> str:
    if not any(one.has_range for one in curves):
        return "One seed."
    return "Lines are means over seeds; bands reach from the lowest seed to the highest."


def _errors(methods: Sequence[Method]) -> list[Plan]:
    tail = series.error_curves(methods, series.TAIL)
    mean = series.error_curves(methods, None)
    known = [
        (f"{series.TAIL}th percentile over devices", tail),
        ("mean over devices", mean),
    ]
    panels = tuple(_lines(t, "test error", c, is_share=True) for t, c in known if c)
    if not panels:
        return []
    caption = (
        f"Test error by round: {' and '.join(title for title, c in known if c)}. {_bands(mean)}"
    )
    return [Plan("error", caption, panels, _legend(mean))]


def _kept(methods: Sequence[Method]) -> list[Curve]:
    """Devices kept by the methods that have a filter."""
    filtering = {one.number for one in series.event_curves(methods, "eta")}
    return [one for one in series.event_curves(methods, "kept_devices") if one.number in filtering]


def _rounds(name: str, label: str, curves: Sequence[Curve]) -> list[Plan]:
    drawn = [one for one in curves if any(one.mean)]
    if not drawn:
        return []
    caption = f"{label[0].upper()}{label[1:]}, by round. {_bands(drawn)}"
    return [Plan(name, caption, (_lines("", label, drawn, is_share=False),), _legend(drawn))]


def _distribution(methods: Sequence[Method]) -> list[Plan]:
    """The final test errors of devices, sorted, so that the worst served are to the right."""
    finals = []
    for number, method in enumerate(methods):
        rows = [run.tested[-1].errors for run in method.runs if run.tested]
        if rows and len({row.size for row in rows}) == 1 and rows[0].size:
            finals.append((method.label, number, np.sort(np.array(rows), axis=1).mean(axis=0)))
    if not finals:
        return []

    def draw(axes: Axes) -> None:
        for _, number, errors in finals:
            share = (np.arange(errors.size) + 0.5) / errors.size
            every = max(1, errors.size // _MARKERS_ON_A_LINE)
            axes.plot(share, errors, markevery=every, **_looks(number))
        axes.set_xlabel("share of devices, best served first")
        axes.set_ylabel("final test error")
        axes.set_ylim(bottom=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, decimals=0))

    caption = (
        "Final test error of devices, sorted from the best served to the worst served under each "
        "method; the mean over seeds at each rank."
    )
    return [Plan("devices", caption, (draw,), tuple((label, at) for label, at, _ in finals))]


def _paired(methods: Sequence[Method], baseline: Method | None) -> list[Plan]:
    if baseline is None:
        return []
    found = [
        (number, paired)
        for number, method in enumerate(methods)
        if method is not baseline and (paired := series.pairs(method, baseline)) is not None
    ][:_MOST_PAIRS]
    if not found:
        return []
    caption = (
        f"Final test error of each test device under a method, against that under "
        f"{baseline.label}; means over seeds. Below the line, a device is helped. "
        + " ".join(f"{one.method}: {one.helped} helped, {one.hurt} hurt." for _, one in found)
    )
    return [Plan("paired", caption, tuple(_scatter(at, one) for at, one in found), ())]


def _scatter(number: int, one: Pairs) -> Panel:
    def draw(axes: Axes) -> None:
        stroke = Stroke(number)
        top = 1.05 * max(float(one.ours.max()), float(one.theirs.max()), 0.01)
        axes.plot([0, top], [0, top], color="0.5", linewidth=0.7)
        axes.scatter(
            one.theirs, one.ours, s=9, color=stroke.colour, marker=stroke.marker, linewidths=0.3
        )
        axes.set_xlabel(f"test error, {_plain(one.baseline)}")
        axes.set_ylabel(f"test error, {_plain(one.method)}")
        axes.set_xlim(0, top)
        axes.set_ylim(0, top)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, decimals=0))

    return draw
