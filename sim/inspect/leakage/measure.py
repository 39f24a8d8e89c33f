"""How much a search gave away, in bits and in nats.

**Bits** are the gain of the attacker's forecast over its prior, in log score: log2 of the
probability that it gives to the true loss after the search, minus the same before. If the
attacker's belief is the exact posterior, this is what the released sums revealed about the loss.
Otherwise it is less, because a wrong belief costs bits. If a loss is known exactly, all bits that
the prior left open have leaked, about 16 for a loss of one nat on the default grid.

- *Unlabelled* bits are about the i-th smallest loss of the cohort, the mean over i. The prior of an
  order statistic is narrow in a large cohort, so there is less to lose.
- *Labelled* bits are about the loss of device k, the mean over k. Not knowing which of m devices
  has a known loss leaves log2 m of them.

Neither adds up over devices: neighbours in order know of each other.

**Errors** are mean distances of the best guess from the truth, for sorted losses and for each
device's loss. The errors of a guess from the prior alone are given as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from deltafl.sim.inspect.leakage.belief import Belief, Claims, order_law
from deltafl.sim.inspect.leakage.prior import Numbers, Prior

RECOVERED_NATS: Final = 1e-3
"""A loss is recovered if the attacker claims it to within this, and is right."""


@dataclass(frozen=True, slots=True)
class Leakage:
    """What one search gave away.

    Attributes:
        bits: Unlabelled bits per device.
        labelled_bits: Labelled bits per device.
        error: Mean error of the sorted losses, in nats.
        prior_error: The same of the expected order statistics.
        recovered: Share of the sorted losses that were recovered.
        labelled_recovered: Share of the devices whose own loss was recovered.
    """

    bits: float
    labelled_bits: float
    error: float
    prior_error: float
    recovered: float
    labelled_recovered: float


def measure(belief: Belief, truth: Sequence[int]) -> Leakage:
    """Compare a belief with the truth.

    Args:
        belief: What the attacker believes.
        truth: Every device's tick, in the order of the view's weights.
    """
    prior = belief.prior
    true = np.array(truth, dtype=float)
    in_order = np.sort(true)
    unit = 2.0**-prior.grid.resolution_bits
    claims = belief.device_claims()
    return Leakage(
        bits=order_bits(belief, truth),
        labelled_bits=device_bits(belief, truth),
        error=order_error(belief, truth),
        prior_error=prior_order_error(prior, truth),
        recovered=_recovered(belief.order_claims(), in_order, unit),
        labelled_recovered=_recovered(claims, true, unit),
    )


def order_bits(belief: Belief, truth: Sequence[int]) -> float:
    """Unlabelled bits per device."""
    ticks = sorted(truth)
    after = np.diagonal(belief.of_order(ticks))
    size, top = len(ticks), belief.prior.grid.top_pivot
    before = np.diagonal(order_law(belief.prior, 0, top, size, np.array(ticks, dtype=float)))
    return _gain(after, before)


def order_error(belief: Belief, truth: Sequence[int]) -> float:
    """Mean error of the sorted losses, in nats."""
    distance = _distance(belief.reconstruction.sorted_ticks, np.sort(np.array(truth, dtype=float)))
    return distance * 2.0**-belief.prior.grid.resolution_bits


def prior_order_error(prior: Prior, truth: Sequence[int]) -> float:
    """The same of the expected order statistics, in nats."""
    distance = _distance(_expected_order(prior, len(truth)), np.sort(np.array(truth, dtype=float)))
    return distance * 2.0**-prior.grid.resolution_bits


def device_bits(belief: Belief, truth: Sequence[int]) -> float:
    """Labelled bits per device."""
    ticks = np.array(truth, dtype=float)
    return _gain(belief.of_devices(truth), belief.prior.mass(ticks, ticks + 1))


def _gain(after: Numbers, before: Numbers) -> float:
    least = 1e-30
    return float(np.mean(np.log2(np.maximum(after, least)) - np.log2(np.maximum(before, least))))


def _expected_order(prior: Prior, size: int) -> Numbers:
    return prior.between(0, prior.grid.top_pivot, (np.arange(size) + 0.5) / size)


def _distance(first: Numbers, second: Numbers) -> float:
    return float(np.mean(np.abs(first - second)))


def _recovered(claims: Claims, true: Numbers, unit: float) -> float:
    allowed = RECOVERED_NATS / unit
    # a tick known exactly is a loss known to half a tick
    right = (claims.radius + 0.5 <= allowed) & (np.abs(claims.ticks - true) <= allowed)
    return float(np.mean(right))
