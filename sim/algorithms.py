"""The one place that knows algorithms by name."""

from typing import Final, Protocol

from fl.strategies.base import Strategy
from fl.strategies.delta_fl import DeltaFL
from fl.strategies.fedavg import FedAvg
from sim.config import RunConfig
from sim.errors import ConfigError
from sim.faults import Dropouts
from sim.survivors import SurvivorsOnly

PRIVATE: Final = "private-delta-fl"


class Observer(Protocol):
    """Sees every message that the server sends or receives."""

    def message(self, *, sent: bool, peer: int, data: bytes) -> None:
        """Take note of one message.

        Args:
            sent: whether the server sent it; else it received it.
            peer: the device at the other end.
            data: the message.
        """


def build_strategy(config: RunConfig, *, dropouts: Dropouts, observer: Observer) -> Strategy:
    """Build the strategy that `federation.algorithm` names.

    Args:
        config: the settings of one run.
        dropouts: who vanishes when.
        observer: told everything that passes the server in a masked run; a strategy in clear has no
            messages to show.

    Raises:
        ConfigError: the settings contradict each other or the protocol's requirements.
    """
    match config.federation.algorithm:
        case "fedavg":
            return SurvivorsOnly(FedAvg(), dropouts)
        case "delta-fl":
            return SurvivorsOnly(DeltaFL(config.federation.theta), dropouts)
        case _:
            return _private_delta_fl(config, dropouts, observer)


def _private_delta_fl(config: RunConfig, dropouts: Dropouts, observer: Observer) -> Strategy:
    raise ConfigError(
        f"federation.algorithm = {config.federation.algorithm!r} is not available: "
        f"use 'delta-fl' or 'fedavg' ({dropouts}, {observer})"
    )
