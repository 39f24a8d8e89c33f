"""What a model takes: images when it is built, tokens or numbers when it meets the data.

Data do not say at which model they aim, and tokens would pass for numbers in many a layer.
"""

from typing import Final

import torch

_SMALLEST_SIDE: Final = 16
"""In pixels. Two 5×5 convolutions and poolings leave one: (16 − 4) / 2 = 6, (6 − 4) / 2 = 1. Four
poolings leave 2×2 to normalise and average."""


def check_numbers(x: torch.Tensor, model: str) -> None:
    """Check that inputs are numbers.

    Raises:
        ValueError: `x` is not of a floating-point type.
    """
    if not x.is_floating_point():
        raise ValueError(
            f"inputs of type {x.dtype} are tokens and {model} takes numbers: take lstm or gru"
        )


def check_tokens(x: torch.Tensor, vocabulary: int, model: str) -> None:
    """Check that inputs are tokens that the model knows.

    Raises:
        ValueError: `x` is not int64, or a token is not in 0..vocabulary − 1.
    """
    if x.dtype != torch.int64:
        raise ValueError(
            f"inputs of type {x.dtype} are no tokens and {model} reads int64 tokens: take the "
            "logistic or linear model, or convnet for images"
        )
    if x.numel():
        low, high = (int(bound) for bound in x.aminmax())
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"tokens {low}..{high} are not in 0..{vocabulary - 1}, the vocabulary of {model}: "
                "give the data and the model the same vocabulary (data.num_classes, or an "
                "embedding with a row for each token)"
            )


def check_text_shape(input_shape: tuple[int, ...], model: str) -> None:
    """Check that one input is a row of tokens.

    Raises:
        ValueError: the shape is not (num_tokens,) with at least one token.
    """
    if len(input_shape) != 1 or input_shape[0] < 1:
        raise ValueError(
            f"input_shape={input_shape} is no row of tokens: {model} takes (num_tokens,); take "
            "convnet or convnet-groupnorm for images, linear for anything"
        )


def image_shape(
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
