"""M5: convolutions over raw audio.

Source: arXiv 2405.20821, Appendix C.2, after Dai et al., ICASSP 2017 (arXiv 1610.00087); the sizes
that the text leaves open are those of the published code. Convolutions of 80 samples with stride 4
to 64 channels, then of 3 with padding 1 to 64, 128 and 256, each followed by a normalisation, ReLU
and max-pooling over 4; the average over time; one linear layer. 35 classes make 5,184 + 12,352 +
24,704 + 98,560 + 2 · 512 + 8,995 = 150,819 parameters. PyTorch's default initialisation.

In one thing it departs: the published normalisation is over the batch, here it is over groups of
channels of one sample (Wu and He, ECCV 2018), with as many parameters. A normalisation over the
batch keeps running means and variances, which are no parameters: they would stay behind on the
simulator's one module and pass from device to device, outside every sum. And with them a device's
loss would not be a mean of the losses of its samples.
"""

from typing import Final

import torch
from torch import nn
from torch.nn.functional import max_pool1d, relu

from deltafl.fl.models.binary import as_logits, num_scores
from deltafl.fl.models.inputs import check_numbers

_CHANNELS: Final = (64, 64, 128, 256)
_GROUPS: Final = 32  # the default of Wu and He
_POOL: Final = 4
_FIRST_KERNEL: Final = 80
_FIRST_STRIDE: Final = 4
_SHORTEST: Final = _FIRST_KERNEL + (_POOL ** len(_CHANNELS) - 1) * _FIRST_STRIDE


class M5(nn.Module):
    """Four convolutions over time, one linear layer.

    Takes waveforms [num_samples] or [1, num_samples].

    Raises:
        ValueError: the shape is not one of these, or the waveform is shorter than 1100 samples.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self._length = _length(input_shape)
        self.convolutions = nn.ModuleList(
            [
                nn.Conv1d(1, _CHANNELS[0], _FIRST_KERNEL, stride=_FIRST_STRIDE),
                *(
                    nn.Conv1d(_CHANNELS[i], _CHANNELS[i + 1], 3, padding=1)
                    for i in range(len(_CHANNELS) - 1)
                ),
            ]
        )
        self.norms = nn.ModuleList(nn.GroupNorm(_GROUPS, channels) for channels in _CHANNELS)
        self.output = nn.Linear(_CHANNELS[-1], num_scores(num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float inputs [batch, *input_shape] to logits [batch, num_classes]."""
        check_numbers(x, "m5")
        x = x.reshape(-1, 1, self._length)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = max_pool1d(relu(norm(convolution(x))), _POOL)
        return as_logits(self.output(x.mean(2)))


def _length(input_shape: tuple[int, ...]) -> int:
    match input_shape:
        case (length,) | (1, length):
            pass
        case _:
            raise ValueError(
                f"input_shape={input_shape} is no waveform of one channel: m5 takes (num_samples,) "
                "or (1, num_samples); take convnet or convnet-groupnorm for images"
            )
    if length < _SHORTEST:
        raise ValueError(
            f"a waveform of {length} samples is too short for four times pooling: m5 needs "
            f"{_SHORTEST}, take the linear model"
        )
    return length
