"""The statistical tests of masked vectors and rebuilt secrets, as they come.

Memory is that of a round's vectors, as far as their words are compared with one another, and of
those of the round before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from deltafl.secagg import ring
from deltafl.secagg.params import SlotSpec
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.independence import InputDependence, compare_groups
from deltafl.sim.inspect.audit.relations import MAX_WORDS, relate, small_words
from deltafl.sim.inspect.audit.tails import Floats, PValue
from deltafl.sim.inspect.audit.uniformity import BitCounts, WordCounts
from deltafl.sim.inspect.audit.weak_seeds import examine_secrets

_LONG: Final = 1 << 12  # bits from which a vector is also tested by itself
_MAX_SECRETS: Final = 1 << 16
_MAX_DEVICES: Final = 1 << 12  # whose vectors are remembered from round to round

REUSED: Final = "reused: "
"""Tests for one mask over two vectors begin so, in the budget."""
WEAK: Final = "secrets: "
"""Tests for secrets that were drawn from too few values."""
DEPENDS: Final = "inputs: "
"""Tests for vectors that depend on what they hide."""
BIASED: Final = "masked: "
"""Tests for words that are not uniform."""

_Shape = tuple[int, int]
"""Ring bits and words looked at: vectors that can be compared."""


@dataclass(slots=True, eq=False)
class _OfRound:
    """What was collected of one round."""

    pooled: dict[int, WordCounts] = field(default_factory=dict)
    devices: dict[tuple[int, int], WordCounts] = field(default_factory=dict)
    depend: dict[int, InputDependence] = field(default_factory=dict)
    vectors: dict[_Shape, dict[int, dict[int, Vector]]] = field(default_factory=dict)
    places: dict[tuple[int, int], Evidence] = field(default_factory=dict)  # by device and slot
    first_of_ring: dict[int, Evidence] = field(default_factory=dict)
    first_of_device: dict[tuple[int, int], Evidence] = field(default_factory=dict)  # and ring


class MaskTests:
    """Takes in masked vectors and rebuilt secrets, and tests them.

    Args:
        budget: Takes the p-values.

    Attributes:
        bytes_tested: Masked bytes taken in.
    """

    def __init__(self, budget: FalseAlarmBudget) -> None:
        self.bytes_tested = 0
        self._budget = budget
        self._round: _OfRound | None = None
        self._passed: dict[int, BitCounts] = {}
        self._failed: dict[int, BitCounts] = {}
        self._last: dict[_Shape, dict[int, dict[int, Vector]]] = {}
        self._secrets: list[bytes] = []
        self._secret_places: list[Evidence] = []

    def add(self, device: int, slot: int, spec: SlotSpec, vector: Vector, place: Evidence) -> None:
        """Take in a masked vector.

        Args:
            device: Whose.
            slot: Of which slot.
            spec: The slot's ring and length.
            vector: Its words, below 2^ring_bits.
            place: Where it is.
        """
        bits = spec.ring_bits
        self.bytes_tested += len(vector) * bits // 8
        current = self._current()
        counts = WordCounts(bits)
        counts.add(vector)
        if len(vector) * bits >= _LONG:
            self._add_all(BIASED, counts, place)
        current.pooled.setdefault(bits, WordCounts(bits)).merge(counts)
        current.devices.setdefault((device, bits), WordCounts(bits)).merge(counts)
        head = vector[:MAX_WORDS].copy()
        of_shape = current.vectors.setdefault((bits, len(head)), {})
        of_shape.setdefault(device, {}).setdefault(slot, head)
        current.places.setdefault((device, slot), place)
        current.first_of_ring.setdefault(bits, place)
        current.first_of_device.setdefault((device, bits), place)

    def add_input(
        self, spec: SlotSpec, vector: Vector, true: Vector, *, passed: bool | None
    ) -> None:
        """Take in what a vector was to hide.

        Args:
            spec: The slot's ring and length.
            vector: The masked words.
            true: The words that were masked.
            passed: Whether the device passed the filter; None in slots before it was announced.
        """
        if self._round is None or len(vector) != len(true):
            return
        bits = spec.ring_bits
        tests = self._round.depend.setdefault(bits, InputDependence(bits))
        tests.add(vector, ring.to_words(true, bits))
        if passed is not None:
            group = self._passed if passed else self._failed
            group.setdefault(bits, BitCounts(bits)).add(vector)

    def add_secrets(self, secrets: Mapping[int, bytes], place: Evidence) -> None:
        """Take in the self-mask seeds that were rebuilt for a slot."""
        self._secrets += secrets.values()
        self._secret_places += [place] * len(secrets)
        if len(self._secrets) >= _MAX_SECRETS:
            self._examine_secrets()

    def end_round(self) -> None:
        """Test what came together in a round."""
        current, self._round = self._round, None
        if current is None:
            return
        for bits, counts in current.pooled.items():
            self._add_all(BIASED, counts, current.first_of_ring[bits])
        for of_device, counts in current.devices.items():
            self._add_all(BIASED, counts, current.first_of_device[of_device])
        for bits, tests in current.depend.items():
            for result in tests.results():
                self._budget.add(_named(DEPENDS, result), current.first_of_ring[bits])
        for shape, devices in current.vectors.items():
            self._relate(shape, devices, current)
        num_devices = len({device for device, _ in current.places})
        self._last = current.vectors if num_devices <= _MAX_DEVICES else {}

    def finish(self) -> None:
        """Make the last tests."""
        self._examine_secrets()
        for bits in self._passed.keys() & self._failed.keys():
            for result in compare_groups(self._passed[bits], self._failed[bits]):
                self._budget.add(_named(DEPENDS, result), Evidence())

    def _current(self) -> _OfRound:
        if self._round is None:
            self._round = _OfRound()
        return self._round

    def _add_all(self, prefix: str, counts: WordCounts, place: Evidence) -> None:
        for result in counts.results():
            self._budget.add(_named(prefix, result), place)

    def _relate(
        self, shape: _Shape, devices: Mapping[int, Mapping[int, Vector]], current: _OfRound
    ) -> None:
        """Compare vectors of one device: all pairs of a round, and slot by slot with the last."""
        bits, _ = shape
        alike: dict[tuple[int, ...], list[int]] = {}
        for device, by_slot in devices.items():
            alike.setdefault(tuple(sorted(by_slot)), []).append(device)
        for slots, members in alike.items():
            vectors = _stack([_stack([devices[d][slot] for slot in slots]) for d in members])
            if len(slots) > 1:
                related = relate(vectors, bits)
                pairs = [(slots[a], slots[b]) for a, b in related.pairs.tolist()]
                for values in (related.differences, related.sums):
                    self._add_related(values, members, pairs, current)
            self._relate_with_last(shape, slots, members, devices, current)

    def _relate_with_last(
        self,
        shape: _Shape,
        slots: tuple[int, ...],
        members: list[int],
        devices: Mapping[int, Mapping[int, Vector]],
        current: _OfRound,
    ) -> None:
        before = self._last.get(shape, {})
        for slot in slots:
            both = [device for device in members if slot in before.get(device, {})]
            if not both:
                continue
            now = _stack([devices[device][slot] for device in both])
            then = _stack([before[device][slot] for device in both])
            for words in (now - then, now + then):
                values = small_words(words, shape[0]).reshape(-1, 1)
                self._add_related(values, both, [(slot, slot)], current)

    def _add_related(
        self,
        values: Floats,
        devices: list[int],
        pairs: list[tuple[int, int]],
        current: _OfRound,
    ) -> None:
        def describe(index: int) -> tuple[str, Evidence]:
            device, (first, second) = devices[index // len(pairs)], pairs[index % len(pairs)]
            where = (
                f"slots {first} and {second}" if first != second else f"slot {first} of two rounds"
            )
            place = current.places[device, second]
            return f"device {device}'s vectors of {where} are too close", place

        self._budget.add_all(f"{REUSED}pairs of vectors", values, describe)

    def _examine_secrets(self) -> None:
        for result in examine_secrets(self._secrets):
            place = self._secret_places[result.at[0] if result.at else 0]
            self._budget.add(_named(WEAK, result), place)
        self._secrets, self._secret_places = [], []


def _stack(vectors: Sequence[Vector]) -> Vector:
    stacked: Vector = np.stack(vectors)  # type: ignore[assignment] # all are of one slot's ring
    return stacked


def _named(prefix: str, result: PValue) -> PValue:
    return PValue(f"{prefix}{result.test}", result.value, result.detail, result.at)
