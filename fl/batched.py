"""Train many devices at once: their models form one stack of parameters.

For a small model, most of a step is call overhead. Here one call computes the step of many devices,
each with its own model and its own minibatch (`deltafl.fl.stacked`). Devices differ in size: those
with more steps come first in a stack, so that finished devices drop off its end and cost nothing.
Only the last minibatch of an epoch is padded, with samples of weight 0.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
import torch
from torch import nn

from deltafl.fl.batch_norm import set_training
from deltafl.fl.criterion import CLASSIFIES, Criterion
from deltafl.fl.data.federated import DeviceData, check_same_shape
from deltafl.fl.local import Learner, LocalTraining, ResidentData, descend
from deltafl.fl.objectives import PLAIN, PROPFAIR_MARGIN, LocalObjective
from deltafl.fl.optimizers import MakeOptimizer
from deltafl.fl.parameters import load_vector, trained
from deltafl.fl.seeding import drawn_from
from deltafl.fl.stacked import Stacked, StackedLinear, stacked
from deltafl.fl.vectors import Vector

_STACKS: Final = 4
"""The devices of this many stacks are sorted by size together. With more, a stack's devices are
more alike; with fewer, less memory is needed, because updates are kept until their turn comes."""


class BatchedLearner(Learner):
    """A `Learner` that trains stacks of devices.

    It shuffles each device's samples as `Learner` does and takes the same steps. Sums are computed
    in another order, so numbers agree up to the rounding of float32. Modules without a kernel, and
    all by another optimiser than plain SGD over epochs, train as there; all is evaluated as there.

    Args:
        module: the architecture; its parameters are overwritten.
        device: where to compute; input and output vectors are on the CPU. On an accelerator the
            devices' data stay there between rounds, as far as they fit (`ResidentData`).
        criterion: what it is trained for.
        optimizer: makes the optimiser of a device, if it is one of the caller's own.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        device: torch.device | None = None,
        criterion: Criterion = CLASSIFIES,
        optimizer: MakeOptimizer | None = None,
    ) -> None:
        super().__init__(module, device=device, criterion=criterion, optimizer=optimizer)
        self._choice = stacked(module, self._device, criterion)

    def updates(
        self,
        vector: Vector,
        devices: Sequence[DeviceData],
        training: LocalTraining,
        seeds: Sequence[int],
        objective: LocalObjective = PLAIN,
    ) -> Iterator[Vector]:
        """Train each device from `vector`; see `Learner`.

        Only the updates of a few stacks are in memory at a time, and `devices` is iterated as
        needed. An update is one row of a stack's array.
        """
        if self._choice is None or not training.is_plain:
            yield from super().updates(vector, devices, training, seeds, objective)
            return
        kernel, clients = self._choice
        load_vector(self._module, vector)
        set_training(self._module)
        origins = [parameter.detach().clone() for parameter in trained(self._module)]
        work = zip(devices, seeds, strict=True)
        while window := list(islice(work, _STACKS * clients)):
            largest_first = sorted(
                (i for i in range(len(window)) if window[i][0].num_samples),
                key=lambda i: window[i][0].num_samples,
                reverse=True,
            )
            found: dict[int, Vector] = {}
            for members in _evenly(largest_first, clients):
                stack = _Stack([window[i] for i in members], training.batch_size, self._resident)
                with torch.inference_mode():
                    self._module(stack.one_sample())  # which refuses inputs of the wrong kind
                with drawn_from(window[members[0]][1], self._device):
                    rows = stack.train(kernel, origins, training, objective).cpu().numpy()
                found.update(zip(members, rows, strict=True))
            # a device without samples is not moved
            yield from (found.get(i, np.zeros_like(vector)) for i in range(len(window)))


def _evenly(devices: Sequence[int], at_most: int) -> Iterator[Sequence[int]]:
    """Split into as few stacks as possible, of almost equal size: a small last one would be slow.

    >>> list(_evenly([7, 3, 4, 9, 1], 3))
    [[7, 3], [4, 9, 1]]
    """
    count = -(-len(devices) // at_most)
    for number in range(count):
        start, end = (len(devices) * place // count for place in (number, number + 1))
        yield devices[start:end]


class _Stack:
    """Devices that train together, the largest first.

    Args:
        work: devices and the seeds of their shuffling.
        batch_size: samples in a step.
        resident: where the samples are.
    """

    def __init__(
        self, work: Sequence[tuple[DeviceData, int]], batch_size: int, resident: ResidentData
    ) -> None:
        for data, _ in work:  # torch would move what does not fit out of the stack
            check_same_shape(data, work[0][0])
        self._samples = [resident.tensors(data) for data, _ in work]
        self._shuffling = [torch.Generator().manual_seed(seed) for _, seed in work]
        self._device = resident.device
        sizes = [data.num_samples for data, _ in work]
        steps = [math.ceil(size / batch_size) for size in sizes]
        self._taking_part = [sum(count > step for count in steps) for step in range(steps[0])]
        shape = len(work), steps[0], batch_size
        x, y = self._samples[0]
        self._x = x.new_empty(*shape, *x.shape[1:])
        for place, size in zip(self._x, sizes, strict=True):
            place.flatten(0, 1)[size:] = 0  # for a sample of weight 0 must be a number still
        self._y = y.new_zeros(*shape, *y.shape[1:])
        weights = torch.zeros(shape)
        for row, size, count in zip(weights, sizes, steps, strict=True):
            row[:count] = 1 / batch_size
            left = size - (count - 1) * batch_size
            row[count - 1] = 0
            row[count - 1, :left] = 1 / left
        self._weights = weights.to(self._device)

    def one_sample(self) -> torch.Tensor:
        """An input of the largest device, [1, *input_shape]."""
        x, _ = self._samples[0]
        return x[:1]

    @np.errstate(over="ignore", invalid="ignore")  # training may diverge, and no caller is warned
    def train(
        self,
        kernel: Stacked,
        origins: Sequence[torch.Tensor],
        training: LocalTraining,
        objective: LocalObjective,
    ) -> torch.Tensor:
        """Run every device's local SGD; the differences, float32 [c, num_parameters]."""
        count = len(self._samples)
        stacks = [
            origin.expand(count, *origin.shape).clone(memory_format=torch.contiguous_format)
            for origin in origins
        ]
        for _ in range(training.epochs):
            self._shuffle()
            for step, active in enumerate(self._taking_part):
                parameters = [stack[:active] for stack in stacks]
                batch = (
                    self._x[:active, step],
                    self._y[:active, step],
                    self._weights[:active, step],
                )
                if objective == PLAIN and isinstance(kernel, StackedLinear):
                    kernel.descend(parameters, *batch, training.learning_rate, training.l2)
                else:
                    losses, gradients = kernel.gradients(parameters, *batch)
                    slopes = _slopes(losses, objective)
                    if slopes is not None:
                        gradients = [
                            one * slopes.view(-1, *[1] * (one.dim() - 1)) for one in gradients
                        ]
                    descend(parameters, origins, gradients, training, objective)
        for stack, origin in zip(stacks, origins, strict=True):
            stack.sub_(origin)
        flat = [stack.view(count, -1) for stack in stacks]
        return torch.cat(flat, 1) if len(flat) > 1 else flat[0]

    def _shuffle(self) -> None:
        """Lay the samples out in the order of the next epoch."""
        for client, ((x, y), generator) in enumerate(
            zip(self._samples, self._shuffling, strict=True)
        ):
            order = torch.randperm(len(y), generator=generator).to(self._device)
            places = self._x[client].flatten(0, 1), self._y[client].flatten(0, 1)
            for samples, place in zip((x, y), places, strict=True):
                torch.index_select(samples, 0, order, out=place[: len(y)])


def _slopes(losses: torch.Tensor, objective: LocalObjective) -> torch.Tensor | None:
    """The derivative of the objective in each minibatch's loss, [c]; None where it is 1."""
    ceiling = objective.ceiling
    if ceiling is None:
        return None
    room = ceiling - losses
    return 1 / torch.where(room < PROPFAIR_MARGIN, ceiling, room)
