"""Algorithm 1 on a convex problem whose minima other solvers find: does Proposition 4 hold?

Source: arXiv 2002.11223, Algorithm 1 and Proposition 4. The paper proves that F_θ,ν(w_t) falls to
its minimum and that F_θ(w_t) comes within δ of its own, ν = 2δθ; it runs Algorithm 2 only. The
problem is ours: ridge regression on devices whose true models differ, small enough that both minima
are known to eight digits. Neither is found by alternating: that of F_θ,ν by quasi-Newton steps in
(w, η) at once, that of F_θ over mixtures of the devices, its dual.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from scipy import optimize

from deltafl.fl.simplex import Reals
from deltafl.fl.smoothing import (
    AlternatingMinimisation,
    Inexactness,
    StepReport,
    smoothed_objective,
    smoothed_weights,
)
from deltafl.fl.superquantile import superquantile
from deltafl.sim.charts.files import new_figure
from deltafl.sim.reproduce.experiment import Finished, Record, Report, Request, Table
from deltafl.sim.reproduce.grid import Experiment

THETA: Final = Fraction(1, 2)
DELTA: Final = 0.05
NU: Final = 2 * DELTA * float(THETA)
ROUNDS: Final = 150
INEXACTNESS: Final = Inexactness(initial=0.01, decay=1.0)
TOLERANCE: Final = 1e-6
"""How far from its minimum F_θ,ν may be in the end, in nats."""

_DEVICES, _PARAMETERS, _SAMPLES = 20, 4, 8
_RIDGE: Final = 0.2
_PRINTED: Final = (0, 1, 2, 5, 10, 20, 50, 100, 149)


@dataclass(frozen=True, slots=True, eq=False)
class Quadratics:
    """Devices whose losses are F_k(w) = ½wᵀA_k w − b_k·w + c_k.

    Attributes:
        a: A_k, float64 [N, d, d], positive definite.
        b: b_k, float64 [N, d].
        c: c_k, float64 [N].
        weights: n_k, int64 [N].
    """

    a: Reals
    b: Reals
    c: Reals
    weights: npt.NDArray[np.int64]

    @property
    def shares(self) -> Reals:
        """α_k, float64 [N]."""
        return np.asarray(self.weights / self.weights.sum())

    @property
    def strong_convexity(self) -> float:
        """μ, the least eigenvalue of all A_k."""
        return float(np.linalg.eigvalsh(self.a).min())

    @property
    def start(self) -> Reals:
        """w_0, zeros, float64 [d]."""
        return np.zeros(self.b.shape[1])

    def __call__(self, w: Reals) -> tuple[Reals, Reals]:
        """All F_k(w), float64 [N], and their gradients, float64 [N, d]."""
        product = self.a @ w
        return 0.5 * product @ w - self.b @ w + self.c, product - self.b

    def best_for(self, mixture: Reals) -> Reals:
        """The model with the smallest Σ π_k F_k(w), float64 [d]."""
        weighted = np.einsum("k,kij->ij", mixture, self.a)
        return np.asarray(np.linalg.solve(weighted, mixture @ self.b))


def ridge() -> Quadratics:
    """Ridge-regularised least squares on devices whose true models differ.

    F_k(w) is the mean of ½(x·w − y)² over the device's samples, with ½·ridge·‖w‖².
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(_DEVICES, _SAMPLES, _PARAMETERS))
    truth = rng.normal(size=(_DEVICES, _PARAMETERS))
    y = np.einsum("kni,ki->kn", x, truth) + 0.1 * rng.normal(size=(_DEVICES, _SAMPLES))
    weights = rng.integers(1, 9, size=_DEVICES)
    return Quadratics(
        np.einsum("kni,knj->kij", x, x) / _SAMPLES + _RIDGE * np.eye(_PARAMETERS),
        np.einsum("kn,kni->ki", y, x) / _SAMPLES,
        0.5 * (y**2).mean(1),
        weights,
    )


def solve_dual(problem: Quadratics, theta: Fraction) -> tuple[float, Reals]:
    """Bound the minimum of F_θ from below, and find the model that reaches it.

    The bound is the largest over mixtures π of conformity at least θ of the least Σ π_k F_k(w); it
    is below every F_θ(w), whatever the solver did. The model is the best one for that mixture.
    """

    def value(pi: Reals) -> tuple[float, Reals]:
        losses, _ = problem(problem.best_for(pi))
        return -float(pi @ losses), -losses

    solved = optimize.minimize(
        value,
        problem.shares,
        jac=True,
        method="SLSQP",
        bounds=[(0, share / float(theta)) for share in problem.shares],
        constraints={"type": "eq", "fun": lambda pi: pi.sum() - 1},
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return -float(solved.fun), problem.best_for(solved.x)


def least_superquantile(problem: Quadratics, theta: Fraction) -> tuple[float, float]:
    """Bound the minimum of F_θ from below, by its dual, and above."""
    below, model = solve_dual(problem, theta)
    return below, superquantile(problem(model)[0], problem.weights, theta)


def least_smoothed(problem: Quadratics, theta: Fraction, nu: float) -> tuple[float, float]:
    """Find the minimum of F_θ,ν, and the largest entry of the gradient of F̄_θ,ν that is left."""

    def joint(point: Reals) -> tuple[float, Reals]:
        eta = float(point[-1])
        values, gradients = problem(point[:-1])
        mixture = smoothed_weights(values, problem.weights, theta, nu, eta)
        value = smoothed_objective(values, problem.weights, theta, nu, eta)
        return value, np.append(mixture @ gradients, 1 - mixture.sum())

    start = np.append(problem.start, 2.0)
    solved = optimize.minimize(joint, start, jac=True, options={"gtol": 1e-7})
    return float(solved.fun), float(np.abs(solved.jac).max())


@dataclass(frozen=True, slots=True, eq=False)
class Convergence:
    """What a run of Algorithm 1 came to.

    Attributes:
        steps: of each round t.
        least_smoothed: min F_θ,ν.
        least: min F_θ, by its dual.
        final: F_θ of the last model.
        mean: F_θ of the model with the least mean loss, which is FedAvg's optimum.
    """

    steps: tuple[StepReport, ...]
    least_smoothed: float
    least: float
    final: float
    mean: float

    @property
    def above(self) -> list[float]:
        """F_θ,ν(w_t) − min F_θ,ν by round."""
        return [step.objective - self.least_smoothed for step in self.steps]


def converge(problem: Quadratics, rounds: int) -> Convergence:
    """Run Algorithm 1 with the settings of this module."""
    solver = AlternatingMinimisation(
        problem, problem.weights, THETA, NU, problem.strong_convexity, INEXACTNESS
    )
    iterate, steps = solver.init(problem.start), []
    for _ in range(rounds):
        iterate, step = solver.step(iterate)
        steps.append(step)

    def objective(model: Reals) -> float:
        return superquantile(problem(model)[0], problem.weights, THETA)

    return Convergence(
        tuple(steps),
        least_smoothed(problem, THETA, NU)[0],
        least_superquantile(problem, THETA)[0],
        objective(iterate.model),
        objective(problem.best_for(problem.shares)),
    )


def violations(found: Convergence) -> tuple[str, ...]:
    """What differs from Proposition 4 and its proof."""
    last = found.above[-1]
    statements = {
        "the gap of every w-step is at most ε_t": all(s.gap <= s.tolerance for s in found.steps),
        "F_θ,ν(w_t) rises by no more than ε_t": all(
            after.objective <= now.objective + now.tolerance + 1e-12
            for now, after in pairwise(found.steps)
        ),
        f"F_θ,ν(w_t) comes to its minimum ({last:.1e} above)": -1e-9 <= last <= TOLERANCE,
        f"F_θ(w_t) comes within δ of its minimum ({found.final - found.least:.1e} above)": (
            -1e-9 <= found.final - found.least <= DELTA
        ),
    }
    return tuple(statement for statement, holds in statements.items() if not holds)


class AlgorithmOne(Experiment):
    """Algorithm 1 as an experiment; it needs no training on devices."""

    __slots__ = ()

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:  # noqa: ARG002
        """Solve the problem, and say what does not hold."""
        found = converge(ridge(), ROUNDS)
        failed = [f"FAILED, not as in the paper: {one}" for one in violations(found)]
        notes = (
            *failed,
            "The paper proves convergence and shows no run of Algorithm 1: the problem is our own, "
            f"θ = {THETA}, δ = {DELTA}.",
            "The minima are found by other methods than alternating: that of F_θ,ν by quasi-Newton "
            "steps in (w, η), that of F_θ from its dual over mixtures.",
        )
        return Report((_rounds(found), _results(found)), {"algorithm1": draw(found)}, notes)


def draw(found: Convergence) -> Figure:
    """Draw how far F_θ,ν(w_t) is above its minimum, and the tolerance of the w-step."""
    figure, ((axes,),) = new_figure(1, 1)
    axes.semilogy(found.above, "-", label="$F_{θ,ν}(w_t)$ above its minimum")
    axes.semilogy([step.tolerance for step in found.steps], "--", label="tolerance $ε_t$")
    axes.set_xlabel("round $t$")
    axes.set_ylabel("nats")
    axes.legend(frameon=False)
    return figure


def _rounds(found: Convergence) -> Table:
    records = [
        {
            "t": t,
            "eta": step.eta,
            "above_minimum": above,
            "tolerance": step.tolerance,
            "gap": step.gap,
            "num_gradients": step.num_gradients,
        }
        for t, (step, above) in enumerate(zip(found.steps, found.above, strict=True))
    ]
    columns: dict[str, str | Callable[[Record], str]] = {
        "t": "t",
        "η_t": lambda row: f"{row['eta']:.4f}",
        "F_θ,ν(w_t) − min": lambda row: f"{row['above_minimum']:.1e}",
        "ε_t": lambda row: f"{row['tolerance']:.1e}",
        "certified gap": lambda row: f"{row['gap']:.1e}",
        "gradients": "num_gradients",
    }
    title = "Algorithm 1 by round: F_θ,ν(w_t) above its minimum, and the certified w-step"
    table = Table.of("algorithm1", title, records, columns)
    return replace(table, rows=tuple(table.rows[t] for t in _PRINTED if t < len(records)))


def _results(found: Convergence) -> Table:
    values = {"Algorithm 1": found.final, "least mean loss (control)": found.mean}
    return Table.of(
        "algorithm1-superquantile",
        f"The superquantile F_θ of two models, and δ = {DELTA}",
        [
            {"model": name, "superquantile": value, "above_minimum": value - found.least}
            for name, value in values.items()
        ],
        {
            "model": "model",
            "F_θ": lambda row: f"{row['superquantile']:.6f}",
            "above its minimum": lambda row: f"{row['above_minimum']:.1e}",
        },
    )
