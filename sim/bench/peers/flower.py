"""The Flower peer: its simulation engine on Ray, with one actor of one thread per core.

`python -m deltafl.sim.bench.peers.flower FOLDER CORES` runs one `run_simulation` with as many
rounds as it is asked for. Its strategy is Flower's FedAvg without evaluation; it waits before it
configures a round, and answers once it has aggregated one. What Ray needs to start is over after
the first.
"""

import logging
import os
import sys
import time
import warnings
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.sim.bench.peers import flower_client, textbook
from deltafl.sim.bench.peers.conversation import Conversation
from deltafl.sim.bench.peers.tasks import Federation

# Objects of flwr. They are Any, for mypy accepts this module with and without flwr.
_Records: TypeAlias = Any
_Strategy: TypeAlias = Any

_ENDLESS: Final = 1_000_000
_SETTINGS: Final = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's own 15 would let every other program go first
}


class _Over(Exception):
    """There are no more rounds to play."""


def main(folder: Path, cores: int) -> None:
    """Play rounds as the conversation asks."""
    conversation = Conversation()
    os.environ |= _SETTINGS
    names = ("app", "clientapp", "serverapp", "simulation")
    app, clientapp, serverapp, simulation = (import_module(f"flwr.{name}") for name in names)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    federation = Federation.load(folder)
    module = textbook.build(federation.task)
    textbook.load(module, np.array(federation.model))
    server, client = serverapp.ServerApp(), clientapp.ClientApp()
    client.train()(flower_client.train)

    def serve(grid: object, _: object) -> None:
        _strategy(conversation).start(
            grid=grid,
            initial_arrays=app.ArrayRecord(module.state_dict()),
            num_rounds=_ENDLESS,
            train_config=app.ConfigRecord({"folder": str(folder)}),
        )

    server.main()(serve)
    conversation.answer(
        {
            "versions": {name: metadata.version(name) for name in ("flwr", "ray", "torch")},
            "how": f"run_simulation on Ray, FedAvg; actors of one thread: {cores}",
        }
    )
    try:
        simulation.run_simulation(
            server_app=server,
            client_app=client,
            num_supernodes=federation.task.clients,
            backend_config={
                "init_args": {"num_cpus": cores, "include_dashboard": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    except _Over:
        return


def _strategy(conversation: Conversation) -> _Strategy:
    """FedAvg that plays a round when it is asked for one."""
    strategy: _Strategy = import_module("flwr.serverapp.strategy").FedAvg(fraction_evaluate=0.0)
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    start = 0.0

    def configure_when_asked(
        server_round: int, arrays: _Records, config: _Records, grid: object
    ) -> object:
        nonlocal start
        if not conversation.is_asked_for_a_round(lambda: _flat(arrays)):
            raise _Over
        start = time.perf_counter()
        return configure(server_round, arrays, config, grid)

    def aggregate_and_answer(server_round: int, replies: _Records) -> object:
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed:
            raise RuntimeError(f"{len(failed)} clients failed, the first because {failed[0]}")
        aggregated = aggregate(server_round, replies)
        conversation.answer({"seconds": time.perf_counter() - start})
        return aggregated

    strategy.configure_train = configure_when_asked
    strategy.aggregate_train = aggregate_and_answer
    return strategy


def _flat(arrays: _Records) -> npt.NDArray[np.float32]:
    return np.concatenate([array.numpy().ravel() for array in arrays.values()]).astype(np.float32)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
