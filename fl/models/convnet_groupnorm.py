"""The convolutional network for photographs, with group normalisation.

Source: arXiv 2405.20821, Appendix C.2 (CelebA); the sizes that its text leaves open are those of
the published code. Four times: 3×3 convolution to 32 channels without bias, padding 1; group
normalisation in 32, 16, 8 and 4 groups; 2×2 max-pooling, padding 1; ReLU. Then the average over
5×5 fields and one linear layer. Three channels and two classes make 864 + 3 · 9,216 + 4 · 64 + 801
= 29,569 parameters, whatever the size of the image. PyTorch's default initialisation.
"""

from typing import Final

import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, max_pool2d, relu

from deltafl.fl.models.binary import as_logits, num_scores
from deltafl.fl.models.inputs import check_numbers, image_shape

_CHANNELS: Final = 32
_GROUPS: Final = (32, 16, 8, 4)
_FIELDS: Final = 5


class GroupNormConvNet(nn.Module):
    """Four convolutions with group normalisation, one linear layer.

    Takes images [1 or 3, height, width], or [height, width].

    Raises:
        ValueError: the shape is not one of these, or an image is smaller than 16×16 pixels.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self._image_shape = image_shape(input_shape, "convnet-groupnorm", (1, 3))
        channels = (self._image_shape[0], *[_CHANNELS] * len(_GROUPS))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], 3, padding=1, bias=False)
            for i in range(len(_GROUPS))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(groups, _CHANNELS) for groups in _GROUPS)
        self.output = nn.Linear(_CHANNELS * _FIELDS * _FIELDS, num_scores(num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float inputs [batch, *input_shape] to logits [batch, num_classes]."""
        check_numbers(x, "convnet-groupnorm")
        x = x.reshape(-1, *self._image_shape)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = relu(max_pool2d(norm(convolution(x)), 2, padding=1))
        return as_logits(self.output(adaptive_avg_pool2d(x, _FIELDS).flatten(1)))
