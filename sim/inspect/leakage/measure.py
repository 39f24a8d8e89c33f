"""How much a search gave away, in bits and in nats: what the attacker believes, and what is true.

There are two separate questions. *Unlabelled*: what is the i-th smallest loss of the cohort?
*Labelled*: what is the loss of device k? The beliefs are those of an attacker that knows the
prior and computes; they do not use the truth. Where the reconstruction claims a place, the belief
is there, with the rest left for the case that the claim is wrong. Elsewhere it is the posterior
that follows from the ranks.

**Bits** are the gain of the attacker's forecast over its prior, in log score: log2 of the
probability that it gives to the true loss after the search, minus the same before. If the
attacker's belief is the exact posterior, this is what the released sums revealed about the loss.
Otherwise it is less, because a wrong belief costs bits. If a loss is known exactly, all bits that
the prior left open have leaked, about 16 for a loss of one nat on the default grid.

- *Unlabelled* bits are the mean over i. The prior of an order statistic is narrow in a large
  cohort, so there is less to lose.
- *Labelled* bits are the mean over k. Not knowing which of m devices has a known loss leaves log2 m
  of them.

Neither adds up over devices: neighbours in order know of each other.

**Errors** are mean distances of the best guess from the truth, for sorted losses and for each
device's loss. The errors of a guess from the prior alone are given as well.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from deltafl.protocol.losses import LossGrid
from deltafl.sim.inspect.leakage.consequences import (
    buckets,
    order_intervals,
    ranks,
    threshold_interval,
)
from deltafl.sim.inspect.leakage.counts import BucketCounts, infer_counts
from deltafl.sim.inspect.leakage.labels import device_intervals, probabilities
from deltafl.sim.inspect.leakage.observations import Numbers, Prior, SearchView
from deltafl.sim.inspect.leakage.reconstruction import Reconstruction, from_ranks, reconstruct

_DOUBT: Final = 0.1
"""Probability that a claimed place is wrong."""
_DOUBT_IF_EXACT: Final = 2.0**-10
_FAR: Final = 10.0
_SURE: Final = 0.95
_NEGLIGIBLE: Final = 1e-7


Claims: TypeAlias = tuple[Numbers, Numbers]
"""Where the attacker claims that losses are: places and their possible errors, in ticks."""


@dataclass(frozen=True, slots=True)
class Belief:
    """The attacker's belief after a search.

    Attributes:
        view: What it saw.
        prior: What it knew before.
        counts: How many devices it thinks are in each bucket.
        places: Its probability that device k is in bucket j, shape (m, J).
        reconstruction: What its attack found.
    """

    view: SearchView
    prior: Prior
    counts: BucketCounts
    places: Numbers
    reconstruction: Reconstruction
    _by_ranks_of: dict[tuple[int, ...], Numbers] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, view: SearchView, prior: Prior, reconstruction: Reconstruction) -> "Belief":
        """The belief of an attacker with this view, prior and reconstruction.

        Raises:
            SearchError: The sums contradict each other.
        """
        counts = infer_counts(view, prior)
        return cls(view, prior, counts, probabilities(view, counts, prior), reconstruction)

    def of_order(self, ticks: Sequence[int]) -> Numbers:
        """Probability that the i-th smallest loss is on each of these ticks, shape (m, K)."""
        different, columns = np.unique(ticks, return_inverse=True)
        key = tuple(different.tolist())
        if key not in self._by_ranks_of:
            self._by_ranks_of[key] = self._by_ranks(key)
        by_ranks = self._by_ranks_of[key][:, columns]
        found = self.reconstruction
        near = _nearness(ticks, found.sorted_ticks, found.sorted_radius, exact=found.exact)
        return self._mixed(near, by_ranks, found.sorted_radius[:, None])

    def of_devices(self, ticks: Sequence[int]) -> Numbers:
        """Probability that device k is on the k-th of these ticks, shape (m,)."""
        lows = [bucket.low for bucket in self.counts.buckets]
        inside = np.searchsorted(lows, ticks, side="right") - 1
        expected = np.maximum(self.places.sum(axis=0), _NEGLIGIBLE)[inside]
        devices = np.arange(self.view.devices)
        anybody = self.of_order(ticks).sum(axis=0)
        by_place = np.minimum(anybody * self.places[devices, inside] / expected, 1.0)
        found = self.reconstruction
        if found.ticks is None or found.radius is None:
            return np.asarray(by_place)
        near = np.diagonal(_nearness(ticks, found.ticks, found.radius, exact=found.exact))
        return self._mixed(near, by_place, found.radius)

    def _mixed(self, near: Numbers, otherwise: Numbers, radius: Numbers) -> Numbers:
        """The belief where a place is claimed, the other for the case that it is wrong; or that."""
        doubt = _DOUBT_IF_EXACT if self.reconstruction.exact else _DOUBT
        mixed = (1 - doubt) * near + doubt * otherwise
        return np.asarray(np.where(np.isfinite(radius), mixed, otherwise))

    def order_claims(self) -> Claims:
        """Where the attacker says that the i-th smallest loss is."""
        edges = np.array(order_intervals(self.view), dtype=float).reshape(-1, 2)
        found = self.reconstruction
        return _narrower(edges, found.sorted_ticks, found.sorted_radius)

    def device_claims(self) -> Claims:
        """Where the attacker says that device k is; nowhere if it can not tell devices apart."""
        edges = np.array(device_intervals(self.view), dtype=float).reshape(-1, 2)
        found = self.reconstruction
        nowhere = np.full(self.view.devices, np.inf)
        ticks = found.sorted_ticks if found.ticks is None else found.ticks
        claims = _narrower(edges, ticks, nowhere if found.radius is None else found.radius)
        order = self.order_claims()
        certain = buckets(self.view)  # where counts are noisy, there are fewer of them
        lows = np.array([bucket.low for bucket in self.counts.buckets])
        first = np.searchsorted(lows, [bucket.low for bucket in certain])
        places = np.add.reduceat(self.places, first, axis=1)
        single = np.array([bucket.fewest == bucket.most == 1 for bucket in certain])
        for device, place in enumerate(np.argmax(places, axis=1)):
            if places[device, place] < _SURE or not single[place]:
                continue
            index = sum(self.counts.likeliest()[: first[place]])
            if order[1][index] < claims[1][device]:
                claims[0][device], claims[1][device] = order[0][index], order[1][index]
        return claims

    def _by_ranks(self, ticks: Sequence[int]) -> Numbers:
        """The posterior of order statistics from the ranks alone, shape (m, K)."""
        table = np.zeros((self.view.devices, len(ticks)))
        for index, bucket in enumerate(self.counts.buckets):
            inside = [k for k, tick in enumerate(ticks) if bucket.low <= tick < bucket.high]
            if not inside:
                continue
            joint = self.counts.joint(index)
            here = np.array([ticks[k] for k in inside])
            law_of = order_laws(self.prior, bucket.low, bucket.high, here)
            for before, count in np.argwhere(joint > _NEGLIGIBLE).tolist():
                if count:
                    table[before : before + count, inside] += joint[before, count] * law_of(count)
        return table


def order_laws(prior: Prior, low: int, high: int, ticks: Numbers) -> Callable[[int], Numbers]:
    """P(the r-th smallest of `count` losses in [low, high) is on these ticks), (count, K).

    By `count`, each computed once. To first order in the width of a tick, which is exact but where
    many share one.
    """
    whole = prior.mass(low, high)
    single = prior.mass(ticks, ticks + 1) / whole
    below = np.clip(prior.mass(np.full(len(ticks), low), ticks + 0.5) / whole, 1e-12, 1 - 1e-12)
    log_below, log_above = np.log(below), np.log1p(-below)

    @functools.cache
    def law(count: int) -> Numbers:
        if high - low == 1:
            return np.ones((count, len(ticks)))
        rank = np.arange(1, count + 1)[:, None]
        others = [math.lgamma(r) + math.lgamma(count - r + 1) for r in range(1, count + 1)]
        log_choose = math.lgamma(count) - np.array(others)[:, None]
        log = log_choose + (rank - 1) * log_below + (count - rank) * log_above
        return np.asarray(np.minimum(count * np.exp(log) * single, 1.0))

    return law


def _nearness(ticks: Sequence[int], places: Numbers, radius: Numbers, *, exact: bool) -> Numbers:
    """Probability of ticks near claimed places: Laplace, narrow and, with doubt, wide; (m, K)."""
    distance = np.abs(np.asarray(ticks)[None, :] - places[:, None])
    if exact:
        return (distance < 0.5).astype(float)
    scale = np.where(np.isfinite(radius), radius, 0.0)[:, None] / 2 + 0.3
    narrow = _laplace(distance, scale)
    return np.asarray((1 - _DOUBT) * narrow + _DOUBT * _laplace(distance, _FAR * scale))


def _laplace(distance: Numbers, scale: Numbers) -> Numbers:
    """Mass of the tick at this distance."""
    near, far = np.maximum(distance - 0.5, 0), distance + 0.5
    mass = (np.exp(-near / scale) - np.exp(-far / scale)) / 2
    across = np.maximum(0.5 - distance, 0)
    return np.asarray(mass + np.where(distance < 0.5, (1 - np.exp(-across / scale)) / 2, 0))


def _narrower(edges: Numbers, ticks: Numbers, radius: Numbers) -> Claims:
    """The interval or the claim, whichever is more precise."""
    half = (edges[:, 1] - edges[:, 0]) / 2
    middle = (edges[:, 1] + edges[:, 0] - 1) / 2
    use = half <= radius
    return np.where(use, middle, ticks), np.where(use, half, radius)


RECOVERED_NATS: Final = 1e-3
"""A loss is recovered if the attacker claims it to within this, and is right."""


class Leakage(NamedTuple):
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
    prior, true = belief.prior, np.array(truth, dtype=float)
    return Leakage(
        bits=order_bits(belief, truth),
        labelled_bits=device_bits(belief, truth),
        error=_error(belief.reconstruction.sorted_ticks, truth, prior.grid),
        prior_error=_error(_expected_order(prior, len(truth)), truth, prior.grid),
        recovered=_recovered(belief.order_claims(), np.sort(true), prior.grid),
        labelled_recovered=_recovered(belief.device_claims(), true, prior.grid),
    )


def of_algorithm_two(prior: Prior, truth: Sequence[int]) -> Leakage:
    """What a server learns that is told every loss, with its device."""
    known = np.ones(len(truth))
    return Leakage(
        bits=_gain(known, _order_before(prior, truth)),
        labelled_bits=_gain(known, _devices_before(prior, truth)),
        error=0.0,
        prior_error=_error(_expected_order(prior, len(truth)), truth, prior.grid),
        recovered=1.0,
        labelled_recovered=1.0,
    )


def order_bits(belief: Belief, truth: Sequence[int]) -> float:
    """Unlabelled bits per device."""
    after = np.diagonal(belief.of_order(sorted(truth)))
    return _gain(after, _order_before(belief.prior, truth))


def device_bits(belief: Belief, truth: Sequence[int]) -> float:
    """Labelled bits per device."""
    return _gain(belief.of_devices(truth), _devices_before(belief.prior, truth))


def _order_before(prior: Prior, truth: Sequence[int]) -> Numbers:
    """The probability of each of the sorted losses before a search, shape (m,)."""
    law = order_laws(prior, 0, prior.grid.top_pivot, np.sort(truth).astype(float))
    return np.diagonal(law(len(truth)))


def _devices_before(prior: Prior, truth: Sequence[int]) -> Numbers:
    """The probability of each device's loss before a search, shape (m,)."""
    ticks = np.array(truth, dtype=float)
    return prior.mass(ticks, ticks + 1)


def _gain(after: Numbers, before: Numbers) -> float:
    least = 1e-30
    return float(np.mean(np.log2(np.maximum(after, least)) - np.log2(np.maximum(before, least))))


def _expected_order(prior: Prior, size: int) -> Numbers:
    return prior.between(0, prior.grid.top_pivot, (np.arange(size) + 0.5) / size)


def _error(in_order: Numbers, truth: Sequence[int], grid: LossGrid) -> float:
    """Mean error of sorted losses that are given in ticks, in nats."""
    return float(np.mean(np.abs(in_order - np.sort(truth)))) * 2.0**-grid.resolution_bits


def _recovered(claims: Claims, true: Numbers, grid: LossGrid) -> float:
    (ticks, radius), allowed = claims, RECOVERED_NATS * 2.0**grid.resolution_bits
    # a tick known exactly is a loss known to half a tick
    right = (radius + 0.5 <= allowed) & (np.abs(ticks - true) <= allowed)
    return float(np.mean(right))


_SEED = 1
_LEAST_MEAN = 2.0**-16  # nats
_NARROWEST = 1e4  # shape: a deviation of a hundredth of the mean


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """What one search for the threshold gave away.

    Attributes:
        method: Name of the quantile method.
        devices: Devices in it, as far as the server knows.
        queries: Public queries that were answered.
        numbers: Sums that the answers consist of.
        buckets: Intervals between pivots that hold at least one device.
        smallest_bucket: Devices in the least crowded of them; None if that is not known.
        threshold_low: Loss above which the quantile is known to lie, in nats.
        threshold_high: Loss below which it is known to lie, in nats.
        bits: Bits per device that the search gave away about the sorted losses; None without truth,
            and where all true losses are one: then there was nothing to forecast.
        error: Mean error of the reconstructed losses, in nats; None without truth.
        prior_error: The same for a guess without the sums; None without truth.
        within: Within how many nats the attacker knows every loss, by the attack or because all in
            an interval of the ranks are that close; None where there is one that it does not know.
        round: The round of a record, counted from 1; 0 where there is none.
    """

    method: str
    devices: int
    queries: int
    numbers: int
    buckets: int
    smallest_bucket: int | None
    threshold_low: float
    threshold_high: float
    bits: float | None
    error: float | None
    prior_error: float | None
    within: float | None
    round: int = 0


def bits_of_counts(view: SearchView, prior: Prior, truth: Sequence[int]) -> tuple[float, float]:
    """Unlabelled and labelled bits of a view in which there is nothing to solve."""
    counts = infer_counts(view, prior)
    places = probabilities(view, counts, prior)
    belief = Belief(view, prior, counts, places, from_ranks(counts, prior)[0])
    return order_bits(belief, truth), device_bits(belief, truth)


def search_facts(
    view: SearchView,
    *,
    truth_ticks: Sequence[int] = (),
    time_limit: float = 0.0,
    prior: Prior | None = None,
) -> SearchFacts:
    """Compute the figures of one search.

    Args:
        view: What the server saw.
        truth_ticks: Every device's loss on the grid, where they are known; in any order.
        time_limit: Seconds for the attack; 0 for what follows directly from the ranks, which takes
            milliseconds.
        prior: What the attacker knows of losses and weights; if None, losses of one nat on the
            average, and weights from 1 to twice the average, or to `Prior.HEAVIEST`.

    Raises:
        SearchError: The sums contradict each other: they are those of no cohort.
    """
    grid = view.config.search.grid
    prior = prior or _prior(view)
    counts = infer_counts(view, prior)
    found = from_ranks(counts, prior)[0]
    if time_limit > 0:
        found = reconstruct(view, prior, np.random.default_rng(_SEED), time_limit=time_limit)
    bits = error = prior_error = None
    if truth_ticks:
        nobody = np.zeros((view.devices, len(counts.buckets)))  # devices are not told apart here
        belief = Belief(view, prior, counts, nobody, found)
        bits = order_bits(belief, truth_ticks) if len(set(truth_ticks)) > 1 else None
        sides = found.sorted_ticks, _expected_order(prior, view.devices)
        error, prior_error = (_error(side, truth_ticks, grid) for side in sides)
    held = [bucket for bucket in buckets(view) if bucket.weight > 0 or bucket.fewest > 0]
    are_counted = all(bucket.fewest == bucket.most for bucket in held)
    low, high = threshold_interval(view)
    return SearchFacts(
        method=view.method,
        devices=view.devices,
        queries=len(view.answers),
        numbers=sum(len(sums) for answer in view.answers for sums in answer.sums.values()),
        buckets=len(held),
        smallest_bucket=min((b.fewest for b in held), default=None) if are_counted else None,
        threshold_low=max(grid.value(Fraction(2 * low - 1, 2)), 0.0),
        threshold_high=min(grid.value(Fraction(2 * high - 1, 2)), float(grid.bound)),
        bits=bits,
        error=error,
        prior_error=prior_error,
        within=0.0 if found.exact else _within(counts, found, 2.0**-grid.resolution_bits),
    )


def _within(counts: BucketCounts, found: Reconstruction, tick: float) -> float | None:
    """Within how many nats every loss is known, of ticks of this length; None where one is not."""
    if not counts.are_known or not counts.devices:
        return None
    half_widths = [
        (bucket.high - bucket.low - 1) / 2
        for bucket, count in zip(counts.buckets, counts.likeliest(), strict=True)
        for _ in range(count)
    ]
    return float(np.minimum(found.sorted_radius, half_widths).max()) * tick


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
    heaviest = min(max(round(2 * mean), 1), Prior.HEAVIEST)
    return Prior(view.config.search.grid, lightest=1, heaviest=heaviest)
