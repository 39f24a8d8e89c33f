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

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from deltafl.sim.bench.peers.party import Conversation, made_of, piped, program
from deltafl.sim.bench.peers.tasks import BenchmarkTask, Federation

_HEADER_BYTES: Final = 8
"""Of the number of a round, ahead of a model."""


def main(folder: str, cores: str, *options: str) -> None:
    """Play rounds as the conversation asks."""
    conversation = Conversation()
    federation = Federation.load(Path(folder))
    count = min(int(cores), federation.task.clients)
    model, weight = np.array(federation.model), federation.y.size
    workers = [
        subprocess.Popen(  # noqa: S603 - our own program
            program("plain.work", folder, index, count, *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for index in range(count)
    ]
    round_index = 0

    def play() -> None:
        nonlocal model, round_index
        for worker in workers:
            piped(worker.stdin).write(round_index.to_bytes(_HEADER_BYTES) + model.tobytes())
            piped(worker.stdin).flush()
        total = np.zeros(model.shape)
        for worker in workers:
            total += np.frombuffer(piped(worker.stdout).read(total.nbytes))
        model = (total / weight).astype(np.float32)
        round_index += 1

    how = " ".join(("the textbook loop, processes of one thread:", str(count), *options))
    conversation.answer({"made_of": made_of(how, "torch")})
    try:
        conversation.serve(play, lambda: model)
    finally:
        for worker in workers:
            piped(worker.stdin).close()
            worker.wait()


def work(folder: str, index: str, count: str, *options: str) -> None:
    """Be a worker: train every client whose number leaves `index` when divided by `count`."""
    torch.set_num_threads(1)
    federation = Federation.load(Path(folder))
    task, length = federation.task, federation.model.nbytes
    module = build(task)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.learning_rate)
    clients = {k: tensors(federation, k) for k in range(int(index), task.clients, int(count))}
    if "warm" in options:
        warm_up(module, clients[int(index)][0])
    while header := sys.stdin.buffer.read(_HEADER_BYTES):
        model = np.frombuffer(bytearray(sys.stdin.buffer.read(length)), dtype=np.float32)
        total = torch.zeros(len(model), dtype=torch.float64)
        for client, (x, y) in clients.items():
            load(module, model)
            batches = epoch(task, x, y, round_index=int.from_bytes(header), client=client)
            train(module, optimizer, batches)
            total.add_(torch.from_numpy(flat(module)), alpha=len(y))
        sys.stdout.buffer.write(total.numpy().tobytes())
        sys.stdout.buffer.flush()


class ConvNet(nn.Module):
    """Two convolutions with ReLU and pooling, one linear layer; takes [batch, 1, 28, 28]."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.output = nn.Linear(1024, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map inputs to logits [batch, num_classes]."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        logits: torch.Tensor = self.output(x.flatten(1))
        return logits


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
    """The model of a task; its parameters are for `load` to fill in."""
    match task.model:
        case "convnet":
            return ConvNet(task.num_classes)
        case "linear":
            return nn.Linear(task.input_shape[0], task.num_classes, bias=False)
        case "gru":
            return GRU(task.num_classes)
        case _:
            raise ValueError(f"model={task.model!r} has no textbook twin")


def load(module: nn.Module, vector: npt.NDArray[np.float32]) -> None:
    """Overwrite the parameters with those of a flat float32 vector."""
    start = 0
    with torch.no_grad():
        for parameter in module.parameters():
            part = vector[start : start + parameter.numel()]
            parameter.copy_(torch.from_numpy(part).view_as(parameter))
            start += parameter.numel()


def flat(module: nn.Module) -> npt.NDArray[np.float32]:
    """Copy the parameters into a flat float32 vector."""
    vector: npt.NDArray[np.float32] = (
        nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    )
    return vector


def tensors(federation: Federation, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's inputs and labels, as `build`'s model takes them."""
    x = torch.tensor(federation.x[client])
    if federation.task.model == "convnet":
        x = x.unsqueeze(1)
    return x, torch.tensor(federation.y[client])


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
