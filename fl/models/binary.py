"""Two classes from one score: a score z becomes the two logits [0, z].

The softmax of [0, z] is (1 − σ(z), σ(z)), so the cross-entropy of the two logits is the binary
cross-entropy of z, and everything that takes logits takes binary models too. The published rule
predicts class 1 where σ(z) ≥ 1/2, that is at z = 0 too, while the largest of two equal logits is
the first. The logit of class 0 is therefore the float32 number nearest below 0 that is not
subnormal: the loss is the same as with 0 to the last bit (ln 2 at z = 0), and the tie goes to
class 1. This decides the error of a model of zeros, with which every logistic regression begins.
"""

from typing import Final

import torch

_JUST_BELOW_ZERO: Final = -torch.finfo(torch.float32).tiny


def num_scores(num_classes: int) -> int:
    """Count the outputs of a last layer: one for two classes, else one per class."""
    return 1 if num_classes == 2 else num_classes


def as_logits(scores: torch.Tensor) -> torch.Tensor:
    """Turn the scores of a last layer into logits of the classes.

    Args:
        scores: shape [batch, num_scores(num_classes)].

    Returns:
        Logits, shape [batch, num_classes]: of two classes [0, z], of more the scores.
    """
    if scores.shape[1] > 1:
        return scores
    return torch.cat([torch.full_like(scores, _JUST_BELOW_ZERO), scores], 1)
