"""What the Flower peer's clients do: the textbook training, on samples that stay in the actor.

It is a module of its own because Ray's actors import it by name; the state of a program that runs
as `__main__` would be sent along with every message.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deltafl.sim.bench.peers import textbook
from deltafl.sim.bench.peers.tasks import BenchmarkTask, Federation


def train(message: Any, context: Any) -> Any:  # noqa: ANN401 - flwr may not be installed
    """Train on the split that Flower gives this client, and return model and count."""
    flwr = import_module("flwr.app")
    config = message.content["config"]
    folder, client = Path(config["folder"]), int(context.node_config["partition-id"])
    task, module, optimizer = _model(folder)
    x, y = _samples(folder, client)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches = textbook.epoch(task, x, y, round_index=config["server-round"] - 1, client=client)
    textbook.train(module, optimizer, batches)
    content = flwr.RecordDict(
        {
            "arrays": flwr.ArrayRecord(module.state_dict()),
            "metrics": flwr.MetricRecord({"num-examples": len(y)}),
        }
    )
    return flwr.Message(content=content, reply_to=message)


@cache
def _model(folder: Path) -> tuple[BenchmarkTask, nn.Module, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    task = Federation.load(folder).task
    module = textbook.build(task)
    return task, module, torch.optim.SGD(module.parameters(), lr=task.learning_rate)


@cache
def _samples(folder: Path, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    return textbook.tensors(Federation.load(folder), client)
