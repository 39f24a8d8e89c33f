"""FedMGDA+: a common descent direction of the devices, independent of their sizes.

Source: Hu et al., 2020 (arXiv 2006.11489), FedMGDA+: the updates are normalised,
ĝ_k = Δ_k/‖Δ_k‖₂, and mixed with

    λ* = argmin ‖Σ λ_k ĝ_k‖²  over λ in the simplex with |λ_k − 1/m| ≤ ε;   w ← w + Σ λ*_k ĝ_k.

Every update then has norm one, whatever the local learning rate: the server's learning rate
determines the step size. ε = 0 gives the mean of the directions, ε = 1 the minimum-norm point of
their convex hull (MGDA), which makes no device worse to first order. The equal mixture satisfies
the limits, so there is always a solution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from deltafl.fl.cohort import Cohort, check_cohort
from deltafl.fl.simplex import Reals, minimise_quadratic
from deltafl.fl.strategies.aggregation import finite_updates, report_mixture
from deltafl.fl.strategies.base import (
    RoundReport,
    Strategy,
    TrainingState,
    Visibility,
)
from deltafl.fl.vectors import Vector

_BLOCK: Final = 65536  # parameters; bounds memory


@dataclass(frozen=True, slots=True)
class FedMGDA(Strategy):
    """Step along the shortest mixture of the devices' directions. Sample counts are not used.

    Attributes:
        epsilon: ε in [0, 1], how far a weight may be from 1/m.

    Raises:
        ValueError: ε is not in [0, 1].
    """

    name: ClassVar[str] = "fedmgda"
    """The name in configurations and tables."""

    server_sees: ClassVar[Visibility] = Visibility.UPDATES
    """Each device's update: their inner products decide the mixture."""

    epsilon: float

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon={self.epsilon} is not in [0, 1]")

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Run one round with this cohort. An update that is zero stays zero.

        Raises:
            ValueError: the cohort is empty.
            DivergenceError: a device's update is NaN or infinite.
        """
        check_cohort(cohort)
        updates = list(finite_updates(cohort, state.model, cohort.weights))
        products = inner_products(updates)
        norms = np.sqrt(np.diag(products))
        inverse_norms = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
        mixture = self.mix(inverse_norms[:, None] * products * inverse_norms)
        total = state.model.astype(np.float64)
        for factor, update in zip(mixture * inverse_norms, updates, strict=True):
            total += factor * update
        model: Vector = total.astype(np.float32)
        report = report_mixture(cohort, mixture, None)
        return TrainingState(model, state.round + 1), report

    def mix(self, products: Reals) -> Reals:
        """Find λ*.

        Args:
            products: ⟨ĝ_j, ĝ_k⟩, float64 [m, m].

        Returns:
            float64 [m], a mixture.
        """
        equal = 1 / len(products)
        return minimise_quadratic(
            products,
            np.zeros(len(products)),
            lower=max(0.0, equal - self.epsilon),
            upper=min(1.0, equal + self.epsilon),
        )


def inner_products(updates: Sequence[Vector]) -> Reals:
    """Compute ⟨Δ_j, Δ_k⟩ in float64, [m, m], without holding all updates in float64 at once."""
    products = np.zeros((len(updates), len(updates)))
    for start in range(0, updates[0].size, _BLOCK):
        block = np.stack([update[start : start + _BLOCK] for update in updates]).astype(np.float64)
        products += block @ block.T
    return products
