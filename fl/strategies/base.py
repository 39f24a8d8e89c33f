"""The interface of a federated strategy: one server round over a cohort of devices.

A strategy consists of two pure functions, `init` and `apply`: it draws no random numbers and keeps
nothing between rounds except the server's state. Its definition includes what the server must see
of a device (`Visibility`), so that privacy claims can be checked against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.cohort import Cohort
from deltafl.fl.vectors import Vector

Memory: TypeAlias = Mapping[str, npt.NDArray[np.float64]]
"""What a strategy remembers, by name; a checkpoint holds it."""


def under(prefix: str, memory: Memory) -> Memory:
    """What is remembered under names that begin so, by the rest of the name."""
    return {
        name.removeprefix(prefix): remembered
        for name, remembered in memory.items()
        if name.startswith(prefix)
    }


class Visibility(StrEnum):
    """The most revealing thing that the server sees of one device."""

    SUMS = "sums"
    """Only sums over the cohort: the strategy can run under secure aggregation."""

    LOSSES = "losses"
    """Each device's loss in clear; updates may still be summed securely."""

    UPDATES = "updates"
    """Each device's update in clear."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """Everything that the server keeps from one round to the next.

    Attributes:
        model: the global model w.
        round: number of rounds done; 0 before the first.
        eta: the last round's loss threshold η, from which a search may start; None before the
            first.
        memory: further values that the strategy remembers; usually empty.
    """

    model: Vector
    round: int = 0
    eta: float | None = None
    memory: Memory = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What the server learnt in a round, in addition to the new model.

    Attributes:
        eta: the loss threshold η of the filter; None for a strategy without one.
        kept_devices: number of devices that were aggregated; None if the server cannot know it.
        kept_weight: Σ n_k over them.
        train_loss: Σ n_k F_k(w_t) / Σ n_k over them, before training, in nats; None for a strategy
            that asks for no losses, and in an empty round.
        empty: whether no device had any weight, so that the model is unchanged.
        secure_sums: number of sums over the cohort that this round needs when run securely.
    """

    eta: float | None = None
    kept_devices: int | None
    kept_weight: int
    train_loss: float | None = None
    empty: bool = False
    secure_sums: int = 1


class Strategy(Protocol):
    """One of the papers' algorithms."""

    @property
    def name(self) -> str:
        """The name in configurations and tables."""

    @property
    def server_sees(self) -> Visibility:
        """What the server must see of a device to run the strategy."""

    def init(self, model: Vector, num_devices: int) -> TrainingState:
        """Create the state before the first round; by default, nothing else is remembered.

        Args:
            model: the initial model.
            num_devices: the number of training devices, K; their ids are 0..K − 1.
        """
        del num_devices
        return TrainingState(model)

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Run one round with this cohort.

        Raises:
            ValueError: the cohort is empty, or the strategy cannot work with it.
            DivergenceError: a device's loss or update is NaN or infinite.
        """


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A strategy made of another, with its name, its visibility and its first state.

    Attributes:
        strategy: the other one.
    """

    strategy: Strategy

    @property
    def name(self) -> str:
        """The wrapped strategy's name."""
        return self.strategy.name

    @property
    def server_sees(self) -> Visibility:
        """What the wrapped strategy shows."""
        return self.strategy.server_sees

    def init(self, model: Vector, num_devices: int) -> TrainingState:
        """As the wrapped strategy."""
        return self.strategy.init(model, num_devices)
