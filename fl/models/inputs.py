"""What a model takes, checked when it meets the data: tokens or numbers.

Data do not say at which model they aim, and tokens would pass for numbers in many a layer.
"""

import torch


def check_numbers(x: torch.Tensor, model: str) -> None:
    """Check that inputs are numbers.

    Raises:
        ValueError: `x` is not of a floating-point type.
    """
    if not x.is_floating_point():
        raise ValueError(
            f"inputs of type {x.dtype} are tokens and {model} takes numbers: take the lstm, gru or "
            "lstm-stacked model"
        )


def check_tokens(x: torch.Tensor, vocabulary: int, model: str) -> None:
    """Check that inputs are tokens that the model knows.

    Raises:
        ValueError: `x` is not int64, or a token is not in 0..vocabulary − 1.
    """
    if x.dtype != torch.int64:
        raise ValueError(
            f"inputs of type {x.dtype} are no tokens and {model} reads int64 tokens: take the "
            "logistic or linear model, convnet for images, or m5 for audio"
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
