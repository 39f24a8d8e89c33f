"""How sure is the auditor? A budget of false alarms for all its statistical tests together.

If every byte was masked perfectly, an audit reports anything with probability at most `rate`,
however many tests it makes and however they depend on one another (Bonferroni). The number of tests
is known only at the end, so the smallest p-values of each kind are kept until then.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from deltafl.secagg.errors import UsageError
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.tails import Floats, PValue

DEFAULT_RATE: Final = 1e-6
"""Probability that an audit of perfectly masked bytes reports anything."""

_KEPT: Final = 8  # places that are named per kind of test
_SMALLEST_EXPONENT: Final = 1100  # doubles end at 2^-1074


@dataclass(frozen=True, slots=True)
class Alarm:
    """Tests of one kind that ideal masking does not explain.

    Attributes:
        test: Which kind.
        value: Its smallest p-value, before correction.
        corrected: The same times the number of all tests: at most the budget's rate.
        detail: What was seen where it is smallest.
        evidence: The places with the smallest p-values, the smallest first; never empty.
        count: How many tests of the kind are significant, at least; exact up to a few.
    """

    test: str
    value: float
    corrected: float
    detail: str
    evidence: tuple[Evidence, ...]
    count: int


class FalseAlarmBudget:
    """Takes p-values one after the other and says at the end which are significant.

    Memory is bounded by the number of kinds, not of tests.

    Args:
        rate: Family-wise rate of false alarms, in (0, 1).
        kept: Places to name per kind of test, ≥ 1.

    Attributes:
        rate: As given.
        num_tests: Tests made so far.
        smallest: Smallest p-value so far, before correction; None without tests.
    """

    def __init__(self, rate: float = DEFAULT_RATE, kept: int = _KEPT) -> None:
        if not 0 < rate < 1 or kept < 1:
            raise UsageError(f"rate={rate} is not in (0, 1), or kept={kept} is less than 1")
        self.rate = rate
        self.num_tests = 0
        self.smallest: float | None = None
        self._kept = kept
        self._kinds: dict[str, _Kind] = {}

    def add(self, result: PValue, evidence: Evidence) -> None:
        """Take one test.

        Args:
            result: What it says.
            evidence: Where the bytes are that it is about.

        Raises:
            UsageError: The p-value is not in [0, 1].
        """
        self.add_all(result.test, np.array([result.value]), lambda _: (result.detail, evidence))

    def add_all(
        self, test: str, values: Floats, describe: Callable[[int], tuple[str, Evidence]]
    ) -> None:
        """Take many tests of one kind.

        Args:
            test: Which kind.
            values: Their p-values, of any shape.
            describe: From an index into the flattened values to what was seen and where; called
                for the few that are worth keeping.

        Raises:
            UsageError: A p-value is not in [0, 1].
        """
        values = values.reshape(-1)
        if not len(values):
            return
        least = float(values.min())
        if not (least >= 0 and values.max() <= 1):  # also refuses what is not a number
            raise UsageError(f"{test}: p-values from {least} to {values.max()} are not in [0, 1]")
        self.num_tests += len(values)
        self.smallest = least if self.smallest is None else min(self.smallest, least)
        # The threshold only falls: what is above it now never becomes significant.
        candidates = np.flatnonzero(values <= self.rate / self.num_tests)
        if len(candidates):
            kind = self._kinds.setdefault(test, _Kind(self._kept))
            for index in candidates.tolist():
                kind.add(float(values[index]), index, describe)

    def alarms(self) -> tuple[Alarm, ...]:
        """The kinds of tests with significant p-values, the smallest first."""
        if not self.num_tests:
            return ()
        threshold = self.rate / self.num_tests
        found = []
        for test, kind in self._kinds.items():
            places = [place for place in kind.places() if place.value <= threshold]
            if places:
                found.append(
                    Alarm(
                        test,
                        places[0].value,
                        places[0].value * self.num_tests,
                        places[0].detail,
                        tuple(place.evidence for place in places),
                        max(len(places), kind.num_below(threshold)),
                    )
                )
        return tuple(sorted(found, key=lambda alarm: alarm.value))


@dataclass(frozen=True, slots=True)
class _Place:
    value: float
    detail: str
    evidence: Evidence


class _Kind:
    """The smallest p-values of one kind of test, and how many there are of every magnitude."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._heap: list[tuple[float, int, _Place]] = []  # the largest kept p-value is on top
        self._num_added = 0
        self._magnitudes = [0] * (_SMALLEST_EXPONENT + 1)

    def add(
        self, value: float, index: int, describe: Callable[[int], tuple[str, Evidence]]
    ) -> None:
        self._num_added += 1
        self._magnitudes[int(-math.log2(value)) if value else _SMALLEST_EXPONENT] += 1
        full = len(self._heap) == self._kept
        if full and -value <= self._heap[0][0]:
            return
        # Among equals the first come stay, and are named first.
        entry = (-value, -self._num_added, _Place(value, *describe(index)))
        (heapq.heappushpop if full else heapq.heappush)(self._heap, entry)

    def places(self) -> list[_Place]:
        return [place for _, _, place in sorted(self._heap, key=lambda e: e[:2], reverse=True)]

    def num_below(self, threshold: float) -> int:
        """How many p-values are at most `threshold`; at least, since magnitudes are rounded up."""
        return sum(self._magnitudes[math.ceil(-math.log2(threshold)) :])
