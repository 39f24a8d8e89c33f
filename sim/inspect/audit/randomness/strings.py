"""Do byte strings that should be random look so: one by one, place by place, and side by side?

A field of a message that should be random may hold something that can be read: a text, a number, a
counter, a constant, the same bytes again. The words of a masked vector are strings too. Every test
here is exact or conservative: uniform bytes give a p-value of at most α with a probability of at
most α. A good generator of the wrong seed passes all of them; see `guesses`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import ascii_letters, digits
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.findings import Evidence
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


_READABLE: Final[Mapping[str, bytes]] = {
    "are printable": bytes(range(0x20, 0x7F)),
    "are letters, digits and the like": f"{ascii_letters}{digits} .,:=-_".encode(),
    "are of numbers in decimal": b"0123456789.-+e, ",
    "are zero": bytes(1),
}


def as_rows(strings: Sequence[bytes]) -> Rows:
    """Byte strings of one size as rows."""
    rows = np.frombuffer(b"".join(strings), dtype=np.uint8)
    return rows.reshape(len(strings), -1 if strings else 0)


def one_by_one(rows: Rows) -> Iterator[PValue]:
    """The tests of strings one by one; `at` names the row that looks worst.

    Args:
        rows: n ≥ 1 strings of four bytes or more.
    """
    size, steps = rows.shape[1], rows[:, 1:] - rows[:, :-1]
    tests = [
        (how, np.isin(rows, list(these)).sum(axis=1), size, len(these) / _BYTES)
        for how, these in _READABLE.items()
    ]
    again = (steps[:, 1:] == steps[:, :-1]).sum(axis=1)
    tests.append(("go on in steady steps", again, size - 2, 1 / _BYTES))
    for period in _PERIODS:
        if 2 * period <= size:
            again = (rows[:, period:] == rows[:, :-period]).sum(axis=1)
            tests.append((f"come again after {period}", again, size - period, 1 / _BYTES))
    for how, counts, trials, chance in tests:
        row, value = most(counts, trials, chance)
        detail = f"many bytes {how}, such as in {rows[row].tobytes()!r}"
        yield PValue(f"bytes that {how}", value, detail, (row,))
    row, value = least_even(np.bitwise_count(rows).sum(axis=1, dtype=np.int64), 8 * size)
    detail = f"bits are not as often one as zero, such as in {rows[row].tobytes()!r}"
    yield PValue("ones of one string", value, detail, (row,))


def repeated(rows: Rows) -> PValue:
    """The test that no string of eight bytes comes twice; `at` has two places of one that does."""
    words = rows.view("<u8").reshape(-1)
    order = np.argsort(words, kind="stable")
    again = np.flatnonzero(words[order][1:] == words[order][:-1])
    value = repetitions(len(again), len(words) * (len(words) - 1) / 2 / 2 ** (8 * _WORD))
    detail = f"{len(again)} of {len(words)} times, {_WORD} bytes had come before"
    return PValue("the same bytes", value, detail, tuple(order[again[:1, None] + [0, 1]].flat))


def rows_of_words(words: Vector, bits: int) -> Rows:
    """Words of Z_2^bits, uint32 or uint64 of shape (L,), as strings that begin with their bits."""
    wide = words.astype(np.uint64) << np.uint64(8 * _WORD - bits)
    return wide.astype(">u8").view(np.uint8).reshape(-1, _WORD)[:, : -(-bits // 8)]


def counted(rows: Rows) -> Counts:
    """How often each byte comes at each place of strings, and as a change to the next string.

    What was counted of several parts can be added up.

    Args:
        rows: Shape (n, size), in their order.

    Returns:
        Shape (2, size, 256).
    """
    counts = np.zeros((2, rows.shape[1], _BYTES), dtype=np.int64)
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        for table, strings in zip(counts, (part, part[1:] ^ part[:-1]), strict=True):
            keys = strings + _BYTES * np.arange(len(table))
            table += np.bincount(keys.reshape(-1), minlength=table.size).reshape(table.shape)
    return counts


def side_by_side(counts: Counts, bits: int) -> Iterator[PValue]:
    """The tests of what was `counted`; none of fewer than `FEWEST` strings.

    Args:
        counts: Shape (2, size, 256).
        bits: Random bits of a string, from the highest of its first byte on.
    """
    rows, steps = counts[:, 0].sum(axis=1).tolist()
    if rows < FEWEST:
        return
    each, changes = (counts @ _ONES).reshape(2, -1)[:, :bits]
    total, trials = int(each.sum()), rows * bits
    yield PValue("ones in all bits", float(ones(total, trials)), f"{total} ones in {trials} bits")
    for what, found, of in (("ones", each, rows), ("changes to the next", changes, steps)):
        worst, value = least_even(found, of)
        detail = f"{found[worst]} {what} of {of} at bit {worst}, counted from the highest"
        yield PValue(f"{what} by bit", value, detail)
    if len(whole := counts[0, : bits // 8]):
        place, value = most(whole, rows, 1 / _BYTES)
        column, byte = divmod(place, _BYTES)
        detail = f"byte {column} is {byte:#04x} in {whole[column, byte]} of {rows} strings"
        yield PValue("one byte at one place", value, detail)
        values = whole.sum(axis=0)
        if values.sum() < MIN_EXPECTED * _BYTES:  # of halves of bytes instead
            values = values.reshape(16, 16).sum(axis=0) + values.reshape(16, 16).sum(axis=1)
        if values.sum() >= MIN_EXPECTED * len(values):
            detail = f"of {values.sum()} values, {values.max()} are {values.argmax():#04x}"
            yield PValue("values of bytes", histogram(values), detail)


class Block(NamedTuple):
    """Strings of one kind in one message.

    Attributes:
        whose: What they are, and of whom.
        rows: The strings, of eight bytes or more.
        place: Where they are.
    """

    whose: str
    rows: Rows
    place: Evidence


class Strings:
    """Strings of several kinds that should look random: tested round by round, and all together.

    Args:
        budget: Takes the p-values.
        test: What the names of the tests begin with.
    """

    def __init__(self, budget: FalseAlarmBudget, test: str) -> None:
        self._budget, self._test = budget, test
        self._round: dict[str, list[Block]] = defaultdict(list)
        self._all: dict[str, tuple[Counts, Evidence]] = {}
        self._parts: dict[str, list[Block]] = defaultdict(list)  # of all strings, their ends

    def add(self, name: str, block: Block) -> None:
        """Take strings of a kind, all of one size."""
        if len(block.rows):
            self._round[name].append(block)

    def end_round(self) -> None:
        """Test what came in the round."""
        for name, blocks in self._round.items():
            every = np.concatenate([block.rows for block in blocks])
            self._take(name, one_by_one(every), blocks)
            before, place = self._all.get(name, (np.int64(0), blocks[0].place))
            self._all[name] = before + counted(every), place
            for block in blocks:
                self._take(name, side_by_side(counted(block.rows), 8 * every.shape[1]), [block])
                for end, part in (("beginnings", slice(_WORD)), ("ends", slice(-_WORD, None))):
                    self._parts[end].append(block._replace(rows=block.rows[:, part].copy()))
        self._round.clear()

    def end(self) -> None:
        """Test the strings of all rounds together."""
        for name, (counts, place) in self._all.items():
            together = Block(f"all {name}", np.zeros((1, 0), np.uint8), place)
            self._take(name, side_by_side(counts, 8 * counts.shape[1]), [together])
        for name, blocks in self._parts.items():
            self._take(name, [repeated(np.concatenate([block.rows for block in blocks]))], blocks)

    def _take(self, name: str, results: Iterable[PValue], blocks: Sequence[Block]) -> None:
        ends = np.cumsum([len(block.rows) for block in blocks])
        for result in results:
            at = [blocks[place] for place in np.searchsorted(ends, result.at or (0,), "right")]
            whose = " and ".join(dict.fromkeys(block.whose for block in at))
            self._budget.add(result, at[-1].place, f"{self._test}{name}: ", f"{whose}: ")
