"""The smoothed superquantile, and Algorithm 1, which minimises it.

    F̄_θ,ν(w, η) = η + (1/θ)·Σ α_k·g_ν(F_k(w) − η),   F_θ,ν(w) = min over η of F̄_θ,ν(w, η),

where g_ν is a smooth approximation of (ρ)₊ and α_k a device's share of the weight. ν = 2δθ gives
F_θ up to δ: 0 ≤ F̄_θ,ν − F̄_θ ≤ ν/(2θ).
Source: arXiv 2002.11223, equations (5) to (7), Appendix A.1, Properties 8 and 9. In the paper's
proof of Property 9 the quadratic term lacks 1/θ, and "x_{j*+1} − η" should be x_{j*+1} − ν.

Algorithm 1 is alternating minimisation with full participation: arXiv 2002.11223, Algorithm 1 with
the inexactness (4) and Proposition 4:

    η_t     ∈ argmin over η of F̄_θ,ν(w_t, η)                       in closed form (Property 9),
    w_{t+1} with F̄_θ,ν(w_{t+1}, η_t) − min over w of F̄_θ,ν(w, η_t) ≤ ε_t,  Σ ε_t < ∞.

If the F_k are convex and smooth, F_θ,ν(w_t) falls to its minimum, and with ν = 2δθ the limit of
F_θ(w_t) is at most min F_θ + δ. The w-step is deterministic gradient descent. It stops when the gap
is certified, which requires strongly convex losses (`certified_gap`), because a gradient alone
certifies nothing where F̄ is flat.

This is a library for convex problems whose losses and gradients can be computed exactly. It is not
a strategy over devices: local training uses minibatches and returns no gradient, so nothing could
be certified. On devices, the paper runs Algorithm 2, with T_η rounds as the w-step
(`deltafl.fl.strategies.delta_fl`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.errors import check_positive
from deltafl.fl.superquantile import Values, Weights, check_sample, parse_theta

Reals: TypeAlias = npt.NDArray[np.float64]


def smooth_positive_part(rho: Reals, nu: float) -> Reals:
    """Compute g_ν: ν/2 up to 0, ρ²/(2ν) + ν/2 up to ν, then ρ. It is (ρ)₊ up to ν/2.

    Source: arXiv 2002.11223, equation (6).

    Raises:
        ValueError: ν is not a positive number.
    """
    check_positive(nu=nu)
    inside = np.clip(rho, 0.0, nu)
    # of ρ beyond ν the square counts up to ν, and the rest as it is
    values: Reals = inside * (inside / (2 * nu)) + nu / 2 + np.maximum(rho - nu, 0.0)
    return values


def smooth_step(rho: Reals, nu: float) -> Reals:
    """Compute g_ν′, in [0, 1]: 0 up to 0, ρ/ν up to ν, then 1. It is (1/ν)-Lipschitz.

    Raises:
        ValueError: ν is not a positive number.
    """
    check_positive(nu=nu)
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
    check_positive(nu=nu)
    total = sum(counts)
    return losses, np.array([count / total for count in counts])


Losses: TypeAlias = Callable[[Reals], tuple[Reals, Reals]]
"""w, float64 [d], to the losses F_k(w), float64 [N], and their gradients, float64 [N, d]."""

_SUFFICIENT_DECREASE: Final = 0.5  # share of the predicted decrease; a step of 1/L achieves it
_FIRST_STEP: Final = 1.0  # of the line search; affects only the speed


@dataclass(frozen=True, slots=True)
class Inexactness:
    """The schedule ε_t = ε_0/(t + 1)^(1 + δ′), which has a finite sum.

    Attributes:
        initial: ε_0 in nats, positive.
        decay: δ′, positive.

    Raises:
        ValueError: a number is not positive.
    """

    initial: float
    decay: float

    def __post_init__(self) -> None:
        check_positive(initial=self.initial, decay=self.decay)

    def __call__(self, t: int) -> float:
        """Compute ε_t for t ≥ 0."""
        tolerance: float = self.initial / (t + 1) ** (1 + self.decay)
        return tolerance


@dataclass(frozen=True, slots=True, eq=False)
class Iterate:
    """The state of Algorithm 1.

    Attributes:
        model: w_t, float64 [d].
        t: number of rounds done.
    """

    model: Reals
    t: int = 0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a round of Algorithm 1 did.

    Attributes:
        eta: η_t in nats.
        objective: F_θ,ν(w_t) = F̄_θ,ν(w_t, η_t), before the w-step.
        tolerance: ε_t.
        gap: the certified bound on F̄_θ,ν(w_{t+1}, η_t) − min F̄_θ,ν(·, η_t), at most ε_t.
        num_gradients: how often all devices computed a gradient.
    """

    eta: float
    objective: float
    tolerance: float
    gap: float
    num_gradients: int


@dataclass(frozen=True, slots=True)
class AlternatingMinimisation:
    """Algorithm 1 over N losses.

    Attributes:
        losses: w to all F_k(w) and ∇F_k(w); each F_k is smooth and μ-strongly convex.
        weights: positive integers in the proportion of α_k, one per loss.
        theta: the conformity level θ, in (0, 1).
        nu: ν of the smoothing, positive; 2δθ for a result within δ.
        strong_convexity: μ, positive.
        inexactness: ε_t.
        max_gradients: the budget of one w-step.

    Raises:
        ValueError: a number is out of its range.
    """

    losses: Losses
    weights: Weights
    theta: Fraction
    nu: float
    strong_convexity: float
    inexactness: Inexactness
    max_gradients: int = 100_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta", parse_theta(self.theta))
        check_positive(strong_convexity=self.strong_convexity)
        if self.max_gradients < 1:
            raise ValueError(f"max_gradients={self.max_gradients} is not at least 1")

    def init(self, model: Reals) -> Iterate:
        """Start from w_0 = `model`, float64 [d]."""
        return Iterate(model)

    def step(self, iterate: Iterate) -> tuple[Iterate, StepReport]:
        """Play one round: the η-step, then the w-step to ε_t.

        Raises:
            ValueError: a loss is not finite, or θ, ν or the weights are out of range.
            ArithmeticError: the budget did not suffice for ε_t, which may be below what float64
                resolves.
        """
        values, _ = self.losses(iterate.model)
        eta, _ = smoothed_quantile(values, self.weights, self.theta, self.nu)
        objective = smoothed_objective(values, self.weights, self.theta, self.nu, eta)
        tolerance = self.inexactness(iterate.t)
        model, gap, num_gradients = self._descend(iterate.model, eta, tolerance)
        report = StepReport(eta, objective, tolerance, gap, num_gradients)
        return Iterate(model, iterate.t + 1), report

    def certified_gap(self, model: Reals, eta: float) -> float:
        """Bound F̄_θ,ν(w, η) − min over w of F̄_θ,ν(w, η) from above.

        g_ν(ρ) is the maximum over γ ∈ [0, 1] of ργ − νγ²/2 + ν/2. With the γ_k of `model` held
        fixed, F̄ becomes a lower bound of itself that is equal to it at `model`, has the same
        gradient there, and is (μ·Σπ_k)-strongly convex, π_k = α_k·γ_k/θ. Its minimum is at least
        F̄ − ‖∇F̄‖²/(2μ·Σπ_k). Besides, F̄ is never below η + ν/(2θ), its value where all losses
        are below η.

        Args:
            model: w, float64 [d].
            eta: η in nats.
        """
        objective, gradient, mass = self._evaluate(model, eta)
        return self._gap(objective, gradient, mass, eta)

    def _gap(self, objective: float, gradient: Reals, mass: float, eta: float) -> float:
        above_floor = max(0.0, objective - eta - self.nu / (2 * float(self.theta)))
        if mass == 0:
            return above_floor
        return min(above_floor, float(gradient @ gradient) / (2 * self.strong_convexity * mass))

    def _descend(self, model: Reals, eta: float, tolerance: float) -> tuple[Reals, float, int]:
        """Gradient descent with backtracking, until the gap is certified."""
        objective, gradient, mass = self._evaluate(model, eta)
        num_gradients, step = 1, _FIRST_STEP
        while (gap := self._gap(objective, gradient, mass, eta)) > tolerance:
            if num_gradients >= self.max_gradients:
                raise ArithmeticError(
                    f"{num_gradients} gradients left a gap of {gap} above the tolerance "
                    f"{tolerance}: raise max_gradients or the tolerance"
                )
            trial = model - step * gradient
            reached = self._evaluate(trial, eta)
            num_gradients += 1
            promised = _SUFFICIENT_DECREASE * step * float(gradient @ gradient)
            if reached[0] <= objective - promised:
                model, (objective, gradient, mass) = trial, reached
                step *= 2
            else:
                step /= 2
        return model, gap, num_gradients

    def _evaluate(self, model: Reals, eta: float) -> tuple[float, Reals, float]:
        """F̄_θ,ν(w, η), its gradient in w, and Σ π_k; infinite where a loss overflows."""
        values, gradients = self.losses(model)
        if not np.isfinite(values).all():
            return math.inf, np.zeros_like(model), 0.0
        mixture = smoothed_weights(values, self.weights, self.theta, self.nu, eta)
        objective = smoothed_objective(values, self.weights, self.theta, self.nu, eta)
        return objective, mixture @ gradients, float(mixture.sum())
