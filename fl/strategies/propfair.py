"""PropFair: every device maximises the logarithm of how far its loss is below a ceiling.

Source: Zhang et al., 2022 ("Proportional Fairness in Federated Learning"): the objective is
−Σ p_k·log(M − F_k), the negative log of the devices' utilities. Each device minimises
−log(1 − ℓ/M) of its minibatches, which differs by a constant; a loss close to M or above it counts
as ℓ/M (`deltafl.fl.objectives`). The mean is that of FedAvg, weighted by n_k.
"""

from dataclasses import dataclass

from deltafl.fl.objectives import LocalObjective
from deltafl.fl.strategies.weighted_mean import WeightedMean


@dataclass(frozen=True, slots=True)
class PropFair(WeightedMean):
    """FedAvg over the logarithms of utilities.

    Attributes:
        ceiling: M in nats, positive; larger than every loss that matters.

    Raises:
        ValueError: M is not positive.
    """

    ceiling: float

    def __post_init__(self) -> None:
        LocalObjective(ceiling=self.ceiling)  # raises if M is out of its range

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return "propfair"

    @property
    def objective(self) -> LocalObjective:
        """The log of the utility instead of the loss."""
        return LocalObjective(ceiling=self.ceiling)
