"""By which optimiser a device trains: plain SGD, or one of `torch.optim`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from deltafl.fl.registry import OPTIMIZERS, OWN, SGD

if TYPE_CHECKING:
    from deltafl.fl.local import LocalTraining

MakeOptimizer: TypeAlias = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]
"""From parameters and a learning rate to an optimiser; so are the classes of `torch.optim`."""


def local_optimizer(
    parameters: list[nn.Parameter], training: "LocalTraining", own: MakeOptimizer | None
) -> torch.optim.Optimizer | None:
    """A new optimiser of a device's training; None for plain SGD, which needs none.

    Args:
        parameters: those that are trained.
        training: how.
        own: makes it, if it is one of the caller's own.

    Raises:
        ValueError: there is none of this name, or the caller's own is none.
    """
    if training.optimizer == SGD:
        if not training.momentum:
            return None
        return torch.optim.SGD(parameters, training.learning_rate, momentum=training.momentum)
    if training.optimizer != OWN:
        make: MakeOptimizer = getattr(torch.optim, OPTIMIZERS[training.optimizer])
        return make(parameters, training.learning_rate)
    if own is None:
        raise ValueError("an optimiser of your own cannot be made of its name: pass it again")
    made: object = own(parameters, training.learning_rate) if callable(own) else None
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer = {own!r:.100}: must be a function of parameters and a learning rate that "
            "makes a torch.optim.Optimizer, such as torch.optim.AdamW"
        )
    return made


def limited(steps: list[torch.Tensor], most: float) -> list[torch.Tensor]:
    """Gradients of a step, all scaled down by one factor where their joint L2 norm is above `most`.

    Source: Pascanu, Mikolov and Bengio, ICML 2013. A number that is not finite makes NaN of itself.
    """
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in steps]))
    return [one * (most / norm).clamp(max=1.0) for one in steps]
