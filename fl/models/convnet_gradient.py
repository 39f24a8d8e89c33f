"""The loss of the ConvNet with its gradient, written out.

Most kernels are those that autograd would call, in its order. What is saved on a CPU is the larger
part of the second convolution's products (`winograd`), to record a step, and to add the second bias
and sum the gradients of both over whole maps: a pooling takes one place of each window and passes
its gradient back there, so a quarter of the numbers does.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch.nn.functional import conv2d, nll_loss, one_hot

from deltafl.fl.models import winograd

_aten: Final = torch.ops.aten
_WINDOW: Final = (2, 2)
_NO_PADDING: Final = (0, 0)
_EACH: Final = (1, 1)  # stride and dilation


def loss_and_gradients(
    parameters: Sequence[torch.Tensor], images: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Compute the mean cross-entropy of a batch and its gradient.

    Args:
        parameters: weights and biases of both convolutions and of the linear layer, float32. It is
            fastest if the weights of the convolutions are stored channels-last.
        images: float32 [batch, 1, height, width].
        labels: int64 [batch], in 0..num_classes − 1, at least one.

    Returns:
        The loss in nats, shape [], and one gradient per parameter, in their order.
    """
    weight1, bias1, weight2, bias2, weight, bias = parameters
    with torch.no_grad():
        maps1 = conv2d(images, weight1, bias1)
        pooled1, places1 = _pooled_relu(maps1)
        maps2, factors = winograd.convolution(pooled1, weight2)
        pooled2, places2 = _pooled_relu(maps2, bias2)
        features = pooled2.flatten(1)
        scores = torch.log_softmax(torch.addmm(bias, features, weight.t()), 1)
        loss = nll_loss(scores, labels)

        of_logits = scores.exp_().sub_(one_hot(labels, len(bias))).div_(len(labels))
        of_pooled2 = _through_relu((of_logits @ weight).view(pooled2.shape), pooled2)
        of_maps2 = _through_pooling(of_pooled2, maps2, places2)
        of_pooled1, of_weight2 = winograd.gradients(of_maps2, factors)
        of_pooled1 = _through_relu(of_pooled1, pooled1)
        of_maps1 = _through_pooling(of_pooled1, maps1, places1)
        of_weight1 = _of_filters(of_maps1, images, weight1)
        return loss, [
            of_weight1,
            of_pooled1.sum((0, 2, 3)),
            of_weight2,
            of_pooled2.sum((0, 2, 3)),
            of_logits.t() @ features,
            of_logits.sum(0),
        ]


def _pooled_relu(
    maps: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of each window, with a bias, at least zero, and where it was."""
    pooled, places = _aten.max_pool2d_with_indices(maps, _WINDOW, _WINDOW)
    if bias is not None:
        pooled.add_(bias.view(-1, 1, 1))
    return pooled.clamp_min_(0), places


def _through_relu(gradient: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    # in the memory format of `out`: the kernel of the pooling wants both alike
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    through: torch.Tensor = _aten.threshold_backward(gradient, out, 0)
    return through


def _through_pooling(
    gradient: torch.Tensor, maps: torch.Tensor, places: torch.Tensor
) -> torch.Tensor:
    through: torch.Tensor = _aten.max_pool2d_with_indices_backward(
        gradient, maps, _WINDOW, _WINDOW, _NO_PADDING, _EACH, False, places
    )
    return through


def _of_filters(gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gradient of a convolution's weight."""
    of_weight: torch.Tensor = _aten.convolution_backward(
        gradient,
        images,
        weight,
        None,
        _EACH,
        _NO_PADDING,
        _EACH,
        False,
        _NO_PADDING,
        1,
        (False, True, False),
    )[1]
    return of_weight
