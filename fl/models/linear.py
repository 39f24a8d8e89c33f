"""Multinomial logistic regression.

Source: arXiv 2002.11223, Appendix C.1, as its published code has it: no bias, weights zero, so the
first loss is ln(num_classes) on every device. 784 inputs and 62 classes make 48,608 parameters.
"""

import math

import torch
from torch import nn


class Linear(nn.Module):
    """Logits x·W of the flattened input; W is stored as [num_classes, num_features]."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_classes, math.prod(input_shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map inputs [batch, *input_shape] to logits [batch, num_classes]."""
        return nn.functional.linear(x.flatten(1), self.weight)
