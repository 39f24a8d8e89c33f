"""Convert a module's parameters to the vector that leaves a device, and back.

Order: the parameters as `Module.parameters()` yields them, each in row-major order.
"""

import numpy as np
import torch
from torch import nn

from deltafl.fl.vectors import Vector


def num_parameters(module: nn.Module) -> int:
    """Count the trainable numbers of `module`: the length of its vector."""
    return sum(parameter.numel() for parameter in module.parameters())


def to_vector(module: nn.Module) -> Vector:
    """Copy the parameters of `module` into a vector."""
    with torch.no_grad():
        # reshape, because a parameter's memory format may differ from row-major
        flat = torch.cat([parameter.reshape(-1) for parameter in module.parameters()])
    vector: Vector = flat.cpu().numpy()
    return vector


def load_vector(module: nn.Module, vector: Vector) -> None:
    """Overwrite the parameters of `module` with `vector`; their memory formats stay.

    Raises:
        ValueError: `vector` is not a float32 vector of exactly as many numbers as parameters.
    """
    count = num_parameters(module)
    if vector.shape != (count,):
        raise ValueError(
            f"vector of shape {vector.shape} does not fit a model of {count} parameters: "
            f"pass shape ({count},)"
        )
    if vector.dtype != np.float32:
        raise ValueError(f"vector of dtype {vector.dtype} is not float32: convert it with astype")
    parameters = list(module.parameters())
    parts = torch.split(torch.tensor(vector), [parameter.numel() for parameter in parameters])
    with torch.no_grad():
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))
