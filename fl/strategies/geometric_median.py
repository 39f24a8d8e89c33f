"""RFA: the geometric median of the devices' updates in place of their mean.

The mean follows any device as far as it goes. The geometric median is the point with the smallest
weighted sum of distances to all updates. It hardly moves while devices that train falsely have less
than half of the weight, and compute their factors as everybody does. Weiszfeld's algorithm finds it
by weighted means alone, so secure sums suffice. What these tell is another matter:
docs/limitations.md.

    v_1 = Σ n_k·Δ_k / Σ n_k
    v_{r+1} = Σ n_k·b_k·Δ_k / Σ n_k·b_k    with b_k = ν / max(ν, ‖Δ_k − v_r‖)

A device computes b_k itself, in whole multiples of 2^-16 and at least one of them
(`deltafl.protocol.robust`). A step by this rule is the same whether the server sees updates or
sums, up to the rounding of the sums.

The smoothing ν keeps weights bounded near the centre. It should be of the size of the distances:
far above, all devices weigh the same, and so far below that all factors are the least, they do,
too. Both are the mean. No setting knows that size, and it falls as training goes on. So ν follows
the mean factor of the last round, Σ n_k·b_k / Σ n_k, which the sums reveal: it is set so that this
mean would have been a half. However far away an update is, it pulls a pass by no more than n_k·ν.

Source: Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions
on Signal Processing 2022, algorithm 2; floor, rounding and the choice of ν are ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.strategies.aggregation import mean_of
from deltafl.fl.strategies.base import Memory, TrainingState
from deltafl.fl.vectors import Vector
from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.robust import FACTOR_BITS, factor
from deltafl.protocol.round import RoundOutcome

SMOOTHING: Final = "robust.smoothing"
"""What is remembered after a round, of shape (1,): ν of the next one."""

_FULL: Final = 1 << FACTOR_BITS
_MEAN_FACTOR: Final = 0.5
_UNKNOWN_ABOVE: Final = 0.9
_LEAP: Final = 8.0
_RANGE: Final = (2.0**-40, 2.0**40)


@dataclass(frozen=True, slots=True)
class Robustly:
    """How updates are averaged robustly.

    Attributes:
        passes: sums of a round's updates, at least 2; the first is the mean.
        smoothing: ν of the first round, in units of the model's parameters, positive.

    Raises:
        ValueError: there are fewer than 2 passes, or ν is not positive and finite.
    """

    passes: int = 3
    smoothing: float = 1.0

    def __post_init__(self) -> None:
        if self.passes < 2:
            raise ValueError(f"passes={self.passes} is not at least 2: one pass is the mean")
        if not (math.isfinite(self.smoothing) and self.smoothing > 0):
            raise ValueError(f"smoothing={self.smoothing} is not a positive number")

    @property
    def sums(self) -> int:
        """A sum for each pass."""
        return self.passes

    def step(
        self, state: TrainingState, contributions: Sequence[tuple[int, Vector]]
    ) -> tuple[Vector, Memory]:
        """See `deltafl.fl.strategies.robust`."""
        smoothing = self.smoothing_of(state)
        model, share = robust_step(state.model, contributions, self.passes, smoothing)
        return model, self.learnt(smoothing, share)

    def params(self, update: UpdateParams, state: TrainingState) -> UpdateParams:
        """See `deltafl.fl.strategies.robust`."""
        return replace(update, passes=self.passes, smoothing=self.smoothing_of(state))

    def remembered(self, update: UpdateParams, outcome: RoundOutcome) -> Memory:
        """See `deltafl.fl.strategies.robust`."""
        return self.learnt(update.smoothing, outcome.mean_factor)

    def smoothing_of(self, state: TrainingState) -> float:
        """ν of the next round."""
        if SMOOTHING in state.memory:
            return float(state.memory[SMOOTHING][0])
        return self.smoothing

    def learnt(self, smoothing: float, mean_factor: float | None) -> Memory:
        """What to remember of a round.

        Args:
            smoothing: its ν.
            mean_factor: Σ n_k·b_k / Σ n_k of its last pass, in (0, 1]; None if there was none.
        """
        following = smoothing if mean_factor is None else next_smoothing(smoothing, mean_factor)
        return {SMOOTHING: np.array([following], dtype=np.float64)}


def next_smoothing(smoothing: float, mean_factor: float) -> float:
    """ν under which the mean factor of a round would have been about a half.

    Where nearly all devices had the full weight, the factors do not tell the distances: ν leaps.
    It grows no faster than that, either.

    >>> next_smoothing(1.0, 0.25), next_smoothing(1.0, 1.0)
    (2.0, 0.125)
    """
    change = min(_MEAN_FACTOR / mean_factor, _LEAP)
    if mean_factor > _UNKNOWN_ABOVE:
        change = 1 / _LEAP
    return min(max(smoothing * change, _RANGE[0]), _RANGE[1])


def robust_step(
    model: Vector,
    contributions: Sequence[tuple[int, Vector]],
    passes: int,
    smoothing: float,
) -> tuple[Vector, float]:
    """Add the geometric median of updates, in as many passes.

    Each mean is summed in float64, in order; centres are float32, as they are announced.

    Args:
        model: w.
        contributions: weight n_k and Δ_k of every device.
        passes: at least 2.
        smoothing: ν.

    Returns:
        w + v, and the mean factor of the last pass.

    Raises:
        ValueError: no weight is positive.
    """
    weights = [weight for weight, _ in contributions]
    found = mean_of(model.shape, ((w, 1.0, update) for w, update in contributions))
    share = 1.0
    for _ in range(passes - 1):
        centre: npt.NDArray[np.float32] = found.astype(np.float32)
        factors = [factor(update, centre, smoothing) for _, update in contributions]
        weighed = [weight * one for weight, one in zip(weights, factors, strict=True)]
        found = mean_of(
            model.shape,
            (
                (weight, 1.0, update)
                for weight, (_, update) in zip(weighed, contributions, strict=True)
            ),
        )
        share = sum(weighed) / (_FULL * sum(weights))
    stepped: Vector = (model + found).astype(np.float32)
    return stepped, share
