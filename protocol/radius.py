"""The radius of updates: a device whose update is longer scales it down to that length.

The sum of updates is then one that no device moves by more than its weight times the radius, and it
is the only sum that is made of them. A device also says, in the same sum, whether its update was
longer: the share of such devices tells the server how to choose the radius of the next round.

Source: norm clipping is what Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated
Learning?" (2019), call norm thresholding of updates; around the centre zero it is the clipping of
Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization" (2021).

Spec: §12.18, §14.15.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from deltafl.protocol.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Clipped:
    """Updates are scaled down to a radius, and devices with longer ones are counted.

    Attributes:
        radius: R, the largest L2 norm.

    Raises:
        ConfigurationError: it is not a positive number.
    """

    radius: float

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise ConfigurationError(f"radius={self.radius} is not a positive number")


def check_radius(radius: float, length: int, resolution_bits: int) -> None:
    """Check that no device whose update is scaled down to a radius counts as zeros.

    The longest number of an update of length R is at least R/√d. Where that is a step of the
    resolution, a device counts even with the smallest weight. Below, a server could choose a radius
    under which only heavy devices do.

    Args:
        radius: R, finite.
        length: d, numbers in an update.
        resolution_bits: Updates are summed in steps of 2^-resolution_bits.

    Raises:
        ConfigurationError: R is below √d·2^-resolution_bits.
    """
    if Fraction(radius) ** 2 * 4**resolution_bits < length:
        raise ConfigurationError(
            f"radius={radius:g} is below {least_radius(length, resolution_bits):g}: spread over "
            f"update_length={length} numbers it is less than a step of update_resolution_bits="
            f"{resolution_bits}; raise one of the two"
        )


def least_radius(length: int, resolution_bits: int) -> float:
    """The smallest radius that `check_radius` is certain to accept.

    >>> least_radius(1024, 10)
    0.03125
    """
    root = math.sqrt(length)
    if Fraction(root) ** 2 < length:
        root = math.nextafter(root, math.inf)
    return math.ldexp(root, -resolution_bits)


def within(
    update: npt.NDArray[np.float32] | npt.NDArray[np.float64], radius: float
) -> tuple[npt.NDArray[np.float64], bool]:
    """An update that is no longer than the radius, and whether it was.

    >>> import numpy as np
    >>> within(np.array([3.0, 4.0]), 10.0), within(np.array([3.0, 4.0]), 2.5)
    ((array([3., 4.]), False), (array([1.5, 2. ]), True))

    Args:
        update: Δ_k, shape (d,), finite.
        radius: R > 0.

    Returns:
        min(1, R/‖Δ_k‖)·Δ_k, float64 of shape (d,), and whether ‖Δ_k‖ > R.
    """
    exact = update.astype(np.float64)
    length = float(np.sqrt(np.square(exact).sum()))
    if not length > radius:
        return exact, False
    return exact * (radius / length), True
