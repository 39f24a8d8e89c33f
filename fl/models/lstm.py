"""The LSTM that reads words through frozen vectors.

It begins every text with a state of zeros and uses the output after its last token; padding is
read like any token. PyTorch's default initialisation.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import embedding as look_up

from deltafl.fl.models.binary import as_logits, num_scores
from deltafl.fl.models.inputs import check_text_shape, check_tokens


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
                "embedding, or take gru-embedding, which learns its own"
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
