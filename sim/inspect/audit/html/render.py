"""An audit report as one HTML page."""

import functools
from importlib import metadata
from typing import Final

import jinja2

from deltafl.sim import writing
from deltafl.sim.charts import svg
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.html import given_away, sequence
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


def render(report: AuditReport) -> str:
    """The report as an HTML page, to be stored as UTF-8.

    The page is also well-formed XML. Equal reports give the same page, byte for byte.

    Args:
        report: What to show. Its texts are treated as hostile.

    Raises:
        KeyError: a finding names a rule that `catalogue.RULES` does not have.
    """
    return (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            report=report,
            verdict=verdict(report),
            severities=[
                (severity, sum(finding.severity == severity for finding in report.findings))
                for severity in sorted(Severity, reverse=True)
            ],
            outcomes=[
                (outcome, sum(check.outcome == outcome for check in report.checks))
                for outcome in Outcome
            ],
            groups=group(report.findings),
            acts=sequence.acts(report.timeline[:SHOWN_STEPS]),
            charts=given_away.charts(report.searches),
            observed_size=sum(observed.size for observed in report.observed),
            observed_count=sum(observed.count for observed in report.observed),
        )
    )


@functools.cache
def _environment() -> jinja2.Environment:
    return writing.templates(
        _STYLED,
        place,
        given_away.width,
        svg.line_chart,
        svg.swatch,
        SHOWN_PER_RULE=SHOWN_PER_RULE,
        SHOWN_STEPS=SHOWN_STEPS,
        SHOWN_SEARCHES=SHOWN_SEARCHES,
        SHOWN_EVIDENCE=SHOWN_EVIDENCE,
        REPORT_VERSION=REPORT_VERSION,
        VERSION=metadata.version("deltafl"),
        MEDIUM=Severity.MEDIUM,
    )


def place(evidence: Evidence) -> str:
    """A place in the transcript, in words.

    >>> place(Evidence(round=3, record=70, offset=81234)), place(Evidence())
    ('round 3, record 70, byte 81,234', 'the file as a whole')
    """
    names = (("round", evidence.round), ("record", evidence.record))
    known = [f"{name} {writing.number(value)}" for name, value in names if value is not None]
    return ", ".join(known) or "the file as a whole"
