"""The verdict of an audit in one sentence, and how much was checked."""

from dataclasses import dataclass
from typing import Final

from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.report import AuditReport
from deltafl.sim.writing import count, number

_MEANINGS: Final = {
    Severity.CRITICAL: "a device's own value is known, or could have been computed",
    Severity.HIGH: "a guarantee was broken for some device, or the record is not what it claims "
    "to be",
    Severity.MEDIUM: "a guarantee was weakened, or something happened that honest parties do not "
    "do",
    Severity.LOW: "weaknesses that are part of the design, or that need assumptions which may "
    "not hold",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the reader should take away.

    Attributes:
        level: Name of the worst severity in lower case. If nothing was above INFO, it is "clean" if
            there is nothing that was not checked, and else "open".
        sentence: The verdict, of what was checked.
        coverage: How much was checked, in a sentence.
        not_checked: What was not, in phrases.
    """

    level: str
    sentence: str
    coverage: str
    not_checked: tuple[str, ...]


def verdict(report: AuditReport) -> Verdict:
    """Sum a report up.

    If a check failed, the verdict is at least MEDIUM, whatever the findings are.
    """
    outcomes = [check.outcome for check in report.checks]
    worst = max((finding.severity for finding in report.findings), default=Severity.INFO)
    if Outcome.FAILED in outcomes:
        worst = max(worst, Severity.MEDIUM)
    empty = outcomes.count(Outcome.EMPTY)
    made = len(outcomes) - empty
    in_full = sum(outcome in (Outcome.PASSED, Outcome.FAILED) for outcome in outcomes)
    is_all = 0 < made == in_full and report.sums_replayed == report.sums_released
    complete = is_all and not report.not_checked
    coverage = (
        f"{number(in_full)} of {count(made, 'check')} made in full"
        f"{f', {number(empty)} more had nothing to check' if empty else ''}. "
        f"{number(report.sums_replayed)} of {count(report.sums_released, 'released sum')} "
        "computed again from the messages, and equal."
    )
    if report.not_checked:
        coverage += f" {count(len(report.not_checked), 'thing')} not checked, listed below."
    if worst > Severity.INFO:
        of_worst = sum(finding.severity == worst for finding in report.findings)
        level = worst.name.lower()
        what = count(of_worst, f"{level} finding") if of_worst else "A check failed"
        sentence = f"{what}: {_MEANINGS[worst]}."
    elif complete:
        level = "clean"
        sentence = "Nothing was found, and every check was made in full."
    else:
        level = "open"
        sentence = "Nothing was found in what was checked. Not everything was checked."
    return Verdict(level, sentence, coverage, report.not_checked)
