"""Do masked vectors look like ideal ones: uniform and unrelated?

Alone and in pairs, and without the masks that the server can remove. Statistical tests can only
find faults: bytes that pass may still come from a generator that somebody can run. The audit states
the probability that all tests together raise a false alarm.
"""

from collections import defaultdict
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from deltafl.secagg import openings
from deltafl.secagg.graph import Positions
from deltafl.secagg.messages import MaskedInput
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.facts import CheckFacts, StatisticsFacts
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.randomness.strings import counted, rows_of_words, side_by_side
from deltafl.sim.inspect.audit.randomness.words import (
    MAX_DEVICES,
    MAX_WORDS,
    groups_of,
    signed,
    small_sums,
    without_known_masks,
)
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.tails import Counts
from deltafl.sim.inspect.audit.views import RoundView

_BIASED: Final = "masked: "
_REUSED: Final = "reused: "
_LEFT: Final = "left over: "
_EVERYBODY: Final = -1  # no device
_MAX_KNOWN: Final = 1 << 12  # shapes of devices' vectors that are remembered from round to round

_Head = tuple[int, Vector, Evidence]
"""The device, the first words of its vector, and its place."""


_Left = tuple[int, list[_Head]]
"""The bits of a slot's ring, and what is left of its vectors."""


class MaskedBytes(Check):
    """Tests masked vectors; the budget decides what is found."""

    name = "masked bytes"
    table = """\
masks.biased high device A7: masked bytes are not uniform
    The masks do not hide all of the inputs.
masks.reused critical device A6: masks were used twice
    The difference of two masked vectors is the difference of their inputs.
masks.missing critical device A7: vectors lack the masks that devices share with one another
    The server removes all other masks with the sum: it reads these vectors, or sums of a few.
"""
    tests = MappingProxyType(
        {_REUSED: "masks.reused", _BIASED: "masks.biased", _LEFT: "masks.missing"}
    )

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._bytes = 0
        self._counts: dict[tuple[str, int, int], tuple[Counts, Evidence]] = {}
        self._heads: dict[tuple[bytes, int], dict[int, _Head]] = defaultdict(dict)
        self._seen: set[tuple[int, bytes]] = set()  # a message that was sent again is no other
        self._last: dict[tuple[int, int, int], list[_Head]] = {}

    def on_message(self, seen: Seen, round_: RoundView) -> None:
        """Count a vector, and keep its first words."""
        device, tag, message = seen.record.peer, seen.content.tag, seen.content.message
        session, own = round_.sessions.get(tag), (device, seen.record.sha256)
        if session is None or not isinstance(message, MaskedInput) or own in self._seen:
            return
        self._seen.add(own)
        spec = session.params.slots[message.slot]
        (words, _), bits = openings.unpack(spec, message.packed), spec.ring_bits
        head = device, words[:MAX_WORDS].copy(), seen.place
        self._heads[tag, message.slot].setdefault(device, head)
        self._bytes += len(words) * bits // 8
        self._count(_BIASED, device, bits, words, seen.place)

    def on_round(self, over: RoundOver) -> None:
        """Test the vectors that came in the round; the alarms come when all tests are made."""
        self._relate(over.view)
        self._without_known_masks(over)
        for (test, _, bits), (counts, place) in self._counts.items():
            for result in side_by_side(counts, bits):
                self._premises.budget.add(result, place, test)
        for kept in (self._counts, self._heads, self._seen):
            kept.clear()

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages contain vectors."""
        detail = f"{self._premises.budget.num_tests} tests of {self._bytes} bytes"
        return Coverage(tally.whole, detail)

    def facts(self) -> CheckFacts:
        """How many tests all checks made together, and how many bytes they tested."""
        budget = self._premises.budget
        facts = StatisticsFacts(budget.num_tests, budget.smallest, budget.rate, self._bytes)
        return {"statistics": facts}

    def _count(self, test: str, device: int, bits: int, words: Vector, place: Evidence) -> None:
        new = counted(rows_of_words(words, bits))
        for key in ((test, device, bits), (test, _EVERYBODY, bits)):
            before, first = self._counts.get(key, (np.zeros_like(new), place))
            self._counts[key] = before + new, first

    def _relate(self, round_: RoundView) -> None:
        """Compare the vectors of each device with one another, and with those of the last round."""
        current: dict[tuple[int, int, int], list[_Head]] = defaultdict(list)
        for (tag, index), slot in self._heads.items():
            bits = round_.sessions[tag].params.slots[index].ring_bits
            for device, words, place in slot.values():
                current[device, bits, len(words)].append((device, words, place))
        for shape, heads in current.items():
            before = self._last.get(shape, [])
            every = [*before, *heads]
            if pairs := [(i, j) for j in range(len(before), len(every)) for i in range(j)]:
                self._test(_REUSED, [(shape[1], every)], signed(np.array(pairs), len(every)))
        self._last = dict(current) if len(current) <= _MAX_KNOWN else {}

    def _without_known_masks(self, over: RoundOver) -> None:
        """Remove the masks that the server can remove, and test what is left."""
        alike: dict[tuple[bytes, tuple[int, ...]], list[_Left]] = defaultdict(list)
        for (tag, index), learnt in over.again.items():
            session, heads = over.view.sessions[tag], self._heads[tag, index]
            bits, words = session.params.slots[index].ring_bits, {d: heads[d][1] for d in heads}
            left = without_known_masks(words, session, index, learnt)
            lost = learnt.recovered.opened if learnt.recovered else {}
            late = sorted(device for device in left if session.positions[device] in lost)
            known = sorted(left.keys() - set(late))[:MAX_DEVICES]
            for devices in [*([device] for device in late), *([known] if len(known) > 1 else [])]:
                kept = [(device, left[device], heads[device][2]) for device in devices]
                for device, rest, place in kept:
                    self._count(_LEFT, device, bits, rest, place)
                alike[tag, tuple(devices)].append((bits, kept))
        for slots in alike.values():
            for groups in groups_of(len(slots[0][1])):
                self._test(_LEFT, slots, groups)

    def _test(self, test: str, slots: Sequence[_Left], groups: Positions) -> None:
        """Test that sums over groups of vectors are not small, in slots over the same devices."""
        heads = slots[-1][1]

        def describe(index: int) -> tuple[str, Evidence]:
            found = [heads[place % len(heads)] for place in groups[index].tolist()]
            named = " and ".join(f"of device {device} in {place}" for device, _, place in found)
            return f"nearly no mask is left on the vectors {named}", found[-1][2]

        vectors = [(bits, [words for _, words, _ in rows]) for bits, rows in slots]
        values = small_sums(vectors, groups)
        self._premises.budget.add_all(f"{test}sums of {groups.shape[1]} vectors", values, describe)
