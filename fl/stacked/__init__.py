"""Kernels that train many clients at once, by model."""

from typing import Final

import torch
from torch import nn

from deltafl.fl.criterion import CLASSIFIES, Criterion
from deltafl.fl.models.gru import EmbeddingGRU, OneHotGRU
from deltafl.fl.models.linear import Linear
from deltafl.fl.models.logistic import Logistic
from deltafl.fl.parameters import num_parameters
from deltafl.fl.registry import OWN
from deltafl.fl.stacked.generic import StackedByMapping
from deltafl.fl.stacked.gru import StackedGRU
from deltafl.fl.stacked.interface import Stacked, StackedDescent
from deltafl.fl.stacked.linear import StackedLinear

__all__ = ["Stacked", "StackedDescent", "stacked"]


_LINEAR_NUMBERS: Final = 800_000
_LINEAR_CLIENTS: Final = 64
"""A stack of linear models has at most this many numbers, or it falls out of the cache, and this
many clients, beyond which there is little to gain. Of 784 features and 62 classes these are 16
clients, about the best on one CPU thread with OpenBLAS; of small ones 64 were."""

_GRU_CLIENTS: Final = 4
"""8 were not faster, 2 were slower, on one CPU thread."""

_ACCELERATED_CLIENTS: Final = 128
"""Of any stack on an accelerator: a whole cohort, so that it takes few calls and one transfer. Not
measured yet; `make gpu` measures several."""

_NOT_MAPPED: Final = (nn.RNNBase, nn.modules.dropout._DropoutNd)


def stacked(
    module: nn.Module, device: torch.device, criterion: Criterion = CLASSIFIES
) -> tuple[Stacked, int] | None:
    """Choose the kernel of `module`, and how many clients to give it at once.

    Returns:
        None if one client after another is as fast, or has to be: mapped convolutions are slower on
        a CPU, and neither the LSTMs, nor dropout, nor somebody's own loss can always be mapped.
    """
    if criterion.loss == OWN:
        return None
    if not criterion.is_usual:
        return _mapped(module, device, criterion)
    if isinstance(module, Linear | Logistic):
        fitting = _LINEAR_NUMBERS // num_parameters(module)
        best = min(max(1, fitting), _LINEAR_CLIENTS)
        return StackedLinear(module), best if device.type == "cpu" else _ACCELERATED_CLIENTS
    if isinstance(module, OneHotGRU | EmbeddingGRU):
        return StackedGRU(module), _GRU_CLIENTS if device.type == "cpu" else _ACCELERATED_CLIENTS
    return _mapped(module, device, criterion)


def _mapped(
    module: nn.Module, device: torch.device, criterion: Criterion
) -> tuple[Stacked, int] | None:
    if device.type == "cpu" or any(isinstance(part, _NOT_MAPPED) for part in module.modules()):
        return None
    return StackedByMapping(module, criterion), _ACCELERATED_CLIENTS
