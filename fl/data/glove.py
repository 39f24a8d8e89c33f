"""Frozen word vectors: GloVe, and the words of a sentence as its rows.

The table has one row more than there are words. It is zero and stands for every unknown word and
for padding, as in the published code of arXiv 2002.11223 (400,001 × 50 with glove.6B.50d.txt).
Source of the vectors: Pennington, Socher and Manning, "GloVe: Global Vectors for Word
Representation" (EMNLP 2014).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.csv_file import csv_table
from deltafl.fl.data.files import bounded
from deltafl.fl.data.npz import read_arrays
from deltafl.fl.errors import DataError

_MAX_LINE: Final = 1 << 16  # bytes; 300 numbers take 3,000
_TOKEN: Final = re.compile(r"[\w']+|[.,!?;]")


def tokenise(text: str) -> list[str]:
    """Split into words with their apostrophes, and the marks . , ! ? ; one by one.

    >>> tokenise("Don't worry: it's 5pm!!")
    ["Don't", 'worry', "it's", '5pm', '!', '!']
    """
    return _TOKEN.findall(text)


@dataclass(frozen=True, slots=True, eq=False)
class WordVectors:
    """A table of vectors and the row of each word.

    Attributes:
        rows: word → row, in 0..len(rows) − 1.
        table: float32 [len(rows) + 1, dimension]; the last row is zero.
    """

    rows: Mapping[str, int]
    table: npt.NDArray[np.float32]

    @property
    def unknown(self) -> int:
        """The row of unknown words and of padding."""
        return len(self.rows)

    def indices(self, text: str) -> list[int]:
        """Give the row of each word of a text; see `tokenise`."""
        return [self.rows.get(word, self.unknown) for word in tokenise(text)]


def load_glove(path: Path | None) -> WordVectors:
    """Read a GloVe text file, or an .npz archive with the arrays words and vectors.

    Raises:
        DataError: no file is named, or it is missing or damaged; the line or the word is named.
    """
    if path is None or not path.is_file():
        what = "no word vectors" if path is None else f"{path}: no such file"
        which = "glove.6B.50d.txt, or an .npz archive with words and vectors"
        raise DataError(f"{what}: give the file {which} (data.vectors)")
    words, vectors = _read_npz(path) if path.suffix == ".npz" else _read_text(path)
    rows = {word: row for row, word in enumerate(words)}
    if len(rows) != len(words):
        double = next(word for row, word in enumerate(words) if rows[word] != row)
        raise DataError(f"{path}: word {double!r} appears twice: give every word one vector")
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        word = words[int(np.argmin(finite))]
        raise DataError(f"{path}: the vector of {word!r} is not finite: fetch the file again")
    return WordVectors(rows, np.concatenate([vectors, np.zeros_like(vectors[:1])]))


def _read_text(path: Path) -> tuple[list[str], npt.NDArray[np.float32]]:
    with bounded(path, "GloVe text") as file:
        dimension = file.readline(_MAX_LINE).count(b" ")
        file.seek(0)
        if not dimension:
            raise DataError(f"{path}: no word with numbers after it: fetch the word vectors again")
        names = [str(column) for column in range(dimension)]
        types = {"word": str, **dict.fromkeys(names, float)}
        table = csv_table(file, list(types), types, delimiter=" ", nothing=(), is_quoted=False)
    with np.errstate(over="ignore"):  # an overflow becomes inf, which is refused later
        vectors = [table.column(name).to_numpy().astype(np.float32) for name in names]
    return table.column("word").to_pylist(), np.stack(vectors, axis=1)


def _read_npz(path: Path) -> tuple[list[str], npt.NDArray[np.float32]]:
    arrays = read_arrays(path, ("words", "vectors"))
    words, vectors = arrays["words"], arrays["vectors"]
    if (
        words.dtype.kind != "U"
        or words.ndim != 1
        or vectors.dtype.kind != "f"
        or vectors.ndim != 2
        or len(words) != len(vectors)
        or not vectors.size
    ):
        raise DataError(
            f"{path}: words of type {words.dtype} and shape {words.shape}, vectors of type "
            f"{vectors.dtype} and shape {vectors.shape}: give one text and one row per word"
        )
    with np.errstate(over="ignore"):
        return words.tolist(), vectors.astype(np.float32)
