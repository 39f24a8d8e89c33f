"""The Flower peer: its simulation engine on Ray, with one actor of one thread per core.

It runs one `run_simulation` with as many rounds as it is asked for. Its strategy is Flower's FedAvg
without evaluation; it waits before it configures a round, and answers once it has aggregated one.
What Ray needs to start is over after the first. Clients train as the textbook does, on samples that
stay in the actor, which imports this module by name.
"""

import logging
import os
import time
import warnings
from functools import cache, partial
from typing import Final

import numpy as np
import torch
from torch import nn

from deltafl.fl.parameters import load_vector
from deltafl.fl.vectors import Vector
from deltafl.sim.bench.peers import plain
from deltafl.sim.bench.peers.flower_sums import OfFlower, import_flwr
from deltafl.sim.bench.peers.party import Conversation, made_of
from deltafl.sim.bench.peers.tasks import BenchmarkTask
from deltafl.sim.cohort.hardware import usable_cores

_ENDLESS: Final = 1_000_000
_MODULES: Final = ("app", "clientapp", "serverapp", "serverapp.strategy", "simulation")
_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's own 15 would let every other program go first
}


class _Over(Exception):
    """There are no more rounds to play."""


def main(conversation: Conversation, task: BenchmarkTask, model: Vector) -> None:
    """Play rounds as the conversation asks."""
    os.environ |= _SETTINGS
    flwr = import_flwr(*(f"flwr.{name}" for name in _MODULES))
    logging.getLogger("flwr").setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    module = plain.build(task)
    load_vector(module, model)
    server, client = flwr.serverapp.ServerApp(), flwr.clientapp.ClientApp()
    client.train()(partial(train, task))

    def serve(grid: object, _: object) -> None:
        _strategy(flwr, conversation).start(
            grid=grid, initial_arrays=flwr.app.ArrayRecord(module.state_dict()), num_rounds=_ENDLESS
        )

    server.main()(serve)
    cores = usable_cores()
    how = f"run_simulation on Ray, FedAvg; actors of one thread: {cores}"
    conversation.answer(made_of(how, "flwr", "ray", "torch"))
    try:
        flwr.simulation.run_simulation(
            server_app=server,
            client_app=client,
            num_supernodes=task.clients,
            backend_config={
                "init_args": {"num_cpus": cores, "include_dashboard": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    except _Over:
        return


def _strategy(flwr: OfFlower, conversation: Conversation) -> OfFlower:
    """FedAvg that plays a round when it is asked for one."""
    strategy = flwr.serverapp.strategy.FedAvg(fraction_evaluate=0.0)
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    start = 0.0

    def configure_when_asked(
        server_round: int, arrays: OfFlower, config: OfFlower, grid: object
    ) -> object:
        nonlocal start
        if not conversation.is_asked_for_a_round(lambda: _flat(arrays)):
            raise _Over
        start = time.perf_counter()
        return configure(server_round, arrays, config, grid)

    def aggregate_and_answer(server_round: int, replies: OfFlower) -> object:
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed:
            raise RuntimeError(f"{len(failed)} clients failed, the first because {failed[0]}")
        aggregated = aggregate(server_round, replies)
        conversation.answer(time.perf_counter() - start)
        return aggregated

    strategy.configure_train = configure_when_asked
    strategy.aggregate_train = aggregate_and_answer
    return strategy


def _flat(arrays: OfFlower) -> Vector:
    return np.concatenate([array.numpy().ravel() for array in arrays.values()]).astype(np.float32)


def train(task: BenchmarkTask, message: OfFlower, context: OfFlower) -> OfFlower:
    """Train on the split that Flower gives this client, and return model and count."""
    flwr = import_flwr("flwr.app")
    round_index = message.content["config"]["server-round"] - 1
    client = int(context.node_config["partition-id"])
    module, optimizer, samples = _ready(task)
    x, y = samples[client]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches = plain.epoch(task, x, y, round_index=round_index, client=client)
    plain.train(module, optimizer, batches)
    content = flwr.app.RecordDict(
        {
            "arrays": flwr.app.ArrayRecord(module.state_dict()),
            "metrics": flwr.app.MetricRecord({"num-examples": len(y)}),
        }
    )
    return flwr.app.Message(content=content, reply_to=message)


@cache
def _ready(
    task: BenchmarkTask,
) -> tuple[nn.Module, torch.optim.Optimizer, list[tuple[torch.Tensor, torch.Tensor]]]:
    """What stays in an actor: a model and everybody's samples, for it may get any client."""
    torch.set_num_threads(1)
    module = plain.build(task)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.learning_rate)
    return module, optimizer, [plain.tensors(task, client) for client in range(task.clients)]
