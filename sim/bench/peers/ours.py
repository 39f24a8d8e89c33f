"""Our simulator as a party: FedAvg over devices as the engine makes them.

The backend is one of `deltafl.sim.settings.config.BACKENDS` and takes all cores by itself.
"""

from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import torch

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import LocalTraining
from deltafl.fl.strategies.base import RoundReport, Strategy, TrainingState
from deltafl.fl.strategies.fedavg import FedAvg
from deltafl.sim.bench.peers.party import Conversation, made_of
from deltafl.sim.bench.peers.tasks import Federation
from deltafl.sim.cohort.backends.base import CpuClock, ModelSpec, SampleReference
from deltafl.sim.cohort.backends.choice import choose, open_backend
from deltafl.sim.cohort.hardware import choose_device
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.cohort.simulated import SecureRounds, SimulatedCohort
from deltafl.sim.cohort.work import BackendDevices
from deltafl.sim.settings.config import TrainingConfig

ROUNDS_OF_A_RUN: Final = 100
"""Of so long a run is the backend that "auto" takes."""


class Simulator:
    """What the engine has ready before a round: data, a backend, seeds. Close it after use.

    Args:
        federation: the task, its samples and its first model.
        backend: one of `deltafl.sim.settings.config.BACKENDS`.

    Attributes:
        backend: the one that was taken, never "auto".

    Raises:
        UserError: the backend is not to be had here.
    """

    def __init__(self, federation: Federation, backend: str) -> None:
        task = federation.task
        settings = TrainingConfig(backend=backend)
        choice = choose(settings, task.model, task.clients * task.samples * ROUNDS_OF_A_RUN)
        torch.set_num_threads(choice.threads)
        self.backend = choice.backend
        self._backend = open_backend(
            choice,
            ModelSpec(task.model, task.input_shape, task.num_classes),
            device=choose_device("cuda" if choice.backend == "cuda" else "cpu"),
        )
        self._data = [_device(federation, client) for client in range(task.clients)]
        self._training = LocalTraining(task.learning_rate, task.batch_size)
        self._seeds = Seeds(task.seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._backend.close()

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


def main(folder: str, cores: str, backend: str = "auto") -> None:
    """Play rounds as the conversation asks."""
    del cores
    conversation = Conversation()
    federation, strategy = Federation.load(Path(folder)), FedAvg()
    state = strategy.init(np.array(federation.model), federation.task.clients)
    with Simulator(federation, backend) as simulator:

        def play() -> None:
            nonlocal state
            state, _ = simulator.play(strategy, state)

        how = f"FedAvg on the backend {simulator.backend!r}"
        conversation.answer({"made_of": made_of(how, "torch")})
        conversation.serve(play, lambda: state.model)


def _device(federation: Federation, client: int) -> DeviceData:
    x = np.array(federation.x[client])
    if x.dtype == np.int64:
        x = x.astype(np.int8)  # as our data sets keep tokens
    return DeviceData(str(client), x, np.array(federation.y[client]))
