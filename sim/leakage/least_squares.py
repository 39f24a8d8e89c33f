"""Many small nonlinear least-squares problems at once: damped Gauss-Newton from many starts.

Levenberg (1944), Marquardt (1963). All starts advance together as one batch of matrices, which for
a few unknowns each is a hundred times faster than one after the other.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from sim.leakage.prior import Numbers

Model: TypeAlias = Callable[[Numbers], tuple[Numbers, Numbers]]
"""From unknowns, shape (S, P), to residuals (S, R) and their derivatives (S, R, P)."""

_LONGEST_STEP: Final = 2.0
_DAMPING_RANGE: Final = (1e-20, 1e6)


def minimise(model: Model, start: Numbers, *, steps: int, scaled: bool) -> Numbers:
    """Reduce the sum of squared residuals of every row of unknowns on its own.

    A step that would make a row worse is not taken, and the next one is shorter. With more unknowns
    than residuals the solution nearest to where the row started is approached.

    Args:
        model: The residuals.
        start: Where to start, shape (S, P).
        steps: How many steps to try.
        scaled: Whether every unknown is damped by its own influence (Marquardt) or all alike
            (Levenberg). A device half a tick from a cut moves its sum 10^10 times as much as one a
            nat away: damped alike, the latter hardly moves. But far from a solution, and where
            there are more unknowns than residuals, that is as it should be.

    Returns:
        The unknowns afterwards, shape (S, P).
    """
    direction = _each_by_its_influence if scaled else _alike
    unknowns = start.copy()
    residuals, jacobian = model(unknowns)
    cost = np.sum(residuals**2, axis=1)
    damping = np.full(len(start), 1e-3)
    for _ in range(steps):
        step = direction(residuals, jacobian, damping)
        longest = np.max(np.abs(step), axis=1, keepdims=True)
        trial = unknowns + step * np.minimum(1, _LONGEST_STEP / np.maximum(longest, 1e-300))
        new_residuals, new_jacobian = model(trial)
        new_cost = np.sum(new_residuals**2, axis=1)
        better = new_cost < cost
        unknowns[better] = trial[better]
        residuals[better] = new_residuals[better]
        jacobian[better] = new_jacobian[better]
        cost[better] = new_cost[better]
        damping = np.clip(np.where(better, damping * 0.2, damping * 5), *_DAMPING_RANGE)
    return unknowns


def _alike(residuals: Numbers, jacobian: Numbers, damping: Numbers) -> Numbers:
    """The step with all unknowns damped alike, from the smaller one of the two normal equations."""
    transposed = np.swapaxes(jacobian, 1, 2)
    wide = jacobian.shape[1] < jacobian.shape[2]
    normal = jacobian @ transposed if wide else transposed @ jacobian
    right = residuals[:, :, None] if wide else transposed @ residuals[:, :, None]
    size = normal.shape[1]
    trace = np.trace(normal, axis1=1, axis2=2) / size + 1e-300
    normal[:, range(size), range(size)] += (np.maximum(damping, 1e-14) * trace)[:, None]
    solved = np.linalg.solve(normal, right)
    return np.asarray(-((transposed @ solved) if wide else solved)[:, :, 0])


def _each_by_its_influence(residuals: Numbers, jacobian: Numbers, damping: Numbers) -> Numbers:
    """Marquardt's step, from singular values: normal equations would square a large condition."""
    scale = np.linalg.norm(jacobian, axis=1)
    scale = np.maximum(scale, 1e-12 * scale.max(axis=1, keepdims=True) + 1e-300)
    left, values, right = np.linalg.svd(jacobian / scale[:, None, :], full_matrices=False)
    projected = np.einsum("srk,sr->sk", left, residuals)
    filtered = projected * values / (values**2 + damping[:, None])
    return np.asarray(-np.einsum("skp,sk->sp", right, filtered) / scale)
