"""A module of the caller's own: checked, and made as often as it is needed."""

import copy
from collections.abc import Callable

import torch
from torch import nn

from deltafl.fl.models import MAX_PARAMETERS
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
    with torch.random.fork_rng(devices=[]):
        module = make()
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"model: {type(module).__name__} is no torch.nn.Module: pass a module, or a function "
            "that makes one"
        )
    size = num_parameters(module)
    if not 0 < size <= MAX_PARAMETERS:
        raise ConfigError(
            f"model: {type(module).__name__} has {size:,} parameters; must be from 1 to "
            f"{MAX_PARAMETERS:,}"
        )
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            raise ConfigError(
                f"model: parameter {name!r} is {parameter.dtype}"
                f"{'' if parameter.requires_grad else ' and does not require a gradient'}: all "
                "must be float32 and be trained; keep what is fixed in buffers"
            )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
            raise ConfigError(
                f"model: {name or type(layer).__name__!r} is a {type(layer).__name__}, whose "
                "running statistics are no parameters and would stay on the devices: take "
                "GroupNorm, or track_running_stats=False"
            )
    return make
