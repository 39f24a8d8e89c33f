"""The models of the papers, by name.

A model maps a batch of inputs to logits; everything that it learns is a parameter, for nothing else
of it leaves a device. It says which inputs it takes, and refuses others when it is built or, where
only the data can tell (tokens or numbers), when it meets them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deltafl.fl.models.convnet import ConvNet
from deltafl.fl.models.convnet_groupnorm import GroupNormConvNet
from deltafl.fl.models.gru import EmbeddingGRU, OneHotGRU
from deltafl.fl.models.linear import Linear
from deltafl.fl.models.logistic import Logistic
from deltafl.fl.models.lstm import FrozenEmbeddingLSTM, StackedLSTM
from deltafl.fl.models.m5 import M5


@dataclass(frozen=True, slots=True, eq=False)
class DataShape:
    """What a model is built for.

    Attributes:
        input_shape: the shape of one input, without the batch.
        num_classes: at least 2.
        embedding: frozen vectors of the tokens, float32 [vocabulary, dimension]; None without text.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    embedding: npt.NDArray[np.float32] | None = None


MODELS: Final[dict[str, Callable[[DataShape], nn.Module]]] = {
    "linear": lambda task: Linear(task.input_shape, task.num_classes),
    "convnet": lambda task: ConvNet(task.input_shape, task.num_classes),
    "logistic": lambda task: Logistic(task.input_shape, task.num_classes, bias=False),
    "logistic-bias": lambda task: Logistic(task.input_shape, task.num_classes, bias=True),
    "lstm": lambda task: FrozenEmbeddingLSTM(task.input_shape, task.num_classes, task.embedding),
    "gru": lambda task: OneHotGRU(task.input_shape, task.num_classes),
    "gru-embedding": lambda task: EmbeddingGRU(task.input_shape, task.num_classes),
    "convnet-groupnorm": lambda task: GroupNormConvNet(task.input_shape, task.num_classes),
    "lstm-stacked": lambda task: StackedLSTM(task.input_shape, task.num_classes),
    "m5": lambda task: M5(task.input_shape, task.num_classes),
}

READ_TOKENS: Final = frozenset({"lstm", "gru", "gru-embedding", "lstm-stacked"})
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
        ValueError: an unknown name, or shapes that the model cannot take.
    """
    if name not in MODELS:
        raise ValueError(f"model={name!r} is unknown: choose one of {', '.join(MODELS)}")
    if num_classes < 2:
        raise ValueError(f"num_classes={num_classes} is not at least 2")
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed, which would seed accelerators too, outside the fork
        torch.default_generator.manual_seed(seed)
        return MODELS[name](DataShape(input_shape, num_classes, embedding))
