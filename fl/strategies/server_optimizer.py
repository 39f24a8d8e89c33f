"""Server optimisers: they use a strategy's change of the model as a gradient.

Source: Reddi et al., ICLR 2021 ("Adaptive Federated Optimization"), Algorithms 1 and 2; momentum:
Hsu et al., 2019 ("Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification"), FedAvgM. With Δ_t = the strategy's new model − w_t, the server steps
w_t+1 = w_t + η_s·(a function of Δ_t). It needs only Δ_t, so a strategy that sees only sums still
sees only sums.

Moments accumulate over the rounds, in the server's state. A server that creates a new optimiser in
every round would have neither momentum nor adaptivity.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.cohort import Cohort
from deltafl.fl.errors import check_positive
from deltafl.fl.strategies.base import (
    Memory,
    RoundReport,
    Strategy,
    TrainingState,
    Wrapper,
    under,
)
from deltafl.fl.vectors import Vector

MOMENTS_PREFIX: Final = "server_optimizer."
"""Before the names of moments, among what a strategy remembers; each is of shape (d,)."""


@dataclass(frozen=True, slots=True)
class Sgd:
    """w ← w + η_s·Δ_t; η_s = 1 gives the strategy's model unchanged.

    Attributes:
        learning_rate: η_s, positive.

    Raises:
        ValueError: η_s is not positive.
    """

    learning_rate: float

    def __post_init__(self) -> None:
        check_positive(learning_rate=self.learning_rate)

    def step(
        self, change: npt.NDArray[np.float64], moments: Memory
    ) -> tuple[npt.NDArray[np.float64], Memory]:
        """Make the server's step η_s·Δ_t, and the moments after it.

        Args:
            change: Δ_t, float64 of shape (d,).
            moments: of the rounds before, each of shape (d,).
        """
        return self.learning_rate * change, moments


@dataclass(frozen=True, slots=True)
class Momentum:
    """FedAvgM: m ← β·m + Δ_t, w ← w + η_s·m.

    Attributes:
        learning_rate: η_s, positive.
        decay: β in [0, 1); 0 is `Sgd`.

    Raises:
        ValueError: a number is out of its range.
    """

    learning_rate: float
    decay: float

    def __post_init__(self) -> None:
        check_positive(learning_rate=self.learning_rate)
        _check_decays(decay=self.decay)

    def step(
        self, change: npt.NDArray[np.float64], moments: Memory
    ) -> tuple[npt.NDArray[np.float64], Memory]:
        """η_s·m; see `Sgd`."""
        first = self.decay * moments.get("m", np.zeros_like(change)) + change
        return self.learning_rate * first, {"m": first}


class SecondMoment(StrEnum):
    """How a change updates the second moment v."""

    ADAGRAD = "adagrad"
    """v ← v + Δ²."""

    ADAM = "adam"
    """v ← β2·v + (1 − β2)·Δ²."""

    YOGI = "yogi"
    """v ← v − (1 − β2)·Δ²·sign(v − Δ²)."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """FedAdagrad, FedAdam and FedYogi: Algorithm 2 of Reddi et al.

    m ← β1·m + (1 − β1)·Δ_t, v by `second_moment`, w ← w + η_s·m / (√v + τ), element by element.
    m starts from 0 and v from τ², the smallest value that the algorithm allows. As in the
    algorithm, Δ_t is squared, not m, and there is no bias correction.

    Attributes:
        second_moment: how v follows Δ_t.
        learning_rate: η_s, positive.
        beta1: decay of m in [0, 1); the paper's experiments with Adagrad have 0.
        beta2: decay of v in [0, 1); Adagrad has none and leaves it unused.
        tau: τ, positive: the smaller, the more adaptive.

    Raises:
        ValueError: a number is out of its range.
    """

    second_moment: SecondMoment
    learning_rate: float
    beta1: float
    beta2: float
    tau: float

    def __post_init__(self) -> None:
        check_positive(learning_rate=self.learning_rate, tau=self.tau)
        _check_decays(beta1=self.beta1, beta2=self.beta2)

    def step(
        self, change: npt.NDArray[np.float64], moments: Memory
    ) -> tuple[npt.NDArray[np.float64], Memory]:
        """η_s·m / (√v + τ); see `Sgd`."""
        square = change**2
        first = moments.get("m", np.zeros_like(change))
        second = moments.get("v", np.full_like(change, self.tau**2))
        first = self.beta1 * first + (1 - self.beta1) * change
        match self.second_moment:
            case SecondMoment.ADAGRAD:
                second = second + square
            case SecondMoment.ADAM:
                second = self.beta2 * second + (1 - self.beta2) * square
            case SecondMoment.YOGI:
                second = second - (1 - self.beta2) * square * np.sign(second - square)
        step = self.learning_rate * first / (np.sqrt(second) + self.tau)
        return step, {"m": first, "v": second}


adam: Final = partial(Adaptive, SecondMoment.ADAM)
yogi: Final = partial(Adaptive, SecondMoment.YOGI)
adagrad: Final = partial(Adaptive, SecondMoment.ADAGRAD)


ServerOptimizer: TypeAlias = Sgd | Momentum | Adaptive
"""A rule that makes a step out of a change."""


def step_along(
    optimizer: ServerOptimizer, model: Vector, proposed: Vector, moments: Memory
) -> tuple[Vector, Memory]:
    """Step from a model along a strategy's change of it.

    Args:
        optimizer: how the server steps.
        model: w_t, float32 of shape (d,).
        proposed: the strategy's model, w_t + Δ_t; float32 of shape (d,).
        moments: of the rounds before.

    Returns:
        w_t+1, float32 of shape (d,), and the moments after the step.
    """
    if optimizer == Sgd(1.0):
        # not computed, for model + (proposed − model) need not be proposed in floats
        return proposed, moments
    start = model.astype(np.float64)
    step, after = optimizer.step(proposed - start, moments)
    return (start + step).astype(np.float32), after


@dataclass(frozen=True, slots=True)
class WithServerOptimizer(Wrapper):
    """A strategy whose server uses its change of the model as a gradient.

    Attributes:
        optimizer: how the server steps.
    """

    optimizer: ServerOptimizer

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Run one round with this cohort.

        An empty or aborted round has no gradient: model and moments stay unchanged.

        Raises:
            ValueError: the cohort is empty, or the strategy cannot work with it.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        moments = under(MOMENTS_PREFIX, state.memory)
        own = {
            name: array
            for name, array in state.memory.items()
            if not name.startswith(MOMENTS_PREFIX)
        }
        played, report = self.strategy.apply(replace(state, memory=MappingProxyType(own)), cohort)
        model, after = played.model, moments
        lost = report.empty or getattr(report, "aborted", None) is not None
        if not lost:
            model, stepped = step_along(self.optimizer, state.model, played.model, moments)
            after = stepped
        memory = {
            **played.memory,
            **{MOMENTS_PREFIX + name: array for name, array in after.items()},
        }
        return replace(played, model=model, memory=MappingProxyType(memory)), report


def without_optimizer(strategy: Strategy) -> Strategy:
    """The strategy whose sums a server takes its steps by; steps change neither sums nor noise."""
    return strategy.strategy if isinstance(strategy, WithServerOptimizer) else strategy


def _check_decays(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value} is not in [0, 1)")
