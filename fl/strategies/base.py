"""What a federated strategy is: one server round over a cohort of devices.

A strategy is two pure functions, `init` and `apply`: it draws no randomness and keeps nothing
between rounds but what is in the server's state. What the server would have to see to run it is
part of its definition (`Visibility`), so that a claim of privacy can be checked against it.
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


class Visibility(StrEnum):
    """The most revealing thing that the server sees of one device."""

    SUMS = "sums"
    """Nothing but sums over the cohort: the strategy runs under secure aggregation."""

    LOSSES = "losses"
    """Each device's loss in clear; updates may still be summed securely."""

    UPDATES = "updates"
    """Each device's update in clear."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """All that the server carries from one round to the next.

    Attributes:
        model: the global model w.
        round: how many rounds were played; 0 before the first.
        eta: the last round's loss threshold η, which a search may start from; None before any.
        memory: what else the strategy remembers; most remember nothing.
    """

    model: Vector
    round: int = 0
    eta: float | None = None
    memory: Memory = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What the server learnt in a round, beside the new model.

    Attributes:
        eta: the loss threshold η of the filter; None for a strategy without one.
        kept_devices: how many devices were aggregated; None where the server cannot know.
        kept_weight: Σ n_k over them.
        train_loss: Σ n_k F_k(w_t) / Σ n_k over them, before training, in nats; None for a strategy
            that asks for no losses, and in an empty round.
        empty: nobody had any weight, so the model stayed as it was.
        secure_sums: how many sums over the cohort a secure run of this round takes.
    """

    eta: float | None
    kept_devices: int | None
    kept_weight: int
    train_loss: float | None
    empty: bool
    secure_sums: int


class Strategy(Protocol):
    """One of the papers' algorithms."""

    @property
    def name(self) -> str:
        """The name in configurations and tables."""

    @property
    def server_sees(self) -> Visibility:
        """What the server must see of a device to run it."""

    def init(self, model: Vector, num_devices: int) -> TrainingState:
        """Make the state before the first round.

        Args:
            model: the initial model.
            num_devices: how many training devices there are, K; their ids are 0..K − 1.
        """

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Play one round with this cohort.

        Raises:
            ValueError: the cohort is empty, or not one that the strategy can play with.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
