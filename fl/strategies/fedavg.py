"""FedAvg: the mean of the devices' models, weighted by their sample counts.

Source: McMahan et al., AISTATS 2017, Algorithm 1: w ← w + Σ n_k Δ_k / Σ n_k over the cohort.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fl.strategies.aggregation import add_mean_update
from fl.strategies.base import Device, RoundReport, ServerState, Visibility, check_cohort
from fl.vectors import Vector


@dataclass(frozen=True, slots=True)
class FedAvg:
    """Average everybody. Needs only sums, and asks for no losses."""

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return "fedavg"

    @property
    def server_sees(self) -> Visibility:
        """Σ n_k Δ_k and Σ n_k suffice."""
        return Visibility.SUMS

    def init(self, model: Vector, num_devices: int) -> ServerState:
        """Start from `model`; there is nothing else to remember."""
        del num_devices
        return ServerState(model)

    def apply(
        self, state: ServerState, devices: Sequence[Device]
    ) -> tuple[ServerState, RoundReport]:
        """Play one round with this cohort.

        Raises:
            ValueError: the cohort is empty.
            DivergenceError: a device's update is NaN or infinite.
        """
        check_cohort(devices)
        weights = [device.weight for device in devices]
        empty = sum(weights) == 0
        model = state.model if empty else add_mean_update(state.model, devices, weights)
        report = RoundReport(
            eta=None,
            kept_devices=len(devices),
            kept_weight=sum(weights),
            train_loss=None,
            empty=empty,
            secure_sums=1,
        )
        return ServerState(model, state.round + 1), report
