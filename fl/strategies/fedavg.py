"""FedAvg: the mean of the devices' models, weighted by their sample counts.

Source: McMahan et al., AISTATS 2017, Algorithm 1: w ← w + Σ n_k Δ_k / Σ n_k over the cohort.
"""

from dataclasses import dataclass

from deltafl.fl.strategies.weighted_mean import WeightedMean


@dataclass(frozen=True, slots=True)
class FedAvg(WeightedMean):
    """Average all devices. Needs only sums, and no losses."""

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return "fedavg"
