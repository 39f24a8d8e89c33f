"""Findings as they come, with a bound on how many are kept."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from deltafl.sim.inspect.audit.findings import Finding

_MAX_FINDINGS: Final = 200
"""The most findings of a rule that are listed; the last one counts the others."""


class Findings:
    """Collects a limited number of findings for each rule, and counts all of them."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Finding]] = {}

    def add_all(self, findings: Iterable[Finding]) -> None:
        """Take them."""
        for finding in findings:
            kept = self._kept.setdefault(finding.rule, [])
            if len(kept) < _MAX_FINDINGS:
                kept.append(finding)
            else:
                kept[-1] = replace(kept[-1], count=kept[-1].count + finding.count)

    def sorted(self) -> tuple[Finding, ...]:
        """All of them, the worst first; those of one rule in the order in which they came."""
        every = [finding for kept in self._kept.values() for finding in kept]
        return tuple(sorted(every, key=lambda finding: (-finding.severity, finding.rule)))
