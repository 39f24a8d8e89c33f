"""What checks have to say beside findings: what became of them, and figures for the report.

Plain data: numbers, texts and tuples.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict


class Outcome(StrEnum):
    """What became of a check."""

    PASSED = "passed"
    """It was made, and found nothing at MEDIUM or above."""
    FAILED = "failed"
    """It was made, and found something at MEDIUM or above."""
    PARTIAL = "partial"
    """It was made on a part: the transcript does not hold what the rest needs."""
    SKIPPED = "skipped"
    """It could not be made at all."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check, whatever it found.

    Attributes:
        name: What was checked, a short noun phrase.
        outcome: What became of it.
        detail: On how much it was made, or why not.
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
        devices: Devices it was over; the best knowledge of the server.
        queries: Public queries that were answered.
        numbers: Sums that the answers consist of.
        buckets: Intervals between pivots that hold at least one device.
        smallest_bucket: Devices in the least crowded of them; None where the method does not count.
        threshold_low: Loss above which the quantile is known to lie, in nats.
        threshold_high: Loss below which it is known to lie, in nats.
        bits: Bits lost per device about the losses of the cohort, against somebody who knows their
            mean and variance; None without truth.
        error: Mean error of the reconstructed losses, in nats, where there is truth; else None.
        prior_error: The same of a guess without the sums, where there is truth; else None.
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
        tests: How many were made.
        smallest_p: Smallest p-value before correction; None without tests.
        false_alarm_rate: Probability that an audit of perfectly masked bytes reports anything.
        bytes_tested: Masked bytes that went into them.
    """

    tests: int
    smallest_p: float | None
    false_alarm_rate: float
    bytes_tested: int


@dataclass(frozen=True, slots=True)
class ParticipationFacts:
    """Who was in which released sum of updates, over the rounds.

    Attributes:
        sums: Released sums of updates.
        devices: Devices that were in at least one.
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
        sums_replayed: Those of them that were computed again from the messages, and agree.
        statistics: The tests of masked bytes.
        participation: Who was in which sum.
        searches: What each search gave away.
        noise: What noise searches had, name and value, both texts.
    """

    sums_released: int
    sums_replayed: int
    statistics: StatisticsFacts
    participation: ParticipationFacts
    searches: tuple[SearchFacts, ...]
    noise: tuple[tuple[str, str], ...]


def no_facts(false_alarm_rate: float) -> CheckFacts:
    """What a report says where no check has anything to add.

    Args:
        false_alarm_rate: Of the statistical tests, all together, in (0, 1).
    """
    return {
        "sums_released": 0,
        "sums_replayed": 0,
        "statistics": StatisticsFacts(0, None, false_alarm_rate, 0),
        "participation": ParticipationFacts(0, 0, 0, 0, None),
        "searches": (),
        "noise": (),
    }
