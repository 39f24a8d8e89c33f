"""The models of the papers, by name.

A model maps a batch of inputs to logits; everything that it learns is a parameter, for nothing else
of it leaves a device. It says which inputs it takes, and refuses others when it is built or, where
only the data can tell (tokens or numbers), when it meets them.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deltafl.fl.parameters import num_parameters
from deltafl.fl.registry import MODELS
from deltafl.fl.seeding import drawn_from

__all__ = ["MAX_PARAMETERS", "MODELS", "READ_TOKENS", "build_model", "seeded"]

MAX_PARAMETERS: Final = 1 << 26
"""Most numbers of a model that are trained: of every device in a round, a vector of them is kept.
Frozen parameters and buffers do not count."""

READ_TOKENS: Final = frozenset(name for name, entry in MODELS.items() if entry.reads_tokens)
"""The models that read rows of tokens; the others take numbers."""


def build_model(
    name: str,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    embedding: npt.NDArray[np.float32] | None = None,
) -> nn.Module:
    """Build a freshly initialised model on the CPU.

    The initial weights depend on the seed alone; the global random state is left as it was.

    Args:
        name: one of `MODELS`.
        input_shape: the shape of one input, without the batch.
        num_classes: at least 2.
        seed: of the initial weights, in [0, 2^64).
        embedding: frozen vectors of the tokens, for models that read text through them.

    Raises:
        ValueError: an unknown name, shapes that the model cannot take, or more than
            `MAX_PARAMETERS` parameters.
    """
    if name not in MODELS:
        raise ValueError(f"model={name!r} is unknown: choose one of {', '.join(MODELS)}")
    if num_classes < 2:
        raise ValueError(f"num_classes={num_classes} is not at least 2")
    values = {"input_shape": input_shape, "num_classes": num_classes, "embedding": embedding}
    with torch.device("meta"):  # shapes without numbers
        size = num_parameters(MODELS[name].build(values))
    if size > MAX_PARAMETERS:
        raise ValueError(
            f"{name} of inputs {input_shape} and {num_classes} classes has {size:,} parameters: at "
            f"most {MAX_PARAMETERS:,} can be trained"
        )
    return seeded(lambda: MODELS[name].build(values), seed)


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module whose initial weights depend on the seed alone.

    Args:
        build: makes it, with torch's random numbers.
        seed: in [0, 2^64).
    """
    with drawn_from(seed):
        return build()
