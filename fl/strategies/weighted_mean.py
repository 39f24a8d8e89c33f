"""Strategies that are one weighted mean of what devices contribute.

    w ← w + Σ a_k·u_k / Σ a_k,    a_k ≥ 0 and u_k = step_k·Δ_k

A device works out a_k and step_k by itself, from its own number of samples, loss and update. The
server needs the two sums and nothing else, so each of these strategies runs in clear (here) and
under secure aggregation (`deltafl.fl.strategies.masked`) by the same rule, `WeightedMean.share`.

Weights such as exp(t·F_k) span more than a float64 can: they are carried as weight·exp(log_scale),
and only their ratios to the largest are ever computed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from deltafl.fl.errors import DivergenceError
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.aggregation import finite_update, step_by_mean
from deltafl.fl.strategies.base import (
    Device,
    RoundReport,
    ServerState,
    Visibility,
    check_cohort,
    expect_losses,
    expect_updates,
)
from deltafl.fl.vectors import Vector


class Local(Protocol):
    """What a device knows of itself, and weighs itself by."""

    @property
    def num_samples(self) -> int:
        """n_k, at least 1."""

    def loss(self) -> float:
        """F_k(w_t): the mean training loss before training, in nats."""

    def squared_norm(self) -> float:
        """‖Δ_k‖²: the squared Euclidean norm of the update."""


@dataclass(frozen=True, slots=True)
class Share:
    """A device's part in the mean: a_k = weight·exp(log_scale) and u_k = step·Δ_k.

    Attributes:
        weight: not negative; 0 takes no part.
        log_scale: ln of a factor that may be too large or too small for a float64.
        step: by what the update is multiplied.
    """

    weight: float
    log_scale: float = 0.0
    step: float = 1.0

    @property
    def log_weight(self) -> float:
        """Compute ln a_k, which is −∞ for no weight.

        >>> Share(2.0, log_scale=1000.0).log_weight
        1000.6931471805599
        """
        return math.log(self.weight) + self.log_scale if self.weight else -math.inf


class Participant:
    """A device in one round: it measures its loss once and trains once, and only if asked.

    Args:
        device: who it is.
        model: the global model w_t.
        objective: what it minimises.
    """

    def __init__(self, device: Device, model: Vector, objective: LocalObjective) -> None:
        self.device = device
        self.model = model
        self.measured_loss: float | None = None
        self._objective = objective
        self._update: Vector | None = None

    @property
    def num_samples(self) -> int:
        """n_k."""
        return self.device.weight

    def expect(self, *, loss: bool) -> None:
        """Tell the device that it will be asked for its update, and for its loss if `loss`."""
        if loss:
            expect_losses([self.device], self.model)
        expect_updates([self.device], self.model, self._objective)

    def loss(self) -> float:
        """F_k(w_t), in nats.

        Raises:
            DivergenceError: it is NaN or infinite.
        """
        if self.measured_loss is None:
            loss = self.device.loss(self.model)
            if not math.isfinite(loss):
                raise DivergenceError(
                    f"the loss of device {self.device.id} is {loss}: training diverged, lower the "
                    "learning rate"
                )
            self.measured_loss = loss
        return self.measured_loss

    def squared_norm(self) -> float:
        """‖Δ_k‖², in float64.

        Raises:
            DivergenceError: the update is NaN or infinite.
        """
        self._update = self.take_update()
        exact = self._update.astype(np.float64)
        return float(exact @ exact)

    def take_update(self) -> Vector:
        """Hand over Δ_k, and keep it no longer: a cohort's updates together may be large.

        Raises:
            DivergenceError: the update is NaN or infinite.
        """
        update, self._update = self._update, None
        if update is None:
            update = finite_update(self.device, self.model, self._objective)
        return update


class WeightedMean(ABC):
    """A strategy whose step is a weighted mean; as it stands, that of FedAvg."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in configurations and tables."""

    @property
    def server_sees(self) -> Visibility:
        """Σ a_k·u_k and Σ a_k suffice."""
        return Visibility.SUMS

    @property
    def objective(self) -> LocalObjective:
        """What devices minimise."""
        return PLAIN

    @property
    def has_whole_weights(self) -> bool:
        """Whether every a_k is the number of samples, so that nothing is lost in whole numbers."""
        return True

    @property
    def asks_losses(self) -> bool:
        """Whether a device's part in the mean follows from its loss."""
        return False

    def share(self, own: Local, round_index: int) -> Share:
        """Compute a device's part in the mean, on the device.

        Args:
            own: the device; it has samples.
            round_index: the round, counted from 0.

        Raises:
            DivergenceError: its loss or update is NaN or infinite.
        """
        del round_index
        return Share(own.num_samples)

    def init(self, model: Vector, num_devices: int) -> ServerState:
        """Start from `model`; there is nothing else to remember."""
        del num_devices
        return ServerState(model)

    def apply(
        self, state: ServerState, devices: Sequence[Device]
    ) -> tuple[ServerState, RoundReport]:
        """Play one round with this cohort.

        A device without samples takes no part. The report's train_loss, where the strategy asks
        for losses, is Σ a_k·F_k / Σ a_k: the mean that sums of the same weights tell. Its
        kept_weight is Σ n_k.

        Raises:
            ValueError: the cohort is empty, or not one that can be played with.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        check_cohort(devices)
        taking_part = [
            Participant(device, state.model, self.objective) for device in devices if device.weight
        ]
        for participant in taking_part:
            participant.expect(loss=self.asks_losses)
        shares = [self.share(participant, state.round) for participant in taking_part]
        weights = relative_weights(shares)
        empty = not any(weights)
        model = state.model
        if not empty:
            model = step_by_mean(
                model,
                (
                    (weight, share.step, participant.take_update())
                    for participant, share, weight in zip(taking_part, shares, weights, strict=True)
                    if weight
                ),
            )
        report = RoundReport(
            eta=None,
            kept_devices=len(devices),
            kept_weight=sum(participant.num_samples for participant in taking_part),
            train_loss=None if empty else _mean_loss(taking_part, weights),
            empty=empty,
            secure_sums=1,
        )
        return replace(state, model=model, round=state.round + 1), report


def relative_weights(shares: Sequence[Share]) -> list[float]:
    """Compute every a_k, divided by exp of the largest log_scale that any weight has.

    >>> relative_weights([Share(3.0), Share(5.0)])
    [3.0, 5.0]
    >>> relative_weights([Share(1.0, log_scale=5000.0), Share(2.0, log_scale=5000.0), Share(0.0)])
    [1.0, 2.0, 0.0]
    """
    reference = max((share.log_scale for share in shares if share.weight), default=0.0)
    return [
        share.weight * math.exp(share.log_scale - reference) if share.weight else 0.0
        for share in shares
    ]


def _mean_loss(participants: Sequence[Participant], weights: Sequence[float]) -> float | None:
    losses = [participant.measured_loss for participant in participants]
    if any(loss is None for loss in losses):
        return None
    return float(np.average(np.array(losses, dtype=np.float64), weights=weights))
