"""Do the words of masked vectors look uniform over Z_2^b?

Only counts are kept, so that vectors can be read one after the other and dropped. The tests are
about bits (is each as often one as zero?), bytes (does each value come up as often as the others?),
neighbours (does a word say anything about the next?) and repetitions (do words come up again, as
from a generator of short period?). A good generator of the wrong seed passes all of them; see
`weak_seeds`.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.tails import (
    MIN_EXPECTED,
    Counts,
    PValue,
    histogram,
    ones,
    repetitions,
    smallest,
)

_BYTE: Final = 8
_CELLS: Final = 256
_ONES_IN_BYTE: Final[Counts] = (
    (np.arange(_CELLS)[:, None] >> np.arange(_BYTE)[None, :]) & 1
).astype(np.int64)  # row: byte; column: bit, the least significant first
_CHUNK: Final = 1 << 14  # words whose copies stay in the cache
_REPETITIONS_FROM_BITS: Final = 24  # shorter words come up again by chance all the time
_FILTER_BITS: Final = 20
_SORTED_AT_ONCE: Final = 1 << 12


class BitCounts:
    """How often each bit of some words of Z_2^b is one, and how often each byte value comes up.

    Bytes are counted from the top: the highest byte of a word is its bits b−1 to b−8.

    Args:
        bits: b, 1 to 64.

    Attributes:
        bits: b.
        num_words: Words counted.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.num_words = 0
        self._bytes = np.zeros((-(-bits // _BYTE), _CELLS), dtype=np.int64)

    def add(self, words: Vector) -> None:
        """Count words, uint32 or uint64 of any shape, each in [0, 2^b)."""
        self.num_words += words.size
        flat = words.reshape(-1)
        for start in range(0, len(flat), _CHUNK):
            # Little-endian and shifted to the top, so that the last byte of eight is the highest;
            # what is below the lowest bit is zero.
            wide = flat[start : start + _CHUNK].astype("<u8")
            aligned = (wide << np.uint64(64 - self.bits)).view(np.uint8).reshape(-1, 8)
            for column, count in enumerate(self._bytes):
                count += np.bincount(aligned[:, 7 - column], minlength=_CELLS)

    def merge(self, other: "BitCounts") -> None:
        """Take over what another counter of the same b has counted."""
        self.num_words += other.num_words
        self._bytes += other._bytes

    def ones_by_bit(self) -> Counts:
        """Ones per bit position, shape (b,), the most significant bit first."""
        return (self._bytes @ _ONES_IN_BYTE)[:, ::-1].reshape(-1)[: self.bits]

    def byte_values(self) -> Counts:
        """How often each value came up among the whole bytes of the words, shape (256,).

        Bits below the lowest whole byte of a word are left out.
        """
        values: Counts = self._bytes[: self.bits // _BYTE].sum(axis=0)
        return values


class WordCounts:
    """The tests of uniformity of the words of one vector, or of many together.

    Args:
        bits: b, 1 to 64.

    Attributes:
        bits: b.
        words: Counts of the words.
        steps: Counts of each word xor the next of its vector.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.words = BitCounts(bits)
        self.steps = BitCounts(bits)
        self._repeated = 0
        self._repeated_expected = 0.0

    def add(self, vectors: Vector) -> None:
        """Count vectors of words, shape (…, L), uint32 or uint64, each word in [0, 2^b)."""
        self.words.add(vectors)
        self.steps.add(vectors[..., 1:] ^ vectors[..., :-1])
        if self.bits < _REPETITIONS_FROM_BITS:
            return
        length = vectors.shape[-1]
        for vector in vectors.reshape(-1, length):
            self._repeated += num_repeated(vector)
            self._repeated_expected += length * (length - 1) / 2 / 2**self.bits

    def merge(self, other: "WordCounts") -> None:
        """Take over what another counter of the same b has counted."""
        self.words.merge(other.words)
        self.steps.merge(other.steps)
        self._repeated += other._repeated
        self._repeated_expected += other._repeated_expected

    def results(self) -> tuple[PValue, ...]:
        """The tests of what was counted; those that it is enough for."""
        if not self.words.num_words:
            return ()
        results = [
            *half_are_ones(self.words, "ones"),
            *half_are_ones(self.steps, "changes from word to word"),
        ]
        if (cells := well_filled(self.words.byte_values())) is not None:
            results.append(equally_likely("values of bytes", *cells))
        if self.bits >= _REPETITIONS_FROM_BITS:
            results.append(
                PValue(
                    "repeated words",
                    repetitions(self._repeated, self._repeated_expected),
                    f"{self._repeated} of {self.words.num_words} words of {self.bits} bits had "
                    f"come up before in their vector; expected {self._repeated_expected:.3g}",
                )
            )
        return tuple(results)


def half_are_ones(counts: BitCounts, what: str) -> tuple[PValue, ...]:
    """The tests that half of all bits are ones: all together, and each position by itself.

    Args:
        counts: What was counted.
        what: What a one means, plural, for the sentences.

    Returns:
        Two tests, or none if nothing was counted.
    """
    if not counts.num_words:
        return ()
    by_bit = counts.ones_by_bit()
    total, trials = int(by_bit.sum()), counts.num_words * counts.bits
    worst, value = smallest(ones(by_bit, counts.num_words))
    return (
        PValue(
            f"{what} in all bits",
            float(ones(total, trials)),
            f"{total} {what} in {trials} bits: {total / trials:.4%}",
        ),
        PValue(
            f"{what} by bit",
            value,
            f"{by_bit[worst]} {what} at bit {counts.bits - 1 - worst} of {counts.num_words} "
            f"words: {by_bit[worst] / counts.num_words:.4%}",
        ),
    )


def well_filled(*histograms: Counts) -> tuple[Counts, ...] | None:
    """Histograms of byte values as fine as they can be tested, all alike.

    Args:
        histograms: Counts of byte values, shape (256,) each.

    Returns:
        Counts of bytes, shape (256,), or of half bytes, shape (16,), whichever are filled with
        `MIN_EXPECTED` or more on average; None if neither are.
    """
    tables = [counts.reshape(16, 16) for counts in histograms]
    halves = tuple(table.sum(axis=0) + table.sum(axis=1) for table in tables)
    for cells in (histograms, halves):
        if all(counts.sum() >= MIN_EXPECTED * len(counts) for counts in cells):
            return cells
    return None


def equally_likely(test: str, cells: Counts) -> PValue:
    """The test that all values of a byte, or of half a byte, are equally likely.

    Args:
        test: What to call it.
        cells: Counts, shape (k,), `MIN_EXPECTED` or more on average.
    """
    most, least = int(np.argmax(cells)), int(np.argmin(cells))
    return PValue(
        test,
        histogram(cells),
        f"of {cells.sum()} values below {len(cells)}, {cells[most]} are {most} and {cells[least]} "
        f"are {least}; expected {cells.sum() / len(cells):.1f} each",
    )


def num_repeated(vector: Vector) -> int:
    """How many words of a vector, shape (L,), equal an earlier one: L less the distinct words."""
    if len(vector) > _SORTED_AT_ONCE:
        vector = vector[_shares_low_bits(vector)]
    in_order = np.sort(vector)
    return int(np.count_nonzero(in_order[1:] == in_order[:-1]))


def _shares_low_bits(vector: Vector) -> npt.NDArray[np.bool_]:
    """Which words have the low bits of another; only those can be equal, and sorting is slow."""
    slots = (vector & vector.dtype.type((1 << _FILTER_BITS) - 1)).astype(np.intp)
    places = np.arange(len(vector), dtype=np.int32)
    owner = np.empty(1 << _FILTER_BITS, dtype=np.int32)
    owner[slots] = places  # one word of each slot; only these slots are read
    shared = np.zeros(1 << _FILTER_BITS, dtype=np.bool_)
    shared[slots[owner[slots] != places]] = True
    return shared[slots]
