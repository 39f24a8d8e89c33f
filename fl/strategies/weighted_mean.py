"""Strategies whose step is one weighted mean of the devices' contributions.

    w ← w + Σ a_k·u_k / Σ a_k,    a_k ≥ 0 and u_k = step_k·Δ_k

A device computes a_k and step_k itself, from its own number of samples, loss and update. The server
needs only the two sums, so each of these strategies runs without secure aggregation (here) and with
it (`deltafl.fl.strategies.masked`) by the same rule, `WeightedMean.share`.

Weights such as exp(t·F_k) exceed the range of float64: they are stored as weight·exp(log_scale),
and only their ratios to the largest weight are computed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from deltafl.fl.cohort import Cohort, Local, Pending, check_cohort
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.aggregation import finite_loss, finite_update, step_by_mean
from deltafl.fl.strategies.base import RoundReport, Strategy, TrainingState, Visibility
from deltafl.fl.vectors import Vector


@dataclass(frozen=True, slots=True)
class Share:
    """A device's part in the mean: a_k = weight·exp(log_scale) and u_k = step·Δ_k.

    Attributes:
        weight: not negative; a device with weight 0 does not take part.
        log_scale: ln of a factor that may be too large or too small for a float64.
        step: the factor of the update.
    """

    weight: float = field(repr=False)
    log_scale: float = field(default=0.0, repr=False)
    step: float = field(default=1.0, repr=False)

    @property
    def log_weight(self) -> float:
        """Compute ln a_k, which is −∞ for no weight.

        >>> Share(2.0, log_scale=1000.0).log_weight
        1000.6931471805599
        """
        return math.log(self.weight) + self.log_scale if self.weight else -math.inf


@dataclass(slots=True, eq=False, repr=False)
class Participant:
    """A device in one round; its loss and update are awaited once, when they are needed.

    Attributes:
        device: its id.
        num_samples: n_k.
        asked_loss: F_k(w_t), in nats; None if it is not needed.
        asked_update: Δ_k.
        shape: that of the model, and of Δ_k.
        measured_loss: F_k(w_t), once it was awaited.
    """

    device: int
    num_samples: int
    asked_loss: Pending[float] | None
    asked_update: Pending[Vector]
    shape: tuple[int, ...]
    measured_loss: float | None = None
    _update: Vector | None = None

    def loss(self) -> float:
        """F_k(w_t), in nats.

        Raises:
            DivergenceError: it is NaN or infinite.
        """
        if self.measured_loss is None:
            if self.asked_loss is None:
                raise RuntimeError("a rule that asks for no losses reads one: this is a bug")
            self.measured_loss = finite_loss(self.device, self.asked_loss)
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
        """Return Δ_k and drop it here, because a cohort's updates together may be large.

        Raises:
            DivergenceError: the update is NaN or infinite, or has another shape than the model.
        """
        update, self._update = self._update, None
        if update is None:
            return finite_update(self.device, self.asked_update, self.shape)
        return update


class WeightedMean(Strategy):
    """A strategy whose step is a weighted mean; without overrides, that of FedAvg."""

    __slots__ = ()

    name: ClassVar[str]
    """The name in configurations and tables."""

    server_sees: ClassVar[Visibility] = Visibility.SUMS
    """Σ a_k·u_k and Σ a_k suffice."""

    has_whole_weights: ClassVar[bool] = True
    """Whether every a_k is the number of samples, so that nothing is lost in whole numbers."""

    asks_losses: ClassVar[bool] = False
    """Whether a device's part in the mean follows from its loss."""

    @property
    def objective(self) -> LocalObjective:
        """What devices minimise."""
        return PLAIN

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

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Play one round with this cohort.

        A device without samples takes no part. The report's train_loss, where the strategy asks
        for losses, is Σ a_k·F_k / Σ a_k: the mean that sums of the same weights tell. Its
        kept_weight is Σ n_k.

        Raises:
            ValueError: the cohort is empty, or not one that can be played with.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        check_cohort(cohort)
        sizes = {one: size for one, size in cohort.weights.items() if size}
        losses: Sequence[Pending[float] | None] = [None] * len(sizes)
        if self.asks_losses:
            losses = cohort.reveal_losses(state.model, sizes)
        updates = cohort.reveal_updates(state.model, sizes, self.objective)
        taking_part = [
            Participant(one, size, loss, update, state.model.shape)
            for (one, size), loss, update in zip(sizes.items(), losses, updates, strict=True)
        ]
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
            kept_devices=len(cohort.weights),
            kept_weight=sum(participant.num_samples for participant in taking_part),
            train_loss=None if empty else _mean_loss(taking_part, weights),
            empty=empty,
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
