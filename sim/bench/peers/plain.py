"""The plain peer: FedAvg's client as a textbook on PyTorch has it; all peers train with this code.

The models are functions of the same parameters, in the same order, as those of `deltafl.fl.models`:
ReLU before the pooling, contiguous memory, `nn.GRU` on one-hot vectors. Training is
`torch.optim.SGD` and `loss.backward()`. Samples are tensors before the first round, and an epoch
shuffles them once and cuts views, which is the least that a shuffle can cost.

`main` is the peer itself: the loop in as many processes of one thread as there are cores, each of
which has some of the clients. In a round every worker is sent the number of the round and the
model, trains its clients one after another, and sends back Σ n_k·w_k over them, float64; the parent
divides. With "warm", a worker evaluates a client before the first round (`warm_up`), which makes it
faster for good.
"""

from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from deltafl.fl.parameters import load_vector, to_vector
from deltafl.fl.vectors import Vector
from deltafl.sim.bench.peers.party import Conversation, made_of, start
from deltafl.sim.bench.peers.tasks import BenchmarkTask
from deltafl.sim.cohort.hardware import usable_cores


def main(conversation: Conversation, task: BenchmarkTask, model: Vector, *options: str) -> None:
    """Play rounds as the conversation asks."""
    count = min(usable_cores(), task.clients)
    workers = [start(work, task, index, count, *options) for index in range(count)]
    weight, round_index = task.clients * task.samples, 0

    def play() -> None:
        nonlocal model, round_index
        for _, pipe in workers:
            pipe.send((round_index, model))
        total = sum(pipe.recv() for _, pipe in workers)
        model = (total / weight).astype(np.float32)
        round_index += 1

    how = " ".join(("the textbook loop, processes of one thread:", str(count), *options))
    conversation.answer(made_of(how, "torch"))
    conversation.serve(play, lambda: model)


def work(pipe: Connection, task: BenchmarkTask, index: int, count: int, *options: str) -> None:
    """Be a worker: train every client whose number leaves `index` when divided by `count`."""
    torch.set_num_threads(1)
    module = build(task)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.learning_rate)
    clients = {k: tensors(task, k) for k in range(index, task.clients, count)}
    if "warm" in options:
        warm_up(module, clients[index][0])
    while True:
        round_index, model = pipe.recv()
        total = torch.zeros(len(model), dtype=torch.float64)
        for client, (x, y) in clients.items():
            load_vector(module, model)
            train(module, optimizer, epoch(task, x, y, round_index=round_index, client=client))
            total.add_(torch.from_numpy(to_vector(module)), alpha=len(y))
        pipe.send(total.numpy())


class GRU(nn.Module):
    """A GRU of 128 units on one-hot symbols, one linear layer; takes int64 [batch, length]."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.alphabet = alphabet
        self.gru = nn.GRU(alphabet, 128, batch_first=True)
        self.output = nn.Linear(128, alphabet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map inputs to logits [batch, alphabet]."""
        _, state = self.gru(F.one_hot(x, self.alphabet).float())
        logits: torch.Tensor = self.output(state[0])
        return logits


def build(task: BenchmarkTask) -> nn.Module:
    """The model of a task; its parameters are for `load_vector` to fill in."""
    match task.model:
        case "convnet":  # takes [batch, 1, 28, 28]
            first, second = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
            layers = [first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2)]
            return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, task.num_classes))
        case "linear":
            return nn.Linear(task.input_shape[0], task.num_classes, bias=False)
        case "gru":
            return GRU(task.num_classes)
        case _:
            raise ValueError(f"model={task.model!r} has no textbook twin")


def tensors(task: BenchmarkTask, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's inputs and labels, as `build`'s model takes them."""
    samples = task.samples_of(client)
    x = torch.tensor(samples.inputs())
    return x.unsqueeze(1) if task.model == "convnet" else x, torch.tensor(samples.y)


def shuffled(
    task: BenchmarkTask, x: torch.Tensor, y: torch.Tensor, *, round_index: int, client: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put a client's samples in the order of one round."""
    generator = torch.Generator().manual_seed(task.shuffle_seed(round_index, client))
    order = torch.randperm(len(y), generator=generator)
    return x[order], y[order]


def train(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """One epoch of SGD over the batches."""
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def warm_up(module: nn.Module, x: torch.Tensor) -> None:
    """Evaluate a whole client once.

    What is then freed is large, and from so large a block on glibc keeps what is freed instead of
    handing it back: up to 1.3 times as many steps of the ConvNet a second, for good. A loop that
    only trains does not come to know this; one that evaluates now and then does.
    """
    with torch.no_grad():
        module(x)


def epoch(
    task: BenchmarkTask, x: torch.Tensor, y: torch.Tensor, *, round_index: int, client: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of one client and round, shuffled."""
    x, y = shuffled(task, x, y, round_index=round_index, client=client)
    return zip(torch.split(x, task.batch_size), torch.split(y, task.batch_size), strict=True)
