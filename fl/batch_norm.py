"""Batch norm, which a federation cannot train: its statistics are of a batch, and no parameters.

Only parameters leave a device, and a sample's output may not depend on the others of its batch.
Group norm does without either.
"""

import copy
from typing import Final

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_CHANNELS: Final = 16


def is_frozen(layer: _BatchNorm) -> bool:
    """Whether a layer is left as it is: it has statistics, and parameters that are not trained."""
    trained = [parameter.requires_grad for parameter in layer.parameters()]
    return bool(layer.track_running_stats and trained and not any(trained))


def set_training(module: nn.Module) -> None:
    """Put a module into training mode, but for batch norm that is frozen: it keeps its statistics.

    That is how a pretrained backbone is used, and torch would have its statistics drift.
    """
    module.train()
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and is_frozen(layer):
            layer.eval()


def with_group_norm(module: nn.Module) -> nn.Module:
    """A copy of a module with group norm in place of every batch norm.

    A group has 16 channels or a few more, so that there are as many as divide the channels evenly;
    one group with fewer than 32. Source: Wu and He, "Group Normalization", ECCV 2018, Table 3.
    Weights and biases are kept, statistics are not, so a module that was trained needs some more
    training.

    Args:
        module: is left as it is.

    Raises:
        TypeError: it is no module.
        ValueError: a layer is of one number only, which has nothing to be compared with; or the
            module is lazy.

    >>> with_group_norm(nn.BatchNorm2d(64)).num_groups
    4
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"a {type(module).__name__} is no torch.nn.Module: call what makes it, as in "
            "with_group_norm(network())"
        )
    if any(isinstance(one, nn.modules.lazy.LazyModuleMixin) for one in module.modules()):
        raise ValueError("a lazy module does not know its channels: give it a batch first")
    copied = copy.deepcopy(module)
    if isinstance(copied, _BatchNorm):
        return _group_norm("it", copied)
    made: dict[int, nn.GroupNorm] = {}
    for name, layer in list(copied.named_modules(remove_duplicate=False)):
        if isinstance(layer, _BatchNorm):
            above, _, last = name.rpartition(".")
            if id(layer) not in made:
                made[id(layer)] = _group_norm(repr(name), layer)
            setattr(copied.get_submodule(above), last, made[id(layer)])
    return copied


def _group_norm(name: str, layer: _BatchNorm) -> nn.GroupNorm:
    channels = layer.num_features
    if channels == 1 and isinstance(layer, nn.BatchNorm1d):
        raise ValueError(f"{name} is of one number for each sample, which would be 0: leave it out")
    most = max(1, channels // _CHANNELS)
    groups = next(number for number in range(most, 0, -1) if channels % number == 0)
    made = nn.GroupNorm(groups, channels, layer.eps, layer.affine).train(layer.training)
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
    return made
