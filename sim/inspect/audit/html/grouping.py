"""Findings that the page shows together: all of one rule at one severity."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.report import by_harm
from deltafl.sim.inspect.audit.rules import Harm, Rule

SHOWN_PER_RULE: Final = 200
"""The most findings of one rule that a page shows; the JSON report has all."""


@dataclass(frozen=True, slots=True)
class Group:
    """All findings of one rule at one severity.

    Attributes:
        rule: The rule's id.
        severity: Their severity.
        harm: What they come to.
        about: The rule's texts.
        shown: The first findings.
        left_out: Number of further findings.
        places: Number of places of all findings together.
    """

    rule: str
    severity: Severity
    harm: Harm
    about: Rule
    shown: tuple[Finding, ...]
    left_out: int
    places: int


def group(findings: Iterable[Finding]) -> tuple[Group, ...]:
    """Groups of findings, most harmful first, then in the order of each group's first finding.

    For every rule, the first `SHOWN_PER_RULE` findings over all its groups are shown.

    Raises:
        KeyError: a finding names a rule that does not exist.
    """
    together: dict[tuple[str, Severity], list[Finding]] = {}
    for finding in by_harm(findings):
        together.setdefault((finding.rule, finding.severity), []).append(finding)
    groups = []
    used: Counter[str] = Counter()
    for (rule, severity), members in together.items():
        shown = tuple(members[: SHOWN_PER_RULE - used[rule]])
        used[rule] += len(shown)
        left_out = len(members) - len(shown)
        places = sum(finding.count for finding in members)
        about = RULES[rule]
        groups.append(Group(rule, severity, about.harm(severity), about, shown, left_out, places))
    return tuple(groups)
