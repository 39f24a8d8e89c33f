"""The probability simplex: projection onto it, and quadratic programmes over it.

The mixtures of AFL, FedMGDA+ and AAggFF live here: Δ = {x ∈ ℝᵐ : x ≥ 0, Σ x_k = 1}.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Reals: TypeAlias = npt.NDArray[np.float64]

STATIONARITY_TOLERANCE: Final = 1e-6
"""How far from stationary a solution of `minimise_quadratic` may be, relative to its gradient."""

_MAX_ITERATIONS: Final = 1000
_ACTIVE: Final = 1e-9  # a coordinate closer than this to its limit counts as being at the limit


def project_to_simplex(point: Reals) -> Reals:
    """Find the point of the simplex that is nearest in Euclidean distance.

    It is max(point − τ, 0), where τ makes the sum one; sorting finds τ.
    Source: Duchi et al., ICML 2008, Figure 1.

    Args:
        point: float64 [m], m ≥ 1, finite.

    Returns:
        float64 [m] in Δ.

    Raises:
        ValueError: `point` has another shape, or a coordinate is not finite.

    >>> project_to_simplex(np.array([0.6, 0.8, -3.0]))
    array([0.4, 0.6, 0. ])
    """
    if point.ndim != 1 or point.size == 0:
        raise ValueError(f"point of shape {point.shape}: pass at least one number, in one row")
    if not np.isfinite(point).all():
        raise ValueError(f"point {point} is not finite")
    # a shift does not change the projection and avoids losing the 1 of the sum to rounding
    shifted = point - point.max()
    descending = np.sort(shifted)[::-1]
    shifts = (np.cumsum(descending) - 1) / np.arange(1, point.size + 1)
    last_positive = np.flatnonzero(descending > shifts)[-1]
    projected: Reals = np.maximum(shifted - shifts[last_positive], 0.0)
    return projected


def minimise_quadratic(
    matrix: Reals, linear: Reals, *, lower: float = 0.0, upper: float = 1.0
) -> Reals:
    """Find argmin ½·xᵀMx + cᵀx over the simplex, with every coordinate in [lower, upper].

    Sequential least squares (SLSQP of SciPy) finds it, and its optimality is checked: no weight
    could move from one coordinate to another and gain more than a tolerance.

    Args:
        matrix: M, float64 [m, m], symmetric and positive semidefinite.
        linear: c, float64 [m].
        lower: the smallest value of a coordinate, in [0, 1/m].
        upper: the largest value of a coordinate, at least 1/m.

    Returns:
        float64 [m] in Δ, within the limits.

    Raises:
        ValueError: shapes do not fit, or the limits leave no point.
        ArithmeticError: a number is not finite, or no optimal point was found.
    """
    size = linear.size
    if linear.ndim != 1 or size == 0 or matrix.shape != (size, size):
        raise ValueError(
            f"matrix of shape {matrix.shape} and linear of shape {linear.shape}: "
            "pass [m, m] and [m] with m ≥ 1"
        )
    if not 0 <= lower <= 1 / size <= upper:
        raise ValueError(f"limits [{lower}, {upper}] leave no point: 1/m = {1 / size} must be in")
    if not (np.isfinite(matrix).all() and np.isfinite(linear).all()):
        raise ArithmeticError("the quadratic has a coefficient that is not finite")
    # the solver's tolerances are absolute
    scale = max(float(np.abs(matrix).max()), float(np.abs(linear).max()))
    if scale == 0:
        return np.full(size, 1 / size)
    matrix, linear = matrix / scale, linear / scale
    from scipy.optimize import minimize  # here: most strategies solve nothing

    result = minimize(
        lambda x: 0.5 * x @ matrix @ x + linear @ x,
        np.full(size, 1 / size),
        jac=lambda x: matrix @ x + linear,
        method="SLSQP",
        bounds=[(lower, upper)] * size,
        constraints={
            "type": "eq",
            "fun": lambda x: x.sum() - 1,
            "jac": lambda _: np.ones((1, size)),
        },
        options={"ftol": 1e-16, "maxiter": _MAX_ITERATIONS},
    )
    # ignore the solver's own status: near the optimum it reports rounding errors as failures
    x: Reals = np.clip(result.x, lower, upper)
    gain = stationarity_gap(matrix @ x + linear, x, lower=lower, upper=upper)
    if not (gain <= STATIONARITY_TOLERANCE and abs(x.sum() - 1) <= STATIONARITY_TOLERANCE):
        raise ArithmeticError(
            f"no optimal mixture of {size} was found: {result.message} (gap {gain}, sum {x.sum()})"
        )
    return x


def stationarity_gap(gradient: Reals, x: Reals, *, lower: float, upper: float) -> float:
    """Measure how far `x` is from meeting the optimality (KKT) conditions of a minimum.

    Over the simplex with limits, x is optimal for a convex function if no coordinate that may fall
    has a larger partial derivative than one that may rise.

    Returns:
        The largest such difference; 0 where the conditions hold.
    """
    may_fall, may_rise = gradient[x > lower + _ACTIVE], gradient[x < upper - _ACTIVE]
    if not may_fall.size or not may_rise.size:
        return 0.0
    return max(0.0, float(may_fall.max() - may_rise.min()))
