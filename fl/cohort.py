"""The interface through which a strategy talks to the devices of one round.

A strategy does not know where the devices' work is done, which devices drop out or how many bytes
they send; a report may repeat what the cohort says about that. A strategy need not wait for every
answer that it asked for. A simulation passes a `deltafl.sim.cohort.simulated.SimulatedCohort`; a
deployment would pass another implementation.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import RoundOutcome

Answer_co = TypeVar("Answer_co", covariant=True)


class Pending(Protocol[Answer_co]):
    """An answer that may not have arrived yet."""

    def result(self) -> Answer_co:
        """Wait for the answer, and hand it over once.

        Raises:
            ValueError: the model does not fit the data or the architecture.
            Exception: an error of the backend, such as a lost worker.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Later(Generic[Answer_co]):
    """An answer that is worked out when it is waited for; a `Pending`.

    Attributes:
        result: waits for it, and hands it over once.
    """

    result: Callable[[], Answer_co]


class Local(Protocol):
    """What a device knows about itself in a round and can base its weight on."""

    @property
    def num_samples(self) -> int:
        """n_k, at least 1."""

    def loss(self) -> float:
        """F_k(w_t): the mean training loss before training, in nats."""

    def squared_norm(self) -> float:
        """‖Δ_k‖²: the squared Euclidean norm of the update."""


class Weighing(Protocol):
    """What a device contributes to the sums of a round in place of n_k and Δ_k.

    Each device computes this itself, and nobody else learns it.
    """

    @property
    def objective(self) -> LocalObjective:
        """What devices minimise."""

    @property
    def trains_first(self) -> bool:
        """Whether devices start training as soon as their losses and weights are requested."""

    def weigh(self, own: Local) -> tuple[int, float]:
        """A device's weight, a non-negative integer, and the factor of its update.

        Raises:
            DivergenceError: its loss or update is NaN or infinite.
        """


@dataclass(frozen=True, slots=True, eq=False)
class SecureRoundResult:
    """A round by secure sums, at one or more conformity levels.

    Attributes:
        outcomes: what the server has learnt at each level.
        bytes_up: bytes that each device sent for all levels, on average over the cohort; None
            without messages.
    """

    outcomes: tuple[RoundOutcome, ...]
    bytes_up: float | None


class Cohort(Protocol):
    """The devices of one round. Those that answer nobody in clear refuse, as here."""

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

        Raises:
            ValueError: they answer nobody in clear.
        """
        del model, ids
        raise ValueError("these devices tell nobody their loss: choose a private algorithm")

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

        Raises:
            ValueError: they answer nobody in clear.
        """
        del model, ids, objective
        raise ValueError("these devices show nobody their update: choose a private algorithm")

    def secure_round(
        self,
        levels: Levels,
        models: Sequence[Vector],
        weighing: Weighing | None = None,
    ) -> SecureRoundResult:
        """Run a round of Algorithm 3 at each level, in one session of secure sums.

        Args:
            levels: the rounds.
            models: the model of each level.
            weighing: what devices contribute, at a single level; None for n_k and Δ_k.

        Raises:
            ValueError: there is not one model for each level, or there is a weighing of several
                levels.
            UsageError: no session parameters withstand the threat with so small a cohort.
            PeerError: the session does not meet the devices' policy, for example because two levels
                have the same model.
            DivergenceError: a device's loss or update is NaN or infinite, or has the wrong shape.
        """


@dataclass(frozen=True, slots=True, eq=False)
class CohortView(Cohort):
    """A cohort as a strategy sees it: only some of its devices, or watched by somebody.

    Attributes:
        cohort: all devices.
        asked: n_k of those that are asked in clear; all by default.
        shown: told what became of a secure round.
    """

    cohort: Cohort
    asked: Mapping[int, int] | None = None
    shown: Callable[[Levels, SecureRoundResult], None] = lambda _levels, _result: None

    @property
    def weights(self) -> Mapping[int, int]:
        """n_k by device."""
        return self.cohort.weights if self.asked is None else self.asked

    def reveal_losses(
        self, model: Vector, ids: Collection[int] | None = None
    ) -> Sequence[Pending[float]]:
        """Ask for losses in clear; see `Cohort`."""
        return self.cohort.reveal_losses(model, self.weights if ids is None else ids)

    def reveal_updates(
        self, model: Vector, ids: Collection[int] | None = None, objective: LocalObjective = PLAIN
    ) -> Sequence[Pending[Vector]]:
        """Ask for updates in clear; see `Cohort`."""
        return self.cohort.reveal_updates(model, self.weights if ids is None else ids, objective)

    def secure_round(
        self, levels: Levels, models: Sequence[Vector], weighing: Weighing | None = None
    ) -> SecureRoundResult:
        """Play a secure round; see `Cohort`. A session loses devices by itself, half-way too."""
        if self.asked is not None:
            raise ValueError("strategies in clear take no secure sums")
        result = self.cohort.secure_round(levels, models, weighing)
        self.shown(levels, result)
        return result


def check_cohort(cohort: Cohort) -> None:
    """Check that a round can run with a cohort.

    Raises:
        ValueError: the cohort is empty, devices are not in ascending order, or a weight is
            negative.
    """
    if not cohort.weights:
        raise ValueError("the cohort is empty: pass at least one device")
    if list(cohort.weights) != sorted(cohort.weights):
        raise ValueError(f"devices {list(cohort.weights)} are not in ascending order")
    for device, weight in cohort.weights.items():
        if weight < 0:
            raise ValueError(f"weight={weight} of device {device} is negative")
