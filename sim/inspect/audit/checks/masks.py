"""Do masked vectors look like ideal ones: uniform, unrelated, independent of what they hide?

Alone and in pairs, and without the masks that the server can remove. Statistical tests can only
find faults: bytes that pass may still come from a generator that somebody can run. The audit states
the probability that all tests together raise a false alarm.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np

from deltafl.secagg import ring
from deltafl.secagg.graph import Positions
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.check import Check, MaskedVector, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.facts import CheckFacts, StatisticsFacts
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.randomness.strings import Columns
from deltafl.sim.inspect.audit.randomness.words import (
    MAX_DEVICES,
    MAX_WORDS,
    Left,
    small_sums,
    small_words,
    without_known_masks,
)
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.truth_rounds import input_of
from deltafl.sim.inspect.audit.views import SessionView, SlotView, place_of

RULES: Final = Rules.read(
    """\
masks.biased high device A7: masked bytes are not uniform
    The masks do not hide all of the inputs.
masks.reused critical device A6: masks were used twice
    The difference of two masked vectors is the difference of their inputs.
masks.depend critical device A7: masked vectors depend on what they hide
    The vectors reveal something about the inputs without any share.
masks.missing critical device A7: vectors lack the masks that devices share with one another
    The server removes all other masks when it computes the sum. It reads these vectors, or the
    sum of a few of them.
"""
)

_BIASED: Final = "masked: "
_REUSED: Final = "reused: "
_DEPENDS: Final = "inputs: "
_LEFT: Final = "left over: "
_EVERYBODY: Final = -1  # no device
_MAX_DEVICES: Final = 1 << 12  # whose vectors are remembered from round to round

_Head = tuple[str, Vector, Evidence]
"""Where a vector was, its first words, and its place."""


@dataclass(slots=True, eq=False)
class _Slot:
    """The first words of the vectors of a slot, of each device the first, and its sum."""

    session: SessionView
    view: SlotView
    heads: dict[int, _Head] = field(default_factory=dict)
    released: ReleasedSum | None = None

    @property
    def bits(self) -> int:
        return self.session.params.slots[self.view.index].ring_bits


class MaskedBytes(Check):
    """Tests masked vectors; the budget decides what is found."""

    name = "masked bytes"
    rules = RULES
    tests = MappingProxyType(
        {
            _REUSED: "masks.reused",
            _DEPENDS: "masks.depend",
            _BIASED: "masks.biased",
            _LEFT: "masks.missing",
        }
    )

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._bytes = self._left = 0
        self._columns: dict[tuple[str, int, int], tuple[Columns, Evidence]] = {}
        self._slots: dict[tuple[bytes, int], _Slot] = {}
        self._last: dict[tuple[int, int, int], list[_Head]] = {}

    def on_vector(self, vector: MaskedVector) -> None:
        """Count a vector and, if known, what it has in common with the input that it hides."""
        session, slot, words = vector.session, vector.slot, vector.words
        device, place, of_slot = (
            vector.seen.record.peer,
            vector.seen.place,
            self._slot(session, slot),
        )
        where, bits = f"slot {slot.index} of round {place.round}", of_slot.bits
        of_slot.heads.setdefault(device, (where, words[:MAX_WORDS].copy(), place))
        self._bytes += len(words) * bits // 8
        self._count(_BIASED, device, bits, words, place)
        true = vector.truth.get(device)
        if true is None or session.config is None or slot.question is None:
            return
        hidden = input_of(true, session.config, slot.question)
        if hidden is not None and len(hidden) <= len(words):
            related = words[: len(hidden)] ^ ring.to_words(hidden, bits)
            self._count(_DEPENDS, device, bits, related, place)

    def on_sum(self, released: ReleasedSum) -> tuple[()]:
        """Keep what was rebuilt for it."""
        if released.slot is not None:
            of_slot = self._slot(*released.slot)
            of_slot.released = of_slot.released or released
        return ()

    def on_round(self, over: RoundOver) -> tuple[()]:
        """Test the vectors that came in the round; the alarms come when all tests are made."""
        del over
        self._relate()
        self._without_known_masks()
        for (test, _, bits), (columns, place) in tuple(self._columns.items()):
            everybody = test, _EVERYBODY, bits
            self._columns.setdefault(everybody, (Columns(bits), place))[0].merge(columns)
        for (test, _, _), (columns, place) in self._columns.items():
            for result in columns.results():
                self._premises.budget.add(result, place, test)
        self._columns.clear()
        self._slots.clear()
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages contain vectors."""
        num_tests = self._premises.budget.num_tests
        detail = f"{num_tests} tests of {self._bytes} bytes; what is left of {self._left} vectors"
        return Coverage(tally.whole, detail)

    def facts(self) -> CheckFacts:
        """How many tests all checks made together, and how many bytes they tested."""
        budget = self._premises.budget
        facts = StatisticsFacts(budget.num_tests, budget.smallest, budget.rate, self._bytes)
        return {"statistics": facts}

    def _slot(self, session: SessionView, slot: SlotView) -> _Slot:
        return self._slots.setdefault((session.params.tag, slot.index), _Slot(session, slot))

    def _count(self, test: str, device: int, bits: int, words: Vector, place: Evidence) -> None:
        new = Columns(bits), place
        self._columns.setdefault((test, device, bits), new)[0].add_words(words)

    def _relate(self) -> None:
        """Compare the vectors of each device with one another, and with those of the last round."""
        current: dict[tuple[int, int, int], list[_Head]] = defaultdict(list)
        for one in self._slots.values():
            for device, new in one.heads.items():
                shape = device, one.bits, len(new[1])
                self._compare(one.bits, [*self._last.get(shape, ()), *current[shape]], new)
                current[shape].append(new)
        few = len({device for device, _, _ in current}) <= _MAX_DEVICES
        self._last = dict(current) if few else {}

    def _compare(self, bits: int, earlier: list[_Head], new: _Head) -> None:
        """Test that differences and sums of two vectors of a device are not small."""
        if not earlier:
            return
        where, head, place = new

        def describe(index: int) -> tuple[str, Evidence]:
            before = earlier[index % len(earlier)][0]
            return f"a device's vectors of {before} and of {where} are too close", place

        others: Vector = np.stack([words for _, words, _ in earlier])  # type: ignore[assignment]
        values = small_words(np.concatenate([head - others, head + others]), bits)
        self._premises.budget.add_all(f"{_REUSED}pairs of vectors", values, describe)

    def _without_known_masks(self) -> None:
        """Remove the masks that the server can remove, and test what is left."""
        alike: dict[tuple[bytes, tuple[int, ...]], list[Left]] = defaultdict(list)
        for (tag, _), one in self._slots.items():
            if one.released is None or one.released.again is None:
                continue
            recovered, summed = (
                one.released.again.recovered,
                one.released.record.contributors.tolist(),
            )
            heads = {device: head for device, (_, head, _) in one.heads.items()}
            left = without_known_masks(heads, one.session, one.view, recovered)
            self._left += len(left)
            known = sorted(left.keys() & set(summed))[:MAX_DEVICES]
            tested = {tuple(known): place_of(one.released.record)}
            if len(known) < 2:
                tested = {}
            ids = one.session.ids.tolist()
            lost = recovered.mask_keys if recovered is not None else ()
            late = left.keys() & {ids[position] for position in lost}
            tested |= {(device,): one.heads[device][2] for device in late}
            for devices, place in tested.items():
                for device in devices:
                    self._count(_LEFT, device, one.bits, left[device], one.heads[device][2])
                stacked: Vector = np.stack([left[d] for d in devices])  # type: ignore[assignment]
                alike[tag, devices].append((one.bits, stacked, place))
        for (_, devices), slots in alike.items():
            for what, groups, values in small_sums(slots):
                named = f"{_LEFT}{what} of {groups.shape[1]} vectors"
                self._premises.budget.add_all(named, values, _describing(devices, groups, slots))


def _describing(
    devices: tuple[int, ...], groups: Positions, slots: list[Left]
) -> Callable[[int], tuple[str, Evidence]]:
    def describe(index: int) -> tuple[str, Evidence]:
        named = ", ".join(str(devices[at]) for at in groups[index].tolist())
        return f"nearly no mask is left on the vectors of devices {named}", slots[-1][2]

    return describe
