"""How many devices are in each bucket: from its weight, or from noisy counts.

A bucket of weight W holds c devices with probability ∝ p^c/c! · P(c weights sum to W), p being the
prior probability of its losses; over all buckets c sums to m. That is a product of polynomials, so
the posterior is exact, by the forward and backward recursions of a chain.

With noise, bin j holds c_j devices with probability ∝ Π p_j^c_j / c_j!, and its noisy count y_j has
a likelihood ∝ exp(-(y_j - c_j)²/2σ²), for the noise of a sum is a discrete Gaussian to fifteen
digits. That is a product over bins too, and Σ c_j = m is known.

The update tells how many devices are above the threshold, which may cut a bin in two. The numbers a
and b of its parts share one noisy count. But how many there are on either side is known, so a is
what the bins below leave over, and b what those above do: the likelihood of a is that of all b.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltafl.protocol.errors import SearchError
from deltafl.protocol.quantile.registry import NOISY
from deltafl.sim.inspect.leakage.consequences import Bucket, buckets
from deltafl.sim.inspect.leakage.observations import Numbers, Prior, SearchView

_EXACT_SUMS = 8  # beyond, the sum of so many weights is as good as normal


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """The posterior of the number of devices in every bucket.

    Attributes:
        buckets: The buckets, J of them, from the smallest losses to the largest.
        devices: m, what the numbers sum to.
        local: Log-likelihood of c devices in bucket j, shape (J, m + 1).
        forward: Log-likelihood of a devices in the buckets before j, shape (J + 1, m + 1).
        backward: Log-likelihood of a devices in bucket j and after, shape (J + 1, m + 1).
    """

    buckets: tuple[Bucket, ...]
    devices: int
    local: Numbers
    forward: Numbers
    backward: Numbers

    def joint(self, bucket: int) -> Numbers:
        """P(a devices before the bucket and c in it), shape (m + 1, m + 1), at [a, c]."""
        size = self.devices + 1
        before, inside = np.indices((size, size))
        rest = self.devices - before - inside
        last = np.where(rest >= 0, self.backward[bucket + 1][np.maximum(rest, 0)], -np.inf)
        log = self.forward[bucket][:, None] + self.local[bucket][None, :] + last
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())

    def likeliest(self) -> tuple[int, ...]:
        """The likeliest numbers, bucket by bucket from the first."""
        left, counts = self.devices, []
        for index in range(len(self.buckets)):
            counts.append(int(np.argmax(self._choices(index, left))))
            left -= counts[-1]
        return tuple(counts)

    def draws(self, generator: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
        """Draw so many from the posterior at once, shape (size, J)."""
        drawn = np.zeros((size, len(self.buckets)), dtype=np.int64)
        left = np.full(size, self.devices)
        for index in range(len(self.buckets)):
            rest, rows = np.unique(left, return_inverse=True)
            cumulative = np.ones((len(rest), self.devices + 1))
            for row, number in enumerate(rest.tolist()):
                sums = np.cumsum(np.exp(self._choices(index, number)))
                cumulative[row, : number + 1] = sums / sums[-1]
            shares = generator.uniform(size=size)
            drawn[:, index] = np.argmax(cumulative[rows] > shares[:, None], axis=1)
            left -= drawn[:, index]
        return drawn

    @property
    def are_known(self) -> bool:
        """Whether there is only one possibility."""
        return bool(np.all(np.sum(np.isfinite(self.local), axis=1) == 1))

    def _choices(self, index: int, left: int) -> Numbers:
        log = self.local[index][: left + 1] + self.backward[index + 1][left::-1]
        return np.asarray(log - log.max())


def bucket_counts(view: SearchView, prior: Prior) -> BucketCounts:
    """Infer the numbers from the view and the prior.

    Raises:
        SearchError: The sums contradict each other.
    """
    from scipy import special  # not for the help of the command

    found = buckets(view)
    sums = _SumOfWeights(_weight_law(view, prior))
    size = view.devices + 1
    local = np.full((len(found), size), -np.inf)
    masses = prior.mass([b.low for b in found], [b.high for b in found])
    factorials = special.gammaln(np.arange(size) + 1)
    for index, bucket in enumerate(found):
        most = min(bucket.most, view.devices)
        for count in range(max(bucket.fewest, 0), most + 1):
            known = bucket.fewest == bucket.most
            weight = 0.0 if known else sums.log_probability(count, bucket.weight)
            local[index, count] = count * np.log(masses[index]) - factorials[count] + weight
        if not np.isfinite(local[index]).any():
            local[index, bucket.fewest : most + 1] = 0.0  # weights are not as the prior has them
    if not np.isfinite(chain(local)[-1][view.devices]):
        counts = np.arange(size)
        allowed = [(counts >= bucket.fewest) & (counts <= bucket.most) for bucket in found]
        local = np.where(allowed, 0.0, -np.inf)
    forward, backward = chain(local), chain(local[::-1])[::-1]
    if not np.isfinite(forward[-1][view.devices]):
        raise SearchError("no numbers of devices fit the counts of all sums")
    return BucketCounts(found, view.devices, local, forward, backward)


def chain(local: Numbers, pin: tuple[int, int] | None = None) -> Numbers:
    """The log-likelihood of a devices in the first j buckets, shape (J + 1, m + 1), at [j, a].

    Args:
        local: That of c devices in bucket j, shape (J, m + 1).
        pin: How many devices the first buckets hold together, where that is known besides: the
            number of these buckets, and of their devices.
    """
    size = local.shape[1]
    rows = [np.full(size, -np.inf)]
    rows[0][0] = 0.0
    for index in range(len(local) + 1):
        if index:
            rows.append(_log_convolve(rows[-1], local[index - 1]))
        if pin is not None and pin[0] == index:
            rows[-1] = np.where(np.arange(size) == pin[1], rows[-1], -np.inf)
    return np.array(rows)


def _log_convolve(first: Numbers, second: Numbers) -> Numbers:
    """Add up the likelihoods of pairs with the same sum; only finite entries are visited."""
    out = np.full(len(first), -np.inf)
    for count in np.flatnonzero(np.isfinite(second)):
        shifted = first[: len(first) - count] + second[count]
        out[count:] = np.logaddexp(out[count:], shifted)
    return out


def _weight_law(view: SearchView, prior: Prior) -> Numbers:
    """Probability of every weight in the search, from 0 up."""
    if view.search_weights is not None:
        return np.bincount(view.search_weights).astype(float) / len(view.search_weights)
    own = range(prior.lightest, prior.heaviest + 1)
    mapped = [view.config.search.weighting.of(weight) for weight in own]
    return np.bincount(mapped).astype(float) / len(mapped)


class _SumOfWeights:
    """Log-probabilities of the sum of c independent weights."""

    def __init__(self, law: Numbers) -> None:
        self._powers = [np.array([1.0]), law]
        values = np.arange(len(law))
        self._mean = float(values @ law)
        self._variance = float(values**2 @ law) - self._mean**2

    def log_probability(self, count: int, total: int) -> float:
        if count <= _EXACT_SUMS or self._variance < 1e-9:
            if self._variance < 1e-9:
                return 0.0 if abs(count * self._mean - total) < 0.5 else -np.inf
            while len(self._powers) <= count:
                self._powers.append(np.convolve(self._powers[-1], self._powers[1]))
            power = self._powers[count]
            probability = float(power[total]) if total < len(power) else 0.0
            return float(np.log(probability)) if probability > 0 else -np.inf
        variance = count * self._variance
        return float(
            -((total - count * self._mean) ** 2) / (2 * variance)
            - 0.5 * np.log(2 * np.pi * variance)
        )


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
    from scipy import special

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
    factorials = special.gammaln(numbers + 1)
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
    forward = chain(local, (num_below, out_of_tail))
    backward = chain(local[::-1], (len(found) - num_below, in_tail))[::-1]
    return BucketCounts(tuple(found), view.devices, local, forward, backward)


def _at(row: Numbers, numbers: npt.NDArray[np.int_]) -> Numbers:
    """The entries at these places, -∞ at negative ones."""
    return np.asarray(np.where(numbers >= 0, row[np.maximum(numbers, 0)], -np.inf))
