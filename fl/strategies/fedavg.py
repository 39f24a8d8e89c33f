"""FedAvg, and two methods that differ from it only in what devices minimise.

FedAvg is the mean of the devices' models, weighted by their sample counts: McMahan et al., AISTATS
2017, Algorithm 1: w ← w + Σ n_k Δ_k / Σ n_k over the cohort. The others have this mean, too.

FedProx has a proximal term that pulls devices towards the model they received. Source: Li et al.,
MLSys 2020 ("Federated Optimization in Heterogeneous Networks"), equation (2): each device minimises
F_k(w) + (μ/2)·‖w − w_t‖², the norm squared, by local SGD.

In PropFair every device maximises the logarithm of how far its loss is below a ceiling. Source:
Zhang et al., 2022 ("Proportional Fairness in Federated Learning"): the objective is
−Σ p_k·log(M − F_k), the negative log of the devices' utilities. Each device minimises
−log(1 − ℓ/M) of its minibatches, which differs by a constant; a loss close to M or above it counts
as ℓ/M (`deltafl.fl.objectives`).
"""

from dataclasses import dataclass
from typing import ClassVar

from deltafl.fl.objectives import LocalObjective
from deltafl.fl.strategies.weighted_mean import WeightedMean


@dataclass(frozen=True, slots=True)
class FedAvg(WeightedMean):
    """Average all devices. Needs only sums, and no losses."""

    name: ClassVar[str] = "fedavg"
    """The name in configurations and tables."""


@dataclass(frozen=True, slots=True)
class FedProx(WeightedMean):
    """FedAvg with a proximal term; μ = 0 is FedAvg, bit for bit.

    Attributes:
        proximal: μ, not negative.

    Raises:
        ValueError: μ is negative, NaN or infinite.
    """

    name: ClassVar[str] = "fedprox"
    """The name in configurations and tables."""

    proximal: float

    def __post_init__(self) -> None:
        LocalObjective(proximal=self.proximal)  # raises if μ is out of its range

    @property
    def objective(self) -> LocalObjective:
        """The loss and the proximal term."""
        return LocalObjective(proximal=self.proximal)


@dataclass(frozen=True, slots=True)
class PropFair(WeightedMean):
    """FedAvg over the logarithms of utilities.

    Attributes:
        ceiling: M in nats, positive; larger than every loss that matters.

    Raises:
        ValueError: M is not positive.
    """

    name: ClassVar[str] = "propfair"
    """The name in configurations and tables."""

    ceiling: float

    def __post_init__(self) -> None:
        LocalObjective(ceiling=self.ceiling)  # raises if M is out of its range

    @property
    def objective(self) -> LocalObjective:
        """The log of the utility instead of the loss."""
        return LocalObjective(ceiling=self.ceiling)
