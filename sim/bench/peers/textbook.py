"""FedAvg's client as a textbook on PyTorch has it; all peers train with this code.

The models are functions of the same parameters, in the same order, as those of `deltafl.fl.models`:
ReLU before the pooling, contiguous memory, `nn.GRU` on one-hot vectors. Training is
`torch.optim.SGD` and `loss.backward()`. Samples are tensors before the first round, and an epoch
shuffles them once and cuts views, which is the least that a shuffle can cost.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from deltafl.sim.bench.peers.tasks import BenchmarkTask, Federation


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
