"""Sums over cohorts that differ by few devices: the difference is only about those devices.

Two sums of the same values, one over a cohort A and one over B, differ by the values of the devices
in A but not in B, less those in B but not in A. If the values are not the same but related, such as
two queries of one search for the threshold, the difference still tells something about those
devices: on which side of the pivots they lie, as far as the others' answers are known.

This module compares only pairs. `participation` handles combinations of many sums of updates.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from deltafl.sim.inspect.audit.findings import Evidence


class DifferenceKind(StrEnum):
    """How the inputs of two sums are related."""

    SAME_QUESTION = "same question"
    """They were the same: the difference is made of the devices' own inputs."""
    SAME_FAMILY = "same family"
    """They follow from the same secrets by different public functions, such as two queries."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two released sums whose cohorts are not the same but nearly so.

    Attributes:
        kind: How their inputs are related.
        first: Where the earlier one was released.
        second: Where the later one was.
        devices: Ids of the devices that are in one of the cohorts only, ascending; never empty.
        nested: Whether one cohort holds all of the other. Then the difference of the sums is the
            sum over `devices`; else some of them count negatively.
    """

    kind: DifferenceKind
    first: Evidence
    second: Evidence
    devices: tuple[int, ...]
    nested: bool

    @property
    def size(self) -> int:
        """By how many devices the cohorts differ."""
        return len(self.devices)


@dataclass(slots=True)
class _Family:
    """The sums over the same secrets.

    A cohort is the bytes of its ids, ascending, eight bytes each: compact, and equal if and only if
    the cohorts are.

    Attributes:
        numbers: The distinct cohorts, counted from 0.
        places: Where each was first.
        questions: Each question's cohorts, and where each was first asked it.
    """

    numbers: dict[bytes, int] = field(default_factory=dict)
    places: list[Evidence] = field(default_factory=list)
    questions: dict[bytes, dict[int, Evidence]] = field(default_factory=dict)


class Differencing:
    """Takes in released sums in their order, and says which earlier ones each is too close to.

    It remembers every distinct cohort of a family, and compares a new one with each: a family
    mostly has one or two. An equal cohort is stored once per family, however many sums are over it.

    Args:
        fewer_than: Cohorts that differ by fewer devices than this are too close; at least 1, which
            finds nothing.

    Raises:
        ValueError: `fewer_than` is below 1.

    >>> differencing = Differencing(fewer_than=3)
    >>> differencing.add(b"model 1, query 1", b"model 1", [1, 2, 3, 4], Evidence(round=1))
    []
    >>> found = differencing.add(b"model 1, query 2", b"model 1", [1, 2, 4], Evidence(round=1))
    >>> [(difference.kind.value, difference.devices) for difference in found]
    [('same family', (3,))]
    """

    def __init__(self, fewer_than: int) -> None:
        if fewer_than < 1:
            raise ValueError(f"fewer_than={fewer_than}: cohorts cannot differ by less than nothing")
        self._fewer_than = fewer_than
        self._families: dict[bytes, _Family] = {}

    def add(
        self, question: bytes, family: bytes, contributors: Iterable[int], place: Evidence
    ) -> list[Difference]:
        """Compare one released sum with all earlier ones of its family.

        A cohort that was asked the same question before says nothing new. Two cohorts are reported
        once per question that both were asked, and otherwise once per family, at the first places.

        Args:
            question: What was summed; within a family, equal keys mean equal inputs.
            family: What the inputs follow from; equal keys mean the same secrets.
            contributors: Ids of the devices in the sum; repetitions do not count. A sum
                over nobody is ignored.
            place: Where the sum was released.

        Returns:
            The pairs that this sum is the later one of, in the order of the earlier cohorts.

        Raises:
            OverflowError: an id is not in [−2^63, 2^63).
        """
        devices = np.unique(np.fromiter(contributors, dtype=np.int64))
        if not devices.size:
            return []
        related = self._families.setdefault(family, _Family())
        asked = related.questions.setdefault(question, {})
        number = related.numbers.setdefault(devices.tobytes(), len(related.numbers))
        if number in asked:
            return []
        new = number == len(related.places)
        found = []
        for cohort, earlier in related.numbers.items():
            if earlier in asked:
                kind, first = DifferenceKind.SAME_QUESTION, asked[earlier]
            elif new and earlier != number:
                kind, first = DifferenceKind.SAME_FAMILY, related.places[earlier]
            else:
                continue  # the cohort itself, or one that it has been compared with
            others = np.frombuffer(cohort, dtype=np.int64)
            if abs(others.size - devices.size) >= self._fewer_than:
                continue
            apart = np.setxor1d(others, devices, assume_unique=True)
            if apart.size < self._fewer_than:
                nested = apart.size == abs(others.size - devices.size)
                found.append(Difference(kind, first, place, tuple(apart.tolist()), nested))
        asked[number] = place
        if new:
            related.places.append(place)
        return found
