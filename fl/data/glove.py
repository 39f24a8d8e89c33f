"""Frozen word vectors: GloVe, and the words of a sentence as its rows.

The table has one row more than there are words. It is zero and stands for every unknown word and
for padding, as in the published code of arXiv 2002.11223 (400,001 × 50 with glove.6B.50d.txt).
Source of the vectors: Pennington, Socher and Manning, "GloVe: Global Vectors for Word
Representation" (EMNLP 2014).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.archive import read_arrays
from deltafl.fl.errors import DataError
from deltafl.fl.read.regular import open_regular

MAX_WORDS: Final = 5_000_000
"""More than twice the largest published set; a file beyond it is none of them."""

MAX_LINE: Final = 1 << 16
"""Bytes in a line; 300 numbers take 3,000."""

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

    def indices(self, words: Iterable[str]) -> list[int]:
        """Give the row of each word."""
        return [self.rows.get(word, self.unknown) for word in words]


def load_glove(path: Path) -> WordVectors:
    """Read a GloVe text file, or an .npz archive with the arrays words and vectors.

    Raises:
        DataError: the file is missing or damaged; the line or the word is named.
    """
    if not path.is_file():
        raise DataError(
            f"{path}: no such file: word vectors come from glove.6B.50d.txt, or an .npz archive "
            "with words and vectors"
        )
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
    words: list[str] = []
    blocks: list[npt.NDArray[np.float32]] = []
    numbers: list[list[str]] = []
    dimension = 0
    with open_regular(path) as file:
        # bytes, because a text file would also be divided at the line separators of Unicode
        for number, line in enumerate(iter(partial(file.readline, MAX_LINE), b""), start=1):
            word, values = _line(path, number, line, dimension)
            dimension = len(values)
            words.append(word)
            numbers.append(values)
            if len(numbers) == 4096:  # strings take ten times the memory of the numbers
                blocks.append(_numbers(path, number, numbers))
                numbers = []
            if len(words) > MAX_WORDS:
                raise DataError(f"{path}: more than {MAX_WORDS} words: this is no GloVe file")
    if not words:
        raise DataError(f"{path}: empty: fetch the word vectors again")
    if numbers:
        blocks.append(_numbers(path, len(words), numbers))
    return words, np.concatenate(blocks)


def _line(path: Path, number: int, line: bytes, dimension: int) -> tuple[str, list[str]]:
    try:
        word, *values = line.decode().rstrip("\r\n").split(" ")
        plain = all(value.isascii() and "_" not in value for value in values)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: line {number} is not UTF-8 ({error.reason}): fetch the file again"
        ) from error
    if not plain:
        raise DataError(f"{path}: line {number} holds something that is no number: fetch it again")
    if not word or not values or (dimension and len(values) != dimension):
        raise DataError(
            f"{path}: line {number} has {len(values)} numbers after the word {word!r:.40} and "
            f"{dimension or 'at least 1'} are needed: the file is cut short or no GloVe text"
        )
    return word, values


def _numbers(path: Path, last: int, rows: list[list[str]]) -> npt.NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # an overflow becomes inf, which is refused later
            return np.array(rows, np.float32)
    except ValueError as error:
        first = last - len(rows) + 1
        for number, row in enumerate(rows, start=first):
            if not all(map(_is_number, row)):
                raise DataError(
                    f"{path}: line {number} holds something that is no number: fetch it again"
                ) from error
        raise


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
