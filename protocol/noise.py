"""Noise that devices add before masking: each adds a share, and the sum has the full noise.

Every device adds its own discrete Gaussian noise to each number of its answer. No device and no
server ever holds the sum without noise, and colluding devices can remove only their own shares. The
sampler is exact: it draws and compares integers, and never rounds a probability, because the gaps
that floating point leaves in a distribution reveal what was added (Mironov 2012). Its running time
depends on what it draws, as in any rejection sampling.

`discrete_gaussians` draws many at once, by the same algorithms on arrays. All its numbers fit 64
bits, because the standard deviation is a whole number: then the acceptance of a discrete Laplace of
the same scale t needs only exp(-(|x| - t)²/2t²). Every draw that is not decided yet is worked on at
the same time.

Source: Canonne, Kamath, Steinke 2020, "The Discrete Gaussian for Differential Privacy", algorithms
1 to 3; Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation".

Spec: §12.10, §12.16.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, isqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.errors import ConfigurationError
from deltafl.secagg.randomness import Randomness

MAX_DEVIATION: Final = 1 << 20
"""Largest standard deviation of `discrete_gaussians`; numbers stay far below 2^63."""

Integers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

_MAX_PART: Final = 2**63 - 1
_MAX_DEVICES: Final = 2**32 - 1
_LEAST_SHARE: Final = 4  # variance of a share in steps: sums of shares are Gaussian to 1e-16 then
_CLIP_BITS: Final = 64
_TWICE_LN_2: Final = Fraction(1387, 1000)  # a little more than 2·ln 2


@dataclass(frozen=True, slots=True)
class Noise:
    """How much noise a sum must have, and how many devices are trusted to add it.

    Numbers are carried in steps of 2^-resolution_bits. These are so fine that a share has a
    variance of at least four steps; the sum of coarser shares is visibly not a discrete Gaussian.

    Spec: §12.10.

    Attributes:
        variance: σ² of each number of the sum, exact, > 0. Devices beyond `num_devices` add to it.
        num_devices: h, the fewest devices whose shares are in a sum and unknown to the server: the
            survivors less the colluding ones.

    Raises:
        ConfigurationError: a value is out of range.
    """

    variance: Fraction
    num_devices: int

    def __post_init__(self) -> None:
        if not 0 < self.variance <= _MAX_PART or self.variance.denominator > _MAX_PART:
            shown = Decimal(self.variance.numerator) / Decimal(self.variance.denominator)
            raise ConfigurationError(
                f"noise variance {shown:.3g} is not a positive fraction of two 63-bit numbers"
            )
        if not 1 <= self.num_devices <= _MAX_DEVICES:
            raise ConfigurationError(
                f"noise from {self.num_devices} devices is not from 1 to {_MAX_DEVICES}"
            )

    @property
    def resolution_bits(self) -> int:
        """Binary digits after the point of every number that noise is added to."""
        bits = 0
        while self.variance / self.num_devices * (1 << 2 * bits) < _LEAST_SHARE:
            bits += 1
        return bits

    @property
    def share_variance(self) -> Fraction:
        """Variance of one device's share, in steps squared; at least 4."""
        return self.variance / self.num_devices * (1 << 2 * self.resolution_bits)

    def bound(self, num_draws: int) -> int:
        """The bound to which shares are clipped, in steps.

        By the tail of a discrete Gaussian, 2·exp(-c²/2s²), the probability that any of `num_draws`
        shares lies beyond it is at most 2^-64.
        """
        bits = _CLIP_BITS + 1 + (num_draws - 1).bit_length()
        square = self.share_variance * bits * _TWICE_LN_2
        return isqrt(ceil(square) - 1) + 1

    def share(self, size: int, bound: int, randomness: Randomness) -> npt.NDArray[np.int64]:
        """Draw a device's share.

        Args:
            size: How many numbers.
            bound: Where to clip, in steps.
            randomness: Source of the noise; anyone who can reproduce it can remove the noise.

        Returns:
            int64 of shape (size,), in steps.
        """
        variance = self.share_variance
        drawn = [discrete_gaussian(variance, randomness) for _ in range(size)]
        return np.clip(np.array(drawn, dtype=np.int64), -bound, bound)


def discrete_gaussian(variance: Fraction, randomness: Randomness) -> int:
    """Draw an integer x with probability proportional to exp(-x²/2·variance), exactly.

    Algorithm 3 of the source: a discrete Laplace, accepted with the ratio of the two probabilities.

    Args:
        variance: σ² > 0.
        randomness: Source of the bits.
    """
    num, den = variance.numerator, variance.denominator
    scale = isqrt(num // den) + 1
    while True:
        drawn = discrete_laplace(scale, randomness)
        # (|x| - σ²/t)² / 2σ²
        distance = abs(drawn) * den * scale - num
        if bernoulli_exp(distance * distance, 2 * num * den * scale * scale, randomness):
            return drawn


def discrete_laplace(scale: int, randomness: Randomness) -> int:
    """Draw an integer x with probability proportional to exp(-|x|/scale), exactly.

    Algorithm 2 of the source.
    """
    while True:
        rest = uniform_below(scale, randomness)
        if not bernoulli_exp(rest, scale, randomness):
            continue
        whole = 0
        while bernoulli_exp(1, 1, randomness):
            whole += 1
        size = rest + scale * whole
        if uniform_below(2, randomness) == 0:
            return size
        if size > 0:  # zero has only one sign
            return -size


def bernoulli_exp(num: int, den: int, randomness: Randomness) -> bool:
    """Return True with probability exp(-num/den), exactly, for num ≥ 0 and den > 0.

    Algorithm 1 of the source.
    """
    while num > den:
        if not _bernoulli_exp_of_at_most_1(1, 1, randomness):
            return False
        num -= den
    return _bernoulli_exp_of_at_most_1(num, den, randomness)


def uniform_below(limit: int, randomness: Randomness) -> int:
    """Draw an integer in [0, limit), limit ≥ 1, each with the same probability, exactly."""
    bits = (limit - 1).bit_length()
    size, spare = -(-bits // 8), -bits % 8
    while True:
        drawn = int.from_bytes(randomness(size), "big") >> spare
        if drawn < limit:
            return drawn


def _bernoulli_exp_of_at_most_1(num: int, den: int, randomness: Randomness) -> bool:
    """The series 1 - γ + γ²/2! - …: the first k at which a coin of γ/k fails is odd."""
    k = 1
    while uniform_below(den * k, randomness) < num:
        k += 1
    return k % 2 == 1


def discrete_gaussians(deviation: int, size: int, randomness: Randomness) -> Integers:
    """Draw integers x with probabilities proportional to exp(-x²/2·deviation²), exactly.

    Args:
        deviation: A whole number from 1 to `MAX_DEVIATION`.
        size: How many.
        randomness: Source of the bits.

    Returns:
        int64 of shape (size,).
    """
    found = np.zeros(size, dtype=np.int64)
    pending = np.arange(size)
    while pending.size:
        drawn, counts = _laplaces(deviation, pending.size, randomness)
        distance = np.abs(drawn) - deviation
        accepted = counts & _bernoulli_exp(distance * distance, 2 * deviation**2, randomness)
        found[pending[accepted]] = drawn[accepted]
        pending = pending[~accepted]
    return found


def uniforms_below(limit: int, size: int, randomness: Randomness) -> Integers:
    """Draw integers in [0, limit), each with the same probability, exactly.

    Args:
        limit: From 1 to 2^63.
        size: How many.
        randomness: Source of the bits.

    Returns:
        int64 of shape (size,).
    """
    found = np.zeros(size, dtype=np.int64)
    bits = (limit - 1).bit_length()
    word = next(width for width in (1, 2, 4, 8) if bits <= 8 * width)
    pending = np.arange(size if bits else 0)
    while pending.size:
        words = np.frombuffer(randomness(word * pending.size), dtype=f">u{word}")
        drawn = words.astype(np.uint64) >> np.uint64(8 * word - bits)
        accepted = drawn < limit
        found[pending[accepted]] = drawn[accepted]
        pending = pending[~accepted]
    return found


def _laplaces(scale: int, size: int, randomness: Randomness) -> tuple[Integers, _Flags]:
    """Draw x with probabilities proportional to exp(-|x|/scale); and which of the draws count."""
    rest = uniforms_below(scale, size, randomness)
    counts = _series(rest, scale, randomness)
    whole = np.zeros(size, dtype=np.int64)
    going = np.flatnonzero(counts)
    while going.size:
        going = going[_series(np.ones(going.size, dtype=np.int64), 1, randomness)]
        whole[going] += 1
    sizes = rest + scale * whole
    negative = uniforms_below(2, size, randomness) == 1
    # zero has only one sign
    return np.where(negative, -sizes, sizes), counts & ~(negative & (sizes == 0))


def _bernoulli_exp(num: Integers, den: int, randomness: Randomness) -> _Flags:
    """True with probability exp(-num/den), each by itself."""
    whole, rest = np.divmod(num, den)
    result = np.ones(num.size, dtype=np.bool_)
    going = np.flatnonzero(whole)
    done = 0
    while going.size:
        held = _series(np.ones(going.size, dtype=np.int64), 1, randomness)
        result[going[~held]] = False
        done += 1
        going = going[held]
        going = going[whole[going] > done]
    left = np.flatnonzero(result)
    result[left] = _series(rest[left], den, randomness)
    return result


def _series(num: Integers, den: int, randomness: Randomness) -> _Flags:
    """True with probability exp(-num/den), for 0 ≤ num ≤ den.

    1 - γ + γ²/2! - …: the first k at which a coin of γ/k fails is odd.
    """
    odd = np.zeros(num.size, dtype=np.bool_)
    going, k = np.arange(num.size), 1
    while going.size:
        held = uniforms_below(den * k, going.size, randomness) < num[going]
        odd[going[~held]] = k % 2 == 1
        going, k = going[held], k + 1
    return odd
