"""An audit report for a terminal: the verdict in a box, findings by harm, checks, limits."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.html.verdict import Verdict, verdict
from deltafl.sim.inspect.audit.report import AuditReport, grouped
from deltafl.sim.visible import on_one_line
from deltafl.sim.writing import count

_WIDTH: Final = 96
_SHOWN: Final = 20  # findings of a rule
_PLACES: Final = 3  # of a finding
_MARKS: Final = {Outcome.PASSED: "passed", Outcome.FAILED: "FAILED"}


def describe(*reports: AuditReport) -> str:
    """The reports on all runs that were audited together, in lines that no text of others can end.

    Args:
        reports: At least one.
    """
    lines = [*_box(reports[0].source if len(reports) == 1 else "", verdict(*reports))]
    if len(reports) > 1:
        lines += [f"  {one.source}: {verdict(one).sentence}" for one in reports]
    for report in reports:
        lines += ["", *_report(report)]
    lines += ["", "What no audit shows:", *(f"  - {one}" for one in reports[0].limits)]
    return "\n".join(map(on_one_line, lines))


def _box(source: str, reached: Verdict) -> Iterator[str]:
    yield "┌" + "─" * _WIDTH
    for text in (source, f"{reached.level.upper()}. {reached.sentence}", reached.coverage):
        for line in textwrap.wrap(text, _WIDTH - 1):
            yield f"│ {line}"
    yield "└" + "─" * _WIDTH


def _report(report: AuditReport) -> Iterator[str]:
    yield (
        f"{report.source}: {count(report.records, 'record')} of {count(report.rounds, 'round')}; "
        f"{count(report.statistics.tests, 'test')} of {report.statistics.bytes_tested} masked "
        f"bytes; false alarms: {report.statistics.false_alarm_rate:g}"
    )
    for harm, rules in grouped(report.findings).items():
        yield from ("", f"{harm[0].upper()}{harm[1:]}:")
        for findings in rules.values():
            yield from _of_a_rule(findings)
    yield from ("", "Checked:")
    width = max((len(check.name) for check in report.checks), default=0)
    for check in report.checks:
        if (mark := _MARKS.get(check.outcome)) is not None:
            yield f"  {mark}  {check.name:<{width}}  {check.detail}"
    if idle := report.idle:
        yield f"  nothing to check: {', '.join(idle)}"
    if report.not_checked:
        yield from ("", "Not checked:", *(f"  - {one}" for one in report.not_checked))


def _of_a_rule(findings: Sequence[Finding]) -> Iterator[str]:
    first, rule = findings[0], RULES[findings[0].rule]
    places = sum(one.count for one in findings)
    more = f" ({places} places)" if places > 1 else ""
    title = f"{first.rule}: {rule.title}{more}"
    yield f"{first.severity.name:<8} {title}  [{rule.attack}]"
    yield f"         {rule.consequence} {rule.remedy}"
    for finding in findings[:_SHOWN]:
        yield f"       - {finding.detail} ({'; '.join(map(str, finding.evidence[:_PLACES]))})"
    if left := len(findings[_SHOWN:]):
        yield f"         … and {left} more: use --json or --html."
