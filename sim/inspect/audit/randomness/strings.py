"""Do byte strings that should be random look so: one by one, place by place, and side by side?

A field of a message that should be random may hold something that can be read: a text, a number, a
counter, a constant, the same bytes again. The words of a masked vector are strings too. Every test
here is exact or conservative: uniform bytes give a p-value of at most α with a probability of at
most α. A good generator of the wrong seed passes all of them; see `guesses`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.tails import (
    MIN_EXPECTED,
    Counts,
    PValue,
    histogram,
    least_even,
    most,
    ones,
    repetitions,
)

Rows = npt.NDArray[np.uint8]
"""Byte strings of one size, shape (n, size)."""

FEWEST: Final = 8
"""So many strings are needed before their places are compared."""

_BYTES: Final = 256
_WORD: Final = 8
_PERIODS: Final = (1, 2, 4, 8, 16)
_CHUNK: Final = 1 << 14  # strings whose copies stay in the cache
_ONES: Final[Counts] = np.unpackbits(np.arange(_BYTES, dtype=np.uint8)[:, None], axis=1).astype(
    np.int64
)  # row: byte; column: bit, the most significant first


def _class_of(characters: bytes) -> npt.NDArray[np.bool_]:
    table = np.zeros(_BYTES, dtype=np.bool_)
    table[list(characters)] = True
    return table


_READABLE: Final[Mapping[str, npt.NDArray[np.bool_]]] = {
    "are printable": _class_of(bytes(range(0x20, 0x7F))),
    "are letters, digits and the like": _class_of(
        b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:=-_"
    ),
    "are of numbers in decimal": _class_of(b"0123456789.-+e, "),
    "are zero": _class_of(bytes(1)),
}


def as_rows(strings: Sequence[bytes], size: int | None = None) -> Rows:
    """Byte strings of one size as rows, or their first bytes; at least one string."""
    rows = np.frombuffer(b"".join(strings), dtype=np.uint8).reshape(len(strings), -1)
    return rows[:, :size]


def one_by_one(rows: Rows) -> Iterator[PValue]:
    """The tests of strings one by one; `at` names the row that looks worst.

    Args:
        rows: n ≥ 1 strings of four bytes or more.
    """
    size, steps = rows.shape[1], rows[:, 1:] - rows[:, :-1]
    counted = [
        (how, table[rows].sum(axis=1), size, float(table.mean()))
        for how, table in _READABLE.items()
    ]
    again = (steps[:, 1:] == steps[:, :-1]).sum(axis=1)
    counted.append(("go on in steady steps", again, size - 2, 1 / _BYTES))
    for period in _PERIODS:
        if 2 * period <= size:
            again = (rows[:, period:] == rows[:, :-period]).sum(axis=1)
            counted.append((f"come again after {period}", again, size - period, 1 / _BYTES))
    for how, counts, trials, chance in counted:
        row, value = most(counts, trials, chance)
        detail = f"many bytes {how}, such as in {rows[row].tobytes()!r}"
        yield PValue(f"bytes that {how}", value, detail, (row,))
    row, value = least_even(np.bitwise_count(rows).sum(axis=1, dtype=np.int64), 8 * size)
    detail = f"bits are not as often one as zero, such as in {rows[row].tobytes()!r}"
    yield PValue("ones of one string", value, detail, (row,))


def repeated(words: npt.NDArray[np.uint64], bits: int = 8 * _WORD) -> PValue:
    """The test that no word comes twice; `at` has the first two places of one that does.

    Args:
        words: Shape (n,).
        bits: How many bits of each are random.
    """
    order = np.argsort(words, kind="stable")
    again = np.flatnonzero(words[order][1:] == words[order][:-1])
    value = repetitions(len(again), len(words) * (len(words) - 1) / 2 / 2**bits)
    detail = f"{len(again)} of {len(words)} times, {bits} bits had come before"
    return PValue(
        "the same bits", value, detail, tuple(order[again[0] :][:2].tolist()) if len(again) else ()
    )


class Columns:
    """Counts what comes at each place of strings of one size, and what changes to the next string.

    Args:
        bits: Random bits of a string, from the highest of its first byte on.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._rows = self._steps = 0
        self._values = np.zeros((-(-bits // 8), _BYTES), dtype=np.int64)
        self._changes = np.zeros_like(self._values)

    def add(self, rows: Rows) -> None:
        """Count strings, in their order."""
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            self._rows += len(part)
            self._steps += len(part) - 1
            for table, strings in ((self._values, part), (self._changes, part[1:] ^ part[:-1])):
                keys = strings + _BYTES * np.arange(len(table))
                found = np.bincount(keys.reshape(-1), minlength=table.size)
                table += found.reshape(table.shape)

    def add_words(self, words: Vector) -> None:
        """Count the words of a vector of Z_2^bits, uint32 or uint64 of shape (L,), as strings."""
        for start in range(0, len(words), _CHUNK):
            wide = words[start : start + _CHUNK].astype(np.uint64) << np.uint64(64 - self._bits)
            self.add(wide.astype(">u8").view(np.uint8).reshape(-1, _WORD)[:, : len(self._values)])

    def merge(self, other: "Columns") -> None:
        """Take over what another one of as many bits has counted."""
        self._rows += other._rows
        self._steps += other._steps
        self._values += other._values
        self._changes += other._changes

    def results(self) -> Iterator[PValue]:
        """The tests of what was counted; none of fewer than `FEWEST` strings."""
        if self._rows < FEWEST:
            return
        bits = self._by_bit(self._values)
        total, trials = int(bits.sum()), self._rows * self._bits
        detail = f"{total} ones in {trials} bits"
        yield PValue("ones in all bits", float(ones(total, trials)), detail)
        for what, counts, of in (
            ("ones", bits, self._rows),
            ("changes to the next", self._by_bit(self._changes), self._steps),
        ):
            worst, value = least_even(counts, of)
            detail = f"{counts[worst]} {what} of {of} at bit {worst}, counted from the highest"
            yield PValue(f"{what} by bit", value, detail)
        whole = self._values[: self._bits // 8]
        if len(whole):
            yield from self._of_bytes(whole)

    def _by_bit(self, table: Counts) -> Counts:
        counts: Counts = (table @ _ONES).reshape(-1)[: self._bits]
        return counts

    def _of_bytes(self, whole: Counts) -> Iterator[PValue]:
        place, value = most(whole, self._rows, 1 / _BYTES)
        column, byte = divmod(place, _BYTES)
        detail = f"byte {column} is {byte:#04x} in {whole[column, byte]} of {self._rows} strings"
        yield PValue("one byte at one place", value, detail)
        values = whole.sum(axis=0)
        table = values.reshape(16, 16)
        for cells in (values, table.sum(axis=0) + table.sum(axis=1)):  # of bytes, or of halves
            if cells.sum() >= MIN_EXPECTED * len(cells):
                least, top = int(cells.argmin()), int(cells.argmax())
                detail = (
                    f"of {cells.sum()} values below {len(cells)}, {cells[top]} are {top} and "
                    f"{cells[least]} are {least}; expected {cells.sum() / len(cells):.1f} each"
                )
                yield PValue("values of bytes", histogram(cells), detail)
                return
