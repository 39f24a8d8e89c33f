"""The pfl-research peer: its simulated backend and federated averaging, one process per core.

It runs one training with as many central iterations as it is asked for; a callback waits before
each and answers after it. The other
processes are those of pfl's own distributed simulation, over torch.distributed: they begin a round
when the first one says so. Each has one thread, which is faster than one process of many.

Users' data sets are ready tensors, whose batches pfl cuts once; it does not shuffle anew, so its
samples lie in the order of the first round for good. pfl evaluates in the first iteration, which is
not timed, and in no other.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing import current_process
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias

import torch
from torch import nn

from deltafl.fl.parameters import load_vector, to_vector
from deltafl.fl.vectors import Vector
from deltafl.sim.bench.peers import plain
from deltafl.sim.bench.peers.party import Conversation, made_of, start
from deltafl.sim.bench.peers.tasks import BenchmarkTask
from deltafl.sim.cohort.hardware import usable_cores

# Objects of pfl. They are Any, for mypy accepts this module with and without pfl.
_Metrics: TypeAlias = Any
_Dataset: TypeAlias = Any

_ENDLESS: Final = 1_000_000


class _Module(nn.Module):
    """The textbook's model with what pfl asks of one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """What local training minimises."""
        return nn.functional.cross_entropy(self.module(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> _Metrics:
        """What the first iteration evaluates."""
        with torch.no_grad():
            loss = float(self.loss(x, y))
        return {"loss": import_module("pfl.metrics").Weighted(loss * len(y), len(y))}


class _Gate:
    """A callback of pfl's: lets a round begin when it may.

    Args:
        wait: waits for the next round; False if there is none.
        tell: told the seconds that a round took.
    """

    def __init__(self, wait: Callable[[], bool], tell: Callable[[float], None]) -> None:
        self._wait = wait
        self._tell = tell
        self._start = 0.0

    def on_train_begin(self, *, model: object) -> _Metrics:
        """Wait for the first round."""
        del model
        if not self._wait():
            sys.exit()
        self._start = time.perf_counter()
        return import_module("pfl.metrics").Metrics()

    def after_central_iteration(
        self, aggregate_metrics: _Metrics, model: object, *, central_iteration: int
    ) -> tuple[bool, _Metrics]:
        """Tell, and wait for the next round; True if there is none."""
        del aggregate_metrics, model, central_iteration
        self._tell(time.perf_counter() - self._start)
        is_over = not self._wait()
        self._start = time.perf_counter()
        return is_over, import_module("pfl.metrics").Metrics()

    def on_train_end(self, *, model: object) -> None:
        """Nothing is left to do."""


def main(conversation: Conversation, task: BenchmarkTask, model: Vector) -> None:
    """Play rounds as the conversation asks, with the help of the other processes."""
    own, *others = _environments(min(usable_cores(), task.clients))
    gates = [start(help_main, task, model, environment)[1] for environment in others]
    module = _module(task, model)

    def wait() -> bool:
        asked = conversation.is_asked_for_a_round(lambda: to_vector(module))
        for gate in gates:
            gate.send(asked)
        return asked

    _import_pfl(own)
    how = f"SimulatedBackend, FederatedAveraging; processes of one thread: {1 + len(gates)}"
    conversation.answer(made_of(how, "pfl", "torch"))
    _run(task, module, _Gate(wait, conversation.answer))


def help_main(
    pipe: Connection, task: BenchmarkTask, model: Vector, environment: Mapping[str, str]
) -> None:
    """Be one of the other processes: begin a round whenever the first one does."""
    _import_pfl(environment)
    _run(task, _module(task, model), _Gate(pipe.recv, lambda _: None))


def _environments(count: int) -> list[Mapping[str, str]]:
    """What pfl reads of the processes that simulate together, as `torchrun` would set it."""
    if count == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    return [
        address
        | {
            "TORCHELASTIC_RUN_ID": "bench",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
        }
        for rank in range(count)
    ]


def _module(task: BenchmarkTask, model: Vector) -> _Module:
    module = _Module(plain.build(task))
    load_vector(module, model)
    return module


def _import_pfl(environment: Mapping[str, str]) -> None:
    """Meet the other processes, which is what pfl does when it learns that it runs on torch."""
    os.environ |= environment
    current_process().name = "MainProcess"  # pfl takes any other for a loader of data
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    import_module("pfl.model.pytorch")


def _run(task: BenchmarkTask, module: _Module, gate: _Gate) -> None:
    pytorch = import_module("pfl.model.pytorch")
    backends, data = import_module("pfl.aggregate.simulate"), import_module("pfl.data")
    base, averaging = (
        import_module(f"pfl.algorithm.{name}") for name in ("base", "federated_averaging")
    )
    settings = import_module("pfl.hyperparam.base")
    users = {k: _user(task, k) for k in range(task.clients)}
    sampler = import_module("pfl.data.sampling").get_user_sampler("minimize_reuse", list(users))
    dataset = data.federated_dataset.FederatedDataset(users.__getitem__, sampler)
    averaging.FederatedAveraging().run(
        algorithm_params=base.NNAlgorithmParams(
            central_num_iterations=_ENDLESS,
            evaluation_frequency=_ENDLESS,
            train_cohort_size=task.clients,
            val_cohort_size=None,
        ),
        backend=backends.SimulatedBackend(training_data=dataset, val_data=dataset),
        model=pytorch.PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=settings.NNTrainHyperParams(
            local_batch_size=task.batch_size,
            local_num_epochs=1,
            local_learning_rate=task.learning_rate,
        ),
        model_eval_params=settings.NNEvalHyperParams(local_batch_size=None),
        callbacks=[gate],
        send_metrics_to_platform=False,
    )


def _user(task: BenchmarkTask, client: int) -> _Dataset:
    x, y = plain.tensors(task, client)
    samples = plain.shuffled(task, x, y, round_index=0, client=client)
    return import_module("pfl.data.pytorch").PyTorchTensorDataset(samples, user_id=str(client))
