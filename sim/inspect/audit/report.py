"""The verdict of an audit as one value, for people (`html`) and programs (JSON).

Everything here is plain data: numbers, texts and tuples. A report can therefore be stored, compared
and shown without the transcript that it describes.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Final

from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.facts import (
    CheckResult,
    GivenAwayFacts,
    Outcome,
    StatisticsFacts,
)
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.inventory import Observed
from deltafl.sim.inspect.audit.rules import Harm
from deltafl.sim.inspect.leakage.measure import SearchFacts

REPORT_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        source: The file or run directory that was audited.
        record: The file that holds the record.
        head: Digest of the last record, hex; it identifies what was audited.
        run_id: Id of the run, hex.
        facts: What the run says about itself: name and value, both texts.
        rounds: Rounds in the record.
        full_rounds: Rounds whose messages the record holds.
        records: Records read.
        size: Length of the file, in bytes.
        has_truth: Whether a truth file was compared.
        is_silent: Whether the record keeps sums only, so that no message was played again.
        checks: Every check and its outcome.
        findings: What was found, the most harmful first.
        observed: Everything that passed through the server, by kind, in the order in which each
            kind first came.
        not_checked: What could have been checked, or is beside what is, and was not: phrases.
        limits: What the audit cannot show, in sentences.
        reproduce: Commands that reproduce this report.
        sums_released: Sums that the server says it learnt.
        sums_replayed: How many of them were computed again from the messages, and agree.
        searches: What each search gave away.
        statistics: The tests of masked bytes.
        given_away: What follows from the sums.
    """

    source: str
    record: str
    head: str
    run_id: str
    facts: tuple[tuple[str, str], ...]
    rounds: int
    full_rounds: int
    records: int
    size: int
    has_truth: bool
    is_silent: bool
    checks: tuple[CheckResult, ...]
    findings: tuple[Finding, ...]
    observed: tuple[Observed, ...]
    not_checked: tuple[str, ...]
    limits: tuple[str, ...]
    reproduce: tuple[str, ...]
    sums_released: int = 0
    sums_replayed: int = 0
    searches: tuple[SearchFacts, ...] = ()
    statistics: StatisticsFacts = field(default_factory=StatisticsFacts)
    given_away: GivenAwayFacts = field(default_factory=GivenAwayFacts)

    @property
    def idle(self) -> list[str]:
        """The names of the checks that had nothing to check."""
        return [check.name for check in self.checks if check.outcome is Outcome.EMPTY]

    def to_json(self) -> dict[str, object]:
        """The report as JSON values; each finding includes the texts of its rule, and its harm."""
        findings = [
            {
                **asdict(RULES[one.rule]),
                **asdict(one),
                "severity": one.severity.name.lower(),
                "harm": harm_of(one),
            }
            for one in self.findings
        ]
        return {**asdict(self), "version": REPORT_VERSION, "findings": findings}


def harm_of(finding: Finding) -> Harm:
    """What a finding comes to.

    Raises:
        KeyError: its rule does not exist.
    """
    return RULES[finding.rule].harm(finding.severity)


def grouped(findings: Iterable[Finding]) -> dict[Harm, dict[str, list[Finding]]]:
    """Findings by harm and by rule, in their order; all of a harm are of one severity."""
    groups: dict[Harm, dict[str, list[Finding]]] = {}
    for one in findings:
        groups.setdefault(harm_of(one), {}).setdefault(one.rule, []).append(one)
    return groups
