"""Collects the strings that should look random, and hands them to the tests round by round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.field_tests import (
    FEWEST_ROWS,
    ColumnCounts,
    Repeats,
    Rows,
    examine_as_numbers,
    examine_each,
)
from deltafl.sim.inspect.audit.field_values import TrueValues, beginning_like
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.tails import PValue
from deltafl.sim.inspect.audit.truth_rounds import TruthOfRound

OF_BOXES: Final = "boxes: "
"""Tests for what is in sealed boxes begin so, in the budget."""
OF_FIELDS: Final = "fields: "
"""Tests for other fields that should look random."""
OF_VALUES: Final = "values: "
"""Tests for devices' values in fields that should look random."""

_MAX_DEVICES: Final = 1 << 9  # whose strings are also counted by themselves
_KEPT_WORDS: Final = 1  # times eight bytes of a string that are compared with all rounds


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Strings of one message, or of a sum."""

    device: int | None
    place: Evidence
    rows: Rows


@dataclass(slots=True, eq=False)
class FieldTests:
    """Takes in the strings of fields, by name, and tests them.

    Args:
        budget: Takes the p-values.
        prefix: Tests that are not for boxes, or for values, begin so in it.

    Attributes:
        bytes_tested: Bytes taken in.
    """

    budget: FalseAlarmBudget
    prefix: str = OF_FIELDS
    bytes_tested: int = 0
    _round: dict[str, list[_Block]] = field(default_factory=dict)
    _pooled: dict[str, ColumnCounts] = field(default_factory=dict)
    _devices: dict[tuple[str, int | None], ColumnCounts] = field(default_factory=dict)
    _first: dict[str, Evidence] = field(default_factory=dict)
    _firsts: dict[tuple[str, int | None], Evidence] = field(default_factory=dict)
    _past: Repeats = field(default_factory=Repeats)
    _past_places: list[tuple[str, int | None, Evidence]] = field(default_factory=list)

    def add(self, name: str, device: int | None, rows: Rows, place: Evidence) -> None:
        """Take in strings of a device's message, or of a sum.

        Args:
            name: What they are, plural; all strings of a name are of one size.
            device: Whose; None of a sum.
            rows: The strings, shape (n, size).
            place: Where they are.
        """
        if len(rows):
            self.bytes_tested += rows.size
            self._round.setdefault(name, []).append(_Block(device, place, rows))

    def end_round(self, visible: Mapping[bytes, str], truth: TruthOfRound) -> None:
        """Test what came together in a round.

        Args:
            visible: The beginnings of strings that can be computed from visible values.
            truth: The true values of the round's devices, as far as they are known.
        """
        current, self._round = self._round, {}
        alike = Repeats()
        places: list[tuple[str, int | None, Evidence]] = []
        for name, blocks in current.items():
            every = np.concatenate([block.rows for block in blocks])
            ends = np.cumsum([len(block.rows) for block in blocks])
            for result in (*examine_each(every), examine_as_numbers(every)):
                at = int(np.searchsorted(ends, result.at[0] if result.at else 0, "right"))
                self._take(name, result, blocks[at])
            like, _ = beginning_like(every, visible)
            self._take(name, like, blocks[0])
            self._count(name, blocks, every)
            self._search(name, blocks, truth)
            for block in blocks:
                alike.add(block.rows)
                self._past.add(block.rows, _KEPT_WORDS)
                places.append((name, block.device, block.place))
        self._past_places += places
        self._take_repeats(alike, places)

    def finish(self) -> None:
        """Make the last tests."""
        for name, counts in self._pooled.items():
            for result in counts.results():
                self._budget_add(name, result, "all devices' ", self._first[name])
        for (name, device), counts in self._devices.items():
            for result in counts.results():
                place = self._firsts[name, device]
                self._budget_add(name, result, _whose(device), place)
        self._take_repeats(self._past, self._past_places)

    def _count(self, name: str, blocks: list[_Block], every: Rows) -> None:
        """Count what is where in the strings: of a message, of a device, of everybody."""
        size = every.shape[1]
        self._pooled.setdefault(name, ColumnCounts(size)).add(every)
        self._first.setdefault(name, blocks[0].place)
        for block in blocks:
            if len(block.rows) >= FEWEST_ROWS:
                counts = ColumnCounts(size)
                counts.add(block.rows)
                for result in counts.results():
                    self._take(name, result, block)
            elif (block.device or 0) < _MAX_DEVICES or len(self._devices) < _MAX_DEVICES:
                of_device = self._devices.setdefault((name, block.device), ColumnCounts(size))
                of_device.add(block.rows)
                self._firsts.setdefault((name, block.device), block.place)

    def _search(self, name: str, blocks: list[_Block], truth: TruthOfRound) -> None:
        values = TrueValues()
        for block in blocks:
            if block.device is not None and block.device in truth:
                values.add(block.rows, truth[block.device])
        for result in values.results():
            first = next((b for b in blocks if b.device in result.at), blocks[0])
            detail = f"{name}: {result.detail}"
            named = PValue(f"{OF_VALUES}{result.test} in {name}", result.value, detail)
            self.budget.add(named, first.place)

    def _take_repeats(
        self, repeats: Repeats, places: list[tuple[str, int | None, Evidence]]
    ) -> None:
        result = repeats.result()
        if not result.at:
            if places:
                self._budget_add("strings", result, "", places[0][2])
            return
        (name, device, place), (other, peer, later) = (places[at] for at in result.at)
        detail = f"{result.detail}: in {_whose(device)}{name} and {_whose(peer)}{other}"
        last = later if (later.record or 0) >= (place.record or 0) else place
        self._budget_add(other, PValue(result.test, result.value, detail), "", last)

    def _take(self, name: str, result: PValue, block: _Block) -> None:
        self._budget_add(name, result, _whose(block.device), block.place)

    def _budget_add(self, name: str, result: PValue, whose: str, place: Evidence) -> None:
        prefix = OF_BOXES if name.endswith("of boxes") else self.prefix
        detail = f"{whose}{name}: {result.detail}"
        self.budget.add(PValue(f"{prefix}{name}: {result.test}", result.value, detail), place)


def _whose(device: int | None) -> str:
    return "" if device is None else f"device {device}'s "
