"""Figure 3: the superquantile objective on three Gaussians, where its minimiser can be drawn.

Source: arXiv 2002.11223, Section 3, "Illustration". Three devices of equal weight hold Gaussians of
identity covariance in the plane; the loss is ||ξ − w||², so device k has F_k(w) = ||w − μ_k||² + 2.
With θ = 2/3 a mixture has weights of at most 1/2, so F_θ(w) is the mean of the two largest losses:
for each side of the triangle the squared distance to its midpoint, plus a quarter of its square.

The paper says that the minimiser is the midpoint of the longest side of a scalene triangle. At that
midpoint the longest side is the largest of the three pieces only if its square is at least the sum
of the other two, that is in a right or obtuse triangle. In an acute one the minimiser is where all
three pieces are equal: the circumcentre. The paper gives no coordinates; those drawn here are
obtuse, and the table has an acute triangle beside them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, PercentFormatter
from scipy import optimize

from deltafl.fl.simplex import Reals
from deltafl.fl.superquantile import superquantile
from deltafl.sim.charts.chart import COLOURS
from deltafl.sim.charts.files import new_figure, titled
from deltafl.sim.reproduce.experiment import Finished, Report, Request, Table
from deltafl.sim.reproduce.grid import Experiment

THETA: Final = Fraction(2, 3)

OBTUSE: Final = ((0.0, 0.0), (1.4, 1.2), (4.0, 0.0))
"""The means μ_1, μ_2, μ_3 that are drawn; μ_1 and μ_3 are farthest apart, as in the paper."""

RIGHT: Final = ((0.0, 0.0), (1.0, 2.0), (5.0, 0.0))
ACUTE: Final = ((0.0, 0.0), (1.5, 2.5), (4.0, 0.0))

TOLERANCE: Final = 1e-6
"""How far a minimiser may be from where it should be, in units of the plane."""

_DIMENSIONS: Final = 2
_MIXTURES: Final = 20_000


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

    def __call__(self, w: Reals) -> tuple[Reals, Reals]:
        """All F_k(w), float64 [N], and their gradients, float64 [N, d]."""
        product = self.a @ w
        return 0.5 * product @ w - self.b @ w + self.c, product - self.b

    def best_for(self, mixture: Reals) -> Reals:
        """The model with the smallest Σ π_k F_k(w), float64 [d]."""
        weighted = np.einsum("k,kij->ij", mixture, self.a)
        return np.asarray(np.linalg.solve(weighted, mixture @ self.b))


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


@dataclass(frozen=True, slots=True, eq=False)
class Illustration:
    """What is found for one triangle.

    Attributes:
        means: μ, shape (3, 2).
        w_1: minimiser for θ = 1, shape (2,).
        w_theta: minimiser for θ = 2/3, shape (2,).
        losses_1: F_1, F_2, F_3 of w_1.
        losses_theta: the same of w_theta.
        numbers: of the table: the largest angle in degrees, distances, the largest losses over
            mixtures with conformity at least 2/3, and F_θ(w_theta) less a lower bound of every
            F_θ(w), from the dual problem.
    """

    means: Reals
    w_1: Reals
    w_theta: Reals
    losses_1: Reals
    losses_theta: Reals
    numbers: Mapping[str, float]


def gaussians(means: Sequence[Sequence[float]]) -> Quadratics:
    """F_k(w) = E ||ξ − w||² = ||w − μ_k||² + 2 for ξ of mean μ_k and identity covariance."""
    points = np.asarray(means, dtype=np.float64)
    a = np.tile(2 * np.eye(_DIMENSIONS), (len(points), 1, 1))
    squares = (points**2).sum(axis=1) + _DIMENSIONS
    return Quadratics(a, 2 * points, squares, np.ones(len(points), dtype=np.int64))


def illustrate(means: Sequence[Sequence[float]]) -> Illustration:
    """Solve the illustration for three means that are not on a line, numerically."""
    points = np.asarray(means, dtype=np.float64)
    problem = gaussians(means)
    (_, w_1), (bound, w_theta) = (solve_dual(problem, theta) for theta in (Fraction(1), THETA))
    # the side opposite to each corner
    sides = [float(np.linalg.norm(points[k - 2] - points[k - 1])) for k in range(3)]
    far = int(np.argmax(sides))
    one, other = points[far - 2], points[far - 1]
    cosine = (one - points[far]) @ (other - points[far]) / (sides[far - 2] * sides[far - 1])
    circumcentre = np.linalg.solve(
        2 * (points[1:] - points[0]), (points[1:] ** 2).sum(axis=1) - (points[0] ** 2).sum()
    )
    losses_1, losses_theta = problem(w_1)[0], problem(w_theta)[0]
    worst_1, worst_theta = (
        superquantile(losses, [1, 1, 1], THETA) for losses in (losses_1, losses_theta)
    )
    numbers = {
        "largest_angle_degrees": math.degrees(math.acos(cosine)),
        "w_theta_to_midpoint": math.dist(w_theta, (one + other) / 2),
        "w_theta_to_circumcentre": math.dist(w_theta, circumcentre),
        "w_1_to_mean": math.dist(w_1, points.mean(axis=0)),
        "worst_loss_w_1": worst_1,
        "worst_loss_w_theta": worst_theta,
        "duality_gap": worst_theta - bound,
    }
    return Illustration(points, w_1, w_theta, losses_1, losses_theta, numbers)


def violations(found: Mapping[str, float]) -> list[str]:
    """Say which of the paper's statements do not hold for the numbers of a triangle."""
    statements = {
        "w_1 is the mean": found["w_1_to_mean"] <= TOLERANCE,
        "w_2/3 is the midpoint of the longest side": found["w_theta_to_midpoint"] <= TOLERANCE,
        "the worst loss is lower for w_2/3 than for w_1": (
            found["worst_loss_w_theta"] < found["worst_loss_w_1"]
        ),
        "w_2/3 is optimal": found["duality_gap"] <= TOLERANCE,
    }
    return [statement for statement, holds in statements.items() if not holds]


def draw_mixtures(number: int, theta: Fraction, rng: np.random.Generator) -> Reals:
    """Draw mixtures of three devices uniformly from those with conformity at least θ.

    Returns:
        Weights, shape (number, 3).
    """
    drawn = np.empty((0, 3))
    while len(drawn) < number:
        more = rng.dirichlet(np.ones(3), size=number)
        # the same bound as conformity ≥ θ: π_k ≤ α_k / θ
        drawn = np.concatenate([drawn, more[(more * 3 * float(theta) <= 1).all(axis=1)]])
    return drawn[:number]


class MixtureFigure(Experiment):
    """Figure 3 as an experiment; it needs no training."""

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:  # noqa: ARG002
        """Solve the three triangles, draw the obtuse one, and say what does not hold."""
        found = {
            "obtuse (drawn)": illustrate(OBTUSE),
            "right": illustrate(RIGHT),
            "acute (control)": illustrate(ACUTE),
        }
        acute = found["acute (control)"].numbers
        drawn = found["obtuse (drawn)"]
        failed = [f"FAILED, not as in the paper: {one}" for one in violations(drawn.numbers)]
        notes = (
            *failed,
            "The midpoint of the longest side is the minimiser in right and obtuse triangles only. "
            "The paper says so of every scalene triangle. In the acute one the minimiser is "
            f"{acute['w_theta_to_midpoint']:.3f} away from that midpoint, and "
            f"{acute['w_theta_to_circumcentre']:.1e} from the circumcentre.",
            "The paper prints no coordinates of the means: those of this figure are our own.",
        )
        table = Table.of(
            "fig3",
            "Three Gaussians, θ = 2/3: where the minimiser is, and the worst admissible loss",
            [{"triangle": name, **one.numbers} for name, one in found.items()],
            _COLUMNS,
        )
        return Report((table,), {"fig3": draw(drawn)}, notes)


_COLUMNS: Final = {
    "triangle": "triangle",
    "largest angle": "{largest_angle_degrees:.1f}°",
    "w_2/3 to midpoint of longest side": "{w_theta_to_midpoint:.1e}",
    "w_2/3 to circumcentre": "{w_theta_to_circumcentre:.1e}",
    "w_1 to mean": "{w_1_to_mean:.1e}",
    "worst loss of w_1": "{worst_loss_w_1:.4f}",
    "worst loss of w_2/3": "{worst_loss_w_theta:.4f}",
    "duality gap": "{duality_gap:.1e}",
}
_W_1, _W_THETA = COLOURS[0], COLOURS[1]


def draw(found: Illustration) -> Figure:
    """Draw the means and models, the mixtures, and the losses over mixtures."""
    figure, ((points, simplex, histogram),) = new_figure(1, 3)
    _draw_points(points, found)
    _draw_simplex(figure, simplex, found)
    _draw_histogram(histogram, found)
    return figure


def _draw_points(axes: Axes, found: Illustration) -> None:
    outline = np.vstack([found.means, found.means[:1]])
    axes.plot(outline[:, 0], outline[:, 1], color="0.6", linewidth=0.8)
    axes.plot(found.means[:, 0], found.means[:, 1], "ko")
    for number, mean in enumerate(found.means, 1):
        axes.annotate(f"$\\mu_{number}$", mean, xytext=(5, 5), textcoords="offset points")
    axes.plot(*found.w_1, "s", color=_W_1, label="$w_1$ (mean)")
    axes.plot(*found.w_theta, "D", color=_W_THETA, label="$w_{2/3}$ (Δ-FL)")
    axes.margins(0.15)
    titled(
        axes,
        "means and models",
        xlabel="first coordinate",
        ylabel="second coordinate",
        aspect="equal",
    )


def _draw_simplex(figure: Figure, axes: Axes, found: Illustration) -> None:
    steps = 60
    grid = np.array([(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)])
    pi = grid / steps
    lower = pi @ (found.losses_1 - found.losses_theta)
    x, y = _flat(pi)
    reach = float(abs(lower).max())
    filled = axes.tricontourf(x, y, lower, levels=np.linspace(-reach, reach, 13), cmap="PuOr_r")
    axes.tricontour(x, y, lower, levels=[0], colors="k", linewidths=1)
    # the mixtures of conformity ≥ 2/3: no weight above 1/2
    corners = np.array([(1, 1, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]) / 2
    axes.plot(*_flat(corners), "k--", linewidth=1.2, label="conformity ≥ 2/3")
    for number, pull in enumerate(((-8, -12), (24, -4), (8, -12))):
        at, above = map(float, _flat(np.eye(3)[number]))
        told = f"$\\pi_{number + 1}=1$"
        axes.annotate(told, (at, above), xytext=pull, textcoords="offset points", ha="center")
    axes.set_title("$F(w_1; p_\\pi) - F(w_{2/3}; p_\\pi)$ over mixtures", fontsize="medium", pad=12)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.12)
    axes.legend(frameon=False, loc="upper left", fontsize="small", bbox_to_anchor=(-0.15, 1))
    bar = figure.colorbar(filled, ax=axes, shrink=0.75)
    bar.set_label("squared distance; above 0 $w_{2/3}$ is better", fontsize="small")
    bar.ax.yaxis.set_major_formatter(FormatStrFormatter("%+.1f"))


def _draw_histogram(axes: Axes, found: Illustration) -> None:
    mixtures = draw_mixtures(_MIXTURES, THETA, np.random.default_rng(0))
    drawn = [mixtures @ losses for losses in (found.losses_1, found.losses_theta)]
    edges = np.linspace(np.min(drawn), np.max(drawn), 41)
    looks = (("w_1", "$w_1$", _W_1, "-"), ("w_theta", "$w_{2/3}$", _W_THETA, "--"))
    for losses, (key, name, colour, style) in zip(drawn, looks, strict=True):
        shares = np.histogram(losses, edges)[0] / len(losses)
        axes.stairs(shares, edges, color=colour, linestyle=style, linewidth=2, label=name)
        worst = found.numbers[f"worst_loss_{key}"]
        axes.axvline(worst, color=colour, linestyle=style, linewidth=0.9)
    title, loss = "mixtures of conformity ≥ 2/3 (thin: the worst)", "loss $F(w; p_\\pi)$"
    titled(axes, title, xlabel=f"{loss} (squared distance)", ylabel="share of mixtures")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _flat(pi: Reals) -> tuple[Reals, Reals]:
    """Places in the plane: π_1 lower left, π_2 above, π_3 lower right."""
    return pi[..., 2] + pi[..., 1] / 2, pi[..., 1] * math.sqrt(3) / 2
