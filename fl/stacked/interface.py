"""What a kernel offers that computes the gradients of many clients at once.

A stack is a tensor with a first dimension for the clients: [c, *shape of one]. Every client has
its own parameters and its own minibatch; the kernel does the same to each of them.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch


class Stacked(Protocol):
    """Losses and gradients of c clients, each with its own parameters."""

    def gradients(
        self,
        parameters: Sequence[torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Compute each client's loss Σ_b weights·ℓ_b and its gradient.

        Args:
            parameters: in the order of `Module.parameters()`, each [c, *shape].
            x: the inputs as the module takes them, [c, b, ...].
            y: labels, int64 [c, b].
            weights: of the samples, float32 [c, b]: 1/n for the n samples of a minibatch, 0 for
                padding, which may hold any input that the module takes.

        Returns:
            The losses in nats, [c], and the gradients, each [c, *shape].
        """


@runtime_checkable
class StackedDescent(Stacked, Protocol):
    """A kernel that steps down the plain loss by itself, faster than by way of gradients."""

    def descend(
        self,
        parameters: Sequence[torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
        rate: float,
        l2: float,
    ) -> None:
        """Do one step w ← w − γ·(∇f + λ·w) for each client, in place.

        Args:
            parameters: as `gradients` takes them; overwritten.
            x: likewise.
            y: likewise.
            weights: likewise.
            rate: γ.
            l2: λ.
        """
