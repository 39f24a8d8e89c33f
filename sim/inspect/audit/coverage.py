"""The checks by name: which rules each is about, and what became of it."""

from collections.abc import Sequence
from typing import Final

from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.report import Outcome

_CHECKS: Final = {
    "integrity of the record": ("record",),
    "values in clear": ("clear",),
    "the same for all": ("broadcast", "lists"),
    "keys, signatures, bindings": ("keys", "boxes", "session"),
    "shares of one kind": ("shares", "input"),
    "sums from messages": (
        "sums.differ",
        "sums.unreplayable",
        "sums.out-of-range",
        "sums.unrecorded",
    ),
    "questions from sums": ("question",),
    "models from sums": ("model",),
    "masked bytes": ("masks",),
    "floors and parameters": ("cohort", "parameters", "sums.small-tail"),
    "differences of cohorts": ("sums.differ-by-few", "sums.search-and-update", "retry"),
    "participation over rounds": ("participation",),
    "metadata": ("metadata",),
    "leakage of the searches": ("search",),
}
"""Names of the checks, with the rules, or the first words of the rules, that they are about."""

CHECK_OF: Final = {
    rule: name
    for rule in RULES
    for name, rules in _CHECKS.items()
    if rule in rules or rule.partition(".")[0] in rules
}
"""Which check a rule belongs to."""


def outcome_of(
    name: str, findings: Sequence[Finding], rounds: int, every: int, *, is_cut: bool
) -> Outcome:
    """What became of a check.

    Args:
        name: Its name.
        findings: All findings of the audit.
        rounds: Rounds on which it could be made.
        every: All rounds.
        is_cut: Whether the record is damaged, so that there may have been more rounds.
    """
    if any(f.severity >= Severity.MEDIUM and CHECK_OF[f.rule] == name for f in findings):
        return Outcome.FAILED
    if not rounds:
        return Outcome.SKIPPED
    return Outcome.PARTIAL if rounds < every or is_cut else Outcome.PASSED
