"""What an attacker knows about losses and weights before it sees any sum."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from deltafl.protocol.losses import LossGrid

Numbers = npt.NDArray[np.float64]

_BISECTIONS = 48


@dataclass(frozen=True, slots=True)
class Prior:
    """Losses are drawn from a Gamma distribution, weights evenly from an interval.

    Losses are rounded to the grid and clipped to its bound. Everything is in ticks here, and a
    position may be a fraction: tick t stands for [t - ½, t + ½), pivot c for the point c - ½.

    Attributes:
        grid: The loss grid.
        scale: Scale of the Gamma distribution, in nats; its mean is `shape` times that.
        shape: Its shape.
        lightest: Smallest weight n_k that a device may have.
        heaviest: Largest weight n_k.
    """

    grid: LossGrid
    scale: float = 0.5
    lightest: int = 101
    heaviest: int = 447
    shape: float = 2.0

    def survival(self, pivots: npt.ArrayLike) -> Numbers:
        """Probability that a loss lies above these pivots; any shape."""
        position = np.asarray(pivots, dtype=np.float64)
        scaled = (position - 0.5) / (self.scale * 2.0**self.grid.resolution_bits)
        if self.shape == 2:
            above = (1 + scaled) * np.exp(-np.maximum(scaled, 0))
        else:
            above = special.gammaincc(self.shape, np.maximum(scaled, 0))
        inside = np.where(position > self.grid.max_tick, 0.0, above)
        return np.asarray(np.where(position <= 0, 1.0, inside), dtype=np.float64)

    def mass(self, low: npt.ArrayLike, high: npt.ArrayLike) -> Numbers:
        """Probability of the ticks in [low, high); never quite 0 where there is one."""
        first, last = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        difference = self.survival(first) - self.survival(last)
        mass: Numbers = np.where(last > first, np.maximum(difference, 1e-30), 0.0)
        return mass

    def between(self, low: npt.ArrayLike, high: npt.ArrayLike, share: npt.ArrayLike) -> Numbers:
        """The positions below which these shares of the probability of [low, high) lie."""
        first, last, part = np.broadcast_arrays(
            np.asarray(low, np.float64), np.asarray(high, np.float64), np.asarray(share, np.float64)
        )
        left, right = first.copy(), last.copy()
        mass = self.survival(first) - self.survival(last)
        above = self.survival(first) - part * mass
        for _ in range(_BISECTIONS):
            middle = (left + right) / 2
            is_beyond = self.survival(middle) <= above
            right = np.where(is_beyond, middle, right)
            left = np.where(is_beyond, left, middle)
        # where all is far out in the tail and nothing is left to bisect, evenly
        pivot = np.where(mass < 1e-13, first + part * (last - first), (left + right) / 2)
        clipped: Numbers = np.clip(pivot - 0.5, first - 0.5, last - 0.5)
        return clipped
