"""How much of a transcript a check covered, and its outcome."""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from deltafl.sim.inspect.audit.facts import CheckResult, Outcome
from deltafl.sim.inspect.audit.findings import Finding, Severity


@dataclass(frozen=True, slots=True)
class Tally:
    """The rounds of a transcript, counted.

    Attributes:
        rounds: All of them.
        whole: Rounds of whose messages it has any.
        has_truth: Whether a truth file was read as well.
        is_cut: Whether the record is damaged, so that there may have been more rounds.
    """

    rounds: int
    whole: int
    has_truth: bool
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a transcript a check covered.

    Attributes:
        rounds: Rounds that it covered, from 0 to all.
        detail: What it looked at, a phrase with the figures.
        cases: How many things it looked at, where they are counted; with 0 it says nothing.
    """

    rounds: int
    detail: str
    cases: int = 1


def outcome_of(
    rules: Container[str], findings: Iterable[Finding], coverage: Coverage, tally: Tally
) -> Outcome:
    """The outcome of a check.

    Args:
        rules: The ids of its rules.
        findings: All findings of the audit.
        coverage: What it covered.
        tally: All rounds.
    """
    if any(f.severity >= Severity.MEDIUM and f.rule in rules for f in findings):
        return Outcome.FAILED
    if not coverage.rounds:
        return Outcome.SKIPPED
    if not coverage.cases and not tally.is_cut:
        return Outcome.EMPTY
    return Outcome.PARTIAL if coverage.rounds < tally.rounds or tally.is_cut else Outcome.PASSED


def uncovered(results: Iterable[CheckResult], tally: Tally, sums: tuple[int, int]) -> Iterator[str]:
    """Say what was not checked because the record does not hold it, in phrases.

    Args:
        results: The outcomes of all checks.
        tally: All rounds.
        sums: How many sums there are, and how many of them were computed again.
    """
    if tally.is_cut:
        yield "what follows the damage: the record is not whole, and there may have been more of it"
    if sums[1] < sums[0]:
        yield f"{sums[0] - sums[1]} of {sums[0]} sums, which were not computed again"
    for result in results:
        if result.outcome in (Outcome.PARTIAL, Outcome.SKIPPED):
            part = ", in part" if result.outcome is Outcome.PARTIAL else ""
            yield f"{result.name}{part}: {result.detail}"
