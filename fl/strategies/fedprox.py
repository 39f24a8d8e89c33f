"""FedProx: FedAvg with a proximal term that pulls devices towards the model they received.

Source: Li et al., MLSys 2020 ("Federated Optimization in Heterogeneous Networks"), equation (2):
each device minimises F_k(w) + (μ/2)·‖w − w_t‖², the norm squared, by local SGD. The mean is that of
FedAvg, weighted by n_k.
"""

from dataclasses import dataclass

from deltafl.fl.objectives import LocalObjective
from deltafl.fl.strategies.weighted_mean import WeightedMean


@dataclass(frozen=True, slots=True)
class FedProx(WeightedMean):
    """FedAvg with a proximal term; μ = 0 is FedAvg, bit for bit.

    Attributes:
        proximal: μ, not negative.

    Raises:
        ValueError: μ is negative, NaN or infinite.
    """

    proximal: float

    def __post_init__(self) -> None:
        LocalObjective(proximal=self.proximal)  # raises if μ is out of its range

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return "fedprox"

    @property
    def objective(self) -> LocalObjective:
        """The loss and the proximal term."""
        return LocalObjective(proximal=self.proximal)
