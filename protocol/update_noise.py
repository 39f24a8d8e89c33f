"""Noise for the sum of updates: what a device contributes, and what the server reads from the sum.

A device scales its update down to a public L2 norm C, rotates it, rounds it to whole steps and adds
its share of the noise; so does a device that did not pass the filter, to zeros. Beside the update
there are three numbers: whether it passed, its loss, and whether its update was longer than C. All
devices weigh the same. Each of the three is worth at most Q steps, an eighth of what one device can
change in the update, so that they cost the update 2 % of noise. The whole contribution of one
device, whatever it sends instead, moves the sum by at most `Sizes.sensitivity`.

The mean is taken over the share of the devices in the sum that was to pass, or over as many as have
surely passed by the noisy count. Where many losses are equal, such as under a model of zeros, more
devices pass than θ says. The count itself would make steps shorter on average, and a small one
would blow the noise up.

The rotation is public, and spreads what an update says evenly over its numbers. The update is
padded with zeros to a power of two, its signs are flipped by public coins, and the Walsh–Hadamard
transform is applied, scaled so that lengths stay the same. Afterwards no number is much larger than
the others, except with a probability that is known, so that a narrow range holds them all. Any seed
gives a rotation: privacy does not depend on who chose it.

A number is rounded up with the probability of its fraction, so that the mean is right. The rounded
vector can be longer than the exact one; it is drawn again until it is not longer than a bound,
which happens so rarely that the mean stays right for every purpose. The bound is what the privacy
of a sum is computed from, so it is checked in whole numbers.

Source: Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation", algorithms 1 and 2, and section 4 for the rounding. Suresh, Yu,
Kumar, McMahan 2017, "Distributed Mean Estimation with Limited Communication", for the rotation.
Here shares and numbers are clipped where they lie with probability 2^-64, so that no sum wraps.

Spec: §12.16.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, isqrt
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.noise import MAX_DEVIATION, Integers, discrete_gaussians, uniforms_below
from deltafl.secagg.layout import Field, Layout
from deltafl.secagg.prg import keystream
from deltafl.secagg.randomness import Randomness

FIELDS: Final = ("update", "count", "weighted_loss", "clipped")
"""The parts of a contribution, in order; the last three are one number each."""

Floats = npt.NDArray[np.float64]

_MAX_DEVICES: Final = 2**32 - 1
_LEAST_DEVIATION: Final = 2  # sums of shares are then discrete Gaussian to 1e-16
_FINENESS: Final = 64  # steps in C for each unit of √D
_LEAST_ROOT: Final = 8
_SCALARS: Final = 3
_TAIL_BITS: Final = 64
_TWICE_LN_2: Final = Fraction(1387, 1000)  # a little more than 2·ln 2
_TRIES: Final = 64  # draws before rounding towards zero, which is never too long
_COINS: Final = float(1 << 32)
_MOST: Final = float(1 << 31)
_RADIUS: Final = 7  # rounding makes a vector longer than its bound with probability exp(-49/2)


class Sizes(NamedTuple):
    """What the numbers of a contribution are, in steps. Spec: §12.16.

    Attributes:
        length: D, numbers of the rotated update.
        clip: S, the steps of C.
        scalar: Q, the steps of 1 in the count, and of the largest loss.
        square_bound: B², the largest squared L2 norm of a rounded update.
        largest: The largest number of a rounded update.
    """

    length: int
    clip: int
    scalar: int
    square_bound: int
    largest: int

    @property
    def square_sensitivity(self) -> int:
        """Δ²: by how much another contribution of one device moves a sum at most, squared.

        Twice the norm for the update, the range for each of the three others.
        """
        return 4 * self.square_bound + _SCALARS * self.scalar**2

    @classmethod
    def of(cls, update_length: int, cohort_size: int) -> "Sizes":
        """The sizes for a model of so many parameters and a cohort of so many devices."""
        length = padded(update_length)
        root = max(_LEAST_ROOT, 1 << -(-(length.bit_length() - 1) // 2))  # at least √D
        clip = _FINENESS * root
        square = clip**2 + length // 4 + 1 + _RADIUS * clip + _RADIUS * root
        spread = _tail_square(clip**2, length * cohort_size) / length
        largest = min(clip, _root_above(spread))
        return cls(length, clip, clip // 4, square, largest)


@dataclass(frozen=True, slots=True)
class UpdateNoise:
    """How much noise the sum of updates has, relative to what one device can change.

    Spec: §12.16.

    Attributes:
        norm: C, the largest L2 norm of an update; longer ones are scaled down to it.
        deviation: s, the standard deviation of one device's share, in steps; a whole number.
        num_devices: h, the fewest devices whose shares are in a sum and unknown to the server: the
            survivors less the colluding ones.

    Raises:
        ConfigurationError: a value is out of range.
    """

    norm: float
    deviation: int
    num_devices: int

    def __post_init__(self) -> None:
        if not 0 < self.norm < math.inf:
            raise ConfigurationError(f"norm of updates {self.norm} is not a positive number")
        if not _LEAST_DEVIATION <= self.deviation <= MAX_DEVIATION:
            raise ConfigurationError(
                f"noise of an update: {self.deviation} steps a device are not from "
                f"{_LEAST_DEVIATION} to {MAX_DEVIATION}: change the noise, or let other numbers of "
                "devices add it"
            )
        if not 1 <= self.num_devices <= _MAX_DEVICES:
            raise ConfigurationError(
                f"noise of an update from {self.num_devices} devices is not from 1 to "
                f"{_MAX_DEVICES}: raise min_cohort, or lower the share that may collude"
            )

    @classmethod
    def at_least(
        cls, multiplier: Fraction, norm: float, num_devices: int, sizes: Sizes
    ) -> "UpdateNoise":
        """The least noise of this form whose multiplier is at least the one wanted.

        Args:
            multiplier: σ of the sum over `sizes.sensitivity`, above 0.
            norm: C.
            num_devices: h.
            sizes: Of the round.

        Raises:
            ConfigurationError: a value is out of range.
        """
        if num_devices < 1:
            cls(norm, _LEAST_DEVIATION, num_devices)  # which says so
        square = multiplier**2 * sizes.square_sensitivity / num_devices
        return cls(norm, max(_root_above(square), _LEAST_DEVIATION), num_devices)

    def square_multiplier(self, sizes: Sizes) -> Fraction:
        """z²: the variance of the sum's noise over the squared sensitivity, exact."""
        return Fraction(self.num_devices * self.deviation**2, sizes.square_sensitivity)

    def bound(self, sizes: Sizes, cohort_size: int) -> int:
        """Where shares are clipped, in steps: all of a cohort's lie below, but for 2^-64."""
        num_draws = (sizes.length + _SCALARS) * cohort_size
        return _root_above(_tail_square(self.deviation**2, num_draws))

    def layout(self, update_length: int, cohort_size: int) -> Layout:
        """The fields of a contribution, in steps.

        Raises:
            UsageError: a sum fits no ring.
        """
        sizes = Sizes.of(update_length, cohort_size)
        noise = self.bound(sizes, cohort_size)
        update = Field("update", sizes.length, -sizes.largest - noise, sizes.largest + noise, 0)
        others = (Field(name, 1, -noise, sizes.scalar + noise, 0) for name in FIELDS[1:])
        return Layout((update, *others), cohort_size)


class NoisyMeans(NamedTuple):
    """What a sum with noise says.

    Attributes:
        update: Σ Δ_k over about as many devices as passed, float64 of shape (update_length,).
        num_kept: About how many devices passed; from 0 to those in the sum.
        loss: About their mean loss over the largest loss, in [0, 1]; None if hardly any passed.
        num_clipped: About how many updates were longer than C, or had a number clipped.
    """

    update: Floats
    num_kept: int
    loss: float | None
    num_clipped: int


@dataclass(frozen=True, slots=True)
class NoisyUpdates:
    """A round's updates under noise.

    Attributes:
        noise: How much.
        update_length: d, parameters of the model.
        cohort_size: Devices invited.
        seed: 32 public bytes that choose the rotation.
    """

    noise: UpdateNoise
    update_length: int
    cohort_size: int
    seed: bytes

    @property
    def sizes(self) -> Sizes:
        """The sizes of the round."""
        return Sizes.of(self.update_length, self.cohort_size)

    def contribution(
        self,
        update: npt.NDArray[np.float32] | Floats | None,
        loss: Fraction,
        randomness: Randomness,
        *,
        clipped: bool = False,
    ) -> dict[str, Integers]:
        """What a device adds to the sum, before it is encoded and masked.

        Args:
            update: Δ_k, finite, of shape (update_length,); None of a device that did not pass.
            loss: F_k over the largest loss, in [0, 1].
            randomness: Source of the coins and of the noise, in this order. Whoever can reproduce
                it can remove the noise. Draw only once for a round.
            clipped: Whether something was clipped already.

        Returns:
            The numbers of each field, in steps.
        """
        sizes = self.sizes
        values = np.zeros(sizes.length + _SCALARS, dtype=np.int64)
        # The same work for a device that counts as zeros: its time must not show that.
        numbers = np.zeros(self.update_length, np.float32) if update is None else update
        exact, is_longer = self._scaled(numbers, sizes)
        steps = rounded(exact, sizes.square_bound, randomness)
        whole, rest = divmod(loss * sizes.scalar, 1)
        coin = int(uniforms_below(1 << 32, 1, randomness)[0])
        if update is not None:
            values[: sizes.length] = steps
            values[sizes.length :] = (
                sizes.scalar,
                whole + (coin < rest * (1 << 32)),
                sizes.scalar * (clipped or is_longer),
            )
        bound = self.noise.bound(sizes, self.cohort_size)
        drawn = discrete_gaussians(self.noise.deviation, values.size, randomness)
        values += np.clip(drawn, -bound, bound)
        parts = np.split(values, range(sizes.length, values.size))
        return dict(zip(FIELDS, parts, strict=True))

    def read(self, sums: Mapping[str, Integers], share: Fraction, num_summed: int) -> "NoisyMeans":
        """What the server reads from a sum.

        Args:
            sums: The sums of all fields, in steps.
            share: Of the devices, those that were to pass: θ, or 1 if the threshold keeps all.
            num_summed: Devices in the sum, at least 1.
        """
        count, loss, clipped = (float(sums[name][0]) / self.sizes.scalar for name in FIELDS[1:])
        spread = math.sqrt(num_summed) * self.noise.deviation / self.sizes.scalar
        divisor = max(float(share * num_summed), min(count - 2 * spread, num_summed))
        unit = self.noise.norm / self.sizes.clip / divisor
        return NoisyMeans(
            update=unrotate(
                sums["update"].astype(np.float64) * unit, self.seed, self.update_length
            ),
            num_kept=min(max(round(count), 0), num_summed),
            loss=min(max(loss / count, 0.0), 1.0) if count >= 1 else None,
            num_clipped=min(max(round(clipped), 0), num_summed),
        )

    def _scaled(
        self, update: npt.NDArray[np.float32] | Floats, sizes: Sizes
    ) -> tuple[Floats, bool]:
        """The update in steps, rotated and clipped; and whether it was longer than C."""
        exact = update.astype(np.float64)
        norm = float(np.linalg.norm(exact))
        is_longer = norm > self.noise.norm
        # Divided by its own norm, no update is longer than S, however long it was. It is multiplied
        # first: S/C may be infinite, and then zeros would be no numbers.
        exact = exact * sizes.clip / max(norm, self.noise.norm)
        return np.clip(rotate(exact, self.seed), -sizes.largest, sizes.largest), is_longer


def _tail_square(square: int, num_draws: int) -> Fraction:
    """c²: one of `num_draws` Gaussian numbers of this variance is beyond c with 2^-64 at most."""
    return square * (_TAIL_BITS + 1 + (num_draws - 1).bit_length()) * _TWICE_LN_2


def _root_above(square: Fraction) -> int:
    """The smallest integer whose square is at least `square` > 0."""
    return isqrt(ceil(square) - 1) + 1


def rounded(values: npt.NDArray[np.float64], square_bound: int, randomness: Randomness) -> Integers:
    """Round a vector at random to whole numbers of a bounded L2 norm.

    Args:
        values: float64 of shape (d,), each below 2^31 in size.
        square_bound: Largest squared L2 norm of the result; zeros if `values` rounded towards zero
            are longer.
        randomness: Source of the coins.

    Returns:
        Each number next to that of `values`, or zeros; int64 of shape (d,).

    Raises:
        ValueError: a number is not finite, or too large.
    """
    # Only of such numbers does the norm below not wrap around.
    if not np.abs(values).max(initial=0.0) * math.sqrt(values.size or 1) < _MOST:
        raise ValueError("a vector to be rounded has numbers that are not finite, or too large")
    floors = np.floor(values)
    fractions = values - floors
    for _ in range(_TRIES):
        coins = np.frombuffer(randomness(4 * values.size), dtype=">u4")
        result = (floors + (coins < fractions * _COINS)).astype(np.int64)
        if int(result @ result) <= square_bound:
            return result
    shortest = np.trunc(values).astype(np.int64)
    return shortest if int(shortest @ shortest) <= square_bound else np.zeros_like(shortest)


def padded(length: int) -> int:
    """The smallest power of two that is at least `length` ≥ 1."""
    return 1 << (length - 1).bit_length()


def rotate(values: npt.NDArray[np.float32] | Floats, seed: bytes) -> Floats:
    """Rotate a vector.

    Args:
        values: Of shape (length,).
        seed: 32 public bytes.

    Returns:
        float64 of shape (padded(length),), of the same L2 norm up to rounding.
    """
    size = padded(len(values))
    whole = np.zeros(size)
    whole[: len(values)] = values
    whole *= _signs(seed, size)
    return _hadamard(whole)


def unrotate(rotated: Floats, seed: bytes, length: int) -> Floats:
    """Invert `rotate`: the first `length` numbers; float64 of shape (length,)."""
    return (_hadamard(rotated) * _signs(seed, rotated.size))[:length]


@lru_cache(maxsize=4)
def _signs(seed: bytes, size: int) -> Floats:
    """±1 by the bits of the seed's keystream, the lowest bit of a byte first; 0 is +1."""
    packed = np.frombuffer(keystream(seed, -(-size // 8)), dtype=np.uint8)
    bits = np.unpackbits(packed, count=size, bitorder="little")
    signs = 1.0 - 2.0 * bits.astype(np.float64)
    signs.setflags(write=False)
    return signs


def _hadamard(values: Floats) -> Floats:
    """The orthonormal Walsh–Hadamard transform, its own inverse, in natural order."""
    size, width, work = values.size, 1, values
    while width < size:
        pairs = work.reshape(-1, 2, width)
        work = np.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), axis=1)
        width *= 2
    return work.reshape(size) / math.sqrt(size)
