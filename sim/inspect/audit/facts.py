"""What checks say besides findings: their outcomes, and figures for the report.

Plain data: numbers, texts and tuples.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias


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
class StatisticsFacts:
    """The statistical tests of masked bytes.

    Attributes:
        tests: Number of tests.
        smallest_p: Smallest p-value before correction; None without tests.
        false_alarm_rate: Probability that an audit of perfectly masked bytes reports anything.
        bytes_tested: Masked bytes that were tested.
    """

    tests: int = 0
    smallest_p: float | None = None
    false_alarm_rate: float = 0.0
    bytes_tested: int = 0


@dataclass(frozen=True, slots=True)
class SolvableFacts:
    """What follows of single devices from sums over many cohorts, if their terms stay the same.

    Attributes:
        sums: Released sums.
        devices: Devices in at least one of them.
        solvable: Devices whose own term follows.
        with_coalition: Of how many honest devices it follows if some collude; at least so many.
        coalition_is_worst: Whether it is no more, whichever devices collude.
        smallest_group: Fewest devices of a combination of sums that was found; 0 without sums.
    """

    sums: int = 0
    devices: int = 0
    solvable: int = 0
    with_coalition: int = 0
    coalition_is_worst: bool = True
    smallest_group: int = 0


@dataclass(frozen=True, slots=True)
class SingleFacts:
    """Of whom something single follows from a round by itself, by exact counts.

    Attributes:
        passed: Devices of which it follows in some round whether they passed the filter.
        located: Devices whose loss is known to be in a narrower interval than the losses of their
            cohort are.
        narrowest: Length of the narrowest such interval, in nats; None without any.
        rounds: Rounds and levels of which this was worked out.
    """

    passed: int = 0
    located: int = 0
    narrowest: float | None = None
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class GivenAwayFacts:
    """What follows from the released sums of a run.

    Attributes:
        devices: Devices in at least one released sum.
        sums: Released sums.
        noisy: How many of them are known to have noise.
        untold: How many are of rounds without messages: of these it is only known whom they are
            over.
        colluding: Devices that may collude with the server, by the policy.
        smallest: Fewest devices that a released sum, or the difference of the tails of two levels
            of a session, is about; None without sums. A sum of updates is about the tail, where its
            devices are counted.
        smallest_round: The first round of such a sum; None without sums.
        single: What follows of single devices without anything else that is known.
        with_weights: The same for a server that knows all weights, where the cohort is small; None
            where no truth file has them. Of so many devices it follows at least.
        weights: What follows of weights, which stay the same.
        updates: What would follow of updates if they stayed the same.
        epsilon: ε of the device that was asked most, of all sums that have noise; None without any.
        delta: δ.
    """

    devices: int = 0
    sums: int = 0
    noisy: int = 0
    untold: int = 0
    colluding: int = 0
    smallest: int | None = None
    smallest_round: int | None = None
    single: SingleFacts = SingleFacts()
    with_weights: SingleFacts | None = None
    weights: SolvableFacts = SolvableFacts()
    updates: SolvableFacts = SolvableFacts()
    epsilon: float | None = None
    delta: float = 0.0


CheckFacts: TypeAlias = dict[str, Any]
"""What one check adds to the report, by the name of its field; each comes from one check at most.
"""
