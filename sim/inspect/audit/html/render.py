"""An audit report as one HTML page."""

import functools
import itertools
from importlib import metadata
from typing import Final

import jinja2

from deltafl.sim import writing
from deltafl.sim.charts import svg
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.html import searches, sequence
from deltafl.sim.inspect.audit.html.grouping import SHOWN_PER_RULE, group
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.report import REPORT_VERSION, AuditReport

_TEMPLATE: Final = "report.html.j2"
_STYLED: Final = ("deltafl.sim.inspect.audit.html", "deltafl.sim.charts")

SHOWN_STEPS: Final = 300
"""The most steps of the timeline that a page shows; the JSON report has all."""

SHOWN_EVIDENCE: Final = 10
"""The most places of one finding that a page shows."""

SHOWN_SEARCHES: Final = 300
"""The most searches in the page's table; the charts and the JSON report have all."""


def render(*reports: AuditReport) -> str:
    """Reports as one HTML page, to be stored as UTF-8.

    The page is also well-formed XML. Equal reports give the same page, byte for byte.

    Args:
        reports: What to show, at least one. Their texts are treated as hostile.

    Raises:
        KeyError: a finding names a rule that `catalogue.RULES` does not have.
    """
    findings = [finding for report in reports for finding in report.findings]
    return (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            runs=[_shown(number, report) for number, report in enumerate(reports)],
            verdict=verdict(*reports),
            severities=[
                (severity, sum(finding.severity == severity for finding in findings))
                for severity in sorted(Severity, reverse=True)
            ],
        )
    )


def _shown(number: int, report: AuditReport) -> dict[str, object]:
    """What the template shows of a run; the ids of its elements begin with `at`."""
    return {
        "at": f"run{number}-" if number else "",
        "report": report,
        "verdict": verdict(report),
        "harms": [
            (harm, tuple(groups))
            for harm, groups in itertools.groupby(group(report.findings), lambda one: one.harm)
        ],
        "idle": [check.name for check in report.checks if check.outcome is Outcome.EMPTY],
        "acts": sequence.acts(report.timeline[:SHOWN_STEPS]),
        "highlights": searches.highlights(report.searches),
        "charts": searches.charts(report.searches),
        "observed_size": sum(observed.size for observed in report.observed),
        "observed_count": sum(observed.count for observed in report.observed),
    }


@functools.cache
def _environment() -> jinja2.Environment:
    return writing.templates(
        _STYLED,
        searches.width,
        svg.line_chart,
        svg.swatch,
        SHOWN_PER_RULE=SHOWN_PER_RULE,
        SHOWN_STEPS=SHOWN_STEPS,
        SHOWN_SEARCHES=SHOWN_SEARCHES,
        SHOWN_EVIDENCE=SHOWN_EVIDENCE,
        MADE=(Outcome.PASSED, Outcome.FAILED),
        REPORT_VERSION=REPORT_VERSION,
        VERSION=metadata.version("deltafl"),
        MEDIUM=Severity.MEDIUM,
    )
