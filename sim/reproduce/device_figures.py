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
from typing import ClassVar, Final, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from deltafl.fl.metrics import PERCENTILES
from deltafl.sim.charts.chart import COLOURS, LineStyle, Numbers
from deltafl.sim.charts.files import new_figure
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


@dataclass(frozen=True, slots=True)
class DeviceValue:
    """A metric on one device, averaged over the seeds in which the device appears.

    Attributes:
        id: the device.
        num_samples: of it.
        value: training loss in nats, or test error in [0, 1].
    """

    id: str
    num_samples: int
    value: float


_Values: TypeAlias = Mapping[str, Mapping[str, Sequence[DeviceValue]]]  # by split and method


def per_device(evaluations: Sequence[Evaluation], split: str) -> list[DeviceValue]:
    """Average the loss of training devices, or the error of test devices, over seeds.

    The published splits differ between seeds, so that not every device is in every one
    (arXiv 2002.11223, Appendix C.3, averages over five runs all the same).
    """
    values: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for evaluation in evaluations:
        for device in evaluation.train if split == TRAIN else evaluation.test:
            value = device.loss if split == TRAIN else device.error
            values.setdefault(device.id, []).append(value)
            sizes[device.id] = device.num_samples
    return [
        DeviceValue(name, sizes[name], float(np.mean(found)))
        for name, found in sorted(values.items())
    ]


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
        values = {
            split: {method: per_device(runs, split) for method, runs in last.items()}
            for split in self.splits
        }
        return Drawn({"": self.draw(task, values)}, self.spread(task, values))

    @abstractmethod
    def draw(self, task: TaskRuns, values: _Values) -> Figure:
        """Draw the devices of the methods."""

    @abstractmethod
    def spread(self, task: TaskRuns, values: _Values) -> list[Record]:
        """What the table says of them."""


_UNITS: Final = {TRAIN: (1, METRICS[TRAIN], 3), TEST: (100, "test error (%)", 2)}
"""What a value is multiplied with in tables, what that is called, and with how many digits."""


def _in_its_unit(key: str) -> Callable[[Record], str]:
    return lambda row: f"{row[key]:.{_UNITS[row['split']][2]}f}"


class Histograms(DeviceFigure):
    """Histograms over devices: the first method is drawn behind each of the others."""

    __slots__ = ()

    numbers = "the distributions in numbers (unweighted)"
    columns: ClassVar = {
        "metric": "metric",
        "method": "method",
        "devices": "devices",
        **{key: _in_its_unit(key) for key in ("mean", *(f"p{tau}" for tau in PERCENTILES))},
    }

    def draw(self, task: TaskRuns, values: _Values) -> Figure:
        """Draw a panel for each split and method."""
        baseline, *others = task.methods
        columns = others or [baseline]
        figure, panels = new_figure(len(values), len(columns))
        for row, (split, methods) in zip(panels, values.items(), strict=True):
            most = max(device.value for devices in methods.values() for device in devices)
            edges = np.linspace(0, 1 if split == TEST else most or 1, _BINS + 1)
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

    def spread(self, task: TaskRuns, values: _Values) -> list[Record]:
        """Mean and percentiles."""
        records = []
        for split, methods in values.items():
            scale, unit, _ = _UNITS[split]
            for method, devices in methods.items():
                found = np.array([device.value for device in devices]) * scale
                of = {"split": split, "metric": unit, "method": method, "devices": len(devices)}
                percentiles = np.percentile(found, PERCENTILES).tolist()
                numbers = {
                    f"p{tau}": one for tau, one in zip(PERCENTILES, percentiles, strict=True)
                }
                records.append(task.record(**of, mean=float(found.mean()), **numbers))
        return records


def _stairs(
    axes: Axes, devices: Sequence[DeviceValue], edges: Numbers, label: str, *, behind: bool
) -> None:
    values = [device.value for device in devices]
    colour = COLOURS[0] if behind else COLOURS[1]
    looks = {"alpha": 0.35, "linewidth": 0} if behind else {"linewidth": 2}
    counts = np.histogram(values, edges)[0]
    axes.stairs(counts, edges, color=colour, fill=behind, label=label, **looks)
    line = "-" if behind else "--"
    axes.axvline(float(np.percentile(values, _TAIL)), color=colour, linestyle=line, linewidth=0.9)


def _number(split: str, value: float | None) -> str:
    scale, _, digits = _UNITS[split]
    return NONE if value is None else f"{scale * value:.{digits}f}"


def _with_little_data(row: Record) -> str:
    bound = row["little_data_below"]
    counts = f"{row['devices_with_little_data']} of {row['devices']}"
    return NONE if bound is None else f"{counts} (below {bound})"


class Scatter(DeviceFigure):
    """Scatter plots over devices: a row for each split, a panel for each method."""

    __slots__ = ()

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

    def draw(self, task: TaskRuns, values: _Values) -> Figure:
        """Draw a panel for each split and method."""
        figure, panels = new_figure(len(values), len(task.methods))
        for row, (split, methods) in zip(panels, values.items(), strict=True):
            highest = max(device.value for devices in methods.values() for device in devices)
            sizes = [device.num_samples for devices in methods.values() for device in devices]
            scale = "log" if max(sizes) > _LOG_FROM * min(sizes) else "linear"
            for number, (panel, method) in enumerate(zip(row, methods, strict=True)):
                panel.scatter(
                    [device.num_samples for device in methods[method]],
                    [device.value for device in methods[method]],
                    s=9,
                    alpha=0.5,
                    linewidths=0,
                    color=LineStyle(number).colour,
                    marker=LineStyle(number).marker,
                )
                panel.set_title(method, fontsize="medium")
                panel.set_xscale(scale)
                of = "training" if split == TRAIN else "test"
                panel.set_xlabel(f"samples on the {of} device")
                panel.set_ylim(0, 1.05 * highest or 1)  # one scale in a row
                if split == TEST:
                    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            row[0].set_ylabel(METRICS[split])
        figure.suptitle(task.heading, fontsize="medium")
        return figure

    def spread(self, task: TaskRuns, values: _Values) -> list[Record]:
        """Standard deviations over devices, of test devices also of those with little data."""
        records = []
        bound = LITTLE_DATA.get(task.chosen.task.family)
        for method, tests in values[TEST].items():
            little = [one for one in tests if bound is not None and one.num_samples < bound]
            loss, error, of_little = map(_std, (values[TRAIN][method], tests, little))
            records.append(
                task.record(
                    method=method,
                    std_train_loss=loss,
                    std_test_error=error,
                    std_test_error_little_data=of_little,
                    little_data_below=bound,
                    devices=len(tests),
                    devices_with_little_data=len(little),
                )
            )
        return records


def _std(devices: Sequence[DeviceValue]) -> float | None:
    """Over devices, unweighted; None for fewer than two."""
    if len(devices) < 2:
        return None
    return float(np.std([device.value for device in devices], ddof=1))
