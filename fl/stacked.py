"""Kernels that compute the gradients of many clients at once, by model.

A stack is a tensor with a first dimension for the clients: [c, *shape of one]. Every client has
its own parameters and its own minibatch; the kernel does the same to each of them.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import softplus

from deltafl.fl.criterion import CLASSIFIES, Criterion
from deltafl.fl.models.gru import EmbeddingGRU, OneHotGRU, Run
from deltafl.fl.models.inputs import check_tokens
from deltafl.fl.models.linear import Linear, Logistic
from deltafl.fl.parameters import num_parameters
from deltafl.fl.registry import OWN


class StackedLinear:
    """The kernel of `Linear` and `Logistic`, in closed form: no graph, few operations.

    The gradient of the cross-entropy in the scores is the softmax less the one-hot label, so the
    gradient of the weights is one product, and a step of SGD is that product added to the weights
    in place. One score stands for two classes (`deltafl.fl.models.binary`).

    Products of many small matrices, one for each client, go to OpenBLAS on a CPU, by way of NumPy
    and SciPy: on an AMD processor with AVX-512 it took a third to a half of the time of Intel's
    MKL, which torch has, over products of 10 rows. On an Intel Xeon, training took a tenth more by
    it than by MKL.

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
        """Do one step w ← w − γ·(∇f + λ·w) of the plain loss for each client, in place.

        It is faster than by way of gradients.

        Args:
            parameters: as `gradients` takes them; overwritten.
            x: likewise.
            y: likewise.
            weights: likewise.
            rate: γ.
            l2: λ.
        """
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


class StackedGRU:
    """The kernel of the GRUs that read text.

    On a CPU a product of this size does not get faster by being one of many. What a stack saves is
    the rest, for the small operations of every step are then one call for all models: 4 models are
    trained 1.15 times as fast as one after another on one thread, and 16 hardly faster than 4.

    Args:
        module: the architecture; its parameters are not used.
    """

    def __init__(self, module: OneHotGRU | EmbeddingGRU) -> None:
        if isinstance(module, OneHotGRU):
            self._alphabet, self._name = module.gru.input_size, "gru"
        else:
            self._alphabet, self._name = module.embedding.num_embeddings, "gru-embedding"

    def gradients(
        self,
        parameters: Sequence[torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Compute the losses of c models, each on its own texts, and their gradients.

        Args:
            parameters: the module's, in its order, each of shape [c, *shape].
            x: tokens, int64 [c, b, num_tokens].
            y: labels, int64 [c, b].
            weights: of each text in its model's loss, float32 [c, b]; 0 takes a text out.

        Returns:
            The sums of the weighted cross-entropies, in nats, shape [c], and the gradients of
            those, shaped as the parameters.

        Raises:
            ValueError: a token is not in the alphabet.
        """
        check_tokens(x, self._alphabet, self._name)
        *of_gru, weight, bias = parameters
        with torch.no_grad():
            run = Run(of_gru, x)
            state = run.last_state
            scores = torch.baddbmm(bias.unsqueeze(1), state, weight.mT).log_softmax(2)
            labels = y.unsqueeze(2)
            losses = -(scores.gather(2, labels).squeeze(2) * weights).sum(1)
            # the gradient of a cross-entropy by the scores: the probabilities, less 1 at the label
            of_scores = scores.exp_().scatter_add_(2, labels, scores.new_full(labels.shape, -1.0))
            of_scores.mul_(weights.unsqueeze(2))
            gradients = run.gradients(of_scores @ weight)
        return losses, [*gradients, of_scores.mT @ state, of_scores.sum(1)]


class StackedByMapping:
    """The kernel of a module that `torch.func.vmap` can map over a stack.

    It takes neither the recurrent layers of PyTorch nor a check of the inputs' values. What the
    module draws, it draws for each client anew, from torch's generator.

    Args:
        module: the architecture; its own parameters are not read.
        criterion: what it is trained for.
    """

    def __init__(self, module: nn.Module, criterion: Criterion = CLASSIFIES) -> None:
        self._module = module
        self._criterion = criterion
        self._names = [name for name, one in module.named_parameters() if one.requires_grad]
        self._gradients = vmap(grad_and_value(self._loss), randomness="different")

    def gradients(
        self,
        parameters: Sequence[torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Compute losses and gradients; see `StackedLinear`."""
        named = dict(zip(self._names, parameters, strict=True))
        gradients, losses = self._gradients(named, x, y, weights)
        return losses, [gradients[name] for name in self._names]

    def _loss(
        self,
        parameters: dict[str, torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        outputs = functional_call(self._module, parameters, (x,))
        return (self._criterion.losses(outputs, y) * weights).sum()


Stacked: TypeAlias = StackedLinear | StackedGRU | StackedByMapping
"""Losses and gradients of c clients, each with its own parameters."""

_LINEAR_NUMBERS: Final = 800_000
_LINEAR_CLIENTS: Final = 64
"""A stack of linear models has at most this many numbers, or it falls out of the cache, and this
many clients, beyond which there is little to gain. Of 784 features and 62 classes these are 16
clients, about the best on one CPU thread with OpenBLAS; of small ones 64 were."""

_GRU_CLIENTS: Final = 4
"""8 were not faster, 2 were slower, on one CPU thread."""

_ACCELERATED_CLIENTS: Final = 128
"""Of any stack on an accelerator: a whole cohort, so that it takes few calls and one transfer. Not
measured yet; `make gpu` measures several."""

_NOT_MAPPED: Final = (nn.RNNBase, nn.modules.dropout._DropoutNd)


def stacked(
    module: nn.Module, device: torch.device, criterion: Criterion = CLASSIFIES
) -> tuple[Stacked, int] | None:
    """Choose the kernel of `module`, and how many clients to give it at once.

    Returns:
        None if one client after another is as fast, or has to be: mapped convolutions are slower on
        a CPU, and neither the LSTMs, nor dropout, nor somebody's own loss can always be mapped.
    """
    if criterion.loss == OWN:
        return None
    if not criterion.is_usual:
        return _mapped(module, device, criterion)
    if isinstance(module, Linear | Logistic):
        fitting = _LINEAR_NUMBERS // num_parameters(module)
        best = min(max(1, fitting), _LINEAR_CLIENTS)
        return StackedLinear(module), best if device.type == "cpu" else _ACCELERATED_CLIENTS
    if isinstance(module, OneHotGRU | EmbeddingGRU):
        return StackedGRU(module), _GRU_CLIENTS if device.type == "cpu" else _ACCELERATED_CLIENTS
    return _mapped(module, device, criterion)


def _mapped(
    module: nn.Module, device: torch.device, criterion: Criterion
) -> tuple[Stacked, int] | None:
    if device.type == "cpu" or any(isinstance(part, _NOT_MAPPED) for part in module.modules()):
        return None
    return StackedByMapping(module, criterion), _ACCELERATED_CLIENTS
