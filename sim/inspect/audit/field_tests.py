"""Do byte strings that should be random look so: one by one, byte by byte, and side by side?

A field of a message that should be random may hold something that can be read: a text, a number, a
counter, a constant, the same bytes again. Every test here is exact or conservative: uniform bytes
give a p-value of at most α with a probability of at most α.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.sim.inspect.audit.tails import (
    Counts,
    Floats,
    PValue,
    at_least,
    ones,
    repetitions,
    smallest,
)
from deltafl.sim.inspect.audit.uniformity import equally_likely, well_filled

Rows = npt.NDArray[np.uint8]
"""Byte strings of one size, shape (n, size)."""

FEWEST_ROWS: Final = 8
"""So many strings are needed before their columns are compared."""

_BYTES: Final = 256
_WORD: Final = 8
_PERIODS: Final = (1, 2, 4, 8)
_CHUNK: Final = 1 << 10
_CLOSEST_OF: Final = 1 << 12  # strings that are compared as numbers; the first ones
_ONES: Final[Counts] = np.unpackbits(
    np.arange(_BYTES, dtype=np.uint8)[:, None], axis=1, bitorder="little"
).astype(np.int64)
_SIGN: Final = 0x80


def _class_of(characters: bytes) -> npt.NDArray[np.bool_]:
    table = np.zeros(_BYTES, dtype=np.bool_)
    table[list(characters)] = True
    return table


def _exponents(first: int, last: int) -> npt.NDArray[np.bool_]:
    """Top bytes of floats of either sign whose exponents are moderate."""
    numbers = range(first, last + 1)
    return _class_of(bytes([*numbers, *(number | _SIGN for number in numbers)]))


_READABLE: Final[Mapping[str, npt.NDArray[np.bool_]]] = {
    "printable": _class_of(bytes(range(0x20, 0x7F))),
    "letters, digits and the like": _class_of(
        b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:=-_"
    ),
    "of numbers in decimal": _class_of(b"0123456789.-+e, "),
    "zero": _class_of(bytes(1)),
}
_IN_COLUMNS: Final[Mapping[str, npt.NDArray[np.bool_]]] = {
    "printable": _READABLE["printable"],
    "the first byte of a double": _exponents(0x3F, 0x40),
    "the first byte of a float": _exponents(0x38, 0x43),
}


def as_rows(strings: Sequence[bytes]) -> Rows:
    """Byte strings of one size as rows; at least one."""
    return np.frombuffer(b"".join(strings), dtype=np.uint8).reshape(len(strings), -1)


def examine_each(rows: Rows) -> tuple[PValue, ...]:
    """The tests of strings one by one; `at` names the row that looks worst.

    Args:
        rows: n ≥ 1 strings of four bytes or more.
    """
    size = rows.shape[1]
    by_test: dict[str, tuple[Floats, str]] = {}
    for name, table in _READABLE.items():
        count = table[rows].sum(axis=1)
        values = at_least(count, size, float(table.sum()) / _BYTES)
        by_test[f"bytes that are {name}"] = values, f"bytes are {name}"
    values = _BYTES * at_least(_commonest(rows), size, 1 / _BYTES)
    by_test["one byte many times"] = values, "bytes are the same"
    steps = rows[:, 1:] - rows[:, :-1]
    values = at_least((steps[:, 1:] == steps[:, :-1]).sum(axis=1), size - 2, 1 / _BYTES)
    by_test["steady steps"] = values, "bytes go on in steady steps"
    for period in _PERIODS:
        if 2 * period <= size:
            again = (rows[:, period:] == rows[:, :-period]).sum(axis=1)
            values = at_least(again, size - period, 1 / _BYTES)
            by_test[f"repeated after {period}"] = values, f"bytes come again after {period}"
    values = ones(_ONES.sum(axis=1)[rows].sum(axis=1), 8 * size)
    by_test["ones of one string"] = values, "bits are not as often one as zero"
    results = []
    for test, (found, words) in by_test.items():
        row, value = smallest(found)
        shown = rows[row].tobytes()
        detail = f"many {words}, such as in {shown!r}"
        results.append(PValue(test, value, detail, (row,)))
    return tuple(results)


def _commonest(rows: Rows) -> Counts:
    """How often the most frequent byte of each row comes up in it."""
    most = np.zeros(len(rows), dtype=np.int64)
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        keys = part + _BYTES * np.arange(len(part), dtype=np.int64)[:, None]
        counts = np.bincount(keys.reshape(-1), minlength=_BYTES * len(part))
        most[start : start + len(part)] = counts.reshape(-1, _BYTES).max(axis=1)
    return most


def examine_as_numbers(rows: Rows) -> PValue:
    """The test that no two strings are equal or consecutive numbers, in either byte order."""
    if len(rows) < 2:
        return PValue("equal or consecutive", 1.0, "there is one string only")
    rows = rows[:_CLOSEST_OF]
    space = 1 << (8 * rows.shape[1])
    least, pair = space, (0, 0)
    for reverse in (False, True):
        numbers = [int.from_bytes(row[::-1] if reverse else row, "big") for row in _strings(rows)]
        ranked = sorted(range(len(numbers)), key=numbers.__getitem__)
        for one, other in pairwise(ranked):
            if numbers[other] - numbers[one] < least:
                least, pair = numbers[other] - numbers[one], (one, other)
    # Of each pair, 2·least + 1 differences would be as small, in both byte orders.
    pairs = len(rows) * (len(rows) - 1) // 2
    value = min(1.0, 2 * pairs * (2 * least + 1) / space)
    what = "equal" if least == 0 else f"{least} apart" if least.bit_length() < 64 else "not close"
    detail = f"the closest two of {len(rows)} strings are {what}"
    return PValue("equal or consecutive", value, detail, (min(pair), max(pair)))


def _strings(rows: Rows) -> Iterator[bytes]:
    joined, size = rows.tobytes(), rows.shape[1]
    return (joined[start : start + size] for start in range(0, len(joined), size))


class ColumnCounts:
    """How often each byte value comes up at each place of some strings of one size.

    Args:
        size: Bytes of a string.

    Attributes:
        num_rows: Strings counted.
    """

    def __init__(self, size: int) -> None:
        self.num_rows = 0
        self._values = np.zeros((size, _BYTES), dtype=np.int64)
        self._steps = np.zeros((size, _BYTES), dtype=np.int64)
        self._num_steps = 0

    def add(self, rows: Rows) -> None:
        """Count strings, in their order."""
        self.num_rows += len(rows)
        self._num_steps += max(0, len(rows) - 1)
        _count(self._values, rows)
        _count(self._steps, rows[1:] ^ rows[:-1])

    def results(self) -> tuple[PValue, ...]:
        """The tests of what was counted; none of fewer than `FEWEST_ROWS` strings."""
        if self.num_rows < FEWEST_ROWS:
            return ()
        bits = self._values @ _ONES
        results = [
            _by_bit("ones by bit", bits, self.num_rows),
            _by_bit("changes by bit from string to string", self._steps @ _ONES, self._num_steps),
            PValue(
                "ones in all bits",
                float(ones(bits.sum(), self.num_rows * bits.size)),
                f"{bits.sum()} ones in {self.num_rows * bits.size} bits",
            ),
            self._most_frequent(),
            *self._by_class(),
        ]
        if (cells := well_filled(self._values.sum(axis=0))) is not None:
            results.append(equally_likely("values of bytes", *cells))
        return tuple(results)

    def _most_frequent(self) -> PValue:
        most = self._values.max(axis=1)
        column, value = smallest(_BYTES * at_least(most, self.num_rows, 1 / _BYTES))
        byte = int(self._values[column].argmax())
        detail = f"byte {column} is {byte:#04x} in {most[column]} of {self.num_rows} strings"
        return PValue("one byte at one place", min(1.0, value), detail)

    def _by_class(self) -> Iterator[PValue]:
        for name, table in _IN_COLUMNS.items():
            counts = self._values[:, table].sum(axis=1)
            chance = float(table.sum()) / _BYTES
            column, value = smallest(at_least(counts, self.num_rows, chance))
            detail = f"byte {column} is {name} in {counts[column]} of {self.num_rows} strings"
            yield PValue(f"{name} at one place", value, detail)


def _count(table: Counts, rows: Rows) -> None:
    if rows.size:
        keys = rows + _BYTES * np.arange(rows.shape[1], dtype=np.int64)
        table += np.bincount(keys.reshape(-1), minlength=table.size).reshape(table.shape)


def _by_bit(test: str, bits: Counts, trials: int) -> PValue:
    flat = bits.reshape(-1)
    worst, value = smallest(ones(flat, trials))
    detail = f"bit {worst % 8} of byte {worst // 8} is one in {flat[worst]} of {trials}"
    return PValue(test, value, detail)


class Repeats:
    """Do eight bytes of one string come up again in another?

    Args:
        bits: How many bits of the eight bytes are random.
    """

    def __init__(self, bits: int = 8 * _WORD) -> None:
        self._bits = bits
        self._words: list[npt.NDArray[np.uint64]] = []

    def add(self, rows: Rows, words: int | None = None) -> None:
        """Take in strings.

        Args:
            rows: The strings, shape (n, size).
            words: How many times eight bytes of each are kept, from its beginning; by default all
                that there are.
        """
        count = rows.shape[1] // _WORD if words is None else min(words, rows.shape[1] // _WORD)
        cut = np.ascontiguousarray(rows[:, : _WORD * count])
        self._words.append(cut.view("<u8").reshape(-1).astype(np.uint64))

    def result(self) -> PValue:
        """The test; `at` names the blocks of the first two strings that share eight bytes."""
        if not self._words:
            return PValue("the same bytes", 1.0, "there are no strings")
        every = np.concatenate(self._words)
        order = np.argsort(every, kind="stable")
        again = np.flatnonzero(every[order][1:] == every[order][:-1])
        expected = len(every) * (len(every) - 1) / 2 / 2**self._bits
        value = repetitions(len(again), expected)
        detail = f"{len(again)} of {len(every)} times eight bytes had come before"
        if not len(again):
            return PValue("the same bytes", value, detail)
        ends = np.cumsum([len(block) for block in self._words])
        places = [int(order[again[0]]), int(order[again[0] + 1])]
        at = tuple(int(np.searchsorted(ends, place, "right")) for place in places)
        return PValue("the same bytes", value, detail, at)
