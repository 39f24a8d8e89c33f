"""Figures 5, 14 and 15: losses and errors of devices against how much data they have.

Source: arXiv 2002.11223, Section 5 and Appendix C.3. The paper sees two things in them, which the
table puts in numbers: Δ-FL makes the losses of training devices differ less, and the errors of test
devices with little data ("less than 200 for EMNIST or less than 100 for Sent140").
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from deltafl.sim.charts.chart import LineStyle
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

LITTLE_DATA: Final = {"emnist": 200, "sent140": 100}
"""Below how many samples a device has little data, by family; the paper names no other."""

_LOG_FROM: Final = 30  # sizes that differ by more, as those of roles do, are hard to see on a line

_Values = dict[str, dict[str, list[DeviceValue]]]  # by split and method


class Scatter(TaskFigure):
    """Scatter plots over devices: a row for each split, a panel for each method."""

    __slots__ = ()

    numbers = "spread over devices"
    columns = (
        "task",
        "method",
        "std of training loss (nats)",
        "std of test error (points)",
        "std of test error with little data (points)",
        "test devices with little data",
    )

    def of_task(self, task: TaskRuns) -> Drawn:
        """Draw the devices of the methods."""
        values: _Values = {TRAIN: {}, TEST: {}}
        for runs in task.methods:
            last = runs.last_evaluations()
            for split, methods in values.items():
                methods[runs.method] = per_device(last, split)
        rows, records = [], []
        for method in values[TRAIN]:
            row, record = _spreads(task, method, values)
            rows.append(row)
            records += [record, *_records(task, method, values)]
        return Drawn({f"{self.name}-{task.chosen.task.name}": _draw(task, values)}, rows, records)


def _draw(task: TaskRuns, values: _Values) -> Figure:
    figure, panels = new_figure(len(values), len(task.methods))
    for row, (split, methods) in zip(panels, values.items(), strict=True):
        highest = max(device.value for devices in methods.values() for device in devices)
        sizes = [device.num_samples for devices in methods.values() for device in devices]
        scale = "log" if max(sizes) > _LOG_FROM * min(sizes) else "linear"
        for number, (panel, (method, devices)) in enumerate(zip(row, methods.items(), strict=True)):
            panel.scatter(
                [device.num_samples for device in devices],
                [device.value for device in devices],
                s=9,
                alpha=0.5,
                linewidths=0,
                color=LineStyle(number).colour,
                marker=LineStyle(number).marker,
            )
            panel.set_title(method, fontsize="medium")
            panel.set_xscale(scale)
            panel.set_xlabel(f"samples on the {'training' if split == TRAIN else 'test'} device")
            panel.set_ylim(0, 1.05 * highest or 1)  # one scale in a row
            if split == TEST:
                panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        row[0].set_ylabel(METRICS[split])
    figure.suptitle(task.heading, fontsize="medium")
    return figure


def _spreads(task: TaskRuns, method: str, values: _Values) -> tuple[Row, Record]:
    bound = LITTLE_DATA.get(task.chosen.task.family)
    tests = values[TEST][method]
    little = [device for device in tests if bound is not None and device.num_samples < bound]
    spreads = {
        "std_train_loss": _std(values[TRAIN][method]),
        "std_test_error": _std(tests),
        "std_test_error_little_data": _std(little),
    }
    record: Record = {
        "task": task.chosen.task.name,
        "data": task.chosen.data.name,
        "method": method,
        **spreads,
        "little_data_below": bound,
        "devices_with_little_data": len(little),
    }
    loss, error, of_little = spreads.values()
    row = (
        task.chosen.label,
        method,
        "–" if loss is None else f"{loss:.3f}",
        "–" if error is None else f"{100 * error:.2f}",
        "–" if of_little is None else f"{100 * of_little:.2f}",
        "–" if bound is None else f"{len(little)} of {len(tests)} (below {bound})",
    )
    return row, record


def _std(devices: Sequence[DeviceValue]) -> float | None:
    """Over devices, unweighted; None for fewer than two."""
    if len(devices) < 2:
        return None
    return float(np.std([device.value for device in devices], ddof=1))


def _records(task: TaskRuns, method: str, values: _Values) -> list[Record]:
    return [
        {
            "task": task.chosen.task.name,
            "method": method,
            "split": split,
            "device": device.id,
            "num_samples": device.num_samples,
            "loss" if split == TRAIN else "error": device.value,
            "seeds": device.seeds,
        }
        for split, methods in values.items()
        for device in methods[method]
    ]


_METHODS: Final = (FEDAVG, DELTA_FL[1])

SCATTERS: Final = (
    Scatter(
        "fig5",
        "Training loss and test error against data size, EMNIST ConvNet",
        "arXiv 2002.11223, Figure 5",
        Selection(("emnist-convnet",), _METHODS),
    ),
    Scatter(
        "fig14",
        "Training loss and test error against data size, EMNIST",
        "arXiv 2002.11223, Figure 14",
        Selection(("emnist-linear", "emnist-convnet"), _METHODS),
    ),
    Scatter(
        "fig15",
        "Training loss and test error against data size, Sent140 and Shakespeare",
        "arXiv 2002.11223, Figure 15",
        Selection(("sent140-linear", "sent140-lstm", "shakespeare-gru"), _METHODS),
    ),
)
"""Figures 5, 14 and 15."""
