"""Noise of the sums of an analysis, and what it comes to in differential privacy.

Each device adds its share of discrete Gaussian noise before masking (`deltafl.protocol.noise`).
Neighbours differ in everything that one device has: the relation is replacement. A device's number
lies in [0, most], so one sum changes by `most` at most; the counts of bins change by `most` in
one bin and in another. σ is a multiple of `most`.

Source: as of `deltafl.sim.run.accounting`, which has the bound for the searches of a run.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from deltafl.protocol.noise import Noise
from deltafl.sim.analyse.question import Sum
from deltafl.sim.run.accounting import excess


def noise_of(one: Sum, sigma: Fraction, num_noisy: int) -> Noise:
    """The noise of each number of a sum.

    Args:
        one: the sum.
        sigma: σ in units of `one.most`.
        num_noisy: devices whose shares are certain to be in the sum and unknown to the server.

    Raises:
        ConfigurationError: no device is certain to bring noise.
    """
    return Noise((sigma * one.most) ** 2, num_noisy)


def rho_of_sums(sums: Sequence[Sum], sigma: Fraction, num_noisy: int) -> float:
    """ρ of all sums together, in zero-concentrated differential privacy."""
    return math.fsum(_rho(one, sigma, num_noisy) for one in sums)


def _rho(one: Sum, sigma: Fraction, num_noisy: int) -> float:
    is_one = one.size == 1
    l1, l2 = (1.0, 1.0) if is_one else (2.0, math.sqrt(2.0))
    tau = excess(float(noise_of(one, sigma, num_noisy).share_variance), num_noisy)
    shift = 1 / float(sigma)
    return ((l2 * shift) ** 2 + 2 * l1 * shift * tau + tau**2 * one.size) / 2
