"""RFA: the geometric median of the devices' updates in place of their mean.

The mean follows any device as far as it goes. The geometric median is the point with the smallest
weighted sum of distances to all updates. It hardly moves while devices that train falsely have less
than half of the weight. Weiszfeld's algorithm finds it by weighted means alone:

    v_1 = Σ n_k·Δ_k / Σ n_k
    v_{r+1} = Σ n_k·b_k·Δ_k / Σ n_k·b_k    with b_k = ν / max(ν, ‖Δ_k − v_r‖)

It is a baseline in clear: the difference of two of these means over the same devices may be one
device's update, so they are not summed securely. `norm_clipping` takes one sum.

The smoothing ν keeps weights bounded near the centre. It should be of the size of the distances:
far above, all devices weigh the same, and so far below that all factors are the least, they do,
too. Both are the mean. No setting knows that size, and it falls as training goes on. So ν follows
the mean factor of the last round, Σ n_k·b_k / Σ n_k: it is set so that this
mean would have been a half. However far away an update is, it pulls a mean by no more than n_k·ν.

Source: Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions
on Signal Processing 2022, algorithm 2; floor, rounding and the choice of ν are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.errors import check_positive
from deltafl.fl.strategies.aggregation import mean_of
from deltafl.fl.strategies.base import Memory, TrainingState
from deltafl.fl.vectors import Vector

SMOOTHING: Final = "robust.smoothing"
"""What is remembered after a round, of shape (1,): ν of the next one."""

_FULL: Final = 1 << 16
_MEAN_FACTOR: Final = 0.5
_UNKNOWN_ABOVE: Final = 0.9
_LEAP: Final = 8.0
_RANGE: Final = (2.0**-40, 2.0**40)


@dataclass(frozen=True, slots=True)
class Robustly:
    """How updates are averaged robustly.

    Attributes:
        passes: weighted means of a round's updates, at least 2; the first is the mean.
        smoothing: ν of the first round, in units of the model's parameters, positive.

    Raises:
        ValueError: there are fewer than 2 passes, or ν is not positive and finite.
    """

    passes: int = 3
    smoothing: float = 1.0

    def __post_init__(self) -> None:
        if self.passes < 2:
            raise ValueError(f"passes={self.passes} is not at least 2: one pass is the mean")
        check_positive(smoothing=self.smoothing)

    @property
    def sums(self) -> int:
        """A weighted mean for each pass."""
        return self.passes

    def step(
        self, state: TrainingState, contributions: Sequence[tuple[int, Vector]]
    ) -> tuple[Vector, Memory]:
        """The next model, and what to remember, from updates in clear.

        Args:
            state: before the round.
            contributions: weight n_k > 0 and Δ_k of every device that takes part.

        Raises:
            ValueError: there are none.
        """
        known = state.memory.get(SMOOTHING)
        smoothing = self.smoothing if known is None else float(known[0])
        model, share = robust_step(state.model, contributions, self.passes, smoothing)
        return model, {SMOOTHING: np.array([next_smoothing(smoothing, share)], dtype=np.float64)}


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

    Each mean is summed in float64, in order; centres are float32.

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


def factor(update: Vector, centre: Vector, smoothing: float) -> int:
    """How much a device counts: 2^16 times min(1, ν/‖Δ_k − v‖), rounded; at least 1.

    >>> import numpy as np
    >>> zeros = np.zeros(4, dtype=np.float32)
    >>> [factor(zeros + x, zeros, smoothing=1.0) for x in (0, 0.5, 1, 100)]
    [65536, 65536, 32768, 328]

    Args:
        update: Δ_k, shape (d,), finite.
        centre: v, of the same shape, finite.
        smoothing: ν > 0: up to this distance from the centre, devices count in full.

    Returns:
        A whole number in [1, 2^16]. A half is rounded to the even number.
    """
    with np.errstate(over="ignore"):  # an infinite distance is a large one
        apart = np.subtract(update, centre, dtype=np.float64)
        distance = float(np.sqrt(np.square(apart, out=apart).sum()))
    return max(round(_FULL * (smoothing / max(smoothing, distance))), 1)
