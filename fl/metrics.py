"""Summaries of a metric's distribution over devices.

Source: arXiv 2002.11223, Appendix C.2. The training loss weighs devices by their number of samples,
as the objective does; the test error weighs all devices equally, whatever their number of samples.
A weighted percentile is the weighted quantile of `deltafl.fl.superquantile`, always one of the
values; an unweighted one interpolates linearly between neighbours, numpy's default and the rule
behind the published numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import numpy as np

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
