"""What checks say besides findings: their outcomes, and figures for the report.

Plain data: numbers, texts and tuples.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict


class Outcome(StrEnum):
    """The outcome of a check."""

    PASSED = "passed"
    """It covered everything, and found nothing at MEDIUM or above."""
    FAILED = "failed"
    """It found something at MEDIUM or above."""
    PARTIAL = "partial"
    """It covered a part: the transcript does not hold what the rest needs."""
    SKIPPED = "skipped"
    """It could not cover anything."""
    EMPTY = "empty"
    """The run has nothing of what it looks at."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check, whatever it found.

    Attributes:
        name: What was checked, a short noun phrase.
        outcome: Its outcome.
        detail: How much it covered, or why it covered nothing.
    """

    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """What one search for the threshold gave away.

    Attributes:
        round: The round, counted from 1.
        method: Name of the quantile method.
        devices: Devices in it, as far as the server knows.
        queries: Public queries that were answered.
        numbers: Sums in the answers.
        buckets: Intervals between pivots that hold at least one device.
        smallest_bucket: Devices in the least crowded of them; None if the method does not count.
        threshold_low: Loss above which the quantile is known to lie, in nats.
        threshold_high: Loss below which it is known to lie, in nats.
        bits: Bits per device that the search gave away about the cohort's losses, compared with
            somebody who knows their mean and variance; None without truth.
        error: Mean error of the reconstructed losses, in nats; None without truth.
        prior_error: The same for a guess without the sums; None without truth.
    """

    round: int
    method: str
    devices: int
    queries: int
    numbers: int
    buckets: int
    smallest_bucket: int | None
    threshold_low: float
    threshold_high: float
    bits: float | None
    error: float | None
    prior_error: float | None


@dataclass(frozen=True, slots=True)
class StatisticsFacts:
    """The statistical tests of masked bytes.

    Attributes:
        tests: Number of tests.
        smallest_p: Smallest p-value before correction; None without tests.
        false_alarm_rate: Probability that an audit of perfectly masked bytes reports anything.
        bytes_tested: Masked bytes that were tested.
    """

    tests: int
    smallest_p: float | None
    false_alarm_rate: float
    bytes_tested: int


@dataclass(frozen=True, slots=True)
class ParticipationFacts:
    """Which devices were in which released sum of updates, over the rounds.

    Attributes:
        sums: Released sums of updates.
        devices: Devices in at least one of them.
        rank: Rank of the participation matrix.
        solvable: Devices whose update follows from the sums if it stays the same over rounds.
        smallest_difference: Fewest devices by which two released sums of updates differ.
    """

    sums: int
    devices: int
    rank: int
    solvable: int
    smallest_difference: int | None


class CheckFacts(TypedDict, total=False):
    """What one check adds to the report; each key comes from one check at most.

    Attributes:
        sums_released: Sums that the server says it learnt.
        sums_replayed: How many of them were computed again from the messages, and agree.
        statistics: The tests of masked bytes.
        participation: Which devices were in which sum.
        searches: What each search gave away.
        noise: The noise of searches: name and value, both texts.
    """

    sums_released: int
    sums_replayed: int
    statistics: StatisticsFacts
    participation: ParticipationFacts
    searches: tuple[SearchFacts, ...]
    noise: tuple[tuple[str, str], ...]


def no_facts(false_alarm_rate: float) -> CheckFacts:
    """What a report says if no check has anything to add.

    Args:
        false_alarm_rate: For all statistical tests together, in (0, 1).
    """
    return {
        "sums_released": 0,
        "sums_replayed": 0,
        "statistics": StatisticsFacts(0, None, false_alarm_rate, 0),
        "participation": ParticipationFacts(0, 0, 0, 0, None),
        "searches": (),
        "noise": (),
    }
