"""Findings as they come, with a bound on how many are kept."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.report import harm_of
from deltafl.sim.inspect.audit.rules import Harm

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
        """All of them, the most harmful first; those of one rule in the order they came in."""
        every, order = itertools.chain(*self._kept.values()), list(Harm)
        return tuple(sorted(every, key=lambda one: (order.index(harm_of(one)), one.rule)))
