"""Many small nonlinear least-squares problems at once: damped Gauss-Newton from many starts.

Levenberg (1944), Marquardt (1963). All starts advance together as one batch of matrices, which for
a few unknowns each is a hundred times faster than one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.sim.inspect.leakage.prior import Numbers

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
            (Levenberg). A device half a tick from a pivot moves its sum 10^10 times as much as one
            a nat away: damped alike, the latter hardly moves. But far from a solution, and where
            there are more unknowns than residuals, that is as it should be.

    Returns:
        The unknowns afterwards, shape (S, P).
    """
    unknowns = start.copy()
    residuals, jacobian = model(unknowns)
    cost = np.sum(residuals**2, axis=1)
    damping = np.full(len(start), 1e-3)
    factors = _Factors.of(jacobian) if scaled else None
    for _ in range(steps):
        if factors is None:
            step = _alike(residuals, jacobian, damping)
        else:
            step = factors.step(residuals, damping)
        longest = np.max(np.abs(step), axis=1, keepdims=True)
        trial = unknowns + step * np.minimum(1, _LONGEST_STEP / np.maximum(longest, 1e-300))
        new_residuals, new_jacobian = model(trial)
        new_cost = np.sum(new_residuals**2, axis=1)
        better = new_cost < cost
        unknowns[better] = trial[better]
        residuals[better] = new_residuals[better]
        jacobian[better] = new_jacobian[better]
        cost[better] = new_cost[better]
        if factors is not None and better.any():
            factors.replace(better, _Factors.of(new_jacobian[better]))
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


@dataclass(frozen=True, slots=True)
class _Factors:
    """Singular values of derivatives, for Marquardt's step.

    Normal equations would square a large condition. These cost the most of a step, so rows that did
    not get better keep theirs.

    Attributes:
        scale: Influence of every unknown, shape (S, P).
        left: Left singular vectors, shape (S, R, K).
        values: Singular values, shape (S, K).
        right: Right singular vectors, shape (S, K, P).
    """

    scale: Numbers
    left: Numbers
    values: Numbers
    right: Numbers

    @classmethod
    def of(cls, jacobian: Numbers) -> "_Factors":
        scale = np.linalg.norm(jacobian, axis=1)
        scale = np.maximum(scale, 1e-12 * scale.max(axis=1, keepdims=True) + 1e-300)
        return cls(scale, *np.linalg.svd(jacobian / scale[:, None, :], full_matrices=False))

    def replace(self, rows: npt.NDArray[np.bool_], new: "_Factors") -> None:
        """Write new factors into these rows."""
        self.scale[rows] = new.scale
        self.left[rows] = new.left
        self.values[rows] = new.values
        self.right[rows] = new.right

    def step(self, residuals: Numbers, damping: Numbers) -> Numbers:
        """The step with every unknown damped by its own influence."""
        projected = np.einsum("srk,sr->sk", self.left, residuals)
        filtered = projected * self.values / (self.values**2 + damping[:, None])
        return np.asarray(-np.einsum("skp,sk->sp", self.right, filtered) / self.scale)
