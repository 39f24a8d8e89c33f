"""AAggFF-D: the server learns the mixture of many devices, of which a few take part per round.

Source: arXiv 2405.20821, equations (9) to (11) and (95), Section 4.2.2, Remark 4.5, Appendix B.2.
C = m/K is the share of the devices that take part. Their losses become responses r ∈ [0, C]
(`deltafl.fl.strategies.responses`) with mean r̄, and the doubly robust estimate fills in the rest:

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import softmax

from deltafl.fl.cohort import Cohort, check_cohort
from deltafl.fl.simplex import Reals
from deltafl.fl.strategies.base import RoundReport, TrainingState, Visibility
from deltafl.fl.strategies.choices import Response
from deltafl.fl.strategies.mixture import (
    ids_in_population,
    measure_losses,
    report_mixture,
    step_by_mixture,
)
from deltafl.fl.strategies.responses import respond
from deltafl.fl.vectors import Vector

DECISION: Final = "decision"
"""p in the memory: float64 [K], 1/K before the first round."""

GRADIENT_SUM: Final = "gradient_sum"
"""Σ ğ_τ in the memory: float64 [K]."""


@dataclass(frozen=True, slots=True)
class AAggFFDevice:
    """AAggFF-D, for many devices of which few take part per round. Sample counts are not used.

    Attributes:
        response: the distribution function that maps losses to responses.
    """

    response: Response

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return "aaggff-d"

    @property
    def server_sees(self) -> Visibility:
        """Each device's loss; the server knows p, so the updates could be summed securely."""
        return Visibility.LOSSES

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
