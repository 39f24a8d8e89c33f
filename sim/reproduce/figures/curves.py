"""Figures 6 to 11: how losses and errors fall over the rounds.

Source: arXiv 2002.11223, Section 5 and Appendix C.3: mean and percentiles over devices, of the
training loss (weighted by samples) and of the test error (unweighted), mean over seeds with one
standard deviation to each side.

The axis of Figure 6 is secure aggregation calls, of which the paper counts one per round for every
method: its Δ-FL shows the server the losses in clear. Private Δ-FL finds its threshold by further
sums; a second figure counts those as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from deltafl.sim.charts.files import new_figure
from deltafl.sim.reproduce.figures.drawing import draw_line, mean_and_deviation
from deltafl.sim.reproduce.figures.runs import (
    METRICS,
    STATISTICS,
    TEST,
    TRAIN,
    Course,
    Drawn,
    Record,
    Row,
    Runs,
    Selection,
    TaskFigure,
    TaskRuns,
    course,
    describe,
)
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG, PRIVATE_DELTA_FL

_ROUNDS: Final = "round"
_CALLS: Final = "secure aggregation calls, one per round"
_SUMS: Final = "secure sums, those of the search for η included"


@dataclass(frozen=True, slots=True)
class Curves(TaskFigure):
    """Curves over rounds: one figure per task, two where calls are counted.

    Attributes:
        statistics: what is drawn of the distribution over devices, of `runs.STATISTICS`; the
            records have all.
        counts_calls: whether the axis is secure aggregation calls: as the paper counts them, and in
            a second figure as they really are.
    """

    numbers = "after the last round, mean ± std over seeds"
    columns = ("task", "metric", "method", "rounds", "secure sums", *map(describe, STATISTICS))

    statistics: tuple[str, ...] = ("mean", "p50", "p90", "p95")
    counts_calls: bool = False

    def of_task(self, task: TaskRuns) -> Drawn:
        """Draw the courses of the methods."""
        courses = [course(runs) for runs in task.methods]
        name = f"{self.name}-{task.chosen.task.name}"
        figures = {name: self._draw(task, courses, _CALLS if self.counts_calls else _ROUNDS)}
        if self.counts_calls:
            figures[f"{name}-sums"] = self._draw(task, courses, _SUMS)
        pairs = list(zip(task.methods, courses, strict=True))
        return Drawn(
            figures,
            [_row(task, runs, found, split) for runs, found in pairs for split in METRICS],
            [record for runs, found in pairs for record in _records(task, runs, found)],
        )

    def _draw(self, task: TaskRuns, courses: Sequence[Course], axis: str) -> Figure:
        figure, panels = new_figure(len(METRICS), len(self.statistics))
        for row, (split, label) in zip(panels, METRICS.items(), strict=True):
            for panel, statistic in zip(row, self.statistics, strict=True):
                for number, (runs, found) in enumerate(zip(task.methods, courses, strict=True)):
                    draw_line(
                        panel,
                        found.sums if axis == _SUMS else found.rounds,
                        found.values[split, statistic],
                        number=number,
                        label=runs.method,
                        band="deviation",
                        dotted=len(found.rounds) <= 30,
                    )
                panel.set_title(describe(statistic), fontsize="medium")
                panel.set_xlabel(axis)
                panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
                if split == TEST:
                    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
            row[0].set_ylabel(label)
        panels[0][0].legend(frameon=False, fontsize="small")
        figure.suptitle(task.heading, fontsize="medium")
        return figure


def _row(task: TaskRuns, runs: Runs, found: Course, split: str) -> Row:
    scale = 100.0 if split == TEST else 1.0
    return (
        task.chosen.label,
        "test error (%)" if split == TEST else METRICS[TRAIN],
        runs.method,
        f"{found.rounds[-1]:.0f}",
        f"{found.sums[-1]:.0f}",
        *(mean_and_deviation(found.values[split, one][:, -1], scale) for one in STATISTICS),
    )


def _records(task: TaskRuns, runs: Runs, found: Course) -> list[Record]:
    return [
        {
            "task": task.chosen.task.name,
            "data": task.chosen.data.name,
            "method": runs.method,
            "seed": seed,
            "round": int(round_number),
            "mean_secure_sums": float(found.sums[point]),
            **{
                f"{'train_loss' if split == TRAIN else 'test_error'}_{statistic}": float(
                    values[row, point]
                )
                for (split, statistic), values in found.values.items()
            },
        }
        for row, seed in enumerate(runs.seeds)
        for point, round_number in enumerate(found.rounds)
    ]


def _of_task(number: int, task: str, title: str) -> Curves:
    return Curves(
        f"fig{number}",
        f"Over the rounds, {title}",
        f"arXiv 2002.11223, Figure {number}",
        Selection((task,), (FEDAVG, *DELTA_FL)),
    )


CURVES: Final = (
    Curves(
        "fig6",
        "Over secure aggregation calls",
        "arXiv 2002.11223, Figure 6",
        Selection(("emnist-convnet",), (FEDAVG, *DELTA_FL, PRIVATE_DELTA_FL)),
        statistics=("mean", "p90"),
        counts_calls=True,
        further_notes=(
            "The text does not say which task Figure 6 shows; this is emnist-convnet, as in "
            "Figure 5.",
            "The paper counts one call per round. Private Δ-FL also spends sums on the search for "
            "η, which the figure with -sums in its name counts.",
        ),
    ),
    _of_task(7, "emnist-linear", "EMNIST, linear"),
    _of_task(8, "emnist-convnet", "EMNIST, ConvNet"),
    _of_task(9, "sent140-linear", "Sent140, linear"),
    _of_task(10, "sent140-lstm", "Sent140, RNN"),
    _of_task(11, "shakespeare-gru", "Shakespeare, RNN"),
)
"""Figures 6 to 11."""
