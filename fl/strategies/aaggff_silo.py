"""AAggFF-S: the server learns the mixture of its devices by online Newton steps.

Source: arXiv 2405.20821, equations (4) and (7), Section 4.2.1, Appendices A.3 and B.2. In a round
all K devices take part. Their losses become responses r ∈ [0, 1/K]ᴷ
(`deltafl.fl.strategies.responses`), the server suffers ℓ(p, r) = −log(1 + ⟨p, r⟩) with gradient g =
−r/(1 + ⟨p, r⟩), and sets

    p ← argmin over the simplex of Σ_τ ⟨g_τ, p⟩ + (α/2)·‖p‖² + (β/2)·Σ_τ ⟨g_τ, p − p_τ⟩²,

α = 4KL and β = 1/(4L), where L = 1/K bounds the gradient. The updates of the same round, in which
the losses were measured, are weighted by the new p: w ← w + Σ p_k Δ_k.

The memory holds the quadratic's coefficients: G = Σ g_τ g_τᵀ and h = Σ g_τ·(1 − β⟨g_τ, p_τ⟩).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from deltafl.fl.cohort import Cohort, check_cohort
from deltafl.fl.simplex import Reals, minimise_quadratic
from deltafl.fl.strategies.base import RoundReport, TrainingState, Visibility
from deltafl.fl.strategies.choices import Response
from deltafl.fl.strategies.mixture import measure_losses, report_mixture, step_by_mixture
from deltafl.fl.strategies.responses import respond
from deltafl.fl.vectors import Vector

DECISION: Final = "decision"
"""p in the memory: float64 [K], 1/K before the first round."""

CURVATURE: Final = "curvature"
"""G in the memory: float64 [K, K]."""

LINEAR: Final = "linear"
"""h in the memory: float64 [K]."""


@dataclass(frozen=True, slots=True)
class AAggFFSilo:
    """AAggFF-S, for few devices that take part in every round. Sample counts are not used.

    Attributes:
        response: the distribution function that maps losses to responses.
    """

    response: Response

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return "aaggff-s"

    @property
    def server_sees(self) -> Visibility:
        """Each device's loss; the server knows p, so the updates could be summed securely."""
        return Visibility.LOSSES

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
