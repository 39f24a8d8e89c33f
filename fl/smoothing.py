"""The smoothed superquantile, which Algorithm 1 minimises.

    F̄_θ,ν(w, η) = η + (1/θ)·Σ α_k·g_ν(F_k(w) − η),   F_θ,ν(w) = min over η of F̄_θ,ν(w, η),

where g_ν is a smooth approximation of (ρ)₊ and α_k a device's share of the weight. ν = 2δθ gives
F_θ up to δ: 0 ≤ F̄_θ,ν − F̄_θ ≤ ν/(2θ).
Source: arXiv 2002.11223, equations (5) to (7), Appendix A.1, Properties 8 and 9. In the paper's
proof of Property 9 the quadratic term lacks 1/θ, and "x_{j*+1} − η" should be x_{j*+1} − ν.
"""

import math
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.superquantile import Values, Weights, check_sample

Reals: TypeAlias = npt.NDArray[np.float64]


def smooth_positive_part(rho: Reals, nu: float) -> Reals:
    """Compute g_ν: ν/2 up to 0, ρ²/(2ν) + ν/2 up to ν, then ρ. It is (ρ)₊ up to ν/2.

    Source: arXiv 2002.11223, equation (6).

    Raises:
        ValueError: ν is not a positive number.
    """
    _check_nu(nu)
    inside = np.clip(rho, 0.0, nu)
    # of ρ beyond ν the square counts up to ν, and the rest as it is
    values: Reals = inside * (inside / (2 * nu)) + nu / 2 + np.maximum(rho - nu, 0.0)
    return values


def smooth_step(rho: Reals, nu: float) -> Reals:
    """Compute g_ν′, in [0, 1]: 0 up to 0, ρ/ν up to ν, then 1. It is (1/ν)-Lipschitz.

    Raises:
        ValueError: ν is not a positive number.
    """
    _check_nu(nu)
    values: Reals = np.clip(rho, 0.0, nu) / nu
    return values


def smoothed_objective(
    values: Values, weights: Weights, theta: Fraction, nu: float, eta: float
) -> float:
    """Compute F̄_θ,ν(w, η) from the losses F_k(w).

    Source: arXiv 2002.11223, equation (5).

    Args:
        values: F_k(w) in nats, finite.
        weights: positive integers in the proportion of α_k, for instance n_k.
        theta: the conformity level, in (0, 1).
        nu: ν, positive, in nats.
        eta: η in nats.

    Raises:
        ValueError: an argument is out of its range, or the lengths differ.
    """
    losses, alpha = _check(values, weights, theta, nu)
    return eta + float(alpha @ smooth_positive_part(losses - eta, nu)) / float(theta)


def smoothed_weights(
    values: Values, weights: Weights, theta: Fraction, nu: float, eta: float
) -> Reals:
    """Compute π_k = α_k·g_ν′(F_k − η)/θ, with which ∇_w F̄_θ,ν(w, η) = Σ π_k·∇F_k(w).

    They are in [0, α_k/θ]. ∂F̄_θ,ν/∂η = 1 − Σ π_k, so they sum to one exactly where η is optimal.

    Args:
        values: F_k(w) in nats, finite.
        weights: positive integers in the proportion of α_k.
        theta: the conformity level, in (0, 1).
        nu: ν, positive, in nats.
        eta: η in nats.

    Returns:
        float64 [N].

    Raises:
        ValueError: an argument is out of its range, or the lengths differ.
    """
    losses, alpha = _check(values, weights, theta, nu)
    mixture: Reals = alpha * smooth_step(losses - eta, nu) / float(theta)
    return mixture


def smoothed_quantile(
    values: Values, weights: Weights, theta: Fraction, nu: float
) -> tuple[float, float]:
    """Find all minimisers η of F̄_θ,ν(w, η): the closed interval [η₋, η₊], often one point.

    The derivative in η is continuous, piecewise linear and non-decreasing, with kinks at F_k and
    F_k − ν. It is evaluated at the kinks, in exact arithmetic, and interpolated where it crosses
    zero. Where the gaps between the losses are above ν, η₋ is F_j* − (ν/α_j*)·(Σ_{k≤j*} α_k −
    (1 − θ)), and as ν falls to zero it becomes `deltafl.fl.superquantile.weighted_quantile`.
    Source: arXiv 2002.11223, Property 9.

    Args:
        values: F_k(w) in nats, finite.
        weights: positive integers in the proportion of α_k.
        theta: the conformity level, in (0, 1).
        nu: ν, positive, in nats.

    Returns:
        (η₋, η₊) in nats, η₋ ≤ η₊.

    Raises:
        ValueError: an argument is out of its range, or the lengths differ.

    >>> smoothed_quantile([1.0, 2.0, 4.0], [1, 1, 1], Fraction(1, 2), 0.5)
    (1.75, 1.75)
    """
    losses, _ = _check(values, weights, theta, nu)
    kinks = _kinks(losses, weights, nu)
    # ∂F̄/∂η = 1 − count/(θ·W), where the count Σ n_k·g_ν′(F_k − η) falls from W to 0 as η grows
    target = theta * sum(int(weight) for weight in weights)
    last = max(index for index, (_, count) in enumerate(kinks) if count >= target)
    first = min(index for index, (_, count) in enumerate(kinks) if count <= target)
    lowest = _crossing(kinks[first - 1], kinks[first], target)
    highest = _crossing(kinks[last], kinks[last + 1], target)
    return float(lowest), float(highest)


def smoothed_superquantile(values: Values, weights: Weights, theta: Fraction, nu: float) -> float:
    """Compute F_θ,ν(w) from the losses F_k(w).

    Source: arXiv 2002.11223, equation (7).

    Raises:
        ValueError: as `smoothed_quantile`.
    """
    eta, _ = smoothed_quantile(values, weights, theta, nu)
    return smoothed_objective(values, weights, theta, nu, eta)


def _kinks(losses: Reals, weights: Weights, nu: float) -> list[tuple[Fraction, Fraction]]:
    """The kinks in η, ascending, each with the count there; the first has W, the last 0."""
    width = Fraction(nu)
    bends: dict[Fraction, Fraction] = {}
    for loss, weight in zip(losses.tolist(), weights, strict=True):
        slope = int(weight) / width
        for place, bend in ((Fraction(loss) - width, -slope), (Fraction(loss), slope)):
            bends[place] = bends.get(place, Fraction(0)) + bend
    places = sorted(bends)
    count, slope = Fraction(sum(int(weight) for weight in weights)), Fraction(0)
    kinks = []
    for index, place in enumerate(places):
        if index:
            count += slope * (place - places[index - 1])
        slope += bends[place]
        kinks.append((place, count))
    return kinks


def _crossing(
    below: tuple[Fraction, Fraction], above: tuple[Fraction, Fraction], target: Fraction
) -> Fraction:
    """Where the line through two kinks takes the value `target`; at a kink if that does."""
    (left, high), (right, low) = below, above
    return left + (right - left) * (high - target) / (high - low)


def _check(values: Values, weights: Weights, theta: Fraction, nu: float) -> tuple[Reals, Reals]:
    """Check the arguments and take the losses and α as float64 [N]."""
    losses, counts = check_sample(values, weights)
    if not 0 < theta < 1:
        raise ValueError(f"theta={theta} is not in (0, 1); at 1 there is no tail to smooth")
    _check_nu(nu)
    total = sum(counts)
    return losses, np.array([count / total for count in counts])


def _check_nu(nu: float) -> None:
    if not (math.isfinite(nu) and nu > 0):
        raise ValueError(f"nu={nu} is not a positive number")
