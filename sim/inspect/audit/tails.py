"""P-values that are valid far out in the tail, where an audit of many tests decides.

A p-value is valid if ideal bytes give one of at most α with probability at most α. An audit makes
up to millions of tests and has to tell 10^-12 from 10^-9, so nothing here leans on the normal
distribution: counts of ones and runs are exact, repetitions are bounded, and histograms are
likelihood-ratio tests whose error was measured.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import special

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MIN_EXPECTED: Final = 20
"""Fewest counts expected in each cell of a histogram that is tested."""

_G_MARGIN: Final = 2.0
"""What p-values of histograms are multiplied by, which makes them conservative.

Importance sampling at 16 and 256 cells of `MIN_EXPECTED` found true probabilities of up to 1.1
times the nominal 10^-12 and up to 1.25 times the nominal 10^-15. (Pearson's statistic was wrong by
a factor of 17 and 100 there.)
"""


@dataclass(frozen=True, slots=True)
class PValue:
    """What one test of ideal masking says.

    Attributes:
        test: Which test, a short noun phrase; the same for all tests of one kind.
        value: Probability, at most, that ideal bytes look as bad as these; in [0, 1].
        detail: What was seen, one sentence with the numbers.
        at: Indices into the caller's arrays that the sentence is about; empty if about all.
    """

    test: str
    value: float
    detail: str
    at: tuple[int, ...] = ()


def ones(count: npt.ArrayLike, trials: int) -> Floats:
    """Two-sided p-values of `count` ones among `trials` fair bits, exact and doubled.

    Args:
        count: Numbers of ones, integers in [0, trials], of any shape.
        trials: Bits looked at, ≥ 0.

    Returns:
        p-values of the shape of `count`; 1 where there was nothing to look at.
    """
    return np.minimum(1.0, 2 * at_least(np.maximum(count, trials - np.asarray(count)), trials, 0.5))


def heads_before_tails(heads: npt.ArrayLike, tails: int) -> Floats:
    """P-values of at least `heads` heads before the `tails`-th tail of a fair coin, exact.

    Args:
        heads: Sums of `tails` independent geometric numbers, integers ≥ 0, of any shape.
        tails: How many numbers were summed, ≥ 1.
    """
    return at_least(heads, np.asarray(heads) + tails - 1, 0.5)


def at_least(count: npt.ArrayLike, trials: npt.ArrayLike, chance: float) -> Floats:
    """P-values of `count` successes or more in independent trials, exact.

    Args:
        count: Numbers of successes, integers in [0, trials], of any shape.
        trials: How many trials, integers ≥ 0, of a shape that fits.
        chance: Probability of a success, in (0, 1).

    Returns:
        p-values of the shape of `count`.
    """
    some = np.maximum(np.asarray(count, dtype=np.float64), 1)
    # P(Bin(n, q) >= k) is a regularised incomplete beta function at q, not defined for k = 0.
    tail = special.betainc(some, np.asarray(trials) - some + 1, chance)
    return np.where(np.equal(count, 0), 1.0, tail)


def repetitions(count: int, expected: float) -> float:
    """P-value of `count` repetitions, where at most `expected` are expected.

    `count` is a sum of indicators, of which the i-th is 1 with probability at most p_i whatever
    came before, and Σp_i = expected. Such a sum exceeds `count` no more often than independent
    indicators do, and those, from expected + 1 on, no more often than a Poisson variable does
    (Hoeffding 1956; Anderson and Samuels 1967). Below, nothing is claimed, except of a single
    repetition, which is as likely as expected, at most.
    """
    if count == 1:
        return min(1.0, expected)
    if count < expected + 1:
        return 1.0
    return float(special.gammainc(count, expected))


def histogram(counts: Counts) -> float:
    """P-value of a histogram over equally likely cells: likelihood ratio, Williams' correction.

    Args:
        counts: Counts of the k cells, shape (k,); `MIN_EXPECTED` per cell on average, or more.
    """
    cells, total = len(counts), int(counts.sum())
    statistic = 2 * float(special.xlogy(counts, counts * (cells / total)).sum())
    corrected = max(statistic, 0.0) / (1 + (cells + 1) / (6 * total))
    return min(1.0, _G_MARGIN * float(special.chdtrc(cells - 1, corrected)))


def most(counts: Counts, trials: int, chance: float) -> tuple[int, float]:
    """The largest of several counts of successes, and its p-value, corrected for their number.

    Args:
        counts: Integers in [0, trials], of any shape, one or more; they need not be independent.
        trials: Of each.
        chance: Probability of a success, in (0, 1).

    Returns:
        An index into the flattened counts, and the p-value of `at_least`, times their number.
    """
    place = int(np.argmax(counts))
    value = float(at_least(counts.reshape(-1)[place], trials, chance))
    return place, min(1.0, counts.size * value)


def least_even(counts: Counts, trials: int) -> tuple[int, float]:
    """Of several counts of ones, the one furthest from one half, as `most` has it."""
    place = int(np.argmax(np.abs(2 * counts - trials)))
    return place, min(1.0, counts.size * float(ones(counts.reshape(-1)[place], trials)))
