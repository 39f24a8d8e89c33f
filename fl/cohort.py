"""The devices of one round, as a strategy asks them: all together.

A strategy does not know who does the devices' work, which devices drop out or how many bytes they
send; a report may repeat what a cohort tells of that. It need not wait for every answer that it
asked for. A simulation gives it `deltafl.sim.cohort.SimulatedCohort`; a deployment would give it
another one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import RoundOutcome

Answer_co = TypeVar("Answer_co", covariant=True)


class Pending(Protocol[Answer_co]):
    """An answer that may not be there yet."""

    def result(self) -> Answer_co:
        """Wait for the answer, and hand it over once.

        Raises:
            ValueError: the model does not fit the data or the architecture.
            Exception: of whoever does the work, such as that a worker is gone.
        """


class Local(Protocol):
    """What a device knows of itself in a round, and weighs itself by."""

    @property
    def num_samples(self) -> int:
        """n_k, at least 1."""

    def loss(self) -> float:
        """F_k(w_t): the mean training loss before training, in nats."""

    def squared_norm(self) -> float:
        """‖Δ_k‖²: the squared Euclidean norm of the update."""


class Weighing(Protocol):
    """What a device brings to the sums of a round in place of n_k and Δ_k.

    It works that out by itself; nobody else learns it.
    """

    @property
    def objective(self) -> LocalObjective:
        """What devices minimise."""

    @property
    def trains_first(self) -> bool:
        """Whether devices begin to train when they are asked for their losses and weights."""

    def weigh(self, own: Local) -> tuple[int, float]:
        """A device's weight, whole and not negative, and the factor of its update.

        Raises:
            DivergenceError: its loss or update is NaN or infinite.
        """


@dataclass(frozen=True, slots=True, eq=False)
class SecureRoundResult:
    """A round by secure sums, at one or more conformity levels.

    Attributes:
        outcomes: what the server has learnt at each level.
        bytes_up: bytes that each device sent for all of them, on average over the cohort; None
            without messages.
    """

    outcomes: tuple[RoundOutcome, ...]
    bytes_up: float | None


class Cohort(Protocol):
    """The devices of one round."""

    @property
    def weights(self) -> Mapping[int, int]:
        """n_k, the number of training samples, by device in 0..K − 1, ascending."""

    def reveal_losses(
        self, model: Vector, ids: Collection[int] | None = None
    ) -> Sequence[Pending[float]]:
        """Ask for F_k(model) in clear: the mean training loss in nats.

        Args:
            model: w, not to be changed afterwards.
            ids: which devices, in order; all by default.
        """

    def reveal_updates(
        self,
        model: Vector,
        ids: Collection[int] | None = None,
        objective: LocalObjective = PLAIN,
    ) -> Sequence[Pending[Vector]]:
        """Ask for Δ_k = w_k − model in clear, after local training from `model`.

        Args:
            model: w, not to be changed afterwards.
            ids: which devices, in order; all by default.
            objective: what to minimise.
        """

    def secure_round(
        self,
        levels: Levels,
        models: Sequence[Vector],
        warm_starts: Sequence[int | None],
        weighing: Weighing | None = None,
    ) -> SecureRoundResult:
        """Play a round of Algorithm 3 at each level, in one session of secure sums.

        Args:
            levels: the rounds.
            models: the model of each level.
            warm_starts: for each level the tick near which η is expected; None for none.
            weighing: what devices contribute, at a single level; None for n_k and Δ_k.

        Raises:
            ValueError: there is not one model and one warm start for each level, a warm start is
                off the grid, or there is a weighing of several levels.
            UsageError: no session parameters withstand the threat with so small a cohort.
            PeerError: the session falls short of the devices' policy, such as by two levels with
                one model.
            DivergenceError: a device's loss or update is NaN or infinite, or has the wrong shape.
        """


def check_cohort(cohort: Cohort) -> None:
    """Check that a round can be played with a cohort.

    Raises:
        ValueError: nobody is there, devices are not in ascending order, or a weight is negative.
    """
    if not cohort.weights:
        raise ValueError("the cohort is empty: pass at least one device")
    if list(cohort.weights) != sorted(cohort.weights):
        raise ValueError(f"devices {list(cohort.weights)} are not in ascending order")
    for device, weight in cohort.weights.items():
        if weight < 0:
            raise ValueError(f"weight={weight} of device {device} is negative")
