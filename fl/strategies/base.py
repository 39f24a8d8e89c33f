"""What a federated strategy is: one server round over a cohort of devices.

A strategy is two pure functions, `init` and `apply`: it draws no randomness and keeps nothing
between rounds but what is in the server's state. What the server would have to see to run it is
part of its definition (`Visibility`), so that a claim of privacy can be checked against it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from deltafl.fl.objectives import PLAIN, LocalObjective
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


class Device(Protocol):
    """One device of the cohort, as a strategy talks to it."""

    @property
    def id(self) -> int:
        """Who it is, in 0..num_devices − 1 of the population; unique in the cohort."""

    @property
    def weight(self) -> int:
        """The aggregation weight n_k: its number of training samples."""

    def loss(self, model: Vector) -> float:
        """Evaluate F_k(model): the mean training loss in nats."""

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        """Train locally from `model`; the difference Δ_k = w_k − model.

        Args:
            model: the model to start from.
            objective: what to minimise.
        """


@runtime_checkable
class WorksAhead(Protocol):
    """A device that can be told what it will be asked, before the answer is needed.

    What many devices are told together may be worked on together, or meanwhile; the answers are the
    same. `expect_losses` and `expect_updates` tell a cohort.
    """

    def expect_loss(self, model: Vector) -> None:
        """`loss` of this model will be asked for."""

    def expect_update(self, model: Vector, objective: LocalObjective = PLAIN) -> None:
        """`update` with these arguments will be asked for."""


def expect_losses(devices: Iterable[Device], model: Vector) -> None:
    """Tell devices that they will be asked for their losses."""
    for device in devices:
        if isinstance(device, WorksAhead):
            device.expect_loss(model)


def expect_updates(
    devices: Iterable[Device], model: Vector, objective: LocalObjective = PLAIN
) -> None:
    """Tell devices that they will be asked for their updates."""
    for device in devices:
        if isinstance(device, WorksAhead):
            device.expect_update(model, objective)


@dataclass(frozen=True, slots=True, eq=False)
class ServerState:
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

    def init(self, model: Vector, num_devices: int) -> ServerState:
        """Make the state before the first round.

        Args:
            model: the initial model.
            num_devices: how many training devices there are, K; their ids are 0..K − 1.
        """

    def apply(
        self, state: ServerState, devices: Sequence[Device]
    ) -> tuple[ServerState, RoundReport]:
        """Play one round with this cohort.

        Raises:
            ValueError: the cohort is empty, or not one that the strategy can play with.
            DivergenceError: a device's loss or update is NaN or infinite.
        """


def check_cohort(devices: Sequence[Device]) -> None:
    """Check that a round can be played with `devices`.

    Raises:
        ValueError: nobody is there, an id appears twice, or a weight is negative.
    """
    if not devices:
        raise ValueError("the cohort is empty: pass at least one device")
    ids = [device.id for device in devices]
    if len(set(ids)) != len(ids):
        raise ValueError(f"device ids {ids} are not unique: a device counts once in a cohort")
    for device in devices:
        if device.weight < 0:
            raise ValueError(f"weight={device.weight} of device {device.id} is negative")
