"""Do fields that should look random hold a device's values, or what can be computed from others?

With a truth file, the fields are searched for losses, weights and updates, in the usual encodings.
Without one, they are compared with simple functions of values that everybody can see.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.sim.inspect.audit.field_tests import Rows
from deltafl.sim.inspect.audit.tails import PValue, repetitions
from deltafl.sim.record.truth import DeviceTruth

Words = npt.NDArray[np.uint64]

_LONG: Final = 8
_SHORT: Final = 4
_FORMATS: Final = {_LONG: ("<d", ">d", "<q", ">q"), _SHORT: ("<f", ">f", "<i", ">i")}
_DIGESTS: Final[tuple[Callable[[bytes], bytes], ...]] = (
    lambda data: hashlib.sha256(data).digest(),
    lambda data: hashlib.sha512(data).digest(),
    lambda data: hashlib.blake2b(data).digest(),
    lambda data: hashlib.blake2b(data, digest_size=32).digest(),
    lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
    lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
)


def encodings(truth: DeviceTruth, size: int) -> set[bytes]:
    """A device's loss and weight in the usual encodings of 8 bytes, or of 4.

    Those of eight bytes include the decimal digits of the loss, and digests of the rest.
    """
    encoded = set[bytes]()
    for form in _FORMATS[size]:
        value = truth.weight if form[1] in "qi" else truth.loss
        try:
            encoded.add(struct.pack(form, value))
        except (struct.error, OverflowError):  # too large for this encoding
            continue
    if size == _LONG:
        encoded |= {digest(data)[:size] for data in tuple(encoded) for digest in _DIGESTS}
        encoded.add(repr(truth.loss).encode().ljust(size)[:size])
    return encoded


def pairs_of(truth: DeviceTruth) -> Words:
    """Every two numbers of a device's update that follow one another, in both byte orders."""
    if truth.update is None or len(truth.update) < 2:
        return np.zeros(0, dtype=np.uint64)
    pairs = np.stack([truth.update[:-1], truth.update[1:]], axis=1)
    pairs = pairs[pairs.any(axis=1)]  # a number that is zero looks like any other
    both = [np.ascontiguousarray(pairs, dtype=order).view(np.uint8) for order in ("<f4", ">f4")]
    return np.unique(_as_words(np.concatenate(both)))


def windows(rows: Rows, size: int) -> Words:
    """All `size` bytes that follow one another in some strings, as numbers."""
    if rows.shape[1] < size:
        return np.zeros(0, dtype=np.uint64)
    cut = np.lib.stride_tricks.sliding_window_view(rows, size, axis=1)
    wide = np.zeros((*cut.shape[:2], _LONG), dtype=np.uint8)
    wide[..., :size] = cut
    return _as_words(wide)


def _as_words(rows: Rows) -> Words:
    return np.ascontiguousarray(rows).view("<u8").reshape(-1).astype(np.uint64)


@dataclass(slots=True)
class _Hits:
    """How often something was found, and would be by chance."""

    count: int = 0
    expected: float = 0.0
    first: int | None = None

    def add(self, device: int, found: int, tries: int, patterns: int, size: int) -> None:
        self.count += found
        self.expected += tries * patterns / 2 ** (8 * size)
        if found and self.first is None:
            self.first = device


@dataclass(slots=True)
class TrueValues:
    """Searches the strings of one name for the values of their devices."""

    _hits: dict[str, _Hits] = field(default_factory=dict)

    def add(self, rows: Rows, truth: DeviceTruth) -> None:
        """Search strings that a device sent."""
        long = windows(rows, _LONG)
        self._search("loss or weight", truth.device, long, encodings(truth, _LONG), _LONG)
        short = windows(rows, _SHORT)
        self._search("short loss or weight", truth.device, short, encodings(truth, _SHORT), _SHORT)
        self._find("update", truth.device, long, pairs_of(truth), _LONG)

    def _search(self, what: str, device: int, tries: Words, known: set[bytes], size: int) -> None:
        patterns = np.array([int.from_bytes(k, "little") for k in known], dtype=np.uint64)
        self._find(what, device, tries, patterns, size)

    def _find(self, what: str, device: int, tries: Words, patterns: Words, size: int) -> None:
        if len(patterns) and len(tries):
            found = int(np.count_nonzero(np.isin(tries, patterns)))
            hits = self._hits.setdefault(what, _Hits())
            hits.add(device, found, len(tries), len(patterns), size)

    def results(self) -> Iterator[PValue]:
        """The tests, one for each sort of value; `at` names a device where one was found."""
        for what, hits in self._hits.items():
            detail = f"{hits.count} times the {what} of the device that sent it"
            at = () if hits.first is None else (hits.first,)
            yield PValue(what, repetitions(hits.count, hits.expected), detail, at)


def functions_of(visible: Iterable[bytes]) -> dict[bytes, str]:
    """The first eight bytes of simple functions of values that everybody can see, and which.

    The values themselves are not among them: equal strings are found where they are compared.
    """
    known: dict[bytes, str] = {}
    for value in visible:
        known[value[::-1][:_LONG].ljust(_LONG, b"\0")] = "a visible value backwards"
        flipped = bytes(byte ^ 0xFF for byte in value[:_LONG])
        known[flipped.ljust(_LONG, b"\xff")] = "the complement of a visible value"
        for digest in _DIGESTS:
            known[digest(value)[:_LONG]] = "a digest of a visible value"
    return known


def numbers_of(number: int) -> tuple[bytes, ...]:
    """A small number as bytes, in the usual encodings."""
    return (
        *(number.to_bytes(size, order) for size in (_SHORT, _LONG) for order in ("little", "big")),
        str(number).encode(),
    )


def beginning_like(rows: Rows, known: Mapping[bytes, str]) -> tuple[PValue, str]:
    """The test that no string begins like one of some known strings; and which it begins like."""
    heads = [row.tobytes() for row in rows[:, :_LONG]] if rows.shape[1] >= _LONG else []
    found = [known[head] for head in heads if head in known]
    value = repetitions(len(found), len(heads) * len(known) / 2**64)
    what = found[0] if found else ""
    return PValue("functions of visible values", value, f"{len(found)} begin like {what}"), what
