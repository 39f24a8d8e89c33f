"""Figures 4, 5 and 12 to 15: losses and errors of the final models over devices.

Source: arXiv 2002.11223, Section 5 and Appendix C.3: loss on training devices, error on test
devices, each device's value averaged over the seeds in which it appears. Figures 4, 12 and 13 are
histograms. Figures 5, 14 and 15 show the devices against how much data they have. The paper sees
two things in them, which the table puts in numbers: Δ-FL makes the losses of training devices
differ less, and the errors of test devices with little data ("less than 200 for EMNIST or less than
100 for Sent140").
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Final, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from deltafl.fl.metrics import PERCENTILES
from deltafl.fl.simplex import Reals
from deltafl.sim.charts.chart import COLOURS
from deltafl.sim.charts.files import dot_style, new_figure, titled
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.experiment import NONE, Record, last_evaluation
from deltafl.sim.reproduce.figure import (
    METRICS,
    TEST,
    TRAIN,
    Drawn,
    TaskFigure,
    TaskRuns,
)

LITTLE_DATA: Final = {"emnist": 200, "sent140": 100}
"""Below how many samples a device has little data, by family; the paper names no other."""

_BINS: Final = 25
_TAIL: Final = 90  # the percentile that a thin line marks
_LOG_FROM: Final = 30  # sizes that differ by more, as those of roles do, are hard to see on a line


_Methods: TypeAlias = Mapping[str, pd.DataFrame]  # the devices of a split


def per_device(runs: Mapping[str, Sequence[Evaluation]], splits: Sequence[str]) -> pd.DataFrame:
    """Average the loss of training devices, and the error of test devices, over seeds.

    The published splits differ between seeds, so that not every device is in every one
    (arXiv 2002.11223, Appendix C.3, averages over five runs all the same).

    Args:
        runs: final evaluations, by method.
        splits: of the devices.

    Returns:
        A row for each split, method and device with `num_samples` of it and `value`, which is the
        loss in nats, or the error in [0, 1].
    """
    keys = ["split", "method", "id"]
    rows = [
        (split, method, one.id, one.num_samples, one.loss if split == TRAIN else one.error)
        for split, (method, evaluations) in product(splits, runs.items())
        for evaluation in evaluations
        for one in (evaluation.train if split == TRAIN else evaluation.test)
    ]
    found = pd.DataFrame(rows, columns=[*keys, "num_samples", "value"])
    means = found.groupby(keys, sort=False).agg({"num_samples": "last", "value": "mean"})
    return means.reset_index()


@dataclass(frozen=True, slots=True)
class DeviceFigure(TaskFigure):
    """A figure over devices.

    Attributes:
        splits: "test", and also "train" where the paper shows it.
    """

    splits: tuple[str, ...] = (TRAIN, TEST)

    def of_task(self, task: TaskRuns) -> Drawn:
        """Draw a row for each split."""
        last = {
            method: [*map(last_evaluation, runs.values())] for method, runs in task.methods.items()
        }
        values = per_device(last, self.splits)
        figure, panels = new_figure(len(self.splits), self.width(task))
        for row, split in zip(panels, self.splits, strict=True):
            of_split = values[values["split"] == split]
            methods = dict(list(of_split.groupby("method", sort=False)))
            self.draw(row, split, methods)
        figure.suptitle(task.heading, fontsize="medium")
        return Drawn({"": figure}, self.spread(task, values))

    def width(self, task: TaskRuns) -> int:
        """How many panels a row has."""
        return len(task.methods)

    @abstractmethod
    def draw(self, row: Sequence[Axes], split: str, methods: _Methods) -> None:
        """Draw the devices of the methods."""

    @abstractmethod
    def spread(self, task: TaskRuns, values: pd.DataFrame) -> list[Record]:
        """What the table says of them."""


def _in_its_unit(key: str) -> Callable[[Record], str]:
    return lambda row: f"{row[key]:.{TaskFigure.units[row['split']][2]}f}"


class Histograms(DeviceFigure):
    """Histograms over devices: the first method is drawn behind each of the others."""

    numbers = "the distributions in numbers (unweighted)"
    columns: ClassVar = {
        "metric": "metric",
        "method": "method",
        "devices": "devices",
        **{key: _in_its_unit(key) for key in ("mean", *(f"p{tau}" for tau in PERCENTILES))},
    }

    def width(self, task: TaskRuns) -> int:
        """A panel for each method but the first, if there are more."""
        return max(1, len(task.methods) - 1)

    def draw(self, row: Sequence[Axes], split: str, methods: _Methods) -> None:
        """Draw a panel for each method."""
        baseline, *others = methods
        most = max(float(one["value"].max()) for one in methods.values())
        edges = np.linspace(0, 1 if split == TEST else most or 1, _BINS + 1)
        for panel, method in zip(row, others or [baseline], strict=True):
            _stairs(panel, methods[baseline], edges, baseline, behind=True)
            if method != baseline:
                _stairs(panel, methods[method], edges, method, behind=False)
            panel.set_xlabel(f"{METRICS[split]}; thin: {_TAIL}th percentile")
            panel.yaxis.set_major_locator(MaxNLocator(integer=True))
            self.in_percent(panel.xaxis, split)
            panel.legend(frameon=False, fontsize="small")
        # one scale in a row, so that the panels can be compared
        top = max(panel.get_ylim()[1] for panel in row)
        for panel in row:
            panel.set_ylim(0, top)
        row[0].set_ylabel(f"{'training' if split == TRAIN else 'test'} devices")

    def spread(self, task: TaskRuns, values: pd.DataFrame) -> list[Record]:
        """Mean and percentiles."""
        records = []
        for (split, method), devices in values.groupby(["split", "method"], sort=False):
            scale, unit, _ = TaskFigure.units[split]
            found = devices["value"].to_numpy() * scale
            of = {"split": split, "metric": unit, "method": method, "devices": len(found)}
            percentiles = np.percentile(found, PERCENTILES).tolist()
            numbers = {f"p{tau}": one for tau, one in zip(PERCENTILES, percentiles, strict=True)}
            records.append(task.record(**of, mean=float(found.mean()), **numbers))
        return records


def _stairs(axes: Axes, devices: pd.DataFrame, edges: Reals, label: str, *, behind: bool) -> None:
    values = devices["value"]
    colour = COLOURS[0] if behind else COLOURS[1]
    looks = {"alpha": 0.35, "linewidth": 0} if behind else {"linewidth": 2}
    counts = np.histogram(values, edges)[0]
    axes.stairs(counts, edges, color=colour, fill=behind, label=label, **looks)
    line = "-" if behind else "--"
    axes.axvline(float(np.percentile(values, _TAIL)), color=colour, linestyle=line, linewidth=0.9)


def _number(split: str, value: float | None) -> str:
    scale, _, digits = TaskFigure.units[split]
    return NONE if value is None else f"{scale * value:.{digits}f}"


def _with_little_data(row: Record) -> str:
    told = "{devices_with_little_data} of {devices} (below {little_data_below})"
    return NONE if row["little_data_below"] is None else told.format_map(row)


class Scatter(DeviceFigure):
    """Scatter plots over devices: a row for each split, a panel for each method."""

    numbers = "spread over devices"
    columns: ClassVar = {
        "method": "method",
        "std of training loss (nats)": lambda row: _number(TRAIN, row["std_train_loss"]),
        "std of test error (points)": lambda row: _number(TEST, row["std_test_error"]),
        "std of test error with little data (points)": lambda row: _number(
            TEST, row["std_test_error_little_data"]
        ),
        "test devices with little data": _with_little_data,
    }

    def draw(self, row: Sequence[Axes], split: str, methods: _Methods) -> None:
        """Draw a panel for each method."""
        highest = max(float(one["value"].max()) for one in methods.values())
        sizes = [size for one in methods.values() for size in one["num_samples"]]
        scale = "log" if max(sizes) > _LOG_FROM * min(sizes) else "linear"
        for number, (panel, (method, devices)) in enumerate(zip(row, methods.items(), strict=True)):
            at = devices["num_samples"], devices["value"]
            panel.scatter(*at, s=9, alpha=0.5, linewidths=0, **dot_style(number))
            panel.set_xscale(scale)
            of = f"samples on the {'training' if split == TRAIN else 'test'} device"
            ylim = (0, 1.05 * highest or 1)  # one in a row
            titled(panel, method, legend=False, xlabel=of, ylim=ylim)
            self.in_percent(panel.yaxis, split)
        row[0].set_ylabel(METRICS[split])

    def spread(self, task: TaskRuns, values: pd.DataFrame) -> list[Record]:
        """Standard deviations over devices, of test devices also of those with little data."""
        bound = LITTLE_DATA.get(task.chosen.task.family)
        records = []
        for method in task.methods:
            train, test = (
                values[(values["split"] == split) & (values["method"] == method)]
                for split in (TRAIN, TEST)
            )
            little = test[test["num_samples"] < (bound or 0)]
            loss, error, of_little = (_std(one["value"]) for one in (train, test, little))
            records.append(
                task.record(
                    method=method,
                    std_train_loss=loss,
                    std_test_error=error,
                    std_test_error_little_data=of_little,
                    little_data_below=bound,
                    devices=len(test),
                    devices_with_little_data=len(little),
                )
            )
        return records


def _std(values: "pd.Series[float]") -> float | None:
    """Over devices, unweighted; None for fewer than two."""
    return float(values.std()) if len(values) > 1 else None
