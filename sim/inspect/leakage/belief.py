"""What the attacker believes after a search, as probabilities that can be compared with the truth.

There are two separate questions. *Unlabelled*: what is the i-th smallest loss of the cohort?
*Labelled*: what is the loss of device k? The beliefs are those of an attacker that knows the
prior and computes; they do not use the truth. Where the reconstruction claims a place, the belief
is there, with the rest left for the case that the claim is wrong. Elsewhere it is the posterior
that follows from the ranks.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from deltafl.sim.inspect.leakage.consequences import buckets, order_intervals
from deltafl.sim.inspect.leakage.counts import BucketCounts
from deltafl.sim.inspect.leakage.labels import device_intervals, probabilities
from deltafl.sim.inspect.leakage.noisy_counts import infer_counts
from deltafl.sim.inspect.leakage.observations import SearchView
from deltafl.sim.inspect.leakage.prior import Numbers, Prior
from deltafl.sim.inspect.leakage.reconstruction import Reconstruction

_DOUBT: Final = 0.1
"""Probability that a claimed place is wrong."""
_DOUBT_IF_EXACT: Final = 2.0**-10
_FAR: Final = 10.0
_SURE: Final = 0.95
_NEGLIGIBLE: Final = 1e-7


@dataclass(frozen=True, slots=True)
class Claims:
    """Where the attacker claims that losses are: a place and its possible error, in ticks.

    Attributes:
        ticks: The places.
        radius: The possible error of each.
    """

    ticks: Numbers
    radius: Numbers


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
        doubt = _DOUBT_IF_EXACT if found.exact else _DOUBT
        claimed = np.isfinite(found.sorted_radius)
        near = _nearness(ticks, found.sorted_ticks, found.sorted_radius, exact=found.exact)
        mixed = (1 - doubt) * near + doubt * by_ranks
        return np.asarray(np.where(claimed[:, None], mixed, by_ranks))

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
        doubt = _DOUBT_IF_EXACT if found.exact else _DOUBT
        near = np.diagonal(_nearness(ticks, found.ticks, found.radius, exact=found.exact))
        mixed = (1 - doubt) * near + doubt * by_place
        return np.asarray(np.where(np.isfinite(found.radius), mixed, by_place))

    def order_claims(self) -> Claims:
        """Where the attacker says that the i-th smallest loss is."""
        edges = np.array(order_intervals(self.view), dtype=float).reshape(-1, 2)
        found = self.reconstruction
        return _narrower(edges, Claims(found.sorted_ticks, found.sorted_radius))

    def device_claims(self) -> Claims:
        """Where the attacker says that device k is; nowhere if it can not tell devices apart."""
        edges = np.array(device_intervals(self.view), dtype=float).reshape(-1, 2)
        found = self.reconstruction
        nowhere = np.full(self.view.devices, np.inf)
        ticks = found.sorted_ticks if found.ticks is None else found.ticks
        claims = _narrower(edges, Claims(ticks, nowhere if found.radius is None else found.radius))
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
            if order.radius[index] < claims.radius[device]:
                claims.ticks[device] = order.ticks[index]
                claims.radius[device] = order.radius[index]
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
            law_of = _order_laws(self.prior, bucket.low, bucket.high, here)
            for before, count in np.argwhere(joint > _NEGLIGIBLE).tolist():
                if count:
                    table[before : before + count, inside] += joint[before, count] * law_of(count)
        return table


def order_law(prior: Prior, low: int, high: int, count: int, ticks: Numbers) -> Numbers:
    """P(the r-th smallest of `count` losses in [low, high) is on these ticks), (count, K).

    To first order in the width of a tick, which is exact but where many share one.
    """
    return _order_laws(prior, low, high, ticks)(count)


def _order_laws(prior: Prior, low: int, high: int, ticks: Numbers) -> Callable[[int], Numbers]:
    """`order_law` by `count`, each computed once."""
    whole = prior.mass(low, high)
    single = prior.mass(ticks, ticks + 1) / whole
    below = np.clip(prior.mass(np.full(len(ticks), low), ticks + 0.5) / whole, 1e-12, 1 - 1e-12)
    log_below, log_above = np.log(below), np.log1p(-below)

    @functools.cache
    def law(count: int) -> Numbers:
        if high - low == 1:
            return np.ones((count, len(ticks)))
        rank = np.arange(1, count + 1)[:, None]
        log_choose = np.array(
            [
                math.lgamma(count) - math.lgamma(r) - math.lgamma(count - r + 1)
                for r in range(1, count + 1)
            ]
        )[:, None]
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


def _narrower(edges: Numbers, claims: Claims) -> Claims:
    """The interval or the claim, whichever is more precise."""
    half = (edges[:, 1] - edges[:, 0]) / 2
    middle = (edges[:, 1] + edges[:, 0] - 1) / 2
    use = half <= claims.radius
    return Claims(np.where(use, middle, claims.ticks), np.where(use, half, claims.radius))
