"""The report of an audit as one HTML file, which loads nothing and runs nothing.

Others wrote the transcript, so any text in a report may contain markup. The template escapes
everything that it prints, and the page's own policy forbids scripts and requests.
"""

import functools
from importlib import metadata

import jinja2

from deltafl.sim import writing
from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.report import REPORT_VERSION, AuditReport, grouped


def render(*reports: AuditReport) -> str:
    """Reports as one HTML page, to be stored as UTF-8.

    The page is also well-formed XML. Equal reports give the same page, byte for byte.

    Args:
        reports: What to show, at least one. Their texts are treated as hostile.

    Raises:
        KeyError: a finding names a rule that `catalogue.RULES` does not have.
    """
    found = [finding.severity for report in reports for finding in report.findings]
    severities = [(one, found.count(one)) for one in sorted(Severity, reverse=True)]
    page = _environment().get_template("report.html.j2")
    return page.render(reports=reports, verdict=verdict, severities=severities)


@functools.cache
def _environment() -> jinja2.Environment:
    return writing.templates(
        [__name__],
        grouped,
        RULES=RULES,
        MADE=(Outcome.PASSED, Outcome.FAILED),
        REPORT_VERSION=REPORT_VERSION,
        VERSION=metadata.version("deltafl"),
        MEDIUM=Severity.MEDIUM,
    )
