"""The GRUs that read a text symbol by symbol and predict the next one.

Source: arXiv 2002.11223, Appendix C.1.3: an alphabet of 53 symbols, texts of 20, 128 hidden units.
The paper's model reads symbols one-hot and has one output per symbol; that of the published code
learns vectors of 8 numbers instead and has 128 outputs, of which the labels use the first 53. Both
begin every text with a state of zeros. PyTorch's default initialisation.

The recurrence is of many models at once, with its gradient by hand. What a GRU computes of its
input, W_i·x + b_i, takes as many values as there are symbols. So it is a table with one row per
symbol, and a step only looks a row up; of one-hot inputs the table is W_i itself, transposed. The
steps are those of `torch.nn.GRU`:

    r = σ(i_r + W_hr·h + b_hr)
    z = σ(i_z + W_hz·h + b_hz)
    n = tanh(i_n + r ∘ q),  q = W_hn·h + b_hn
    h ← n + z ∘ (h − n)

A row of the table has what each of r, z, q and n begins with, in this order, the biases included;
so one product a step, added in place, is all that r, z and q still need. tanh(a) is computed as
2σ(2a) − 1: where it was measured, PyTorch's σ took a quarter of the time of its tanh.

The gradient is written out, because on a CPU most of the time of a small GRU goes into recording
and replaying hundreds of small operations: twice as many training steps a second as with
`torch.nn.GRU`, for 16 texts of 20 symbols on one thread. Whatever the chain rule multiplies the
gradient of h with is computed for all steps at once; what is left in the loop is one product.
"""

from collections.abc import Sequence
from typing import Final, cast

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import embedding, one_hot

from deltafl.fl.models.inputs import check_text_shape, check_tokens


def last_state(
    gru: nn.GRU, tokens: torch.Tensor, vectors: torch.Tensor | None = None
) -> torch.Tensor:
    """Run a GRU over texts, from a state of zeros.

    Args:
        gru: one layer, one direction, with biases.
        tokens: int64 [batch, num_tokens], in 0..vocabulary − 1, at least one text and token.
        vectors: the symbols as the GRU reads them, shape [vocabulary, input_size]; None for
            one-hot, of which the vocabulary is input_size.

    Returns:
        The states after the last token, shape [batch, hidden_size].
    """
    symbols = [] if vectors is None else [vectors]
    state = _LastState.apply(tokens, *symbols, *gru.parameters())  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, state)


class Run:
    """The steps of c models over b texts of t tokens each, kept for the gradient.

    Every tensor begins with an axis of models, each with parameters and texts of its own.

    Args:
        parameters: those of `torch.nn.GRU` in its order, each of shape [c, *shape]. Unless symbols
            are one-hot, before them the vectors [c, v, input_size] as which the GRUs read them.
        tokens: int64 [c, b, t], in 0..v − 1, each axis at least 1.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], tokens: torch.Tensor) -> None:
        *vectors, self._weight_input, self._weight, bias_input, bias = parameters
        self._vectors = vectors[0] if vectors else None
        models, _, hidden = self._weight.shape
        table = _table(self._vectors, self._weight_input, bias_input, bias)
        self._vocabulary = table.shape[1]
        firsts = torch.arange(0, models * self._vocabulary, self._vocabulary, device=tokens.device)
        rows = tokens.mT + firsts.view(-1, 1, 1)  # [c, t, b], in the tables one below the other
        self._rows = rows.reshape(-1)
        gates = table.flatten(0, 1).index_select(0, self._rows)
        self._gates = gates.view(*rows.shape, 4 * hidden)  # becomes r, z, q, n in place
        self._states = gates.new_empty(*rows.shape, hidden)
        # views are made before the loop, for making one costs as much as adding two matrices
        through = self._gates[..., : 3 * hidden].unbind(1)
        sigmoids = self._gates[..., : 2 * hidden].unbind(1)
        rs, zs, qs, ns = (gate.unbind(1) for gate in self._gates.chunk(4, -1))
        transposed, minus_one = self._weight.mT, gates.new_full((), -1.0)
        state = gates.new_zeros(models, rows.shape[2], hidden)
        for step, out in enumerate(self._states.unbind(1)):
            if step:  # the state that the first one begins with is zero
                through[step].baddbmm_(state, transposed)
            sigmoids[step].sigmoid_()
            n = ns[step].addcmul_(rs[step], qs[step], value=2).sigmoid_()
            torch.add(minus_one, n, alpha=2, out=n)
            state = torch.lerp(n, state, zs[step], out=out)
        self.last_state = state
        """The states after the last token, [c, b, hidden]; not to be written to."""

    def gradients(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """Carry a gradient from the last states back.

        Args:
            gradient: of the last states, [c, b, hidden].

        Returns:
            Those of the parameters, in shapes and order as given.
        """
        models, time, batch, hidden = self._states.shape
        r, z, q, n = self._gates.chunk(4, -1)
        leave = 1 - z
        # by what ∂h is multiplied to give the gradients before σ and tanh: of r, of z, of q, and
        # of i_n, which is that of q but for the factor r
        factors = torch.empty_like(self._gates)
        of_r, of_z, of_q, of_n = factors.chunk(4, -1)
        torch.addcmul(leave, leave * n, n, value=-1, out=of_n)  # (1 − z)(1 − n²)
        torch.mul(of_n, r, out=of_q)
        inner = of_q * q
        torch.addcmul(inner, inner, r, value=-1, out=of_r)
        torch.sub(self._states, n, out=of_z).mul_(leave)  # a step's h − n is z times the last's
        every = factors.view(models, time, batch, 4, hidden).unbind(1)
        through, zs = factors[..., : 3 * hidden].unbind(1), z.unbind(1)
        for step in reversed(range(time)):
            every[step].mul_(gradient.unsqueeze(2))
            if step:
                gradient = (gradient * zs[step]).baddbmm_(through[step], self._weight)
        # the first step has no part in it: its state is zero
        of_products = factors[:, 1:, :, : 3 * hidden].flatten(1, 2)
        of_weight = of_products.mT @ self._states[:, :-1].flatten(1, 2)
        of_table = factors.new_zeros(models * self._vocabulary, 4 * hidden)
        of_table.index_add_(0, self._rows, factors.view(-1, 4 * hidden))
        of_table = of_table.view(models, self._vocabulary, 4 * hidden)
        of_bias_rz, of_bias_q, of_bias_n = torch.split(
            of_table.sum(1), [2 * hidden, hidden, hidden], 1
        )
        of_symbols = torch.cat([of_table[..., : 2 * hidden], of_table[..., 3 * hidden :]], -1)
        if self._vectors is None:
            of_input = [of_symbols.mT]
        else:
            of_input = [of_symbols @ self._weight_input, of_symbols.mT @ self._vectors]
        return [
            *of_input,
            of_weight,
            torch.cat([of_bias_rz, of_bias_n], 1),
            torch.cat([of_bias_rz, of_bias_q], 1),
        ]


def _table(
    vectors: torch.Tensor | None,
    weight_input: torch.Tensor,
    bias_input: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """What r, z, q and n begin with at each symbol, [c, v, 4·hidden]; of n twice that."""
    symbols = weight_input.mT if vectors is None else vectors @ weight_input.mT
    sizes = [2 * bias.shape[1] // 3, bias.shape[1] // 3]
    input_rz, input_n = torch.split(symbols + bias_input.unsqueeze(1), sizes, 2)
    bias_rz, bias_q = torch.split(bias.unsqueeze(1), sizes, 2)
    return torch.cat([input_rz + bias_rz, bias_q.expand_as(input_n), 2 * input_n], 2)


class _LastState(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, tokens: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        run = Run([parameter.unsqueeze(0) for parameter in parameters], tokens.unsqueeze(0))
        ctx.run = run  # type: ignore[attr-defined]
        ctx.save_for_backward(*parameters)  # for torch to see whether they were written to
        return run.last_state[0].clone()  # not a view, which would keep all states alive

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.saved_tensors  # type: ignore[attr-defined]
        gradients = ctx.run.gradients(gradient.unsqueeze(0))  # type: ignore[attr-defined]
        return None, *(of_parameter[0] for of_parameter in gradients)


_HIDDEN: Final = 128
_EMBEDDING_DIMENSION: Final = 8
_PUBLISHED_OUTPUTS: Final = 128


class OneHotGRU(nn.Module):
    """One-hot symbols, a GRU, one output per symbol.

    53 symbols make 70,272 + 6,837 = 77,109 parameters.

    Args:
        input_shape: (num_tokens,).
        num_classes: the size of the alphabet.

    Raises:
        ValueError: an input is no row of tokens.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        check_text_shape(input_shape, "gru")
        self.gru = nn.GRU(num_classes, _HIDDEN, batch_first=True)
        self.output = nn.Linear(_HIDDEN, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map int64 tokens [batch, num_tokens] to logits [batch, num_classes]."""
        alphabet = self.gru.input_size
        check_tokens(x, alphabet, "gru")
        if x.is_cuda:  # its kernels for whole sequences beat a loop
            state = self.gru(one_hot(x, alphabet).to(self.output.weight.dtype))[1][0]
        else:
            state = last_state(self.gru, x)
        logits: torch.Tensor = self.output(state)
        return logits


class EmbeddingGRU(nn.Module):
    """Learned vectors of 8 numbers, a GRU, 128 outputs.

    53 symbols make 424 + 52,992 + 16,512 = 69,928 parameters. Outputs that stand for no symbol take
    part in the softmax, and a sample for which one of them is the largest counts as an error, as in
    the published code.

    Args:
        input_shape: (num_tokens,).
        num_classes: the size of the alphabet, at most 128.

    Raises:
        ValueError: an input is no row of tokens, or there are more than 128 symbols.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        check_text_shape(input_shape, "gru-embedding")
        if num_classes > _PUBLISHED_OUTPUTS:
            raise ValueError(
                f"num_classes={num_classes} is more than the {_PUBLISHED_OUTPUTS} outputs of "
                "gru-embedding: take gru, or lstm-stacked for words"
            )
        self.embedding = nn.Embedding(num_classes, _EMBEDDING_DIMENSION)
        self.gru = nn.GRU(_EMBEDDING_DIMENSION, _HIDDEN, batch_first=True)
        self.output = nn.Linear(_HIDDEN, _PUBLISHED_OUTPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map int64 tokens [batch, num_tokens] to logits [batch, 128]."""
        vectors = self.embedding.weight
        check_tokens(x, len(vectors), "gru-embedding")
        if x.is_cuda:
            state = self.gru(embedding(x, vectors))[1][0]
        else:
            state = last_state(self.gru, x, vectors)
        logits: torch.Tensor = self.output(state)
        return logits
