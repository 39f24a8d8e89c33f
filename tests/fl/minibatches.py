"""What twins of local training are made of."""

import numpy as np
import torch

from deltafl.fl.objectives import PROPFAIR_MARGIN


def shuffling(seed=7):
    """The generator that a learner shuffles its samples with."""
    return torch.Generator().manual_seed(seed)


def softmax(logits):
    """Rows of probabilities, in NumPy."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def is_decided(losses, objective):
    """Whether no loss is so near PropFair's margin, where the slope jumps, that rounding decides.

    Of float32, a loss of some nats is rounded by less than 1e-6, and the models by as much.
    """
    rooms = (objective.ceiling - loss for loss in losses) if objective.ceiling else ()
    return all(abs(room - PROPFAIR_MARGIN) > 1e-4 for room in rooms)
