"""The loss grid, on which every comparison of losses is a comparison of integers.

A device quantises its loss to a whole number of steps of r = 2^-resolution_bits; the quantised loss
is called a *tick*. The server asks about *pivots*: pivot c is the point μ = (c - ½)·r, half a step
below tick c, so a device lies below the pivot exactly when its tick is less than c. It follows
that:

- No loss ever equals a pivot: |F - μ| is always at least r/2. So the weights n/max(|F - μ|, ε) of
  Algorithm 3 are bounded by 2n/r even with ε = r/2, for which the max never changes anything.
- Which side of a pivot a loss is on is exact. No rounding error can put the boundary device on the
  wrong side, and the weighted rank at a pivot is an exact integer.
- Equal ticks are ties, and ties are treated alike: all of them pass a filter, or none.

Spec: §12.2.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from deltafl.protocol.errors import ConfigurationError

_MAX_TICK_BITS = 52  # a half tick is then still exact in float64


@dataclass(frozen=True, slots=True)
class LossGrid:
    """Losses in [0, bound], rounded to multiples of 2^-resolution_bits.

    Attributes:
        resolution_bits: Binary digits after the point, ≥ 0.
        bound: Largest loss that the grid distinguishes, an integer ≥ 1, in units of the loss.

    Raises:
        ConfigurationError: If an attribute is out of range or the grid has 2^52 ticks or more.
    """

    resolution_bits: int = 16
    bound: int = 32

    def __post_init__(self) -> None:
        if self.resolution_bits < 0:
            raise ConfigurationError(f"resolution_bits={self.resolution_bits} is negative")
        if self.bound < 1:
            raise ConfigurationError(f"bound={self.bound} is not a positive whole loss")
        if self.max_tick.bit_length() > _MAX_TICK_BITS:
            raise ConfigurationError(
                f"bound={self.bound} at resolution_bits={self.resolution_bits} needs "
                f"{self.max_tick.bit_length()} bits a tick, more than {_MAX_TICK_BITS}: "
                f"lower one of them"
            )

    @property
    def max_tick(self) -> int:
        """Tick of the bound: ticks are 0 … max_tick."""
        return self.bound << self.resolution_bits

    @property
    def top_pivot(self) -> int:
        """Lowest pivot that every tick lies below, max_tick + 1."""
        return self.max_tick + 1

    def tick(self, loss: float) -> tuple[int, bool]:
        """Round a loss to its tick.

        Args:
            loss: Any number. One that is not finite counts as the bound: a device that fell silent
                instead would tell the server that its training diverged.

        Returns:
            The nearest tick (ties to even), and whether the loss had to be clipped to 0 or bound.

        >>> LossGrid(resolution_bits=2, bound=32).tick(1.3)
        (5, False)
        >>> LossGrid(resolution_bits=2, bound=32).tick(40.0)
        (128, True)
        >>> LossGrid(resolution_bits=2, bound=32).tick(float("nan"))
        (128, True)
        """
        if not math.isfinite(loss):
            return self.max_tick, True
        bounded = min(max(float(loss), -1.0), self.bound + 1.0)  # so that scaling cannot overflow
        nearest = round(math.ldexp(bounded, self.resolution_bits))
        tick = min(max(nearest, 0), self.max_tick)
        return tick, tick != nearest

    def value(self, tick: float | Fraction) -> float:
        """Return the loss at a tick, or at a fraction of ticks, in units of the loss.

        >>> LossGrid(resolution_bits=2, bound=32).value(Fraction(11, 2))
        1.375
        """
        return math.ldexp(float(tick), -self.resolution_bits)
