"""Logistic regression, multinomial and of two classes; all weights are zero at first."""

import math

import torch
from torch import nn
from torch.nn.functional import linear

from deltafl.fl.models.binary import as_logits, num_scores
from deltafl.fl.models.inputs import check_numbers


class Linear(nn.Module):
    """Logits x·W of the flattened input; W is stored as [num_classes, num_features].

    Source: arXiv 2002.11223, Appendix C.1, as its published code has it: no bias, weights zero, so
    the first loss is ln(num_classes) on every device. 784 inputs and 62 classes make 48,608
    parameters.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_classes, math.prod(input_shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map inputs [batch, *input_shape] to logits [batch, num_classes]."""
        return linear(x.flatten(1), self.weight)


class Logistic(nn.Module):
    """The score w·x + b of the flattened input.

    Without a bias: arXiv 2002.11223, Appendix C.1.2, as its published code has it; 50 inputs make
    50 parameters. With a bias: arXiv 2405.20821, Appendix C.2; of more than two classes it is
    multinomial, which makes num_classes · (num_features + 1) parameters. Two classes have one score
    (`deltafl.fl.models.binary`).

    Args:
        input_shape: of one input, any.
        num_classes: 2, or more with a bias.
        bias: whether there is a b.

    Raises:
        ValueError: more than two classes without a bias.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, bias: bool) -> None:
        super().__init__()
        if num_classes > 2 and not bias:
            raise ValueError(
                f"num_classes={num_classes} is not 2: logistic tells two classes apart, take the "
                "linear model, which is the same for more"
            )
        self._name = "logistic-bias" if bias else "logistic"
        scores = num_scores(num_classes)
        self.weight = nn.Parameter(torch.zeros(scores, math.prod(input_shape)))
        self.bias = nn.Parameter(torch.zeros(scores)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float inputs [batch, *input_shape] to logits [batch, num_classes]."""
        check_numbers(x, self._name)
        return as_logits(linear(x.flatten(1), self.weight, self.bias))


def without_bias(input_shape: tuple[int, ...], num_classes: int) -> Logistic:
    """The model `logistic`."""
    return Logistic(input_shape, num_classes, bias=False)


def with_bias(input_shape: tuple[int, ...], num_classes: int) -> Logistic:
    """The model `logistic-bias`."""
    return Logistic(input_shape, num_classes, bias=True)
