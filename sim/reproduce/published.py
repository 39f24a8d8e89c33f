"""The numbers that the papers print, to be put beside ours.

Errors and accuracies in percent, mean and standard deviation over seeds (5 in P and W, 3 in A).
P = arXiv 2002.11223 (v1), W = its workshop version (NeurIPS 2022, DistShift), A = AAggFF (arXiv
2405.20821). Numbers that both P and W print agree, but for the mean of Δ-FL θ=0.8 on the ConvNet:
16.08 in P, 16.09 in W. What W prints for AFL it measured with q-FFL at q = 10.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from deltafl.sim.reproduce.methods import (
    AAGGFF_S,
    AFL_AS_Q_FFL,
    DELTA_FL,
    FEDAVG,
    FEDPROX,
    Q_FFL,
    TILTED_ERM,
    Method,
)


@dataclass(frozen=True, slots=True)
class Published:
    """A number of a paper.

    Attributes:
        mean: over seeds, in percent.
        std: over seeds, in percentage points.
    """

    mean: float
    std: float


Column: TypeAlias = Mapping[str, Published]
"""From the label of a method to its number."""

_TASKS: Final = (
    "emnist-linear",
    "emnist-convnet",
    "sent140-linear",
    "sent140-lstm",
    "shakespeare-gru",
)
_THETA_08, _THETA_05, _THETA_01 = DELTA_FL


def _columns(
    tasks: tuple[str, ...], rows: Mapping[Method, tuple[float, ...]]
) -> Mapping[str, Column]:
    """A table as it is printed: of each method a mean and a deviation for each task, or for some.

    Returns:
        From a task to its column.
    """
    return {
        task: {
            method.label: Published(*row[2 * at : 2 * at + 2])
            for method, row in rows.items()
            if len(row) > 2 * at
        }
        for at, task in enumerate(tasks)
    }


TAIL_ERROR: Final = _columns(
    _TASKS,
    {
        FEDAVG: (49.66, 0.67, 28.46, 1.07, 46.83, 0.54, 49.67, 3.95, 46.45, 0.11),
        FEDPROX: (49.15, 0.74, 27.01, 1.86, 46.83, 0.54, 49.86, 4.07),
        Q_FFL: (49.90, 0.58, 28.02, 0.80, 46.39, 0.40, 48.66, 4.68),
        TILTED_ERM: (48.59, 0.62, 25.46, 1.49, 46.69, 0.49, 46.54, 3.27),
        AFL_AS_Q_FFL: (51.62, 0.28, 45.08, 1.00, 47.52, 0.32, 57.78, 1.19),
        _THETA_08: (49.10, 0.24, 26.23, 1.15, 46.44, 0.38, 46.46, 4.39, 46.33, 0.10),
        _THETA_05: (48.44, 0.38, 23.69, 0.94, 46.64, 0.41, 50.48, 8.24, 46.32, 0.13),
        _THETA_01: (50.34, 0.95, 25.46, 2.77, 51.39, 1.07, 86.45, 10.95, 47.17, 0.14),
    },
)
"""90th percentile of the test error over devices: P Table 2; baselines W Table 1."""

MEAN_ERROR: Final = _columns(
    _TASKS,
    {
        FEDAVG: (34.38, 0.38, 16.64, 0.50, 34.75, 0.31, 30.16, 0.44, 42.90, 0.04),
        FEDPROX: (33.82, 0.30, 16.02, 0.54, 34.74, 0.31, 30.20, 0.48),
        Q_FFL: (34.34, 0.33, 16.59, 0.30, 34.48, 0.06, 29.96, 0.56),
        TILTED_ERM: (34.02, 0.30, 15.68, 0.38, 34.70, 0.31, 30.04, 0.25),
        AFL_AS_Q_FFL: (39.33, 0.27, 33.01, 0.37, 35.98, 0.08, 37.74, 0.65),
        _THETA_08: (34.49, 0.26, 16.08, 0.40, 34.41, 0.22, 30.31, 0.33, 42.93, 0.05),
        _THETA_05: (35.02, 0.20, 15.49, 0.30, 35.29, 0.25, 33.59, 2.44, 43.13, 0.05),
        _THETA_01: (38.33, 0.48, 16.37, 1.03, 37.79, 0.89, 51.98, 11.81, 44.18, 0.12),
    },
)
"""Mean of the test error over devices: P Table 3; baselines W Table 2."""

AVERAGE_ACCURACY: Final = _columns(
    ("heart",), {FEDAVG: (84.42, 2.45), FEDPROX: (84.48, 0.25), AAGGFF_S: (85.04, 2.86)}
)
"""A Table 7, the average, of the methods as they are and of AAggFF on top of FedAvg."""

WORST_ACCURACY: Final = _columns(
    ("heart",), {FEDAVG: (65.22, 9.78), FEDPROX: (65.44, 9.77), AAGGFF_S: (66.56, 10.81)}
)
"""A Table 7, the worst client."""


@dataclass(frozen=True, slots=True)
class DataRow:
    """A row of P's Table 1.

    Attributes:
        classes: how many.
        train_devices: how many.
        test_devices: how many.
        median: points per train device.
        smallest: the same.
        largest: the same.
    """

    classes: int
    train_devices: int
    test_devices: int
    median: float
    smallest: int
    largest: int


TABLE_1: Final[Mapping[str, DataRow]] = {
    "emnist": DataRow(62, 865, 865, 179, 101, 447),
    "sent140": DataRow(2, 438, 439, 69, 51, 549),
    "shakespeare": DataRow(53, 544, 545, 1288, 101, 66_963),
}
"""P Table 1, by the family of tasks."""
