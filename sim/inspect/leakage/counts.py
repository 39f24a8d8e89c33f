"""How many devices are in each bucket, if only their weight is known.

A bucket of weight W holds c devices with probability ∝ p^c/c! · P(c weights sum to W), p being the
prior probability of its losses; over all buckets c sums to m. That is a product of polynomials, so
the posterior is exact, by the forward and backward recursions of a chain. `noisy_counts` handles
noisy counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltafl.protocol.errors import SearchError
from deltafl.sim.inspect.leakage.consequences import Bucket, buckets
from deltafl.sim.inspect.leakage.observations import SearchView
from deltafl.sim.inspect.leakage.prior import Numbers, Prior

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
            choices = self._choices(index, left)
            counts.append(int(np.argmax(choices)))
            left -= counts[-1]
        return tuple(counts)

    def draw(self, generator: np.random.Generator) -> tuple[int, ...]:
        """Draw numbers from the posterior."""
        left, counts = self.devices, []
        for index in range(len(self.buckets)):
            choices = np.exp(self._choices(index, left))
            counts.append(int(generator.choice(len(choices), p=choices / choices.sum())))
            left -= counts[-1]
        return tuple(counts)

    def draws(self, generator: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
        """Draw so many at once, shape (size, J)."""
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
    found = buckets(view)
    sums = _SumOfWeights(_weight_law(view, prior))
    size = view.devices + 1
    local = np.full((len(found), size), -np.inf)
    masses = prior.mass([b.low for b in found], [b.high for b in found])
    factorials = log_factorials(view.devices)
    for index, bucket in enumerate(found):
        most = min(bucket.most, view.devices)
        for count in range(max(bucket.fewest, 0), most + 1):
            known = bucket.fewest == bucket.most
            weight = 0.0 if known else sums.log_probability(count, bucket.weight)
            local[index, count] = count * np.log(masses[index]) - factorials[count] + weight
        if not np.isfinite(local[index]).any():
            local[index, bucket.fewest : most + 1] = 0.0  # weights are not as the prior has them
    forward = chain(local)
    backward = chain(local[::-1])[::-1]
    if not np.isfinite(forward[-1][view.devices]):
        local = np.where(_allowed(found, size), 0.0, -np.inf)
        forward, backward = chain(local), chain(local[::-1])[::-1]
    if not np.isfinite(forward[-1][view.devices]):
        raise SearchError("no numbers of devices fit the counts of all sums")
    return BucketCounts(found, view.devices, local, forward, backward)


def _allowed(found: Sequence[Bucket], size: int) -> npt.NDArray[np.bool_]:
    counts = np.arange(size)
    return np.array([(counts >= b.fewest) & (counts <= b.most) for b in found])


@dataclass(frozen=True, slots=True)
class Pin:
    """A known sum of the numbers of the first buckets of a chain.

    Attributes:
        buckets: Number of these buckets.
        devices: Number of their devices.
    """

    buckets: int
    devices: int


def chain(local: Numbers, pin: Pin | None = None) -> Numbers:
    """The log-likelihood of a devices in the first j buckets, shape (J + 1, m + 1), at [j, a].

    Args:
        local: That of c devices in bucket j, shape (J, m + 1).
        pin: A sum that is known besides.
    """
    size = local.shape[1]
    rows = [np.full(size, -np.inf)]
    rows[0][0] = 0.0
    for index in range(len(local) + 1):
        if index:
            rows.append(_log_convolve(rows[-1], local[index - 1]))
        if pin is not None and pin.buckets == index:
            rows[-1] = np.where(np.arange(size) == pin.devices, rows[-1], -np.inf)
    return np.array(rows)


def log_factorials(largest: int) -> Numbers:
    """Log c! for c from 0 to this number."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, largest + 1)))])


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
