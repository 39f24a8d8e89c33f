"""The verdict of an audit in one sentence, and how much was checked."""

from collections.abc import Sequence
from dataclasses import dataclass

from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.report import AuditReport, harm_of
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
        not_checked: What was not, in phrases.
    """

    level: str
    sentence: str
    coverage: str
    not_checked: tuple[str, ...]


def verdict(*reports: AuditReport) -> Verdict:
    """Sum reports up.

    Args:
        reports: Of all runs that were audited together; at least one.
    """
    outcomes = [check.outcome for report in reports for check in report.checks]
    findings = [finding for report in reports for finding in report.findings]
    worst = max((finding.severity for finding in findings), default=Severity.INFO)
    made = len(outcomes) - outcomes.count(Outcome.EMPTY)
    in_full = sum(outcome in (Outcome.PASSED, Outcome.FAILED) for outcome in outcomes)
    unchecked = tuple(dict.fromkeys(one for report in reports for one in report.not_checked))
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
        coverage += f" {count(len(unchecked), 'thing')} not checked."
    if len(reports) > 1:
        coverage = f"{count(len(reports), 'run')}. {coverage}"
    return Verdict(level, sentence, coverage, unchecked)


def _sentence(worst: Severity, findings: Sequence[Finding], *, is_all: bool) -> tuple[str, str]:
    """Level and sentence."""
    if worst > Severity.INFO:
        level, harms = worst.name.lower(), [harm_of(f) for f in findings if f.severity is worst]
        told = "; ".join(harm for harm in Harm if harm in harms)
        return level, f"{count(len(harms), f'{level} finding')}: {told}."
    if is_all:
        return "clean", "Nothing was found, and every check was made in full."
    return "open", "Nothing was found in what was checked. Not everything was checked."
