"""Agnostic federated learning: minimise the loss of the worst mixture of devices.

Source: Mohri et al., ICML 2019 ("Agnostic Federated Learning"), Stochastic-AFL: the game
min_w max_λ Σ λ_k F_k(w), λ in the simplex Δ. Both players step at once, from the same w_t and λ_t:

    w ← w + Σ_k λ_k Δ_k        λ ← Π_Δ(λ + γ_λ·F(w_t)),

and the result is the average of the iterates w_1, …, w_T. A run evaluates w_t itself, and keeps no
average.

In the paper all K devices take part in every round, each with one minibatch gradient: Δ_k =
−γ_w·∇F_k. That is this strategy with the whole population as cohort and one local step. Two
deviations are possible, and the paper's guarantee holds for neither. With more local steps, Δ_k is
not a gradient. With a smaller cohort, only the cohort's entries of λ change: they are projected
onto the simplex of the cohort, which gives the mixture q of the round, and the step starts from
there; the published code of AAggFF (arXiv 2405.20821) updates the cohort's entries in the same way.
An entry is then a device's weight when it last took part, and λ as a whole sums to one only if all
devices always take part.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from deltafl.fl.cohort import Cohort, check_cohort
from deltafl.fl.errors import check_positive
from deltafl.fl.simplex import project_to_simplex
from deltafl.fl.strategies.aggregation import (
    ids_in_population,
    measure_losses,
    report_mixture,
    step_by_mixture,
)
from deltafl.fl.strategies.base import RoundReport, TrainingState, Visibility
from deltafl.fl.vectors import Vector

MIXTURE: Final = "mixture"
"""λ in the memory: float64 [K], 1/K before the first round."""


@dataclass(frozen=True, slots=True)
class AFL:
    """Descent in the model, projected ascent in the mixture. Sample counts are not used.

    Attributes:
        mixture_rate: γ_λ, positive: the amount that one nat of loss adds to a weight.

    Raises:
        ValueError: γ_λ is not a positive number.
    """

    name: ClassVar[str] = "afl"
    """The name in configurations and tables."""

    server_sees: ClassVar[Visibility] = Visibility.LOSSES
    """Each device's loss; the server knows λ, so the updates could be summed securely."""

    mixture_rate: float

    def __post_init__(self) -> None:
        check_positive(mixture_rate=self.mixture_rate)

    def init(self, model: Vector, num_devices: int) -> TrainingState:
        """Start from `model` with equal weights."""
        return TrainingState(model, memory={MIXTURE: np.full(num_devices, 1 / num_devices)})

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Run one round with this cohort.

        Raises:
            ValueError: the cohort is empty, or an id is not in 0..K − 1.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        check_cohort(cohort)
        ids = ids_in_population(cohort, state.memory[MIXTURE].size)
        losses = measure_losses(cohort, state.model)
        mixture = project_to_simplex(state.memory[MIXTURE][ids])
        moved = state.memory[MIXTURE].copy()
        moved[ids] = project_to_simplex(mixture + self.mixture_rate * np.asarray(losses))
        model = step_by_mixture(state.model, cohort, mixture)
        report = report_mixture(cohort, mixture, losses)
        return TrainingState(model, state.round + 1, memory={MIXTURE: moved}), report
