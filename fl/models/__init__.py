"""The models of the paper, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl.models.convnet import ConvNet
from fl.models.linear import Linear


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What a model is built for.

    Attributes:
        input_shape: the shape of one input, without the batch.
        num_classes: at least 2.
        embedding: frozen vectors of the tokens, float32 [vocabulary, dimension]; None without text.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    embedding: npt.NDArray[np.float32] | None = None


MODELS: Final[dict[str, Callable[[Task], nn.Module]]] = {
    "linear": lambda task: Linear(task.input_shape, task.num_classes),
    "convnet": lambda task: ConvNet(task.input_shape, task.num_classes),
}


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
        ValueError: an unknown name, or shapes that the model cannot take.
    """
    if name not in MODELS:
        raise ValueError(f"model={name!r} is unknown: choose one of {', '.join(MODELS)}")
    if num_classes < 2:
        raise ValueError(f"num_classes={num_classes} is not at least 2")
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed, which would seed accelerators too, outside the fork
        torch.default_generator.manual_seed(seed)
        return MODELS[name](Task(input_shape, num_classes, embedding))
