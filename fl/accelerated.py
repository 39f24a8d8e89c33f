"""Train many devices at once on an accelerator: data stay there, and a cohort is a few transfers.

The counterpart of `deltafl.fl.batched` for a GPU, where a step of a small model takes the GPU less
time than the calls that start it. So a stack is as large as a cohort, its samples are gathered by
one index that goes over once an epoch, all updates come back in one transfer, and the calls of a
step are recorded once and played back (`deltafl.fl.recorded`).

It shuffles as `Learner` does and takes the same steps; sums are computed in another order, so
numbers agree up to the rounding of float32. It runs on a CPU too, slowly, which is how it is
tested.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deltafl.fl.criterion import CLASSIFIES, Criterion
from deltafl.fl.data.federated import DeviceData, check_same_shape
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.parameters import load_vector
from deltafl.fl.recorded import RecordedSteps
from deltafl.fl.resident import ResidentData
from deltafl.fl.stacked import stacked
from deltafl.fl.vectors import Vector

_NUMBERS: Final = 1 << 23
"""Numbers of inputs in a batch of an evaluation; a token counts for as many as a vector may have.
Not measured."""

_NUMBERS_PER_TOKEN: Final = 64


class AcceleratedLearner:
    """A `CohortLearner` on one accelerator.

    Modules without a kernel for stacks are trained one device after another, on data that stay
    there too.

    Args:
        module: the architecture; its parameters are overwritten.
        device: where to compute; vectors go in and come out on the CPU.
        criterion: what it is trained for.
        clients: the most devices of a stack; by default what `stacked` says.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        device: torch.device,
        criterion: Criterion = CLASSIFIES,
        clients: int | None = None,
    ) -> None:
        self._device = device
        self._module = module.to(device)
        self._criterion = criterion
        self._data = ResidentData(device)
        self._one_by_one = Learner(module, device=device, criterion=criterion)
        self._clients = 0
        self._steps: RecordedSteps | None = None
        if choice := stacked(module, torch.device("cuda"), criterion):
            kernel, usual = choice
            self._clients = usual if clients is None else clients
            self._steps = RecordedSteps(kernel, device)

    def losses(self, vector: Vector, devices: Sequence[DeviceData]) -> list[float]:
        """Compute F_k(w) of each device, in their order; see `CohortLearner`."""
        return [metrics.loss for metrics in self.evaluate(vector, devices)]

    def evaluate(self, vector: Vector, devices: Sequence[DeviceData]) -> list[DeviceMetrics]:
        """Measure the model on each device, in their order, in one pass; see `CohortLearner`.

        Raises:
            ValueError: `vector` does not fit the module, or as `deltafl.fl.evaluation.measure`.
        """
        load_vector(self._module, vector)
        self._module.eval()
        metrics = list[DeviceMetrics]()
        with torch.inference_mode():
            for members in self._windows(devices):
                x = torch.cat([self._data.tensors(data)[0] for data in members])
                y = torch.cat([self._data.tensors(data)[1] for data in members])
                rows = max(1, _NUMBERS // _numbers(members[0]))
                found = [
                    torch.stack(self._criterion.measure(self._module(inputs), targets))
                    for inputs, targets in zip(
                        torch.split(x, rows), torch.split(y, rows), strict=True
                    )
                ]
                losses, missed = torch.cat(found, 1).cpu().numpy()
                metrics += _by_device(members, losses, missed)
        return metrics

    def updates(
        self,
        vector: Vector,
        devices: Sequence[DeviceData],
        training: LocalTraining,
        seeds: Sequence[int],
        objective: LocalObjective = PLAIN,
    ) -> Iterator[Vector]:
        """Train each device from `vector`; see `CohortLearner`."""
        if self._steps is None:
            yield from self._one_by_one.updates(vector, devices, training, seeds, objective)
            return
        load_vector(self._module, vector)
        self._module.train()
        # taken once: by the next stack, the caller may have had another model evaluated
        origins = [parameter.detach().clone() for parameter in self._module.parameters()]
        work = zip(devices, seeds, strict=True)
        while window := list(islice(work, self._clients)):
            # the largest first, so that devices which have finished are at a stack's end; one
            # without samples has no step, and there is nothing to pad it with
            order = sorted(range(len(window)), key=lambda i: window[i][0].num_samples, reverse=True)
            members = [i for i in order if window[i][0].num_samples]
            stack = [window[i] for i in members]
            rows = self._train(self._steps, origins, stack, training, objective) if stack else ()
            found = dict(zip(members, rows, strict=True))
            yield from (found.get(i, np.zeros_like(vector)) for i in range(len(window)))

    def _train(
        self,
        steps: RecordedSteps,
        origins: Sequence[torch.Tensor],
        work: Sequence[tuple[DeviceData, int]],
        training: LocalTraining,
        objective: LocalObjective,
    ) -> Vector:
        """The differences of a stack, float32 [c, num_parameters], on the CPU."""
        for data, _ in work:
            check_same_shape(data, work[0][0])
        samples = [self._data.tensors(data) for data, _ in work]
        x, y = (torch.cat(parts) for parts in zip(*samples, strict=True))
        self._check(x)
        order = _Order(work, training.batch_size)
        stack = steps.begin(origins, len(work), x, y, training, objective)
        for _ in range(training.epochs):
            index = order.shuffled().to(self._device)  # [steps, c, batch]
            inputs = x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])
            targets = y.index_select(0, index.flatten()).view(*index.shape, *y.shape[1:])
            weights = order.weights.to(self._device)
            for number, active in enumerate(order.taking_part):
                steps.step(active, inputs[number], targets[number], weights[number])
        differences = [
            (now - origin).flatten(1) for now, origin in zip(stack, origins, strict=True)
        ]
        found: Vector = torch.cat(differences, 1).cpu().numpy()
        return found

    def _check(self, x: torch.Tensor) -> None:
        """Let the module refuse inputs of the wrong kind, of which a kernel may not look at any."""
        with torch.inference_mode():
            if x.is_floating_point():
                self._module(x[:1])
            else:
                low, high = x.aminmax()
                self._module(torch.stack([low.expand(x.shape[1:]), high.expand(x.shape[1:])]))

    def _windows(self, devices: Sequence[DeviceData]) -> Iterator[list[DeviceData]]:
        """Devices that are measured together: as many as fit into a few batches, in their order."""
        window, filled = list[DeviceData](), 0
        for data in devices:
            if not data.num_samples:
                raise ValueError(f"device {data.id!r} has no samples to measure: leave it out")
            if window:
                check_same_shape(data, window[0])
            window.append(data)
            filled += data.num_samples * _numbers(data)
            if filled >= 4 * _NUMBERS:
                yield window
                window, filled = [], 0
        if window:
            yield window


class _Order:
    """Which samples of a stack are in which minibatch.

    Args:
        work: devices and the seeds of their shuffling, the largest first.
        batch_size: samples in a step.

    Attributes:
        taking_part: of each step, how many devices have one.
        weights: of each sample in its device's minibatch, float32 [steps, c, batch], 0 for padding.
    """

    def __init__(self, work: Sequence[tuple[DeviceData, int]], batch_size: int) -> None:
        self._sizes = [data.num_samples for data, _ in work]
        self._generators = [torch.Generator().manual_seed(seed) for _, seed in work]
        steps = [math.ceil(size / batch_size) for size in self._sizes]
        self.taking_part = [sum(count > step for count in steps) for step in range(steps[0])]
        self._shape = len(work), steps[0], batch_size
        self.weights = torch.zeros(steps[0], len(work), batch_size)
        for client, (size, count) in enumerate(zip(self._sizes, steps, strict=True)):
            self.weights[: count - 1, client] = 1 / batch_size
            left = size - (count - 1) * batch_size
            self.weights[count - 1, client, :left] = 1 / left

    def shuffled(self) -> torch.Tensor:
        """The order of the next epoch: places among all samples, int64 [steps, c, batch].

        Padding is the device's first sample: a number, of weight 0.
        """
        clients, steps, batch = self._shape
        index = torch.empty(clients, steps * batch, dtype=torch.int64)
        first = 0
        for row, size, generator in zip(index, self._sizes, self._generators, strict=True):
            row[:size] = torch.randperm(size, generator=generator)
            row[size:] = 0
            row += first
            first += size
        return index.view(clients, steps, batch).transpose(0, 1).contiguous()


def _by_device(
    devices: Sequence[DeviceData], losses: npt.NDArray[np.float64], missed: npt.NDArray[np.float64]
) -> Iterator[DeviceMetrics]:
    """Means over the samples of each device; of equal losses, that loss to the bit."""
    counts = np.array([data.num_samples for data in devices])
    owners = np.repeat(np.arange(len(devices)), counts)
    origins = losses[np.cumsum(counts) - counts]
    with np.errstate(invalid="ignore"):  # of infinite losses, which are told as NaN
        excess = np.bincount(owners, losses - origins[owners])
    means, errors = origins + excess / counts, np.bincount(owners, missed) / counts
    for data, loss, error in zip(devices, means.tolist(), errors.tolist(), strict=True):
        yield DeviceMetrics(data.id, data.num_samples, loss, error)


def _numbers(data: DeviceData) -> int:
    """How many numbers one input counts for."""
    return max(1, math.prod(data.x.shape[1:]) * (_NUMBERS_PER_TOKEN if data.is_tokens else 1))
