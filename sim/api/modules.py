"""A module of the caller's own: checked, and made as often as it is needed."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from deltafl.fl.batch_norm import is_frozen
from deltafl.fl.models import MAX_PARAMETERS, seeded
from deltafl.fl.parameters import num_parameters
from deltafl.fl.registry import MODELS
from deltafl.sim.errors import ConfigError

Model = str | nn.Module | Callable[[], nn.Module]
"""A name, a module, or what makes one: then each seed has initial weights of its own."""


def factory(model: Model) -> Callable[[], nn.Module] | None:
    """What makes a module of the caller's own; None for one of the papers'.

    Raises:
        ConfigError: it is no module, or one that cannot be trained by sums of its parameters.
    """
    if isinstance(model, str):
        return None
    if not callable(model):
        raise ConfigError(
            f"model = {model!r:.100}: must be a module, a function that makes one, or a name of "
            f"the papers' models: {', '.join(MODELS)}"
        )
    make = model if not isinstance(model, nn.Module) else lambda: copy.deepcopy(model)
    module = model if isinstance(model, nn.Module) else seeded(model, 0)
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"model: {type(module).__name__} is no torch.nn.Module: pass a module, or a function "
            "that makes one"
        )
    _check_parameters(module)
    _check_batch_norm(module)
    return make


def _check_parameters(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ConfigError(
                f"model: parameter {name!r} has no shape yet: pass a batch of inputs through the "
                "module where it is made, such as module(torch.zeros(1, 4))"
            )
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ConfigError(
                f"model: parameter {name!r} is {parameter.dtype}: what is trained must be float32 "
                "(module.float()); what is frozen (requires_grad = False) may be of any type"
            )
    size = num_parameters(module)
    if not 0 < size <= MAX_PARAMETERS:
        raise ConfigError(
            f"model: {type(module).__name__} has {size:,} parameters that are trained; must be "
            f"from 1 to {MAX_PARAMETERS:,}, as each device of a round gives so many numbers; "
            "freeze the others (requires_grad = False), as LoRA does"
        )


def _check_batch_norm(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and not is_frozen(layer):
            raise ConfigError(
                f"model: {name or type(layer).__name__!r} is a {type(layer).__name__}, whose "
                "statistics are no parameters, but of a batch, or stay on a device: pass "
                "deltafl.with_group_norm(module), which puts GroupNorm in its place, or freeze it "
                "with its statistics (requires_grad = False)"
            )
