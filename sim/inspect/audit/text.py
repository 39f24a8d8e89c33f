"""An audit report for a terminal: the verdict in a box, findings by harm, checks, limits."""

import itertools
import textwrap
from collections.abc import Iterator
from typing import Final

from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.html.grouping import Group, group
from deltafl.sim.inspect.audit.html.verdict import Verdict, verdict
from deltafl.sim.inspect.audit.report import AuditReport
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
    lines += ["", "What no audit shows (more with --json or --html):"]
    lines += [f"  - {one.partition('. ')[0].rstrip('.')}" for one in reports[0].limits]
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
    for harm, groups in itertools.groupby(group(report.findings), lambda one: one.harm):
        yield from ("", f"{harm[0].upper()}{harm[1:]}:")
        for one in groups:
            yield from _group(one)
    yield from ("", "Checked:")
    width = max((len(check.name) for check in report.checks), default=0)
    for check in report.checks:
        if (mark := _MARKS.get(check.outcome)) is not None:
            yield f"  {mark}  {check.name:<{width}}  {check.detail}"
    if idle := [check.name for check in report.checks if check.outcome is Outcome.EMPTY]:
        yield f"  nothing to check: {', '.join(idle)}"
    if report.not_checked:
        yield from ("", "Not checked:", *(f"  - {one}" for one in report.not_checked))


def _group(found: Group) -> Iterator[str]:
    texts = found.about.texts()
    more = f" ({found.places} places)" if found.places > 1 else ""
    yield f"{found.severity.name:<8} {found.rule}: {texts['title']}{more}  [{texts['attack']}]"
    yield f"         {texts['consequence']} {texts['remedy']}"
    for finding in found.shown[:_SHOWN]:
        places = "; ".join(map(str, finding.evidence[:_PLACES]))
        yield f"       - {finding.detail} ({places})"
    if left := found.left_out + len(found.shown[_SHOWN:]):
        yield f"         … and {left} more: use --json or --html."
