"""Figures over the runs of an experiment, each as PNG and SVG.

Lines are means over seeds, bands reach from the lowest to the highest seed; each figure says so.
Methods are told apart by colour, dashes and markers (`deltafl.sim.run.strokes`).
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from deltafl.fl.metrics import summarise_test_error
from deltafl.sim.record.atomic import write_file
from deltafl.sim.record.evaluations import Evaluation, read_evaluations
from deltafl.sim.record.events import Event, read_events
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.strokes import Stroke
from deltafl.sim.run.ticks import round_ticks

_FORMATS: Final[dict[str, dict[str, Any]]] = {
    "png": {"dpi": 150},
    "svg": {"metadata": {"Date": None}},
}

BAND: Final = "line: mean over seeds; band: lowest to highest seed"
"""What the lines and bands of a figure are, where there are several seeds."""

_MARKERS_ON_A_LINE: Final = 20

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of an experiment.

    Attributes:
        algorithm: its label.
        directory: where it lies.
        level: the conformity level to draw, as the run's events name it; None for a run of one.
        metrics: the folder of its evaluations; None for the directory's own.
    """

    algorithm: str
    directory: RunDirectory
    level: str | None = None
    metrics: Path | None = None

    @property
    def label(self) -> str:
        """What to call it in a legend."""
        return self.algorithm if self.level is None else f"{self.algorithm}, θ = {self.level}"

    def evaluations(self) -> list[Evaluation]:
        """All evaluations, by round."""
        return read_evaluations(self.metrics or self.directory.metrics)

    def events(self) -> list[Event]:
        """What happened in each round, at the level."""
        events = read_events(self.directory.events)
        if self.level is None:
            return events
        return [
            {**event, **cast("dict[str, Event]", event["levels"])[self.level]} for event in events
        ]


@dataclass(frozen=True, slots=True)
class _Group:
    """The runs of one algorithm, one per seed, and how to draw them."""

    label: str
    evaluations: Sequence[Sequence[Evaluation]]
    events: Sequence[Sequence[Event]]
    stroke: Stroke

    def series(self, key: str) -> tuple[Numbers, Numbers]:
        """Rounds, and a value of the events with one row per seed; NaN where a round has none."""
        rounds = np.array([event["round"] for event in self.events[0]], dtype=np.float64)
        rows = [[event.get(key) for event in events] for events in self.events]
        return rounds, np.array(rows, dtype=np.float64)


def write_plots(folder: Path, arms: Sequence[Arm]) -> None:
    """Draw all figures that the runs have data for into `folder`.

    Files: `error`, `histogram`, `kept` and `queries`, each .png and .svg. Without a search for the
    threshold there are no queries to draw.
    """
    groups = _read(arms)
    figures = {
        "error": _error(groups),
        "histogram": _histogram(groups),
        "kept": _per_round(groups, "kept_devices", "devices kept per round"),
        "queries": _per_round(groups, "num_queries", "secure sums to find η, per round"),
    }
    folder.mkdir(exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "deltafl"}):
        for name, figure in figures.items():
            if figure is not None:
                for suffix, how in _FORMATS.items():
                    drawn = io.BytesIO()
                    figure.savefig(drawn, format=suffix, **how)
                    write_file(folder / f"{name}.{suffix}", drawn.getvalue())


def _read(arms: Sequence[Arm]) -> list[_Group]:
    groups = []
    for number, label in enumerate(dict.fromkeys(arm.label for arm in arms)):
        runs = [arm for arm in arms if arm.label == label]
        groups.append(
            _Group(
                label,
                [run.evaluations() for run in runs],
                [run.events() for run in runs],
                Stroke(number),
            )
        )
    return groups


def _error(groups: Sequence[_Group]) -> Figure:
    figure, axes = _figure(ncols=2)
    for group in groups:
        rounds = np.array([one.round for one in group.evaluations[0]], dtype=np.float64)
        summaries = [[summarise_test_error(one.test) for one in run] for run in group.evaluations]
        for panel, rows in (
            (axes[0], [[one.percentiles[90] for one in run] for run in summaries]),
            (axes[1], [[one.mean for one in run] for run in summaries]),
        ):
            _line(panel, group, rounds, np.array(rows))
        # the spread over devices, of the first seed: thin, so that the tail stays in the foreground
        for percentile in (20, 80):
            values = [one.percentiles[percentile] for one in summaries[0]]
            axes[1].plot(
                rounds,
                values,
                linestyle=group.stroke.style,
                color=group.stroke.colour,
                linewidth=0.7,
            )
    axes[0].set_title("90th percentile over devices", fontsize="medium")
    axes[1].set_title("mean; thin: 20th and 80th percentile", fontsize="medium")
    for panel in axes:
        panel.set_ylabel("test error")
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        _count_rounds(panel)
    _explain(figure, axes[0], groups)
    return figure


def _histogram(groups: Sequence[_Group]) -> Figure:
    figure, (axes,) = _figure(ncols=1)
    edges = np.linspace(0, 1, 21)
    for group in groups:
        errors = np.array([[device.error for device in run[-1].test] for run in group.evaluations])
        per_device = errors.mean(axis=0)
        tail = float(np.percentile(per_device, 90))
        counts, _ = np.histogram(per_device, edges)
        looks: dict[str, Any] = {"color": group.stroke.colour, "linestyle": group.stroke.style}
        axes.stairs(counts, edges, label=group.label, linewidth=2, **looks)
        axes.axvline(tail, linewidth=0.9, **looks)
    axes.set_xlabel("final test error of a device, mean over seeds (thin: 90th percentile)")
    axes.set_ylabel("number of test devices")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return figure


def _per_round(groups: Sequence[_Group], key: str, label: str) -> Figure | None:
    known = [group for group in groups if any(event.get(key) for event in group.events[0])]
    if not known:
        return None
    figure, (axes,) = _figure(ncols=1)
    for group in known:
        _line(axes, group, *group.series(key))
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _count_rounds(axes)
    _explain(figure, axes, known)
    return figure


def _line(axes: Axes, group: _Group, rounds: Numbers, rows: Numbers) -> None:
    mean = np.ma.masked_invalid(rows).mean(axis=0)
    axes.plot(
        rounds,
        mean,
        linestyle=group.stroke.style,
        color=group.stroke.colour,
        label=group.label,
        marker=group.stroke.marker,
        markersize=4,
        markevery=max(1, len(rounds) // _MARKERS_ON_A_LINE),
    )
    if len(rows) > 1:
        low, high = rows.min(axis=0), rows.max(axis=0)
        axes.fill_between(rounds, low, high, color=group.stroke.colour, alpha=0.15, linewidth=0)


def _count_rounds(axes: Axes) -> None:
    """Label the horizontal axis, which counts rounds, and mark the last round on it."""
    first, last = axes.dataLim.intervalx
    axes.set_xlabel("round")
    axes.set_xticks(round_ticks(int(first), int(last)))


def _explain(figure: Figure, axes: Axes, groups: Sequence[_Group]) -> None:
    """Name the methods, and say what lines and bands are."""
    axes.legend(frameon=False, handlelength=3.5)
    if any(len(group.events) > 1 for group in groups):
        figure.supxlabel(BAND, fontsize="small")


def _figure(ncols: int) -> tuple[Figure, list[Axes]]:
    """A figure without pyplot, which would keep it in a global list and look for a display."""
    figure = Figure(figsize=(5.6 * ncols, 3.8), layout="constrained")
    axes = [figure.add_subplot(1, ncols, number + 1) for number in range(ncols)]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    return figure, axes
