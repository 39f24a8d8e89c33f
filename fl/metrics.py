"""Summaries of a metric's distribution over devices: percentiles, and how even it is.

Source: arXiv 2002.11223, Appendix C.2. The training loss weighs devices by their number of samples,
as the objective does; the test error weighs all devices equally, whatever their number of samples.
A weighted percentile is the weighted quantile of `deltafl.fl.superquantile`, always one of the
values; an unweighted one interpolates linearly between neighbours, numpy's default and the rule
behind the published numbers.

How evenly a model performs: AAggFF ("Pursuing Overall Welfare in Federated Learning through
Sequential Decision Making", Section 6), with the definitions of its published code: the average and
the means of the worst and the best tenth weigh devices by their test samples, the standard
deviation and the Gini coefficient give every device one vote. Accuracy is 1 − error. The paper
prints the Gini coefficient times a factor; here it has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.superquantile import weighted_quantile

PERCENTILES: Final = (20, 50, 60, 80, 90, 95)
"""The percentiles τ that the paper reports."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and percentiles of one metric over devices.

    Attributes:
        mean: in the metric's unit.
        percentiles: from each of `PERCENTILES` to its value.
    """

    mean: float
    percentiles: Mapping[int, float]


def summarise_train_loss(devices: Sequence[DeviceMetrics]) -> Summary:
    """Summarise the losses, devices weighted by their numbers of samples.

    Raises:
        ValueError: no devices, or a loss that is not finite.
    """
    losses = [device.loss for device in devices]
    counts = [device.num_samples for device in devices]
    percentiles = {
        # the τ-percentile is the (1 − θ)-quantile at θ = 1 − τ/100
        tau: weighted_quantile(losses, counts, Fraction(100 - tau, 100))
        for tau in PERCENTILES
    }
    return Summary(float(np.average(losses, weights=counts)), MappingProxyType(percentiles))


def summarise_test_error(devices: Sequence[DeviceMetrics]) -> Summary:
    """Summarise the misclassification errors, all devices weighted equally.

    Raises:
        ValueError: no devices.
    """
    if not devices:
        raise ValueError("no devices to summarise: pass at least one")
    errors = [device.error for device in devices]
    values = np.percentile(errors, PERCENTILES)
    percentiles = dict(zip(PERCENTILES, values.tolist(), strict=True))
    return Summary(float(np.mean(errors)), MappingProxyType(percentiles))


@dataclass(frozen=True, slots=True)
class Fairness:
    """The distribution of a model's accuracies; all but `gini` are in accuracy units.

    Attributes:
        average: mean accuracy, in [0, 1].
        worst_tenth: mean over the tenth of the devices with the lowest accuracy.
        best_tenth: mean over the same number of devices with the highest accuracy.
        worst: the lowest accuracy of a device.
        gap: accuracy-parity gap, highest − lowest, in [0, 1]; 0 is parity.
        gini: Gini coefficient, in [0, 1); 0 is parity.
    """

    average: float
    worst_tenth: float
    best_tenth: float
    worst: float
    gap: float
    gini: float


def tenth_of(size: int) -> int:
    """How many devices are a tenth of `size`: rounded down, but never none."""
    return max(1, size // 10)


def summarise_fairness(devices: Sequence[DeviceMetrics]) -> Fairness:
    """Summarise how the accuracies of `devices` differ.

    Args:
        devices: the test devices; their order does not matter.

    Raises:
        ValueError: no devices, a number of samples below 1, or an error outside [0, 1].
    """
    _check(devices)
    # break ties of accuracy by size, so that the order of the devices does not decide which of
    # them are among the worst
    ranked = sorted(devices, key=lambda device: (1 - device.error, device.num_samples))
    accuracies = 1 - np.array([device.error for device in ranked], dtype=np.float64)
    weights = np.array([device.num_samples for device in ranked], np.float64)
    tenth = tenth_of(len(ranked))
    return Fairness(
        average=float(np.average(accuracies, weights=weights)),
        worst_tenth=float(np.average(accuracies[:tenth], weights=weights[:tenth])),
        best_tenth=float(np.average(accuracies[-tenth:], weights=weights[-tenth:])),
        worst=float(accuracies[0]),
        gap=float(np.ptp(accuracies)),
        gini=gini(accuracies),
    )


def gini(values: Sequence[float] | npt.NDArray[np.float64]) -> float:
    """Measure how unequal non-negative values are: 0 if all are equal, below 1 always.

    With x_(1) ≤ … ≤ x_(n) it is Σ_i (2i − n − 1) x_(i) / (n Σ_i x_i), which is half the mean
    absolute difference of two values divided by their mean. If one value has the whole sum, it is
    1 − 1/n. If all values are zero, they are equal, so it is 0.

    Raises:
        ValueError: no values, or one that is negative or not finite.

    >>> gini([0.5, 0.5, 0.5]), gini([0.0, 0.0, 0.0, 1.0])
    (0.0, 0.75)
    """
    numbers = np.sort(np.asarray(values, dtype=np.float64))
    if numbers.ndim != 1 or numbers.size == 0:
        raise ValueError(f"values of shape {numbers.shape}: pass at least one number, in one row")
    if not np.isfinite(numbers).all() or numbers[0] < 0:
        raise ValueError(
            f"values from {numbers[0]} to {numbers[-1]}: the Gini coefficient is defined for "
            f"finite numbers of at least 0"
        )
    if numbers[-1] == 0:
        return 0.0
    # scaled first: the sum of the largest doubles would be infinite, that of the smallest inexact
    numbers = numbers / numbers[-1]
    size = numbers.size
    ranks = 2 * np.arange(1, size + 1) - size - 1
    return max(0.0, float(ranks @ numbers / (size * numbers.sum())))


def _check(devices: Sequence[DeviceMetrics]) -> None:
    if not devices:
        raise ValueError("no devices to summarise: pass at least one")
    for device in devices:
        if device.num_samples < 1:
            raise ValueError(f"num_samples={device.num_samples} of {device.id!r} is less than 1")
        if not 0 <= device.error <= 1:
            raise ValueError(f"error={device.error} of {device.id!r} is not in [0, 1]")
