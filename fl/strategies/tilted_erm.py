"""Tilted-ERM: a device's weight grows exponentially with its loss.

Source: Li et al., ICLR 2021 ("Tilted Empirical Risk Minimization"): the objective
(1/t)·log Σ p_k·exp(t·F_k) has the gradient Σ a_k·∇F_k / Σ a_k with a_k = p_k·exp(t·F_k), so the
step is the mean of the updates with these weights, a convex combination. t → 0 is the plain mean,
t → ∞ the worst device alone.

The published code differs: it divides by a running estimate of Σ exp(t·F_k)/m over the rounds, and
once more by the number of devices, so that its steps are 1/m of a mean. Here the weights are
normalised in the round itself, and the step is a full one. A common shift of the losses cancels in
the ratio, so the devices need not agree on one; in masked rounds the unit of the weights does this.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from deltafl.fl.cohort import Local
from deltafl.fl.strategies.choices import DeviceWeights
from deltafl.fl.strategies.weighted_mean import Share, WeightedMean


@dataclass(frozen=True, slots=True)
class TiltedERM(WeightedMean):
    """A softmax of the losses as weights.

    Attributes:
        tilt: t in 1/nats, not negative; 0 weighs all devices equally.
        weighting: p_k: the same for every device, as in the published code and in the workshop
            paper's objective, or n_k.

    Raises:
        ValueError: t is negative, NaN or infinite.
    """

    name: ClassVar[str] = "tilted-erm"
    """The name in configurations and tables."""

    has_whole_weights: ClassVar[bool] = False
    """They are real numbers."""

    asks_losses: ClassVar[bool] = True
    """F_k is in the weight."""

    tilt: float
    weighting: DeviceWeights = DeviceWeights.UNIFORM

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tilt) and self.tilt >= 0):
            raise ValueError(f"tilt={self.tilt} is not a non-negative number")

    def share(self, own: Local, round_index: int) -> Share:
        """a_k = p_k·exp(t·F_k), u_k = Δ_k."""
        del round_index
        prior = own.num_samples if self.weighting is DeviceWeights.SAMPLES else 1
        return Share(prior, log_scale=self.tilt * own.loss())
