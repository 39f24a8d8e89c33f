"""Convert a module's trained parameters to the vector that leaves a device, and back.

Those are the ones that require a gradient, in the order of `Module.parameters()`, each row-major. A
parameter that is tied to another counts once. All else stays as the module was made: parameters
that are frozen, and buffers.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from deltafl.fl.vectors import Vector


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def fixed(module: nn.Module) -> Mapping[str, bytes]:
    """SHA-256 of all that is not trained, by name: frozen parameters, buffers, other tensors."""
    others = (
        (f"{name}.{key}".removeprefix("."), value)
        for name, layer in module.named_modules()
        for key, value in vars(layer).items()
        if isinstance(value, torch.Tensor)
    )
    held = (*module.named_parameters(), *module.named_buffers(), *others)
    return {name: _sha256(one) for name, one in held if not one.requires_grad}


def _sha256(tensor: torch.Tensor) -> bytes:
    dense = tensor.detach().cpu()
    if dense.layout != torch.strided:
        dense = dense.to_dense()
    flat = dense.contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(flat.tobytes()).digest()


def num_parameters(module: nn.Module) -> int:
    """Count the trained numbers of `module`: the length of its vector."""
    return sum(parameter.numel() for parameter in trained(module))


def to_vector(module: nn.Module) -> Vector:
    """Copy the trained parameters of `module` into a vector."""
    with torch.no_grad():
        # reshape, because a parameter's memory format may differ from row-major
        flat = torch.cat([parameter.reshape(-1) for parameter in trained(module)])
    vector: Vector = flat.cpu().numpy()
    return vector


def load_vector(module: nn.Module, vector: Vector) -> None:
    """Overwrite the trained parameters of `module` with `vector`; their memory formats stay.

    Raises:
        ValueError: `vector` is not a float32 vector of exactly as many numbers as are trained.
    """
    count = num_parameters(module)
    if vector.shape != (count,):
        raise ValueError(
            f"vector of shape {vector.shape} does not fit a model of {count} parameters: "
            f"pass shape ({count},)"
        )
    if vector.dtype != np.float32:
        raise ValueError(f"vector of dtype {vector.dtype} is not float32: convert it with astype")
    parameters = trained(module)
    parts = torch.split(torch.tensor(vector), [parameter.numel() for parameter in parameters])
    with torch.no_grad():
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))
