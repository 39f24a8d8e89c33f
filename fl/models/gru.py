"""The GRUs that read a text symbol by symbol and predict the next one.

Source: arXiv 2002.11223, Appendix C.1.3: an alphabet of 53 symbols, texts of 20, 128 hidden units.
The paper's model reads symbols one-hot and has one output per symbol; that of the published code
learns vectors of 8 numbers instead and has 128 outputs, of which the labels use the first 53. Both
begin every text with a state of zeros. PyTorch's default initialisation.
"""

from typing import Final

import torch
from torch import nn
from torch.nn.functional import embedding, one_hot

from deltafl.fl.models.gru_recurrence import last_state
from deltafl.fl.models.inputs import check_text_shape, check_tokens

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
