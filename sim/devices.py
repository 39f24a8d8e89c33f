"""The simulated device: its data, and the backend that does its work."""

from typing import TypeVar

from deltafl.fl.local import LocalTraining
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.sim.backends.base import Backend, Pending, Place, Work
from deltafl.sim.seeds import Purpose, Seeds

T = TypeVar("T")


class SimulatedDevice:
    """A device of a cohort, for one round.

    It may be told what it will be asked (`deltafl.fl.strategies.base.WorksAhead`); then it has
    begun.

    Args:
        id: its index among the training devices.
        place: where its samples are.
        backend: does the work; shared by all devices.
        training: how to train in this round.
        seeds: where the shuffle comes from.
        round_index: the round, counted from 0.
    """

    def __init__(
        self,
        id: int,
        place: Place,
        backend: Backend,
        training: LocalTraining,
        seeds: Seeds,
        round_index: int,
    ) -> None:
        self.id = id
        self._place = place
        self._backend = backend
        self._training = training
        self._shuffle = seeds.integer(Purpose.SHUFFLE, round_index=round_index, device=id)
        self._losses: list[tuple[Work, Pending[float]]] = []
        self._updates: list[tuple[Work, Pending[Vector]]] = []

    @property
    def weight(self) -> int:
        """The number of training samples n_k."""
        return self._place.size

    def expect_loss(self, model: Vector) -> None:
        """Begin to measure a loss."""
        work = Work(model)
        if not any(work.is_same(begun) for begun, _ in self._losses):
            self._losses.append((work, self._backend.begin_loss(model, self._place)))

    def expect_update(self, model: Vector, objective: LocalObjective = PLAIN) -> None:
        """Begin to train."""
        work = Work(model, self._training, objective)
        if not any(work.is_same(begun) for begun, _ in self._updates):
            pending = self._backend.begin_update(
                model, self._place, self._training, self._shuffle, objective
            )
            self._updates.append((work, pending))

    def loss(self, model: Vector) -> float:
        """Evaluate the mean training loss in nats."""
        self.expect_loss(model)
        return _take(self._losses, Work(model))

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        """Train from `model`; asked twice, it trains twice, and answers the same."""
        self.expect_update(model, objective)
        return _take(self._updates, Work(model, self._training, objective))


def _take(begun: list[tuple[Work, Pending[T]]], work: Work) -> T:
    """Wait for the answer to what was begun, and keep it no longer."""
    (number,) = (place for place, (one, _) in enumerate(begun) if one.is_same(work))
    return begun.pop(number)[1].result()
