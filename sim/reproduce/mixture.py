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
from collections.abc import Callable, Sequence
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
from deltafl.sim.charts.chart import COLOURS, Numbers
from deltafl.sim.charts.files import new_figure, titled
from deltafl.sim.reproduce.experiment import Finished, Record, Report, Request, Table
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
        midpoint: of the longest side.
        circumcentre: the point as far from each mean.
        angle: the largest angle, in degrees.
        losses_1: F_1, F_2, F_3 of w_1.
        losses_theta: the same of w_theta.
        gap: F_θ(w_theta) less a lower bound of every F_θ(w), from the dual problem.
        mixtures: drawn uniformly from those with conformity at least 2/3, shape (n, 3).
    """

    means: Numbers
    w_1: Numbers
    w_theta: Numbers
    midpoint: Numbers
    circumcentre: Numbers
    angle: float
    losses_1: Numbers
    losses_theta: Numbers
    gap: float
    mixtures: Numbers

    @property
    def worst_1(self) -> float:
        """F_θ(w_1), the largest loss of w_1 over mixtures with conformity at least 2/3."""
        return superquantile(self.losses_1, [1, 1, 1], THETA)

    @property
    def worst_theta(self) -> float:
        """The same of w_theta."""
        return superquantile(self.losses_theta, [1, 1, 1], THETA)


def gaussians(means: Sequence[Sequence[float]]) -> Quadratics:
    """F_k(w) = E ||ξ − w||² = ||w − μ_k||² + 2 for ξ of mean μ_k and identity covariance."""
    points = np.asarray(means, dtype=np.float64)
    a = np.tile(2 * np.eye(_DIMENSIONS), (len(points), 1, 1))
    squares = (points**2).sum(axis=1) + _DIMENSIONS
    return Quadratics(a, 2 * points, squares, np.ones(len(points), dtype=np.int64))


def illustrate(means: Sequence[Sequence[float]]) -> Illustration:
    """Solve the illustration for three means, numerically.

    Raises:
        ValueError: not three points of the plane, or on a line.
    """
    points = np.asarray(means, dtype=np.float64)
    if points.shape != (3, _DIMENSIONS):
        raise ValueError(f"means of shape {points.shape}: pass three points of the plane")
    if abs(np.linalg.det(points[1:] - points[0])) <= 1e-9 * np.ptp(points) ** 2:
        raise ValueError(f"means {points.tolist()} lie on a line: pass a triangle")
    problem = gaussians(means)
    (_, w_1), (bound, w_theta) = (solve_dual(problem, theta) for theta in (Fraction(1), THETA))
    sides = {(i, j): float(np.sum((points[i] - points[j]) ** 2)) for i, j in _PAIRS}
    first, second = max(sides, key=sides.__getitem__)
    longest = sides[first, second]
    cosine = (sum(sides.values()) - 2 * longest) / (
        2 * math.sqrt(math.prod(sides.values()) / longest)
    )
    losses = problem(w_theta)[0]
    return Illustration(
        means=points,
        w_1=w_1,
        w_theta=w_theta,
        midpoint=(points[first] + points[second]) / 2,
        circumcentre=np.linalg.solve(
            2 * (points[1:] - points[0]), (points[1:] ** 2).sum(axis=1) - (points[0] ** 2).sum()
        ),
        angle=math.degrees(math.acos(cosine)),
        losses_1=problem(w_1)[0],
        losses_theta=losses,
        gap=superquantile(losses, [1, 1, 1], THETA) - bound,
        mixtures=draw_mixtures(_MIXTURES, THETA, np.random.default_rng(0)),
    )


def violations(found: Illustration) -> tuple[str, ...]:
    """Say which of the paper's statements do not hold for a triangle, with the numbers."""
    from_mean = _distance(found.w_1, found.means.mean(axis=0))
    from_midpoint = _distance(found.w_theta, found.midpoint)
    statements = {
        f"w_1 is the mean (distance {from_mean:.1e})": from_mean <= TOLERANCE,
        f"w_2/3 is the midpoint of the longest side (distance {from_midpoint:.1e})": (
            from_midpoint <= TOLERANCE
        ),
        f"the worst loss is lower for w_2/3 ({found.worst_theta:.6f}) than for w_1 "
        f"({found.worst_1:.6f})": found.worst_theta < found.worst_1,
        f"w_2/3 is optimal (duality gap {found.gap:.1e})": found.gap <= TOLERANCE,
    }
    return tuple(statement for statement, holds in statements.items() if not holds)


def draw_mixtures(number: int, theta: Fraction, rng: np.random.Generator) -> Numbers:
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

    __slots__ = ()

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:  # noqa: ARG002
        """Solve the three triangles, draw the obtuse one, and say what does not hold."""
        found = {
            "obtuse (drawn)": illustrate(OBTUSE),
            "right": illustrate(RIGHT),
            "acute (control)": illustrate(ACUTE),
        }
        drawn, acute = found["obtuse (drawn)"], found["acute (control)"]
        failed = [f"FAILED, not as in the paper: {one}" for one in violations(drawn)]
        notes = (
            *failed,
            "The midpoint of the longest side is the minimiser in right and obtuse triangles only. "
            "The paper says so of every scalene triangle. In the acute one the minimiser is "
            f"{_distance(acute.w_theta, acute.midpoint):.3f} away from that midpoint, and "
            f"{_distance(acute.w_theta, acute.circumcentre):.1e} from the circumcentre.",
            "The paper prints no coordinates of the means: those of this figure are our own.",
        )
        return Report((_table(found),), {"fig3": draw(drawn)}, notes)


def draw(found: Illustration) -> Figure:
    """Draw the three panels."""
    figure, ((points, simplex, histogram),) = new_figure(1, 3)
    _draw_points(points, found)
    _draw_simplex(figure, simplex, found)
    _draw_histogram(histogram, found)
    return figure


_PAIRS: Final = ((0, 1), (0, 2), (1, 2))
_W_1, _W_THETA = COLOURS[0], COLOURS[1]


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
    for number, (place, pull) in enumerate(
        zip(np.eye(3), ((-8, -12), (24, -4), (8, -12)), strict=True), 1
    ):
        axes.annotate(
            f"$\\pi_{number}=1$",
            (float(_flat(place)[0]), float(_flat(place)[1])),
            xytext=pull,
            textcoords="offset points",
            ha="center",
        )
    axes.set_title("$F(w_1; p_\\pi) - F(w_{2/3}; p_\\pi)$ over mixtures", fontsize="medium", pad=12)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.12)
    axes.legend(frameon=False, loc="upper left", fontsize="small", bbox_to_anchor=(-0.15, 1))
    bar = figure.colorbar(filled, ax=axes, shrink=0.75)
    bar.set_label("squared distance; above 0 $w_{2/3}$ is better", fontsize="small")
    bar.ax.yaxis.set_major_formatter(FormatStrFormatter("%+.1f"))


def _draw_histogram(axes: Axes, found: Illustration) -> None:
    samples = [
        (found.mixtures @ found.losses_1, "$w_1$", _W_1, "-", found.worst_1),
        (found.mixtures @ found.losses_theta, "$w_{2/3}$", _W_THETA, "--", found.worst_theta),
    ]
    values = np.concatenate([sample[0] for sample in samples])
    edges = np.linspace(values.min(), values.max(), 41)
    for losses, name, colour, style, worst in samples:
        shares = np.histogram(losses, edges)[0] / len(losses)
        axes.stairs(shares, edges, color=colour, linestyle=style, linewidth=2, label=name)
        axes.axvline(worst, color=colour, linestyle=style, linewidth=0.9)
    title, loss = "mixtures of conformity ≥ 2/3 (thin: the worst)", "loss $F(w; p_\\pi)$"
    titled(axes, title, xlabel=f"{loss} (squared distance)", ylabel="share of mixtures")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _flat(pi: Numbers) -> tuple[Numbers, Numbers]:
    """Places in the plane: π_1 lower left, π_2 above, π_3 lower right."""
    return pi[..., 2] + pi[..., 1] / 2, pi[..., 1] * math.sqrt(3) / 2


def _table(found: dict[str, Illustration]) -> Table:
    def distance(key: str) -> Callable[[Record], str]:
        return lambda record: f"{record[key]:.1e}"

    return Table.of(
        "fig3",
        "Three Gaussians, θ = 2/3: where the minimiser is, and the worst admissible loss",
        [_record(*one) for one in found.items()],
        {
            "triangle": "triangle",
            "largest angle": lambda record: f"{record['largest_angle_degrees']:.1f}°",
            "w_2/3 to midpoint of longest side": distance("w_theta_to_midpoint"),
            "w_2/3 to circumcentre": distance("w_theta_to_circumcentre"),
            "w_1 to mean": distance("w_1_to_mean"),
            "worst loss of w_1": lambda record: f"{record['worst_loss_w_1']:.4f}",
            "worst loss of w_2/3": lambda record: f"{record['worst_loss_w_theta']:.4f}",
            "duality gap": distance("duality_gap"),
        },
    )


def _record(triangle: str, one: Illustration) -> Record:
    return {
        "triangle": triangle,
        "largest_angle_degrees": one.angle,
        "w_theta_to_midpoint": _distance(one.w_theta, one.midpoint),
        "w_theta_to_circumcentre": _distance(one.w_theta, one.circumcentre),
        "w_1_to_mean": _distance(one.w_1, one.means.mean(axis=0)),
        "worst_loss_w_1": one.worst_1,
        "worst_loss_w_theta": one.worst_theta,
        "duality_gap": one.gap,
    }


def _distance(one: Numbers, other: Numbers) -> float:
    return float(np.linalg.norm(one - other))
