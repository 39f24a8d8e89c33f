"""What a device does with a model: compute its loss, train on its own samples, evaluate.

The loss is the mean over the samples (`deltafl.fl.criterion`), in float64, without the L2 term. The
term (λ/2)·‖w‖² is the same for every device, so it does not change the order of the losses or any
filter; without it, the reported number is the loss on the data alone. Training does include the
term.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deltafl.fl.batch_norm import set_training
from deltafl.fl.criterion import CLASSIFIES, Criterion
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.errors import check_positive
from deltafl.fl.evaluation import DeviceMetrics, measure
from deltafl.fl.objectives import PLAIN, PROPFAIR_MARGIN, LocalObjective
from deltafl.fl.optimizers import MakeOptimizer, limited, local_optimizer
from deltafl.fl.parameters import load_vector, to_vector, trained
from deltafl.fl.registry import SGD
from deltafl.fl.seeding import drawn_from
from deltafl.fl.vectors import Vector


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """How a device trains in one round.

    Attributes:
        learning_rate: γ, positive.
        batch_size: samples per step; the last step of an epoch takes the remaining ones.
        epochs: passes over the device's samples.
        l2: λ of the step w ← w − γ·(∇f + λ·w).
        optimizer: a name of `deltafl.fl.registry.OPTIMIZERS`, or `OWN`. It begins anew on every
            device and in every round.
        momentum: of "sgd", in [0, 1).
        max_grad_norm: a longer gradient of a step is scaled down to this L2 norm; 0 for no limit.
        steps: how many, in place of `epochs`: the samples are gone through as often as it takes; 0
            for as many as the epochs have.
    """

    learning_rate: float
    batch_size: int
    epochs: int = 1
    l2: float = 0.0
    optimizer: str = SGD
    momentum: float = 0.0
    max_grad_norm: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        check_positive(learning_rate=self.learning_rate)
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} is not at least 1")
        if self.epochs < 1:
            raise ValueError(f"epochs={self.epochs} is not at least 1")
        if not (math.isfinite(self.l2) and self.l2 >= 0):
            raise ValueError(f"l2={self.l2} is not a non-negative number")

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD over epochs and nothing more, which stacks of devices can do."""
        return self.optimizer == SGD and not (self.momentum or self.max_grad_norm or self.steps)


class Learner:
    """One module, used for one device after another: every call loads the model that it is given.

    On a CPU with a fixed number of threads, equal arguments give bitwise equal results. Another
    way of training many devices (`deltafl.fl.batched`) shuffles in the same way and takes the same
    steps, and agrees up to the rounding of float32.

    Args:
        module: the architecture; its parameters are overwritten.
        device: where to compute; vectors go in and come out on the CPU.
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
        self._device = device or torch.device("cpu")
        self._module = module.to(self._device)
        self._criterion = criterion
        self._optimizer = optimizer
        self._resident = ResidentData(self._device)
        keep_freed_memory()

    def mean_loss(self, vector: Vector, data: DeviceData) -> float:
        """Compute F_k(w): the mean loss over all samples of the device, in nats.

        Raises:
            ValueError: `vector` does not fit the module.
        """
        load_vector(self._module, vector)
        [found] = measure(self._module, [data], self._device, self._criterion, with_metric=False)
        return found.loss

    @np.errstate(over="ignore", invalid="ignore")  # training may diverge, and no caller is warned
    def train(
        self,
        vector: Vector,
        data: DeviceData,
        training: LocalTraining,
        generator: torch.Generator,
        objective: LocalObjective = PLAIN,
    ) -> Vector:
        """Train locally from `vector` and return the difference that the device contributes.

        Samples are shuffled once per epoch. The gradient of a step is ∇f + λ·w + μ·(w − w_t), where
        f is the minibatch's mean loss under `objective`; what f does not depend on has a ∇f of 0.
        A step of SGD is w ← w − γ times that.

        Args:
            vector: the model w_t to start from.
            data: the device's samples.
            training: step size, batches, epochs, optimiser.
            generator: a CPU generator for the shuffling, the only randomness.
            objective: what to minimise, in addition to the L2 term of `training`.

        Returns:
            Δ_k = w_k − w_t, float32; NaN or infinite where training diverged; 0 without samples.

        Raises:
            ValueError: `vector` does not fit the module.
        """
        load_vector(self._module, vector)
        set_training(self._module)
        x, y = self._resident.tensors(data)
        parameters = trained(self._module)
        optimizer = local_optimizer(parameters, training, self._optimizer)
        origins: list[torch.Tensor] = [
            # only the proximal term needs a copy of w_t
            parameter.detach().clone() if objective.proximal else parameter
            for parameter in parameters
        ]
        for batch in _batches(data.num_samples, training, generator):
            rows = batch.to(self._device)
            outputs = self._module(x.index_select(0, rows))
            loss = self._criterion.mean(outputs, y.index_select(0, rows))
            gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
            slope = _slope(loss, objective)
            with torch.no_grad():
                sloped = (one if slope == 1 else one * slope for one in gradients)
                descend(parameters, origins, sloped, training, objective, optimizer)
        return to_vector(self._module) - vector

    def losses(self, vector: Vector, devices: Sequence[DeviceData]) -> list[float]:
        """Compute F_k(w) of each device, in nats, in the order of `devices`.

        Raises:
            ValueError: `vector` does not fit the model.
        """
        return [self.mean_loss(vector, data) for data in devices]

    def updates(
        self,
        vector: Vector,
        devices: Sequence[DeviceData],
        training: LocalTraining,
        seeds: Sequence[int],
        objective: LocalObjective = PLAIN,
    ) -> Iterator[Vector]:
        """Train each device from `vector`; the differences Δ_k, in the order of `devices`.

        Args:
            vector: the model w_t to start from.
            devices: the devices' samples.
            training: step size, batches, epochs.
            seeds: the seed of each device's shuffling, in [0, 2^63), for a CPU generator of torch.
            objective: what to minimise.

        Raises:
            ValueError: `vector` does not fit the model.
        """
        for data, seed in zip(devices, seeds, strict=True):
            # what else is random in a module, such as dropout, follows from the seed too
            with drawn_from(seed, self._device):
                generator = torch.Generator().manual_seed(seed)
                update = self.train(vector, data, training, generator, objective)
            yield update

    def evaluate(self, vector: Vector, devices: Sequence[DeviceData]) -> list[DeviceMetrics]:
        """Measure the model on each device, in the order of `devices`.

        Raises:
            ValueError: `vector` does not fit the module.
        """
        load_vector(self._module, vector)
        return measure(self._module, devices, self._device, self._criterion)


def descend(
    parameters: Sequence[torch.Tensor],
    origins: Sequence[torch.Tensor],
    gradients: Iterable[torch.Tensor],
    training: LocalTraining,
    objective: LocalObjective,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Step w ← w − γ·(∇f + λ·w + μ·(w − w_t)) in place, or as an optimiser does; ∇f is given.

    The gradient is no longer than `training.max_grad_norm`, if there is one.
    """

    def penalised() -> Iterator[torch.Tensor]:
        for parameter, origin, step in zip(parameters, origins, gradients, strict=True):
            if training.l2:
                step = step.add(parameter, alpha=training.l2)
            if objective.proximal:  # the gradient of half the squared distance
                step = step.add(parameter - origin, alpha=objective.proximal)
            yield step

    most = training.max_grad_norm
    steps = limited(list(penalised()), most) if most else penalised()
    for parameter, step in zip(parameters, steps, strict=True):
        if optimizer is None:
            parameter.add_(step, alpha=-training.learning_rate)
        else:
            parameter.grad = step
    if optimizer is not None:
        optimizer.step()


def _slope(loss: torch.Tensor, objective: LocalObjective) -> float:
    """The derivative of the objective by the minibatch's loss; the proximal term is in the step."""
    ceiling = objective.ceiling
    if ceiling is None:
        return 1.0
    room = ceiling - loss.item()
    return 1 / (ceiling if room < PROPFAIR_MARGIN else room)


def _batches(
    num_samples: int, training: LocalTraining, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    if num_samples == 0:  # nothing would be split into one batch of nothing, and be a step
        return
    batches = (
        batch
        for _ in (count() if training.steps else range(training.epochs))
        for batch in torch.split(
            torch.randperm(num_samples, generator=generator), training.batch_size
        )
    )
    yield from islice(batches, training.steps or None)


_BUDGET: Final = 4 << 30


class ResidentData:
    """Devices' samples as tensors on the learner's device; on an accelerator they stay there.

    On a CPU they are the device's own arrays if those can be used directly, and nothing is kept. On
    an accelerator the data of the first devices, up to a budget, are copied once.

    Args:
        device: where to compute.
        budget: bytes that may be kept.
    """

    def __init__(self, device: torch.device, budget: int = _BUDGET) -> None:
        self.device = device
        self._left = 0 if device.type == "cpu" else budget
        # by identity, which is what devices are equal by: their samples never change
        self._kept: dict[DeviceData, tuple[torch.Tensor, torch.Tensor]] = {}

    def tensors(self, data: DeviceData) -> tuple[torch.Tensor, torch.Tensor]:
        """Give inputs as a model takes them, and labels, which are only to be read."""
        if data in self._kept:
            return self._kept[data]
        found = _tensor(data.inputs()).to(self.device), _tensor(data.y).to(self.device)
        size = sum(tensor.numel() * tensor.element_size() for tensor in found)
        if size <= self._left:
            self._left -= size
            self._kept[data] = found
        return found


def _tensor(array: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> torch.Tensor:
    # without a copy, which torch would warn of for an array that may not be written to
    return torch.from_numpy(array) if array.flags.writeable else torch.tensor(array)


_BLOCK: Final = 1 << 24  # bytes; glibc learns from blocks of up to 32 MiB


def keep_freed_memory() -> None:
    """Make glibc keep up to 32 MiB of freed memory; other allocators are not affected.

    The tensors of a training step take megabytes and are freed at its end. glibc then returns the
    end of its heap to the system, and the next step pays one page fault for each new page: up to a
    third of the training time of a small convolutional network. glibc keeps twice the size of the
    largest mapped block freed so far (mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD), which is
    often too little.
    """
    torch.empty(_BLOCK, dtype=torch.uint8)  # mapped, never touched, freed at once
