"""How much of a transcript a check covered, and its outcome."""

from collections.abc import Container, Iterable
from dataclasses import dataclass

from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Finding, Severity


@dataclass(frozen=True, slots=True)
class Tally:
    """The rounds of a transcript, counted.

    Attributes:
        rounds: All of them.
        whole: Rounds whose messages it holds whole.
        opaque: Rounds of which it keeps less than an announcement.
        has_truth: Whether a truth file was read as well.
        is_cut: Whether the record is damaged, so that there may have been more rounds.
    """

    rounds: int
    whole: int
    opaque: int
    has_truth: bool
    is_cut: bool

    @property
    def told(self) -> int:
        """Rounds that keep at least the first bytes of every message."""
        return self.rounds - self.opaque


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a transcript a check covered.

    Attributes:
        rounds: Rounds that it covered, from 0 to all.
        detail: What it looked at, a phrase with the figures.
    """

    rounds: int
    detail: str


def outcome_of(
    rules: Container[str], findings: Iterable[Finding], rounds: int, tally: Tally
) -> Outcome:
    """The outcome of a check.

    Args:
        rules: The ids of its rules.
        findings: All findings of the audit.
        rounds: Rounds that it covered.
        tally: All rounds.
    """
    if any(f.severity >= Severity.MEDIUM and f.rule in rules for f in findings):
        return Outcome.FAILED
    if not rounds:
        return Outcome.SKIPPED
    return Outcome.PARTIAL if rounds < tally.rounds or tally.is_cut else Outcome.PASSED
