"""Steps of SGD of a stack of devices, whose calls are recorded once and played back.

On a GPU the calls of a step (some forty for the GRU's every token) take longer than the step. A
CUDA graph plays all of them in one. It works on fixed addresses, so a stack's parameters, its
minibatch and its weights lie in buffers that stay, with room for a power of two of devices. A stack
loses the devices that have finished: there is a graph for each power of two, and devices beyond
those that take part have weights of 0 and are not moved.

Elsewhere than on a GPU the same step is simply called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from deltafl.fl.local import LocalTraining
from deltafl.fl.objectives import PROPFAIR_MARGIN, LocalObjective
from deltafl.fl.stacked import Stacked


@dataclass(slots=True, eq=False)
class _Buffers:
    """What a step reads and writes, for up to `room` devices.

    Attributes:
        parameters: of each device, each [room, *shape].
        origins: where they began, each [*shape].
        x: the minibatches, [room, batch, *input_shape].
        y: their labels, [room, batch, …].
        weights: of their samples, [room, batch].
        rate: γ, shape [].
        graphs: what is played for how many devices.
    """

    parameters: list[torch.Tensor]
    origins: list[torch.Tensor]
    x: torch.Tensor
    y: torch.Tensor
    weights: torch.Tensor
    rate: torch.Tensor
    graphs: dict[int, Callable[[], None]]


class RecordedSteps:
    """SGD steps of one kernel.

    Args:
        kernel: computes losses and gradients of a stack.
        device: where.

    Attributes:
        is_recorded: whether steps are played back; a caller may switch it off to compare.
    """

    def __init__(self, kernel: Stacked, device: torch.device) -> None:
        self._kernel = kernel
        self._device = device
        self.is_recorded = device.type == "cuda"
        self._kept: dict[tuple[object, ...], _Buffers] = {}
        self._now: _Buffers | None = None
        self._l2 = 0.0
        self._objective = LocalObjective()

    def begin(
        self,
        origins: Sequence[torch.Tensor],
        clients: int,
        x: torch.Tensor,
        y: torch.Tensor,
        training: LocalTraining,
        objective: LocalObjective,
    ) -> list[torch.Tensor]:
        """Set a stack to where its devices begin.

        Args:
            origins: the model's parameters.
            clients: devices of the stack.
            x: inputs of any number of samples, of which only shape and type matter.
            y: their targets, likewise.
            training: step size, batch size and λ.
            objective: what is minimised.

        Returns:
            The devices' parameters, each [clients, *shape], which `step` changes.
        """
        # one tail has five devices and the next one six: room for eight serves both, and what was
        # recorded for one stack is played for the other
        room = 1 << (clients - 1).bit_length()
        key = (
            room, training.batch_size, x.shape[1:], x.dtype, y.shape[1:], y.dtype,
            training.l2, objective,
        )  # fmt: skip
        if key not in self._kept:
            # one size at a time: buffers of another would stay on the device for nothing
            self._kept = {key: self._allocate(origins, room, x, y, training.batch_size)}
        self._now = buffers = self._kept[key]
        self._l2, self._objective = training.l2, objective
        buffers.rate.fill_(training.learning_rate)
        for origin, kept, stack in zip(origins, buffers.origins, buffers.parameters, strict=True):
            kept.copy_(origin)
            stack.copy_(origin.expand_as(stack))
        return [stack[:clients] for stack in buffers.parameters]

    def step(self, active: int, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> None:
        """Do one step of the first `active` devices of the stack that was begun.

        Args:
            active: how many take part.
            x: minibatches of all devices, [clients, batch, *input_shape].
            y: their labels.
            weights: of the samples, 0 for all of a device that does not take part.
        """
        buffers = self._now
        if buffers is None:
            raise RuntimeError("a step before a stack was begun: this is a bug")
        size = 1 << (active - 1).bit_length()
        filled = min(size, len(x))  # nobody reads what becomes of the room beyond
        for kept, new in ((buffers.x, x), (buffers.y, y), (buffers.weights, weights)):
            kept[:filled].copy_(new[:filled])
        if size not in buffers.graphs:
            buffers.graphs[size] = self._record(buffers, size)
        buffers.graphs[size]()

    def _allocate(
        self,
        origins: Sequence[torch.Tensor],
        room: int,
        x: torch.Tensor,
        y: torch.Tensor,
        batch: int,
    ) -> _Buffers:
        return _Buffers(
            [torch.empty(room, *o.shape, device=self._device) for o in origins],
            [torch.empty_like(o, memory_format=torch.contiguous_format) for o in origins],
            x.new_zeros(room, batch, *x.shape[1:]),
            y.new_zeros(room, batch, *y.shape[1:]),
            torch.zeros(room, batch, device=self._device),
            torch.zeros((), device=self._device),
            {},
        )

    def _record(self, buffers: _Buffers, size: int) -> Callable[[], None]:
        l2, objective = self._l2, self._objective

        def run() -> None:
            _step(self._kernel, buffers, size, l2, objective)

        if not self.is_recorded:
            return run
        # With weights of 0 nobody moves, so that nothing has to be put back after trying it. The
        # first calls set libraries up, which cannot be recorded.
        weights = buffers.weights.clone()
        buffers.weights.zero_()
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(aside):
            for _ in range(3):
                run()
        torch.cuda.current_stream(self._device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        buffers.weights.copy_(weights)
        play: Callable[[], None] = graph.replay
        return play


def _step(
    kernel: Stacked, buffers: _Buffers, size: int, l2: float, objective: LocalObjective
) -> None:
    """Step w ← w − γ·(s·∇f + λ·w + μ·(w − w_t)) in place, where s is the objective's slope in f."""
    parameters = [stack[:size] for stack in buffers.parameters]
    weights = buffers.weights[:size]
    losses, gradients = kernel.gradients(parameters, buffers.x[:size], buffers.y[:size], weights)
    rates = buffers.rate * (weights.sum(1) > 0)
    slopes = rates
    if objective.ceiling is not None:
        room = objective.ceiling - losses
        slopes = rates / torch.where(room < PROPFAIR_MARGIN, objective.ceiling, room)
    for parameter, origin, gradient in zip(parameters, buffers.origins, gradients, strict=True):
        shape = -1, *[1] * origin.dim()
        step = gradient * slopes.view(shape)
        if l2:
            step = step + parameter * (l2 * rates).view(shape)
        if objective.proximal:
            step = step + (parameter - origin) * (objective.proximal * rates).view(shape)
        parameter.sub_(step)
