"""What is left of masked vectors without the masks that the server can remove: is it still masked?

When the server unmasks a slot, it rebuilds the seeds of the survivors' self masks, and the keys of
the devices that were lost. From then on, only the masks that two survivors share hide each of them.
What is left of a vector must look uniform, and so must the sum of what is left of some of them: the
masks cancel in the sum over all. If they cancel in the sum over a few, these few share masks only
with one another, and the server knows their sum. In a whole slot there are no other masks at all.

If a vector comes of a device that was called lost, the server can remove all the masks that it
shares with others, and only its self mask hides it. What is left must look uniform as well.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg import prg
from deltafl.secagg.errors import PeerError
from deltafl.secagg.graph import Positions
from deltafl.secagg.keys import KeyPair
from deltafl.secagg.masks import SlotContext, subtracts
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.relations import leading_repeats
from deltafl.sim.inspect.audit.replay import Replayed
from deltafl.sim.inspect.audit.tails import Counts, PValue, heads_before_tails
from deltafl.sim.inspect.audit.uniformity import WordCounts
from deltafl.sim.inspect.audit.views import SessionView, SlotView

LEFT: Final = "left over: "
"""Tests for what is left of vectors begin so, in the budget."""

MAX_DEVICES: Final = 1 << 8
"""Devices of a slot that are compared with one another; the first ones."""

_END: Final = 1 << 9  # words of a vector that are looked at, at its beginning and at its end
_BLOCK_WORDS: Final = 16  # a multiple of the words of a keystream block, of any ring
_MAX_GROUPS: Final = 1 << 15
_AT_ONCE: Final = 1 << 21  # words of sums over groups


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The first and last words of a masked vector, or all of them.

    Attributes:
        head: Its first words.
        tail: Its last words, from `start` on; none if the head is the whole vector.
        start: Where the tail begins; a multiple of the words of a keystream block.
    """

    head: Vector
    tail: Vector
    start: int

    @classmethod
    def of(cls, vector: Vector) -> "Sample":
        """The sample of a vector, copied."""
        if len(vector) <= 2 * _END:
            return cls(vector.copy(), vector[:0].copy(), len(vector))
        start = (len(vector) - _END) // _BLOCK_WORDS * _BLOCK_WORDS
        return cls(vector[:_END].copy(), vector[start:].copy(), start)

    def add_masks(self, added: list[bytes], subtracted: list[bytes]) -> None:
        """Add and subtract masks of the whole vector, in place."""
        prg.add_masks(self.head, added, subtracted)
        if len(self.tail):
            block = self.start * self.tail.itemsize // prg.BLOCK_BYTES
            prg.add_masks(self.tail, added, subtracted, first_block=block)

    @property
    def words(self) -> Vector:
        """All its words."""
        joined: Vector = np.concatenate([self.head, self.tail])
        return joined


def unmask_what_is_known(
    samples: Mapping[int, Sample],
    session: SessionView,
    slot: SlotView,
    context: SlotContext,
    replayed: Replayed,
) -> None:
    """Remove the masks that follow from rebuilt secrets, in place.

    Args:
        samples: Of the vectors in the sum, by device.
        session: Their session.
        slot: Their slot, not a whole one.
        context: What its masks are bound to.
        replayed: The secrets that were rebuilt for its sum.
    """
    added: dict[int, list[bytes]] = {device: [] for device in samples}
    subtracted = {device: [context.self_mask_key(replayed.secrets[device])] for device in samples}
    column = session.params.columns[slot.index]
    public = {device: keys.mask_keys[column] for device, keys, _ in session.advertised()}
    ids = session.ids.tolist()
    for lost, pair in replayed.keys.items():
        at = session.positions[lost]
        near = [p for p in session.graph.neighbours(at).tolist() if ids[p] in samples]
        for shared in context.pair_secrets(pair, near, [public[ids[p]] for p in near]):
            key = shared.key()
            (added if subtracts(shared.peer, at) else subtracted)[ids[shared.peer]].append(key)
    for device, sample in samples.items():
        sample.add_masks(added[device], subtracted[device])


def unmask_late(
    sample: Sample,
    device: int,
    session: SessionView,
    slot: SlotView,
    context: SlotContext,
    pair: KeyPair,
) -> bool:
    """Remove the masks of a device that was called lost, but its self mask, in place.

    Args:
        sample: Of the vector that it sent all the same.
        device: It.
        session: Its session.
        slot: Its slot, not a whole one.
        context: What its masks are bound to.
        pair: Its mask key, which was rebuilt.

    Returns:
        Whether they are removed; not if a neighbour's key is of low order.
    """
    column, at, ids = session.params.columns[slot.index], session.positions[device], session.ids
    members = np.zeros(0, dtype=np.bool_) if slot.members is None else slot.members
    public = {one: keys.mask_keys[column] for one, keys, _ in session.advertised()}
    near = [
        peer
        for peer in session.graph.neighbours(at).tolist()
        if peer < len(members) and members[peer] and int(ids[peer]) in public
    ]
    added: list[bytes] = []
    subtracted: list[bytes] = []
    try:
        agreed = list(context.pair_secrets(pair, near, [public[int(ids[p])] for p in near]))
    except PeerError:
        return False
    for shared in agreed:
        (added if subtracts(at, shared.peer) else subtracted).append(shared.key())
    sample.add_masks(added, subtracted)
    return True


@dataclass(slots=True, eq=False)
class _Alike:
    """Slots of a session that are over the same devices."""

    devices: tuple[int, ...]
    groups: tuple[Positions, ...]
    sums: list[Counts]
    differences: Counts
    num_words: int = 0
    place: Evidence = field(default_factory=Evidence)


@dataclass(slots=True, eq=False)
class LeftOver:
    """Takes in what is left of the vectors of slots, and tests it.

    Args:
        budget: Takes the p-values.

    Attributes:
        num_vectors: Vectors taken in.
    """

    budget: FalseAlarmBudget
    num_vectors: int = 0
    _alike: dict[tuple[bytes, tuple[int, ...]], _Alike] = field(default_factory=dict)
    _counts: dict[int, WordCounts] = field(default_factory=dict)
    _places: dict[int, Evidence] = field(default_factory=dict)

    def add(
        self, tag: bytes, bits: int, samples: Mapping[int, Sample], where: str, place: Evidence
    ) -> None:
        """Take in a slot.

        Args:
            tag: Of its session.
            bits: Of its ring.
            samples: What is left of the vectors in its sum, by device; two or more.
            where: What to call it.
            place: Where its sum is.
        """
        devices = tuple(sorted(samples)[:MAX_DEVICES])
        left: Vector = np.stack([samples[device].words for device in devices])  # type: ignore[assignment] # of one ring
        self.num_vectors += len(devices)
        self._count(bits, left, where, place)
        alike = self._alike.setdefault((tag, devices), _of(devices))
        alike.place = place
        part = left[:, _spread(left.shape[1], max(1, _AT_ONCE // _num_groups(alike)))]
        alike.num_words += part.shape[1]
        for index, group in enumerate(alike.groups):
            total = part[group[:, 0]]
            for column in range(1, group.shape[1]):
                total = total + part[group[:, column]]
            alike.sums[index] += leading_repeats(total, bits).sum(axis=1)
        if len(alike.groups) > 1:
            first, second = alike.groups[1].T
            alike.differences += leading_repeats(part[first] - part[second], bits).sum(axis=1)

    def add_late(self, bits: int, sample: Sample, where: str, place: Evidence) -> None:
        """Take in a vector that came too late for its slot.

        Args:
            bits: Of its ring.
            sample: What is left of it.
            where: What to call it.
            place: Where it came.
        """
        self.num_vectors += 1
        self._count(bits, sample.words[None], where, place)

    def end_round(self) -> None:
        """Test what came together in a round."""
        for alike in self._alike.values():
            for group, repeats in zip(alike.groups, alike.sums, strict=True):
                self._test("sums", alike, group, repeats)
            if len(alike.groups) > 1:
                self._test("differences", alike, alike.groups[1], alike.differences)
        self._alike.clear()

    def finish(self) -> None:
        """Make the last tests."""
        for bits, counts in self._counts.items():
            self._take(counts, "all slots", self._places[bits])

    def _count(self, bits: int, left: Vector, where: str, place: Evidence) -> None:
        counts = WordCounts(bits)
        counts.add(left)
        self._take(counts, where, place)
        self._counts.setdefault(bits, WordCounts(bits)).merge(counts)
        self._places.setdefault(bits, place)

    def _take(self, counts: WordCounts, where: str, place: Evidence) -> None:
        for result in counts.results():
            named = PValue(f"{LEFT}{result.test}", result.value, f"{where}: {result.detail}")
            self.budget.add(named, place)

    def _test(self, what: str, alike: _Alike, group: Positions, repeats: Counts) -> None:
        def describe(index: int) -> tuple[str, Evidence]:
            devices = ", ".join(str(alike.devices[at]) for at in group[index].tolist())
            detail = f"without the masks that the server can remove, the {what} of the vectors of "
            return f"{detail}devices {devices} are too close to zero", alike.place

        values = heads_before_tails(repeats, alike.num_words)
        self.budget.add_all(f"{LEFT}{what} of {group.shape[1]} vectors", values, describe)


def _of(devices: tuple[int, ...]) -> _Alike:
    groups = tuple(_groups(len(devices)))
    sums = [np.zeros(len(group), dtype=np.int64) for group in groups]
    pairs = len(groups[1]) if len(groups) > 1 else 0
    return _Alike(devices, groups, sums, np.zeros(pairs, dtype=np.int64))


def _groups(count: int) -> Iterator[Positions]:
    """All groups of up to half of so many devices, of the sizes of which there are few enough.

    The sum over the others is small exactly where that over the group is.
    """
    total = 0
    for size in range(1, max(1, count // 2) + 1):
        total += comb(count, size)
        if total > _MAX_GROUPS and size > 1:
            return
        yield np.array(list(combinations(range(count), size)), dtype=np.int64)


def _num_groups(alike: _Alike) -> int:
    return sum(len(group) for group in alike.groups)


def _spread(length: int, few: int) -> npt.NDArray[np.intp]:
    """At most so many indices below a length, from the first to the last."""
    return np.unique(np.linspace(0, length - 1, min(length, few)).astype(np.intp))
