"""Sums over cohorts that differ by few devices: the difference is only about those devices.

Two sums of the same values, one over a cohort A and one over B, differ by the values of the devices
in A but not in B, less those in B but not in A. If the values are not the same but related, such as
two queries of one search for the threshold, the difference still tells something about those
devices: on which side of the pivots they lie, as far as the others' answers are known.

This module compares only pairs. `participation` handles combinations of many sums of updates.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from deltafl.sim.inspect.audit.findings import Evidence


class Difference(NamedTuple):
    """Two released sums whose cohorts are not the same but nearly so.

    Attributes:
        is_same: Whether their inputs were the same. Otherwise these follow from the same secrets by
            different public functions, such as two queries.
        first: Where the earlier one was released.
        second: Where the later one was.
        devices: Ids of the devices that are in one of the cohorts only, ascending; never empty.
    """

    is_same: bool
    first: Evidence
    second: Evidence
    devices: tuple[int, ...]


class Differencing:
    """Takes in released sums in their order, and says which earlier ones each is too close to.

    It remembers every distinct cohort, as the bytes of its ids, which are ascending.

    Args:
        fewer_than: Cohorts that differ by fewer devices than this are too close.

    >>> differencing = Differencing(fewer_than=3)
    >>> list(differencing.add(b"model 1, query 1", b"model 1", [1, 2, 3, 4], Evidence(round=1)))
    []
    >>> found = differencing.add(b"model 1, query 2", b"model 1", [1, 2, 4], Evidence(round=1))
    >>> [(difference.is_same, difference.devices) for difference in found]
    [(False, (3,))]
    """

    def __init__(self, fewer_than: int) -> None:
        self._fewer_than = fewer_than
        self._cohorts: dict[bytes, bytes] = {}  # each is kept once
        # by family and question: where each cohort was first
        self._families: dict[bytes, dict[bytes, dict[bytes, Evidence]]] = {}

    def add(
        self, question: bytes, family: bytes, contributors: Iterable[int], place: Evidence
    ) -> Iterator[Difference]:
        """Compare one released sum with all earlier ones of its family.

        A cohort that was asked the same question before says nothing new. Two cohorts are reported
        once per question that both were asked, and otherwise once per family, at the first places.

        Args:
            question: What was summed; within a family, equal keys mean equal inputs.
            family: What the inputs follow from; equal keys mean the same secrets.
            contributors: Ids of the devices in the sum; repetitions do not count. A sum
                over nobody is ignored.
            place: Where the sum was released.

        Raises:
            OverflowError: an id is not in [−2^63, 2^63).
        """
        devices = np.unique(np.fromiter(contributors, dtype=np.int64))
        cohort = self._cohorts.setdefault(devices.tobytes(), devices.tobytes())
        related = self._families.setdefault(family, {})
        asked = related.setdefault(question, {})
        if not cohort or cohort in asked:
            return
        earlier: dict[bytes, Evidence] = {}
        for cohorts in (
            *reversed(related.values()),
            asked,
        ):  # the first of each, or of the question
            earlier |= cohorts
        is_new = cohort not in earlier
        asked[cohort] = place
        for other, first in earlier.items():
            apart = np.setxor1d(np.frombuffer(other, np.int64), devices, assume_unique=True)
            if (other in asked or is_new) and 0 < apart.size < self._fewer_than:
                yield Difference(other in asked, first, place, tuple(apart.tolist()))
