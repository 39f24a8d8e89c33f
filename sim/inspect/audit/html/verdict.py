"""The verdict of an audit in one sentence, and how much was checked."""

from collections.abc import Sequence
from dataclasses import dataclass

from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.report import AuditReport, by_harm, harm_of
from deltafl.sim.inspect.audit.rules import Harm
from deltafl.sim.writing import count, number


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the reader should take away.

    Attributes:
        level: Name of the worst severity in lower case. If nothing was above INFO, it is "clean" if
            there is nothing that was not checked, and else "open".
        sentence: The verdict, of what was checked.
        coverage: How much was checked, in sentences.
    """

    level: str
    sentence: str
    coverage: str


def verdict(*reports: AuditReport) -> Verdict:
    """Sum reports up.

    If a check failed, the verdict is at least MEDIUM, whatever the findings are.

    Args:
        reports: Of all runs that were audited together; at least one.
    """
    outcomes = [check.outcome for report in reports for check in report.checks]
    findings = by_harm(finding for report in reports for finding in report.findings)
    worst = max((finding.severity for finding in findings), default=Severity.INFO)
    if Outcome.FAILED in outcomes:
        worst = max(worst, Severity.MEDIUM)
    made = len(outcomes) - outcomes.count(Outcome.EMPTY)
    in_full = sum(outcome in (Outcome.PASSED, Outcome.FAILED) for outcome in outcomes)
    unchecked = sum(len(report.not_checked) for report in reports)
    released = sum(report.sums_released for report in reports)
    replayed = sum(report.sums_replayed for report in reports)
    is_all = 0 < made == in_full and replayed == released and not unchecked
    level, sentence = _sentence(worst, findings, is_all=is_all)
    if silent := sum(report.is_silent for report in reports):
        of = "" if len(reports) == 1 else f" of {count(silent, 'run')}"
        sentence = f"No message was played again{of}: the record has sums only. {sentence}"
    coverage = (
        f"{number(in_full)} of {count(made, 'check')} made in full. {number(replayed)} of "
        f"{count(released, 'released sum')} computed again from the messages, and equal."
    )
    if unchecked:
        coverage += f" {count(unchecked, 'thing')} not checked, listed below."
    if len(reports) > 1:
        coverage = f"{count(len(reports), 'run')}. {coverage}"
    return Verdict(level, sentence, coverage)


def _sentence(worst: Severity, findings: Sequence[Finding], *, is_all: bool) -> tuple[str, str]:
    """Level and sentence, given the findings by harm."""
    if worst > Severity.INFO:
        of_worst = [finding for finding in findings if finding.severity is worst]
        harms = "; ".join(dict.fromkeys(map(harm_of, of_worst))) or Harm.WEAKENED
        level = worst.name.lower()
        what = count(len(of_worst), f"{level} finding") if of_worst else "A check failed"
        return level, f"{what}: {harms}."
    if is_all:
        return "clean", "Nothing was found, and every check was made in full."
    return "open", "Nothing was found in what was checked. Not everything was checked."
