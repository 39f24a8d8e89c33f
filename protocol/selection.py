"""The filter: each device decides for itself whether it takes part, F ≥ η − δ. Spec: §12.5."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threshold:
    """The loss threshold η and its half-width δ, in half ticks of the loss grid: integers.

    A search knows η up to δ. Subtracting δ always keeps the boundary device in; a plain comparison
    with η would include it only by chance.

    Attributes:
        eta_half_ticks: η.
        half_width_half_ticks: δ ≥ 0.
    """

    eta_half_ticks: int
    half_width_half_ticks: int

    def passes(self, tick: int) -> bool:
        """Whether a device whose loss lies on `tick` takes part; exact.

        >>> Threshold(eta_half_ticks=7, half_width_half_ticks=1).passes(3)
        True
        """
        return 2 * tick >= self.eta_half_ticks - self.half_width_half_ticks

    def canonical(self) -> bytes:
        """Describe the threshold in bytes; different thresholds give different bytes."""
        return b"".join(
            number.to_bytes(8, "big", signed=True)
            for number in (self.eta_half_ticks, self.half_width_half_ticks)
        )
