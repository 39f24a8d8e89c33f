"""The LSTMs: one that reads words through frozen vectors, and a stacked one for the next word.

Both begin every text with a state of zeros and use the output after its last token; padding is
read like any token. PyTorch's default initialisation.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import embedding as look_up

from deltafl.fl.models.binary import as_logits, num_scores
from deltafl.fl.models.inputs import check_text_shape, check_tokens

_WORD_DIMENSION: Final = 200
_STACKED_HIDDEN: Final = 256
_STACKED_LAYERS: Final = 2


class FrozenEmbeddingLSTM(nn.Module):
    """Frozen vectors of the tokens, an LSTM as wide as they are, one score.

    Source: arXiv 2002.11223, Appendix C.1.2, as its published code has it. Vectors of 50 numbers
    and two classes make 20,400 + 51 parameters. The vectors are no parameters: they are neither
    trained nor sent.

    Args:
        input_shape: (num_tokens,).
        num_classes: 2, or more.
        embedding: the vectors, float32 [vocabulary, dimension].

    Raises:
        ValueError: there is no embedding, or it is not a table, or an input is no row of tokens.
    """

    embedding: torch.Tensor

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        embedding: npt.NDArray[np.float32] | None,
    ) -> None:
        super().__init__()
        check_text_shape(input_shape, "lstm")
        if embedding is None:
            raise ValueError(
                "lstm reads tokens through frozen vectors and the data set has none: give it an "
                "embedding, or take gru-embedding or lstm-stacked, which learn theirs"
            )
        if embedding.ndim != 2 or not embedding.size:
            raise ValueError(
                f"embedding of shape {embedding.shape} is no table: pass [vocabulary, dimension]"
            )
        # a copy only of a table that may not be written to, which from_numpy would warn of
        table = torch.from_numpy(np.require(embedding, np.float32, ["C", "W"]))
        self.register_buffer("embedding", table, persistent=False)
        dimension = embedding.shape[1]
        self.lstm = nn.LSTM(dimension, dimension, batch_first=True)
        self.output = nn.Linear(dimension, num_scores(num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map int64 tokens [batch, num_tokens] to logits [batch, num_classes]."""
        check_tokens(x, len(self.embedding), "lstm")
        states, _ = self.lstm(look_up(x, self.embedding))
        return as_logits(self.output(states[:, -1]))


class StackedLSTM(nn.Module):
    """Learned vectors of 200 numbers, two LSTM layers of 256, one score per word.

    Predicts the token that follows, so the vocabulary is the classes; 10,000 words make
    2,000,000 + 995,328 + 2,570,000 = 5,565,328 parameters. Source: arXiv 2405.20821, Appendix C.2,
    which calls 200 the number and 256 the dimension of the vectors; these numbers are the published
    settings. There every token of a text predicts the next, here the last one of a window does,
    for a sample has one label.

    Args:
        input_shape: (num_tokens,).
        num_classes: the size of the vocabulary.

    Raises:
        ValueError: an input is no row of tokens.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        check_text_shape(input_shape, "lstm-stacked")
        self.embedding = nn.Embedding(num_classes, _WORD_DIMENSION)
        self.lstm = nn.LSTM(
            _WORD_DIMENSION, _STACKED_HIDDEN, num_layers=_STACKED_LAYERS, batch_first=True
        )
        self.output = nn.Linear(_STACKED_HIDDEN, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map int64 tokens [batch, num_tokens] to logits [batch, num_classes]."""
        check_tokens(x, self.embedding.num_embeddings, "lstm-stacked")
        states, _ = self.lstm(self.embedding(x))
        logits: torch.Tensor = self.output(states[:, -1])
        return logits
