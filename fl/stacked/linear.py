"""Linear models of many clients at once, in closed form: no graph, few operations.

The gradient of the cross-entropy in the scores is the softmax less the one-hot label, so the
gradient of the weights is one product, and a step of SGD is that product added to the weights in
place. One score stands for two classes (`deltafl.fl.models.binary`).

Products of many small matrices, one for each client, go to OpenBLAS on a CPU, by way of NumPy and
SciPy: on an AMD processor with AVX-512 it took a third to a half of the time of Intel's MKL, which
torch has, over products of 10 rows. On an Intel Xeon, training took a tenth more by it than by MKL.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import softplus

from deltafl.fl.models.linear import Linear
from deltafl.fl.models.logistic import Logistic


class StackedLinear:
    """The kernel of `Linear` and `Logistic`; see `deltafl.fl.stacked.interface`.

    Args:
        module: the architecture, of which only the shapes matter.
    """

    def __init__(self, module: Linear | Logistic) -> None:
        self._scores = len(module.weight)

    def gradients(
        self,
        parameters: Sequence[torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Compute losses and gradients; see `Stacked`."""
        x = x.flatten(2)
        scores = _scores(parameters, x)
        losses = (self._losses(scores, y) * weights).sum(1)
        slopes = self._slopes_in_place(scores, y, weights)
        gradients = [_multiply(slopes.transpose(1, 2), x)]
        if len(parameters) > 1:
            gradients.append(slopes.sum(1))
        return losses, gradients

    def descend(
        self,
        parameters: Sequence[torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
        rate: float,
        l2: float,
    ) -> None:
        """Do one step of SGD in place; see `StackedDescent`."""
        x = x.flatten(2)
        slopes = self._slopes_in_place(_scores(parameters, x), y, weights)
        weight, *biases = parameters
        _add_product(weight, slopes.transpose(1, 2), x, alpha=-rate, beta=1 - rate * l2)
        for bias in biases:
            if l2:
                bias.mul_(1 - rate * l2)
            bias.sub_(slopes.sum(1), alpha=rate)

    def _losses(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self._scores == 1:
            score = scores.squeeze(2)
            return softplus(score) - score * y
        chosen = scores.gather(2, y.unsqueeze(2)).squeeze(2)
        return scores.logsumexp(2) - chosen

    def _slopes_in_place(
        self, scores: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """The derivatives of the weighted losses in the scores, [c, b, scores]."""
        labels, weights = y.unsqueeze(2), weights.unsqueeze(2)
        if self._scores == 1:
            return scores.sigmoid_().sub_(labels).mul_(weights)
        slopes = torch.softmax(scores, 2, out=scores).mul_(weights)
        return slopes.scatter_add_(2, labels, -weights)


def _scores(parameters: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    weight, *biases = parameters
    scores = _multiply(x, weight.transpose(1, 2))
    for bias in biases:
        scores += bias.unsqueeze(1)
    return scores


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute a·b for each client.

    Args:
        a: float32 [c, m, k].
        b: float32 [c, k, n].

    Returns:
        float32 [c, m, n].
    """
    if a.device.type != "cpu" or a.dtype != torch.float32:
        return torch.bmm(a, b)
    out = a.new_empty(len(a), a.shape[1], b.shape[2])
    np.matmul(a.numpy(), b.numpy(), out=out.numpy())
    return out


def _add_product(
    total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, alpha: float, beta: float
) -> None:
    """Compute total ← beta·total + alpha·a·b for each client, in place.

    Args:
        total: float32 [c, m, n], each client's part contiguous.
        a: float32 [c, m, k].
        b: float32 [c, k, n].
        alpha: factor of the product.
        beta: factor of what is there.
    """
    try:
        from scipy.linalg.blas import sgemm
    except ImportError:  # a machine that is there for its GPU may have no SciPy
        sgemm = None
    if sgemm is None or total.device.type != "cpu" or total.dtype != torch.float32:
        total.baddbmm_(a, b, alpha=alpha, beta=beta)
        return
    for one, left, right in zip(total.numpy(), a.numpy(), b.numpy(), strict=True):
        # rows are the columns of Fortran's matrices: the transposed equation, (a·b)ᵀ = bᵀ·aᵀ. What
        # has its columns together already is passed with the order to transpose it, uncopied.
        by_columns = left.flags.c_contiguous
        result = sgemm(
            alpha,
            right.T,
            left.T if by_columns else left,
            beta=beta,
            c=one.T,
            trans_b=not by_columns,
            overwrite_c=True,
        )
        if result.base is not one and not np.shares_memory(result, one):
            one[...] = result.T
