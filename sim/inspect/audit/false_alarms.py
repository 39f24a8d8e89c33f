"""How sure is the auditor? A budget of false alarms for all its statistical tests together.

If every byte was masked perfectly, an audit reports anything with probability at most `rate`,
however many tests it makes and however they depend on one another (Bonferroni). The number of tests
is known only at the end, so the smallest p-values of each kind are kept until then.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import numpy as np

from deltafl.secagg.errors import UsageError
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.tails import Floats, PValue

DEFAULT_RATE: Final = 1e-6
"""Probability that an audit of perfectly masked bytes reports anything."""

_KEPT: Final = 8  # places that are named per kind of test


@dataclass(frozen=True, slots=True)
class Alarm:
    """Tests of one kind that ideal masking does not explain.

    Attributes:
        test: Which kind.
        value: Its smallest p-value, before correction.
        corrected: The same times the number of all tests: at most the budget's rate.
        detail: What was seen where it is smallest.
        evidence: The places with the smallest p-values, the smallest first; never empty.
    """

    test: str
    value: float
    corrected: float
    detail: str
    evidence: tuple[Evidence, ...]


class FalseAlarmBudget:
    """Takes p-values one after the other and says at the end which are significant.

    Memory is bounded by the number of kinds, not of tests.

    Args:
        rate: Family-wise rate of false alarms, in (0, 1).

    Attributes:
        rate: As given.
        num_tests: Tests made so far.
        smallest: Smallest p-value so far, before correction; None without tests.
    """

    def __init__(self, rate: float = DEFAULT_RATE) -> None:
        if not 0 < rate < 1:
            raise UsageError(f"rate={rate} is not in (0, 1)")
        self.rate = rate
        self.num_tests = 0
        self.smallest: float | None = None
        self._kinds: dict[str, list[tuple[float, str, Evidence]]] = defaultdict(list)

    def add(self, result: PValue, evidence: Evidence, test: str = "", what: str = "") -> None:
        """Take one test.

        Args:
            result: What it says.
            evidence: Where the bytes are that it is about.
            test: What the name of its kind begins with.
            what: What its sentence begins with.

        Raises:
            UsageError: The p-value is not in [0, 1].
        """
        value, detail = np.array([result.value]), what + result.detail
        self.add_all(test + result.test, value, lambda _: (detail, evidence))

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
        found = np.flatnonzero(values <= self.rate / self.num_tests)
        found = found[np.argsort(values[found], kind="stable")][:_KEPT]
        kind = [(float(values[index]), *describe(index)) for index in found.tolist()]
        self._kinds[test] = sorted(self._kinds[test] + kind, key=itemgetter(0))[:_KEPT]

    def alarms(self) -> tuple[Alarm, ...]:
        """The kinds of tests with significant p-values, the smallest first."""
        found = []
        for test, kind in self._kinds.items():
            places = [place for place in kind if place[0] <= self.rate / self.num_tests]
            if places:
                value, detail, _ = places[0]
                evidence = tuple(place[2] for place in places)
                found.append(Alarm(test, value, value * self.num_tests, detail, evidence))
        return tuple(sorted(found, key=lambda alarm: alarm.value))
