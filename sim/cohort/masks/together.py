"""The masks of a whole cohort, made in a few launches before its vectors are there.

In a round, every device knows which masks its update will get as soon as the threshold is known,
and tells its primitives (`deltafl.secagg.client.Client.foresee`). Here nothing is done until the
first device asks for its masks. Then those of all devices that have told of theirs are made at
once, as many as there is room for, and each device finds its sum ready.

Why it is the same. The masks of a vector are added modulo the word, in any order. A sum is handed
out for the very key of the self mask and the very pairs that it was made of. Whoever asks for
anything else gets it as always.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from deltafl.secagg.masks import PairSecret, subtracts
from deltafl.secagg.primitives import AddMasks, AddPairwise, Expected
from deltafl.secagg.ring import Vector

SignedSeeds: TypeAlias = tuple[Sequence[bytes], Sequence[bytes]]
"""Seeds whose masks are added, and seeds whose masks are subtracted."""

SumsOfMasks: TypeAlias = Callable[[int, int, Sequence[SignedSeeds]], Vector]
"""From length, ring bits and each vector's seeds to what is added to each vector, [n, length]."""

_ROOM: Final = 1 << 28  # bytes of sums that are made at once


class MasksTogether:
    """What many devices of one session expect, and sums that are ready for them.

    Args:
        sums: makes the masks of many vectors.
        add_masks: adds masks that nobody has told of.
        add_pairwise: likewise, of one device with its neighbours.
        longer_than: bytes of the longest vector whose masks are not made together.
        room: bytes of sums that are made at once; those of one device at least.
    """

    def __init__(
        self,
        sums: SumsOfMasks,
        add_masks: AddMasks,
        add_pairwise: AddPairwise,
        longer_than: int,
        room: int = _ROOM,
    ) -> None:
        self._sums = sums
        self._add_masks = add_masks
        self._add_pairwise = add_pairwise
        self._longer_than = longer_than
        self._room = room
        self._expected: dict[bytes, Expected] = {}
        self._ready: dict[bytes, Vector] = {}
        self._owed: dict[int, tuple[Sequence[PairSecret], Vector]] = {}

    def foresee(self, expected: Expected) -> None:
        """Note what a device will ask for; see `Primitives`."""
        if expected.length * _bytes_of(expected.ring_bits) > self._longer_than:
            self._expected[expected.self_key] = expected

    def add_masks(self, total: Vector, added: Sequence[bytes], subtracted: Sequence[bytes]) -> None:
        """`primitives.add_masks`; a self mask comes with the sum, once the pairs are asked for."""
        key = added[0] if len(added) == 1 and not subtracted else b""
        expected = self._expected.get(key)
        if expected is None or len(total) != expected.length:
            self._add_masks(total, added, subtracted)
            return
        if key not in self._ready:
            self._make(expected)
        del self._expected[key]
        self._owed[expected.position] = expected.pairs, self._ready.pop(key)

    def add_pairwise(self, total: Vector, position: int, pairs: Sequence[PairSecret]) -> None:
        """`primitives.add_pairwise`."""
        of_pairs, ready = self._owed.pop(position, (None, None))
        if ready is None:
            self._add_pairwise(total, position, pairs)
            return
        if of_pairs is not pairs:
            raise RuntimeError("other pairs than those that were told of: this is a bug")
        total += ready

    def _make(self, first: Expected) -> None:
        """Make the sum of one device, and those of others that expect as long a vector."""
        size = first.length * _bytes_of(first.ring_bits)
        shape = first.length, first.ring_bits
        waiting = [
            key
            for key, one in self._expected.items()
            if key not in self._ready and (one.length, one.ring_bits) == shape
        ]
        waiting.remove(first.self_key)
        keys = [first.self_key, *waiting[: max(1, self._room // size) - 1]]
        rows = self._sums(*shape, [_seeds(self._expected[key]) for key in keys])
        self._ready.update(zip(keys, rows, strict=True))


def _seeds(expected: Expected) -> SignedSeeds:
    added, subtracted = [expected.self_key], list[bytes]()
    for pair in expected.pairs:
        (subtracted if subtracts(expected.position, pair.peer) else added).append(pair.key())
    return added, subtracted


def _bytes_of(ring_bits: int) -> int:
    return 4 if ring_bits <= 32 else 8
