"""How many devices are in each bin, if the answer is noisy counts.

Bin j holds c_j devices with probability ∝ Π p_j^c_j / c_j!, p_j being the prior probability of its
losses, and its noisy count y_j has a likelihood ∝ exp(-(y_j - c_j)²/2σ²), for the noise of a sum is
a discrete Gaussian to fifteen digits. That is a product over bins, and Σ c_j = m is known, so the
posterior is exact, by the chain of `counts`.

The update tells how many devices are above the threshold, which may cut a bin in two. The numbers a
and b of its parts share one noisy count. But how many there are on either side is known, so a is
what the bins below leave over, and b what those above do: the likelihood of a is that of all b.
"""

import itertools

import numpy as np
import numpy.typing as npt

from deltafl.protocol.errors import SearchError
from deltafl.protocol.quantile.registry import NOISY
from deltafl.sim.inspect.leakage.consequences import Bucket
from deltafl.sim.inspect.leakage.counts import (
    BucketCounts,
    Pin,
    bucket_counts,
    chain,
    log_factorials,
)
from deltafl.sim.inspect.leakage.observations import SearchView
from deltafl.sim.inspect.leakage.prior import Numbers, Prior


def infer_counts(view: SearchView, prior: Prior) -> BucketCounts:
    """Infer how many devices are in each bucket, from exact sums or from noisy ones.

    Raises:
        SearchError: The sums contradict each other.
    """
    if view.method == NOISY and view.answers:
        return noisy_bucket_counts(view, prior)
    return bucket_counts(view, prior)


def noisy_bucket_counts(view: SearchView, prior: Prior) -> BucketCounts:
    """Infer the numbers from the one answer of `noisy`, and from the update if there was one.

    Buckets are bins, or the two parts of the one that the threshold pivots. The marginals are
    exact. What is certain of a bucket is no more than how many devices are on its side of the
    threshold.

    Args:
        view: What the server saw, with an answer.
        prior: What it knew before.

    Raises:
        SearchError: The sums contradict each other.
    """
    assert view.noise is not None  # noqa: S101 - for mypy: no answer of `noisy` without
    (answer,) = view.answers
    if answer.sums["count"] != (view.devices,):
        raise SearchError(f"{answer.sums['count'][0]} devices answered, not {view.devices}")
    pivot, in_tail = 0, view.devices
    if view.tail is not None:
        pivot, in_tail = view.tail.pivot, view.tail.count
    if not 0 <= in_tail <= (view.devices if pivot < view.config.search.grid.top_pivot else 0):
        raise SearchError(f"{in_tail} of {view.devices} devices can not be in the tail")
    out_of_tail = view.devices - in_tail
    numbers = np.arange(view.devices + 1)
    factorials = log_factorials(view.devices)
    scale = 2.0**-view.noise.resolution_bits
    variance = float(view.noise.variance)
    found: list[Bucket] = []
    rows: list[Numbers] = []
    halved: tuple[int, float] | None = None
    bins = itertools.pairwise((0, *answer.pivots, view.config.search.grid.top_pivot))
    for (low, high), number in zip(bins, answer.sums["bins"], strict=True):
        if low == high:
            continue  # the last pivot is repeated where there are fewer: noise and nothing else
        parts = [(low, pivot), (pivot, high)] if low < pivot < high else [(low, high)]
        for first, last in parts:
            most = in_tail if first >= pivot else out_of_tail
            found.append(Bucket(first, last, most, 0, most))
            rows.append(numbers * np.log(prior.mass(first, last)) - factorials)
        if len(parts) == 1:
            rows[-1] = rows[-1] - (scale * number - numbers) ** 2 / (2 * variance)
        else:
            halved = len(found) - 2, scale * number
    local = np.array(rows)
    if halved is not None:
        at, count = halved
        both = -((count - numbers[:, None] - numbers) ** 2) / (2 * variance)
        left = local[at] + _at(chain(local[:at])[-1], out_of_tail - numbers)
        right = local[at + 1] + _at(chain(local[: at + 1 : -1])[-1], in_tail - numbers)
        local[at] += np.logaddexp.reduce(both + right, axis=1)
        local[at + 1] += np.logaddexp.reduce(both + left[:, None], axis=0)
    num_below = sum(bucket.low < pivot for bucket in found)
    forward = chain(local, Pin(num_below, out_of_tail))
    backward = chain(local[::-1], Pin(len(found) - num_below, in_tail))[::-1]
    return BucketCounts(tuple(found), view.devices, local, forward, backward)


def _at(row: Numbers, numbers: npt.NDArray[np.int_]) -> Numbers:
    """The entries at these places, -∞ at negative ones."""
    return np.asarray(np.where(numbers >= 0, row[np.maximum(numbers, 0)], -np.inf))
