"""The simulated device: its data, its training, and a clock on the work it does."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fl.data.federated import DeviceData
from fl.local import Learner, LocalTraining
from fl.objectives import PLAIN, LocalObjective
from fl.vectors import Vector
from sim.seeds import Purpose, Seeds


@dataclass(slots=True)
class CpuClock:
    """Adds up the CPU time of this process (all threads) over the blocks it measures.

    Attributes:
        seconds: the sum so far.
    """

    seconds: float = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Add the CPU time of a block, also of one that raises."""
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds += time.process_time() - start


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedDevice:
    """A device of a cohort, for one round.

    Attributes:
        id: its index among the training devices.
        data: its samples.
        learner: does the work; shared by all devices, for it keeps nothing between calls.
        training: how to train in this round.
        seeds: where the shuffle comes from.
        round_index: the round, counted from 0.
        clock: told the CPU time of every loss and update.
    """

    id: int
    data: DeviceData
    learner: Learner
    training: LocalTraining
    seeds: Seeds
    round_index: int
    clock: CpuClock

    @property
    def weight(self) -> int:
        """The number of training samples n_k."""
        return self.data.num_samples

    def loss(self, model: Vector) -> float:
        """Evaluate the mean training loss in nats."""
        with self.clock.measure():
            return self.learner.mean_loss(model, self.data)

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        """Train from `model`; asked twice, it answers the same."""
        shuffle = self.seeds.torch_generator(
            Purpose.SHUFFLE, round_index=self.round_index, device=self.id
        )
        with self.clock.measure():
            return self.learner.train(model, self.data, self.training, shuffle, objective)
