"""Figures 6 to 11 and 16 to 18: what becomes of methods over the rounds.

Source: arXiv 2002.11223, Section 5 and Appendix C.3. Curves are mean and percentiles over devices,
of the training loss (weighted by samples) and of the test error (unweighted), mean over seeds with
one standard deviation to each side.

The axis of Figure 6 is secure aggregation calls, of which the paper counts one per round for every
method: its Δ-FL shows the server the losses in clear. Private Δ-FL finds its threshold by further
sums; a second figure counts those as well.

Figure 16 has the devices that a round keeps after filtering, shaded from the lowest to the highest
of the seeds. The filter keeps a share θ of the data and not of the devices, so the number varies
with who is in the cohort.

In Figures 17 and 18, the threshold η is updated only every T_η rounds. Between updates it stays, so
T_η rounds make up one w-step of Algorithm 1. The text names neither the periods nor θ; these are
our choice. T_η = 1 is Algorithm 2 as it stands.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from deltafl.fl.metrics import PERCENTILES, summarise_test_error, summarise_train_loss
from deltafl.fl.simplex import Reals
from deltafl.sim.charts.files import line_style, new_figure, titled
from deltafl.sim.errors import damaged
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.experiment import (
    Record,
    evaluations_of,
    events_of,
    spread,
    spread_of,
)
from deltafl.sim.reproduce.figure import (
    METRICS,
    TEST,
    TRAIN,
    Drawn,
    Seeds,
    TaskFigure,
    TaskRuns,
)
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG, varied

STATISTICS: Final = ("mean", *(f"p{tau}" for tau in PERCENTILES))
"""What is drawn of a distribution over devices."""

_PERIODS: Final = (5, 10)  # T_η, in rounds, beside 1
_ROUNDS: Final = "round"
_CALLS: Final = "secure aggregation calls, one per round"
_SUMS: Final = "secure sums, those of the search for η included"
_MANY: Final = 30  # points, of which each is marked at most


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """How a method performs over the rounds.

    Attributes:
        rounds: of the evaluations, shape (points,).
        sums: secure sums until then, mean over seeds, shape (points,).
        values: by split, of all `STATISTICS`, shape (statistics, seeds, points).
    """

    rounds: Reals
    sums: Reals
    values: Mapping[str, Reals]

    def of(self, split: str, statistic: str) -> Reals:
        """One row per seed, shape (seeds, points)."""
        found: Reals = self.values[split][STATISTICS.index(statistic)]
        return found


def course(runs: Seeds) -> Course:
    """Read how a method's models do over the rounds.

    Raises:
        RunDirectoryError: the runs were not evaluated after the same rounds.
    """
    evaluations = [evaluations_of(one) for one in runs.values()]
    rounds = [evaluation.round for evaluation in evaluations[0]]
    for directory, run in zip(runs.values(), evaluations, strict=True):
        if not run or [evaluation.round for evaluation in run] != rounds:
            raise damaged(directory.record, f"it has not the evaluations of rounds {rounds}")
    found = np.array([[_numbers(one) for one in run] for run in evaluations])
    sums = [_sums(one)[rounds] for one in runs.values()]  # secure ones
    values = dict(zip((TRAIN, TEST), np.moveaxis(found, (2, 3), (0, 1)), strict=True))
    return Course(np.array(rounds, dtype=np.float64), np.mean(sums, axis=0), values)


def _numbers(one: Evaluation) -> list[list[float]]:
    """The statistics of each split."""
    each = summarise_train_loss(one.train), summarise_test_error(one.test)
    return [[of.mean, *(of.percentiles[tau] for tau in PERCENTILES)] for of in each]


def _sums(directory: RunDirectory) -> Reals:
    """Secure sums until the end of each round; a run in clear counts as if it were secure."""
    return np.cumsum([0, *(int(str(event["secure_sums"])) for event in events_of(directory))])


def _draw_line(
    axes: Axes, x: Reals, rows: Reals, number: int, name: str, *, whole: bool = False
) -> None:
    """Draw a mean over seeds with a band.

    Args:
        axes: where.
        x: shape (points,).
        rows: one row per seed, shape (seeds, points); NaN where a seed has no value.
        number: of the line, which decides how it looks.
        name: its name in the legend.
        whole: whether the band is from the lowest to the highest seed; or else one standard
            deviation to each side.
    """
    known = np.isfinite(rows).any(axis=0)
    values, looks = np.ma.masked_invalid(rows[:, known]), line_style(number, marked=len(x) <= _MANY)
    mean = values.mean(axis=0)
    axes.plot(x[known], mean, label=name, markersize=3, **looks)
    if len(rows) > 1:
        deviation = values.std(axis=0, ddof=1)
        band = (
            (values.min(axis=0), values.max(axis=0))
            if whole
            else (mean - deviation, mean + deviation)
        )
        axes.fill_between(x[known], *band, color=looks["color"], alpha=0.15, linewidth=0)


def describe(statistic: str) -> str:
    """A statistic in words: "mean", "90th percentile"."""
    return "mean" if statistic == "mean" else f"{statistic[1:]}th percentile"


@dataclass(frozen=True, slots=True)
class Curves(TaskFigure):
    """Curves over rounds: one figure per task, two where calls are counted.

    Attributes:
        statistics: what is drawn of the distribution over devices, of `STATISTICS`; the table
            has all.
        counts_calls: whether the axis is secure aggregation calls: as the paper counts them, and in
            a second figure as they really are.
    """

    numbers = "after the last round, mean ± std over seeds"
    columns: ClassVar = {
        "metric": "metric",
        "method": "method",
        "rounds": "rounds",
        "secure sums": "{secure_sums:.0f}",
        **{describe(statistic): spread_of(statistic) for statistic in STATISTICS},
    }

    statistics: tuple[str, ...] = ("mean", "p50", "p90", "p95")
    counts_calls: bool = False

    def of_task(self, task: TaskRuns) -> Drawn:
        """Draw the courses of the methods."""
        courses = {method: course(runs) for method, runs in task.methods.items()}
        figures = {"": self._draw(task, courses, _CALLS if self.counts_calls else _ROUNDS)}
        if self.counts_calls:
            figures["-sums"] = self._draw(task, courses, _SUMS)
        records = [_last(task, *one, split) for one in courses.items() for split in METRICS]
        return Drawn(figures, records)

    def _draw(self, task: TaskRuns, courses: Mapping[str, Course], axis: str) -> Figure:
        figure, panels = new_figure(len(METRICS), len(self.statistics))
        for row, (split, measure) in zip(panels, METRICS.items(), strict=True):
            for panel, statistic in zip(row, self.statistics, strict=True):
                for number, (method, found) in enumerate(courses.items()):
                    x = found.sums if axis == _SUMS else found.rounds
                    _draw_line(panel, x, found.of(split, statistic), number, method)
                titled(panel, describe(statistic), legend=False, xlabel=axis)
                panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
                self.in_percent(panel.yaxis, split, None)
            row[0].set_ylabel(measure)
        panels[0][0].legend(frameon=False, fontsize="small")
        figure.suptitle(task.heading, fontsize="medium")
        return figure


def _last(task: TaskRuns, method: str, found: Course, split: str) -> Record:
    scale, unit, _ = TaskFigure.units[split]
    numbers = {one: found.of(split, one)[:, -1] * scale for one in STATISTICS}
    return task.record(
        method=method,
        metric=unit,
        rounds=int(found.rounds[-1]),
        secure_sums=float(found.sums[-1]),
        **spread(numbers),
    )


class Kept(TaskFigure):
    """Devices kept per round, as far as servers know: one that only sees sums need not."""

    numbers = "over all rounds and seeds"
    columns: ClassVar = {
        "method": "method",
        "mean": "{mean:.1f}",
        "fewest": "fewest",
        "most": "most",
    }

    def of_task(self, task: TaskRuns) -> Drawn:
        """Draw the methods whose servers know."""
        found = {method: kept_devices(runs) for method, runs in task.methods.items()}
        known = {method: kept for method, kept in found.items() if not np.isnan(kept).all()}
        records = [
            task.record(
                method=method,
                mean=float(np.nanmean(kept)),
                fewest=int(np.nanmin(kept)),
                most=int(np.nanmax(kept)),
            )
            for method, kept in known.items()
        ]
        left_out = "is left out: its server does not learn the number."
        notes = [f"{method} {left_out}" for method in found if method not in known]
        return Drawn({"": _draw_kept(task, known)} if known else {}, records, notes)


def kept_devices(runs: Seeds) -> Reals:
    """Read how many devices were aggregated, shape (seeds, rounds); NaN where nobody knows.

    Raises:
        RunDirectoryError: the runs do not have the same rounds.
    """
    rows: list[list[object]] = []
    for directory in runs.values():
        rows.append([event.get("kept_devices") for event in events_of(directory)])
        if not rows[-1] or len(rows[-1]) != len(rows[0]):
            told = f"it has {len(rows[-1])} rounds and not {len(rows[0])}"
            raise damaged(directory.record, told)
    return np.array(rows, dtype=np.float64)


def _draw_kept(task: TaskRuns, known: Mapping[str, Reals]) -> Figure:
    figure, ((panel,),) = new_figure(1, 1)
    for number, (method, kept) in enumerate(known.items()):
        x = np.arange(1, kept.shape[1] + 1, dtype=np.float64)
        _draw_line(panel, x, kept, number, method, whole=True)
    panel.set(xlabel="round", ylabel="devices kept (band: lowest to highest seed)", ylim=(0, None))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    # above the panel, where there are no lines
    panel.legend(
        frameon=False, fontsize="small", ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1)
    )
    figure.suptitle(task.heading, fontsize="medium")
    return figure


EVERY_PERIOD: Final = (
    FEDAVG,
    DELTA_FL[1],  # T_η = 1, the same run as in every other figure
    *(varied(DELTA_FL[1], f"every-{n}", f", T_η={n}", eta_every=n) for n in _PERIODS),
)
"""The methods of Figures 17 and 18."""
