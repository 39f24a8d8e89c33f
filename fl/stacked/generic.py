"""A module for many clients at once, by `torch.func.vmap`, which maps it over a stack.

It takes neither the recurrent layers of PyTorch nor a check of the inputs' values.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from deltafl.fl.criterion import CLASSIFIES, Criterion


class StackedByMapping:
    """The kernel of a module that can be mapped; see `deltafl.fl.stacked.interface`.

    Args:
        module: the architecture; its own parameters are not read.
        criterion: what it is trained for.
    """

    def __init__(self, module: nn.Module, criterion: Criterion = CLASSIFIES) -> None:
        self._module = module
        self._criterion = criterion
        self._names = [name for name, _ in module.named_parameters()]
        self._gradients = vmap(grad_and_value(self._loss))

    def gradients(
        self,
        parameters: Sequence[torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Compute losses and gradients; see `Stacked`."""
        named = dict(zip(self._names, parameters, strict=True))
        gradients, losses = self._gradients(named, x, y, weights)
        return losses, [gradients[name] for name in self._names]

    def _loss(
        self,
        parameters: dict[str, torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        outputs = functional_call(self._module, parameters, (x,))
        return (self._criterion.losses(outputs, y) * weights).sum()
