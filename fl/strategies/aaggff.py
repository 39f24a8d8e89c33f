"""AAggFF: the server learns the mixture of its devices online, from responses to their losses.

Source: arXiv 2405.20821. How losses become responses: Definition 4.2 (equation 8) and Appendix B.1.
A loss is divided by the mean loss of the round, z_k = F_k/F̄, so that z is 1 on average, and a
distribution function maps z to [0, 1]. All scales are 1; the shape of Weibull is 2, and the
location of Normal, Gumbel and Logistic is 1.

AAggFF-S, by online Newton steps: equations (4) and (7), Section 4.2.1, Appendices A.3 and B.2. In a
round all K devices take part. Their losses become responses r ∈ [0, 1/K]ᴷ, the server suffers
ℓ(p, r) = −log(1 + ⟨p, r⟩) with gradient g = −r/(1 + ⟨p, r⟩), and sets

    p ← argmin over the simplex of Σ_τ ⟨g_τ, p⟩ + (α/2)·‖p‖² + (β/2)·Σ_τ ⟨g_τ, p − p_τ⟩²,

α = 4KL and β = 1/(4L), where L = 1/K bounds the gradient. The updates of the same round, in which
the losses were measured, are weighted by the new p: w ← w + Σ p_k Δ_k.

The memory holds the quadratic's coefficients: G = Σ g_τ g_τᵀ and h = Σ g_τ·(1 − β⟨g_τ, p_τ⟩).

AAggFF-D, for many devices: equations (9) to (11) and (95), Section 4.2.2, Remark 4.5, Appendix B.2.
C = m/K is the share of the devices that take part. Their losses become responses r ∈ [0, C] with
mean r̄, and the doubly robust estimate fills in the rest:

    r̆_k = r̄ + (1/C)·(r_k − r̄) if k takes part, else r̄.

The gradient of −log(1 + ⟨p, r⟩) is linearised in r at r₀ = r̄·1, because a linear map commutes with
the mean:

    ğ = −r̆/(1 + ⟨p, r₀⟩) + r₀·⟨p, r̆ − r₀⟩/(1 + ⟨p, r₀⟩)²,

and after t rounds follow-the-regularised-leader with entropy regularisation gives

    p_k ∝ exp(−√(ln K)/(L·√(t + 1)) · Σ_τ ğ_{τ,k}),   L = 2 + C.

The updates of the same round are weighted by the new p, renormalised over the devices that take
part.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
from scipy.special import expit, ndtr, softmax

from deltafl.fl.cohort import Cohort, check_cohort
from deltafl.fl.simplex import Reals, minimise_quadratic
from deltafl.fl.strategies.aggregation import (
    ids_in_population,
    measure_losses,
    report_mixture,
    step_by_mixture,
)
from deltafl.fl.strategies.base import RoundReport, TrainingState, Visibility
from deltafl.fl.strategies.choices import Response
from deltafl.fl.vectors import Vector

DECISION: Final = "decision"
"""p in the memory: float64 [K], 1/K before the first round."""

CURVATURE: Final = "curvature"
"""G in the memory: float64 [K, K]."""

LINEAR: Final = "linear"
"""h in the memory: float64 [K]."""

GRADIENT_SUM: Final = "gradient_sum"
"""Σ ğ_τ in the memory: float64 [K]."""


def _frechet(z: Reals) -> Reals:
    with np.errstate(divide="ignore", over="ignore"):
        values: Reals = np.exp(-1 / z)  # 0 where 1/z is infinite
    return values


_DISTRIBUTION: Final[Mapping[Response, Callable[[Reals], Reals]]] = MappingProxyType(
    {
        Response.WEIBULL: lambda z: -np.expm1(-(z**2)),
        Response.EXPONENTIAL: lambda z: -np.expm1(-z),
        Response.FRECHET: _frechet,
        Response.NORMAL: lambda z: ndtr(z - 1),
        Response.GUMBEL: lambda z: np.exp(-np.exp(1 - z)),
        Response.LOGISTIC: lambda z: expit(z - 1),
    }
)


def respond(losses: Sequence[float], response: Response) -> Reals:
    """Transform the losses of one round, before any scaling.

    Args:
        losses: F_k in nats, at least one, finite and not negative. All zero counts as all equal.
        response: the distribution function.

    Returns:
        float64 [m] in [0, 1], in the order of the losses.

    Raises:
        ValueError: no losses, or one that is negative or not finite.

    >>> respond([0.01, 0.10, 0.02], Response.WEIBULL).round(2)
    array([0.05, 1.  , 0.19])
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.size == 0 or not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(f"losses {list(losses)}: pass finite, non-negative numbers, at least one")
    mean = float(values.mean())
    ratios = values / mean if mean > 0 else np.ones_like(values)
    return _DISTRIBUTION[response](ratios)


@dataclass(frozen=True, slots=True)
class AAggFFSilo:
    """AAggFF-S, for few devices that take part in every round. Sample counts are not used.

    Attributes:
        response: the distribution function that maps losses to responses.
    """

    name: ClassVar[str] = "aaggff-s"
    """The name in configurations and tables."""

    server_sees: ClassVar[Visibility] = Visibility.LOSSES
    """Each device's loss; the server knows p, so the updates could be summed securely."""

    response: Response

    def init(self, model: Vector, num_devices: int) -> TrainingState:
        """Start from `model` with equal weights."""
        memory = {
            DECISION: np.full(num_devices, 1 / num_devices),
            CURVATURE: np.zeros((num_devices, num_devices)),
            LINEAR: np.zeros(num_devices),
        }
        return TrainingState(model, memory=memory)

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Run one round with all devices.

        Raises:
            ValueError: the cohort is not the whole population, or a loss is negative.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        check_cohort(cohort)
        num_devices = state.memory[DECISION].size
        size = len(cohort.weights)
        if list(cohort.weights) != list(range(num_devices)):
            raise ValueError(
                f"a cohort of {size}: AAggFF-S plays with all {num_devices} devices in every "
                "round; with a sample of them use AAggFF-D"
            )
        losses = measure_losses(cohort, state.model)
        responses = respond(losses, self.response) / num_devices
        memory = newton_step(
            responses, state.memory[DECISION], state.memory[CURVATURE], state.memory[LINEAR]
        )
        mixture = memory[DECISION]
        model = step_by_mixture(state.model, cohort, mixture)
        report = report_mixture(cohort, mixture, losses)
        return TrainingState(model, state.round + 1, memory=memory), report


def newton_step(
    responses: Reals, decision: Reals, curvature: Reals, linear: Reals
) -> dict[str, Reals]:
    """Update the memory with one round's responses.

    Args:
        responses: r, float64 [K], in [0, 1/K].
        decision: p_τ, the decision before this round, float64 [K].
        curvature: G over the previous rounds, float64 [K, K].
        linear: h over the previous rounds, float64 [K].

    Returns:
        The new memory: decision, curvature and linear.
    """
    lipschitz = 1 / responses.size
    alpha, beta = 4 * responses.size * lipschitz, 1 / (4 * lipschitz)
    gradient = -responses / (1 + decision @ responses)
    curvature = curvature + np.outer(gradient, gradient)
    linear = linear + gradient * (1 - beta * (gradient @ decision))
    ridge = alpha * np.eye(responses.size)
    decided = minimise_quadratic(ridge + beta * curvature, linear)
    return {DECISION: decided, CURVATURE: curvature, LINEAR: linear}


@dataclass(frozen=True, slots=True)
class AAggFFDevice:
    """AAggFF-D, for many devices of which few take part per round. Sample counts are not used.

    Attributes:
        response: the distribution function that maps losses to responses.
    """

    name: ClassVar[str] = "aaggff-d"
    """The name in configurations and tables."""

    server_sees: ClassVar[Visibility] = Visibility.LOSSES
    """Each device's loss; the server knows p, so the updates could be summed securely."""

    response: Response

    def init(self, model: Vector, num_devices: int) -> TrainingState:
        """Start from `model` with equal weights."""
        memory = {
            DECISION: np.full(num_devices, 1 / num_devices),
            GRADIENT_SUM: np.zeros(num_devices),
        }
        return TrainingState(model, memory=memory)

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Run one round with this cohort.

        Raises:
            ValueError: the cohort is empty, an id is not in 0..K − 1, or a loss is negative.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        check_cohort(cohort)
        decision = state.memory[DECISION]
        num_devices = decision.size
        ids = ids_in_population(cohort, num_devices)
        losses = measure_losses(cohort, state.model)
        share = len(cohort.weights) / num_devices
        observed = share * respond(losses, self.response)
        estimate = doubly_robust(observed, ids, num_devices)
        gradient = linearised_gradient(decision, estimate, float(observed.mean()))
        total = state.memory[GRADIENT_SUM] + gradient
        lipschitz = 2 + share
        step = math.sqrt(math.log(num_devices)) / (lipschitz * math.sqrt(state.round + 2))
        decided: Reals = softmax(-step * total)
        mixture: Reals = softmax(-step * total[ids])  # p, renormalised over the cohort
        model = step_by_mixture(state.model, cohort, mixture)
        memory = {DECISION: decided, GRADIENT_SUM: total}
        report = report_mixture(cohort, mixture, losses)
        return TrainingState(model, state.round + 1, memory=memory), report


def doubly_robust(observed: Reals, ids: Sequence[int], num_devices: int) -> Reals:
    """Estimate the responses of all devices from those of a uniformly sampled cohort.

    The estimate is unbiased if the imputed mean is considered fixed (Lemma 4.3). Because the mean
    comes from the same cohort of m devices, the expected differences from the mean are the true
    ones times (1 − 1/m)·K/(K − 1).
    Source: equation (10), with the mean of the observed responses as imputation.

    Args:
        observed: r_k of the cohort, float64 [m].
        ids: which devices these are.
        num_devices: K.

    Returns:
        r̆, float64 [K].
    """
    mean = float(observed.mean())
    estimate = np.full(num_devices, mean)
    estimate[ids] += (observed - mean) * (num_devices / observed.size)
    return estimate


def linearised_gradient(decision: Reals, response: Reals, reference: float) -> Reals:
    """Compute the gradient of −log(1 + ⟨p, r⟩) in p, linearised in r at r₀ = reference·1.

    Source: equation (11). The second term is the same for all devices, so it does not change the
    decisions, which are a softmax of these gradients.

    Args:
        decision: p, float64 [K], a mixture.
        response: r, float64 [K].
        reference: the value of each entry of r₀.

    Returns:
        float64 [K].
    """
    growth = 1 + reference * float(decision.sum())
    slope = float(decision @ (response - reference))
    gradient: Reals = -response / growth + reference * slope / growth**2
    return gradient
