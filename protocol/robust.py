"""Placeholder until the protocol's own; replaced at merge."""

from typing import Final

import numpy as np
import numpy.typing as npt

FACTOR_BITS: Final = 16
LEAST_FACTOR: Final = 1


def factor(
    update: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    centre: npt.NDArray[np.float32],
    smoothing: float,
) -> int:
    """B = clamp(round(2^FACTOR_BITS·ν / max(ν, ‖Δ − v‖)), LEAST_FACTOR, 2^FACTOR_BITS)."""
    apart = update.astype(np.float64) - centre
    distance = float(np.sqrt(apart @ apart))
    full = 1 << FACTOR_BITS
    return min(max(round(full * (smoothing / max(smoothing, distance))), LEAST_FACTOR), full)
