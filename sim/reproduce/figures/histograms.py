"""Figures 4, 12 and 13: how losses and errors of the final models lie over devices.

Source: arXiv 2002.11223, Section 5 and Appendix C.3: loss on training devices, error on test
devices, each device's value averaged over the seeds in which it appears. The text does not say
which tasks Figure 4 shows; ours shows that of Figure 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from deltafl.fl.metrics import PERCENTILES
from deltafl.sim.charts.chart import COLOURS
from deltafl.sim.charts.files import new_figure
from deltafl.sim.reproduce.figures.runs import (
    METRICS,
    TEST,
    TRAIN,
    DeviceValue,
    Drawn,
    Record,
    Row,
    Selection,
    TaskFigure,
    TaskRuns,
    per_device,
)
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG

_BINS: Final = 25
_TAIL: Final = 90  # the percentile that a thin line marks

_Values = dict[str, dict[str, list[DeviceValue]]]  # by split and method


@dataclass(frozen=True, slots=True)
class Histograms(TaskFigure):
    """Histograms over devices: the first method is drawn behind each of the others.

    Attributes:
        splits: "test", and also "train" where the paper shows it.
    """

    numbers = "the distributions in numbers (unweighted)"
    columns = ("task", "metric", "method", "devices", "mean", *(f"p{tau}" for tau in PERCENTILES))

    splits: tuple[str, ...] = (TRAIN, TEST)

    def of_task(self, task: TaskRuns) -> Drawn:
        """Draw a row for each split."""
        values = {
            split: {
                runs.method: per_device(runs.last_evaluations(), split) for runs in task.methods
            }
            for split in self.splits
        }
        shown = [(split, *one) for split, of_split in values.items() for one in of_split.items()]
        return Drawn(
            {f"{self.name}-{task.chosen.task.name}": _draw(task, values)},
            [_row(task, *one) for one in shown],
            [record for one in shown for record in _records(task, *one)],
        )


def _draw(task: TaskRuns, values: _Values) -> Figure:
    baseline, *others = [runs.method for runs in task.methods]
    columns = others or [baseline]
    figure, panels = new_figure(len(values), len(columns))
    for row, (split, methods) in zip(panels, values.items(), strict=True):
        everything = [device.value for devices in methods.values() for device in devices]
        edges = np.linspace(0, 1 if split == TEST else max(everything) or 1, _BINS + 1)
        for panel, method in zip(row, columns, strict=True):
            _stairs(panel, methods[baseline], edges, baseline, behind=True)
            if method != baseline:
                _stairs(panel, methods[method], edges, method, behind=False)
            panel.set_xlabel(f"{METRICS[split]}; thin: {_TAIL}th percentile")
            panel.yaxis.set_major_locator(MaxNLocator(integer=True))
            if split == TEST:
                panel.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            panel.legend(frameon=False, fontsize="small")
        # one scale in a row, so that the panels can be compared
        top = max(panel.get_ylim()[1] for panel in row)
        for panel in row:
            panel.set_ylim(0, top)
        row[0].set_ylabel(f"{'training' if split == TRAIN else 'test'} devices")
    figure.suptitle(task.heading, fontsize="medium")
    return figure


def _stairs(
    axes: Axes,
    devices: Sequence[DeviceValue],
    edges: npt.NDArray[np.float64],
    label: str,
    *,
    behind: bool,
) -> None:
    values = [device.value for device in devices]
    colour = COLOURS[0] if behind else COLOURS[1]
    line = "-" if behind else "--"
    counts = np.histogram(values, edges)[0]
    axes.stairs(
        counts,
        edges,
        color=colour,
        alpha=0.35 if behind else None,
        fill=behind,
        linewidth=0 if behind else 2,
        label=label,
    )
    axes.axvline(float(np.percentile(values, _TAIL)), color=colour, linestyle=line, linewidth=0.9)


def _row(task: TaskRuns, split: str, method: str, devices: Sequence[DeviceValue]) -> Row:
    values = np.array([device.value for device in devices]) * (100 if split == TEST else 1)
    unit = "test error (%)" if split == TEST else METRICS[split]
    numbers = [values.mean(), *np.percentile(values, PERCENTILES)]
    digits = 2 if split == TEST else 3
    return (
        task.chosen.label,
        unit,
        method,
        str(len(devices)),
        *(f"{number:.{digits}f}" for number in numbers),
    )


def _records(
    task: TaskRuns, split: str, method: str, devices: Sequence[DeviceValue]
) -> list[Record]:
    return [
        {
            "task": task.chosen.task.name,
            "data": task.chosen.data.name,
            "split": split,
            "method": method,
            "device": device.id,
            "num_samples": device.num_samples,
            "loss" if split == TRAIN else "error": device.value,
            "seeds": device.seeds,
        }
        for device in devices
    ]


_METHODS: Final = (FEDAVG, *DELTA_FL)

HISTOGRAMS: Final = (
    Histograms(
        "fig4",
        "Test error over devices",
        "arXiv 2002.11223, Figure 4",
        Selection(("emnist-convnet",), _METHODS),
        (
            "The text does not say which tasks Figure 4 shows; this is emnist-convnet, as in "
            "Figure 5.",
        ),
        splits=(TEST,),
    ),
    Histograms(
        "fig12",
        "Training loss and test error over devices, EMNIST",
        "arXiv 2002.11223, Figure 12",
        Selection(("emnist-linear", "emnist-convnet"), _METHODS),
    ),
    Histograms(
        "fig13",
        "Training loss and test error over devices, Sent140 and Shakespeare",
        "arXiv 2002.11223, Figure 13",
        Selection(("sent140-linear", "sent140-lstm", "shakespeare-gru"), _METHODS),
    ),
)
"""Figures 4, 12 and 13."""
