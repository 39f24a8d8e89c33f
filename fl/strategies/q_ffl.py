"""q-FFL by q-FedAvg: losses raised to a power, with a step size adapted to it.

Source: Li et al., ICLR 2020 ("Fair Resource Allocation in Federated Learning"), Algorithm 2. The
objective is Σ p_k·F_k^(q+1)/(q+1). With L = 1/γ and Δ_k = w_k − w_t the step is

    w ← w + Σ F_k^q·L·Δ_k / Σ h_k,    h_k = q·F_k^(q−1)·‖L·Δ_k‖² + L·F_k^q

where F_k is the loss of the global model, before training. As a weighted mean: a_k = h_k and
u_k = F_k^q·L·Δ_k / h_k. Both are divided by F_k^q, which goes into the weight's logarithm:

    a_k = (L + q·‖L·Δ_k‖²/F_k)·F_k^q,    u_k = L·Δ_k / (L + q·‖L·Δ_k‖²/F_k)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from deltafl.fl.cohort import Local
from deltafl.fl.strategies.choices import DeviceWeights
from deltafl.fl.strategies.weighted_mean import Share, WeightedMean

LOSS_GUARD: Final = 1e-10
"""Added to every loss, as in the published code: a loss of 0 has no logarithm."""


@dataclass(frozen=True, slots=True)
class QFFL(WeightedMean):
    """q-FedAvg; q = 0 is the plain mean.

    Attributes:
        q: the power, not negative.
        learning_rate: from the round, counted from 0, to the learning rate γ of the devices'
            training in it, such as `StepDecay.rate`; 1/γ replaces the gradients' Lipschitz
            constant.
        weighting: p_k: the same for every device, as in the algorithm, whose cohorts are drawn
            with probabilities p_k, and in the workshop paper's objective; or n_k.

    Raises:
        ValueError: q is negative, NaN or infinite.
    """

    name: ClassVar[str] = "q-ffl"
    """The name in configurations and tables."""

    has_whole_weights: ClassVar[bool] = False
    """They are real numbers."""

    asks_losses: ClassVar[bool] = True
    """F_k is in the weight."""

    q: float
    learning_rate: Callable[[int], float]
    weighting: DeviceWeights = DeviceWeights.UNIFORM

    def __post_init__(self) -> None:
        if not (math.isfinite(self.q) and self.q >= 0):
            raise ValueError(f"q={self.q} is not a non-negative number")

    def share(self, own: Local, round_index: int) -> Share:
        """a_k = p_k·h_k, u_k = F_k^q·L·Δ_k / h_k.

        Raises:
            ValueError: the round's learning rate is not a positive number.
            DivergenceError: the loss or the update is NaN or infinite.
        """
        rate = self.learning_rate(round_index)
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(
                f"learning_rate={rate} of round {round_index} is not a positive number"
            )
        lipschitz = 1 / rate
        loss = max(own.loss(), 0.0) + LOSS_GUARD
        curvature = lipschitz + self.q * lipschitz**2 * own.squared_norm() / loss
        prior = own.num_samples if self.weighting is DeviceWeights.SAMPLES else 1
        return Share(prior * curvature, self.q * math.log(loss), lipschitz / curvature)
