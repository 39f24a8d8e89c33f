"""Norm clipping: longer updates are scaled down to a radius, which follows the devices.

The mean follows any device as far as it goes. If no update counts with more than the radius R, a
device moves the step by at most n_k·R / Σ n_k, and this takes one secure sum, that of the updates
themselves:

    w ← w + Σ n_k·min(1, R/‖Δ_k‖)·Δ_k / Σ n_k

A device scales its update itself (`deltafl.protocol.radius`). No setting knows how long updates
are, and they become shorter as training goes on. So devices count in the same sum whether their
updates were longer, and R goes towards the length that a share γ of the updates does not exceed:

    R ← R·exp(−η_C·(b − γ)),    b: the share of the devices whose update was not longer than R

Around other centres than zero, such as the last step, it helped no better (docs/how-to/
test-against-lying-devices.md).

Source: the rule is that of Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning
with Adaptive Clipping" (NeurIPS 2021), section 2, without their noise; the clipping is Sun et al.
2019's norm thresholding, which Karimireddy, He and Jaggi 2021 study around other centres.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from deltafl.fl.errors import check_positive
from deltafl.fl.strategies.aggregation import step_by_mean
from deltafl.fl.strategies.base import Memory, TrainingState
from deltafl.fl.vectors import Vector
from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.radius import Clipped, least_radius, within
from deltafl.protocol.round import RoundOutcome

RADIUS: Final = "robust.radius"
"""What is remembered after a round, of shape (1,): R of the next one."""

_RANGE: Final = (2.0**-40, 2.0**40)


@dataclass(frozen=True, slots=True)
class NormClipping:
    """How updates are clipped.

    Attributes:
        quantile: γ in [0, 1]: the share of updates that R is to leave as they are.
        rate: η_C ≥ 0: how fast R follows; 0 keeps it.
        radius: R of the first round, in units of the model's parameters, positive.

    Raises:
        ValueError: a value is out of its range.
    """

    sums: ClassVar[int] = 1
    """One sum has all that a round needs."""

    quantile: float = 0.5
    rate: float = 0.2
    radius: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile={self.quantile} is not in [0, 1]")
        if not (math.isfinite(self.rate) and self.rate >= 0):
            raise ValueError(f"rate={self.rate} is not a number from 0")
        check_positive(radius=self.radius)

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
        radius = self.radius_of(state)
        clipped = [(weight, *within(update, radius)) for weight, update in contributions]
        model = step_by_mean(state.model, ((weight, 1.0, one) for weight, one, _ in clipped))
        longer = sum(is_longer for _, _, is_longer in clipped)
        return model, self.learnt(radius, longer, len(clipped))

    def params(self, update: UpdateParams, state: TrainingState) -> UpdateParams:
        """How the next private round sums updates. R is at least what devices accept.

        Args:
            update: how it sums them without clipping.
            state: before the round.
        """
        least = least_radius(len(state.model), update.resolution_bits)
        return replace(update, aggregation=Clipped(max(self.radius_of(state), least)))

    def remembered(self, update: UpdateParams, outcome: RoundOutcome) -> Memory:
        """What to remember of a private round.

        Args:
            update: how it has summed updates, by `params`.
            outcome: what the server has learnt.
        """
        own = update.aggregation
        radius = own.radius if isinstance(own, Clipped) else self.radius
        return self.learnt(radius, outcome.longer or 0, outcome.kept_devices)

    def radius_of(self, state: TrainingState) -> float:
        """R of the next round."""
        if RADIUS in state.memory:
            return float(state.memory[RADIUS][0])
        return self.radius

    def learnt(self, radius: float, longer: int, devices: int) -> Memory:
        """What to remember of a round.

        Args:
            radius: its R.
            longer: how many updates were longer; those who lie may say more than there are.
            devices: how many updates there were; if there were none, R stays.
        """
        following = radius
        if devices:
            within_radius = 1 - min(longer / devices, 1.0)
            following = next_radius(radius, within_radius, self.quantile, self.rate)
        return {RADIUS: np.array([following], dtype=np.float64)}


def next_radius(radius: float, share: float, quantile: float, rate: float) -> float:
    """R after a round: smaller if more updates than γ were not longer, else larger.

    >>> next_radius(1.0, 0.5, 0.5, 0.2), round(next_radius(1.0, 1.0, 0.5, 0.2), 3)
    (1.0, 0.905)

    Args:
        radius: R of the round.
        share: b, of its updates that were not longer, in [0, 1].
        quantile: γ.
        rate: η_C.
    """
    following = radius * math.exp(-rate * (share - quantile))
    return min(max(following, _RANGE[0]), _RANGE[1])
