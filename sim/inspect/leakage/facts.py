"""What one recorded search gave away, for the report of an audit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from deltafl.sim.inspect.leakage.belief import Belief
from deltafl.sim.inspect.leakage.consequences import buckets, ranks, threshold_interval
from deltafl.sim.inspect.leakage.counts import BucketCounts
from deltafl.sim.inspect.leakage.measure import order_bits, order_error, prior_order_error
from deltafl.sim.inspect.leakage.noisy_counts import infer_counts
from deltafl.sim.inspect.leakage.observations import SearchView
from deltafl.sim.inspect.leakage.prior import Prior
from deltafl.sim.inspect.leakage.reconstruction import Reconstruction, from_ranks, reconstruct

_SEED = 1
_LEAST_MEAN = 2.0**-16  # nats
_NARROWEST = 1e4  # shape: a deviation of a hundredth of the mean


@dataclass(frozen=True, slots=True)
class LeakageFacts:
    """The figures of `deltafl.sim.inspect.audit.report.SearchFacts` that follow from a view.

    Attributes:
        queries: Public queries that were answered.
        numbers: Sums that the answers consist of.
        buckets: Intervals between pivots that hold at least one device.
        smallest_bucket: Devices in the least crowded of them; None if that is not known.
        threshold_low: Loss above which the quantile is known to lie, in nats.
        threshold_high: Loss below which it is known to lie, in nats.
        bits: Unlabelled bits given away per device. They are computed at the true losses if these
            are known, and otherwise at the attacker's best guess, which flatters the attacker.
            None without devices.
        error: Mean error of the reconstructed losses, in nats; None without truth.
        prior_error: The same for a guess without the sums; None without truth.
        exact: Whether the attack found every loss to the tick.
        within: Within how many nats the attacker knows every loss, by the attack or because all in
            an interval of the ranks are that close; infinite where there is one that it does not.
    """

    queries: int
    numbers: int
    buckets: int
    smallest_bucket: int | None
    threshold_low: float
    threshold_high: float
    bits: float | None
    error: float | None
    prior_error: float | None
    exact: bool
    within: float


def search_facts(
    view: SearchView,
    *,
    truth_ticks: Sequence[int] | None = None,
    time_limit: float = 0.0,
    prior: Prior | None = None,
) -> LeakageFacts:
    """Compute the figures of one search.

    Args:
        view: What the server saw.
        truth_ticks: Every device's loss on the grid, where it is known; in any order.
        time_limit: Seconds for the attack; 0 for what follows directly from the ranks, which takes
            milliseconds.
        prior: What the attacker knows of losses and weights; if None, losses of one nat on the
            average, and weights from nothing to twice the average.

    Raises:
        SearchError: The sums contradict each other: they are those of no cohort.
    """
    grid = view.config.search.grid
    if prior is None:
        prior = _prior(view)
    counts = infer_counts(view, prior)
    found = from_ranks(counts, prior)
    if time_limit > 0 or view.losses is not None:
        found = reconstruct(view, prior, np.random.default_rng(_SEED), time_limit=time_limit)
    nobody = np.zeros((view.devices, len(counts.buckets)))  # devices are not told apart here
    belief = Belief(view, prior, counts, nobody, found)
    error = prior_error = None
    if truth_ticks is not None and len(truth_ticks) == view.devices:
        assumed = list(truth_ticks)
        error, prior_error = order_error(belief, truth_ticks), prior_order_error(prior, truth_ticks)
    else:
        guess = np.clip(np.rint(found.sorted_ticks), 0, grid.max_tick)
        assumed = guess.astype(int).tolist()
    held = [bucket for bucket in buckets(view) if bucket.weight > 0 or bucket.fewest > 0]
    are_counted = all(bucket.fewest == bucket.most for bucket in held)
    low, high = threshold_interval(view)
    return LeakageFacts(
        queries=len(view.answers),
        numbers=sum(len(sums) for answer in view.answers for sums in answer.sums.values()),
        buckets=len(held),
        smallest_bucket=min((b.fewest for b in held), default=None) if are_counted else None,
        threshold_low=max(grid.value(Fraction(2 * low - 1, 2)), 0.0),
        threshold_high=min(grid.value(Fraction(2 * high - 1, 2)), float(grid.bound)),
        bits=order_bits(belief, assumed) if view.devices else None,
        error=error,
        prior_error=prior_error,
        exact=found.exact,
        within=_within(counts, found) * 2.0**-grid.resolution_bits,
    )


def _within(counts: BucketCounts, found: Reconstruction) -> float:
    """Within how many ticks every loss is known."""
    if not counts.are_known or not len(found.sorted_radius):
        return math.inf
    half_widths = [
        (bucket.high - bucket.low - 1) / 2
        for bucket, count in zip(counts.buckets, counts.likeliest(), strict=True)
        for _ in range(count)
    ]
    return float(np.minimum(found.sorted_radius, half_widths).max())


def fitted_prior(view: SearchView, ticks: Sequence[int]) -> Prior:
    """The prior of somebody who knows the distribution of this cohort's losses, but not whose.

    It is a Gamma distribution with their mean and variance. A weaker prior would count earlier
    knowledge as leaked.

    Args:
        view: What the server saw.
        ticks: Every device's loss on the grid, at least one.
    """
    losses = np.array(ticks, dtype=np.float64) * 2.0**-view.config.search.grid.resolution_bits
    mean = max(float(losses.mean()), _LEAST_MEAN)
    shape = min(mean**2 / max(float(losses.var()), 1e-300), _NARROWEST)
    return replace(_prior(view), scale=mean / shape, shape=shape)


def _prior(view: SearchView) -> Prior:
    known = ranks(view)
    mean = known[-1].weight / max(view.devices, 1)
    return Prior(view.config.search.grid, lightest=1, heaviest=max(round(2 * mean), 1))
