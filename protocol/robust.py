"""The weights of robust aggregation: how much a device counts, by its distance from a centre.

The geometric median v minimises Σ n_k·‖Δ_k − v‖. The smoothed Weiszfeld algorithm finds it by
weighted means alone: each pass is the mean with the weights n_k·min(1, ν/‖Δ_k − v‖), around the
centre v of the pass before. So a few secure sums are enough, and nobody sees a distance. Here the
second factor is a whole number of 2^-16, at least one: sums are of integers, and no device that
passed the filter vanishes from one.

Source: Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", IEEE
Transactions on Signal Processing 70 (2022), algorithms 1 and 2.

Spec: §12.15, §14.12.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

FACTOR_BITS: Final = 16
"""A device counts in multiples of 2^-FACTOR_BITS of its weight."""

LEAST_FACTOR: Final = 1
"""The smallest such multiple, of 2^FACTOR_BITS."""

MAX_PASSES: Final = 16
"""Most sums of the updates of one round."""

_FLOAT: Final = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Centre:
    """The centre of the next pass: a public question, which devices answer with their updates.

    Attributes:
        numbers: v, little-endian float32, one for each number of an update.

    Spec: §12.15.
    """

    numbers: bytes = field(repr=False)

    @classmethod
    def of(cls, mean: npt.NDArray[np.float64], clip: float) -> "Centre":
        """A mean of updates, rounded to float32, as devices accept it.

        Sums are of rounded numbers, and liars' numbers may be anything, so a mean may be beyond the
        clip.

        Args:
            mean: float64 of shape (d,), finite.
            clip: Largest |v| of an element; positive.
        """
        with np.errstate(over="ignore"):
            bound = np.float32(clip)
        if float(bound) > clip:
            bound = np.nextafter(bound, np.float32(0))
        return cls(np.clip(mean, -float(bound), float(bound)).astype(_FLOAT).tobytes())

    def canonical(self) -> bytes:
        """Describe the centre in bytes; different centres give different bytes."""
        return self.numbers

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.numbers)

    def vector(self) -> npt.NDArray[np.float32]:
        """v, float32 of shape (size / 4,).

        Raises:
            ValueError: the size is not a multiple of 4.
        """
        return np.frombuffer(self.numbers, dtype=_FLOAT)


def factor(
    update: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    centre: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    smoothing: float,
) -> int:
    """How much a device counts: 2^FACTOR_BITS times min(1, ν/‖Δ_k − v‖), rounded; at least 1.

    >>> import numpy as np
    >>> zeros = np.zeros(4, dtype=np.float32)
    >>> [factor(zeros + x, zeros, smoothing=1.0) for x in (0, 0.5, 1, 100)]
    [65536, 65536, 32768, 328]

    Args:
        update: Δ_k, clipped, shape (d,), finite.
        centre: v, of the same shape, finite.
        smoothing: ν > 0: up to this distance from the centre, devices count in full.

    Returns:
        A whole number in [LEAST_FACTOR, 2^FACTOR_BITS]. A half is rounded to the even number.
    """
    with np.errstate(over="ignore"):  # an infinite distance is a large one
        apart = np.subtract(update, centre, dtype=np.float64)
        distance = float(np.sqrt(np.square(apart, out=apart).sum()))
    whole = 1 << FACTOR_BITS
    return max(round(whole * (smoothing / max(smoothing, distance))), LEAST_FACTOR)
