"""The convolutional networks: for 28×28 characters, and for photographs with group normalisation.

Source of the first: arXiv 2002.11223, Appendix C.1; the layers are its published code's: two 5×5
convolutions without padding, each with ReLU and 2×2 max-pooling, and one linear layer on the
1024 features. 62 classes make 832 + 51,264 + 63,550 = 115,646 parameters.

Source of the second: arXiv 2405.20821, Appendix C.2 (CelebA); the sizes that its text leaves open
are those of the published code. Four times: 3×3 convolution to 32 channels without bias, padding 1;
group normalisation in 32, 16, 8 and 4 groups; 2×2 max-pooling, padding 1; ReLU. Then the average
over 5×5 fields and one linear layer. Three channels and two classes make 864 + 3 · 9,216 + 4 · 64 +
801 = 29,569 parameters, whatever the size of the image. PyTorch's default initialisation.
"""

import math
from typing import Final

import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, max_pool2d, relu
from torch.nn.utils import convert_conv2d_weight_memory_format

from deltafl.fl.models.binary import as_logits, num_scores
from deltafl.fl.models.inputs import check_numbers

_CHANNELS: Final = 32
_GROUPS: Final = (32, 16, 8, 4)
_FIELDS: Final = 5
_SMALLEST_SIDE: Final = 16
"""In pixels. Two 5×5 convolutions and poolings leave one: (16 − 4) / 2 = 6, (6 − 4) / 2 = 1. Four
poolings leave 2×2 to normalise and average."""


class ConvNet(nn.Module):
    """conv 1→32, conv 32→64, linear; PyTorch's default initialisation.

    Takes images [height, width], [1, height, width], or square ones flattened row by row.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        square = (math.isqrt(math.prod(input_shape)),) * 2
        is_flat = len(input_shape) == 1 and math.prod(square) == input_shape[0]
        shape = _image_shape(square if is_flat else input_shape, "convnet", (1,))
        _, self._height, self._width = shape
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        features = 64 * _after_layers(self._height) * _after_layers(self._width)
        self.output = nn.Linear(features, num_classes)
        # 1.5 times as many training steps a second on a CPU thread, because the kernels need not
        # reorder; the parameters' values and their order in a vector are the same
        convert_conv2d_weight_memory_format(self, torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map inputs [batch, *input_shape] to logits [batch, num_classes]."""
        x = x.reshape(-1, 1, self._height, self._width)
        # ReLU after pooling is the same function, on a quarter of the numbers
        x = relu(_pooled(self.conv1(x)))
        x = relu(_pooled(self.conv2(x)))
        logits: torch.Tensor = self.output(x.flatten(1))
        return logits


def _pooled(maps: torch.Tensor) -> torch.Tensor:
    """The largest of each 2×2 window; a last odd row or column is left out."""
    if torch.is_grad_enabled():
        return max_pool2d(maps, 2)
    # max_pool2d takes down where the largest was, asked or not: 1.2 times the time of
    # evaluating 256 images on a CPU thread
    pairs = torch.maximum(maps[..., :-1:2], maps[..., 1::2])
    return torch.maximum(pairs[..., :-1:2, :], pairs[..., 1::2, :])


def _after_layers(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


class GroupNormConvNet(nn.Module):
    """Four convolutions with group normalisation, one linear layer.

    Takes images [1 or 3, height, width], or [height, width].

    Raises:
        ValueError: the shape is not one of these, or an image is smaller than 16×16 pixels.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self._image_shape = _image_shape(input_shape, "convnet-groupnorm", (1, 3))
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


def _image_shape(
    input_shape: tuple[int, ...], model: str, channels: tuple[int, ...]
) -> tuple[int, int, int]:
    """Find an image's channels, height and width.

    Args:
        input_shape: (height, width) or (channels, height, width).
        model: its name.
        channels: how many channels it takes.

    Raises:
        ValueError: the shape is not one of these, or an image is smaller than 16×16 pixels.
    """
    match input_shape:
        case (height, width):
            count = 1
        case (count, height, width) if count in channels:
            pass
        case _:
            wrong = "has its channels last" if input_shape[2:] in ((1,), (3,)) else "is no image"
            raise ValueError(
                f"input_shape={input_shape} {wrong}: {model} takes "
                f"({' or '.join(map(str, channels))}, height, width) or (height, width); take the "
                "linear model for other inputs"
            )
    if min(height, width) < _SMALLEST_SIDE:
        raise ValueError(
            f"images of {height}×{width} pixels are too small for {model}, which "
            f"needs {_SMALLEST_SIDE}×{_SMALLEST_SIDE}: take the linear model"
        )
    return count, height, width
