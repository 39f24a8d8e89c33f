"""Our simulator as a party: FedAvg over devices as the engine makes them.

The backend is one of `deltafl.sim.settings.config.BACKENDS` and takes all cores by itself.
"""

from contextlib import closing
from typing import Final

import torch

from deltafl.fl.local import LocalTraining
from deltafl.fl.strategies.base import RoundReport, Strategy, TrainingState
from deltafl.fl.strategies.fedavg import FedAvg
from deltafl.fl.vectors import Vector
from deltafl.sim.bench.peers.party import Conversation, made_of
from deltafl.sim.bench.peers.tasks import BenchmarkTask
from deltafl.sim.cohort.backends.base import CpuClock, SampleReference
from deltafl.sim.cohort.backends.choice import choose, open_backend
from deltafl.sim.cohort.hardware import choose_device
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.cohort.simulated import SecureRounds, SimulatedCohort
from deltafl.sim.cohort.work import BackendDevices
from deltafl.sim.settings.config import TrainingConfig

_ROUNDS_OF_A_RUN: Final = 100
"""Of so long a run is the backend that "auto" takes."""


class Simulator:
    """What the engine has ready before a round: data, a backend, seeds. Close it after use.

    Args:
        task: what is played.
        backend: one of `deltafl.sim.settings.config.BACKENDS`.

    Attributes:
        backend: the one that was taken, never "auto".

    Raises:
        UserError: the backend is not to be had here.
    """

    def __init__(self, task: BenchmarkTask, backend: str) -> None:
        settings = TrainingConfig(backend=backend)
        choice = choose(settings, task.model, task.clients * task.samples * _ROUNDS_OF_A_RUN)
        torch.set_num_threads(choice.threads)
        self.backend = choice.backend
        device = choose_device("cuda" if choice.backend == "cuda" else "cpu")
        self._backend = open_backend(choice, task.spec, device=device)
        self.close = self._backend.close
        self._data = [task.samples_of(client) for client in range(task.clients)]
        self._training = LocalTraining(task.learning_rate, task.batch_size)
        self._seeds = Seeds(task.seed)

    @property
    def clock(self) -> CpuClock:
        """The CPU time of all learning so far."""
        return self._backend.clock

    def play(
        self, strategy: Strategy, state: TrainingState, rounds: SecureRounds | None = None
    ) -> tuple[TrainingState, RoundReport]:
        """Play one round with everybody, as `deltafl.sim.run.engine` does."""
        refs = {
            client: SampleReference(self._data, client, data.num_samples)
            for client, data in enumerate(self._data)
        }
        devices = BackendDevices(refs, self._backend, self._training, self._seeds, state.round)
        played = strategy.apply(state, SimulatedCohort(devices, state.round, self._seeds, rounds))
        self._backend.forget()
        return played


def main(
    conversation: Conversation, task: BenchmarkTask, model: Vector, backend: str = "auto"
) -> None:
    """Play rounds as the conversation asks."""
    strategy = FedAvg()
    state = strategy.init(model, task.clients)
    with closing(Simulator(task, backend)) as simulator:

        def play() -> None:
            nonlocal state
            state, _ = simulator.play(strategy, state)

        conversation.answer(made_of(f"FedAvg on the backend {simulator.backend!r}", "torch"))
        conversation.serve(play, lambda: state.model)
