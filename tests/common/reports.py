"""What an audit's report comes to."""

from deltafl.sim.inspect.audit.findings import Severity


def serious(report):
    """The rules that were found broken, from medium severity on."""
    return {finding.rule for finding in report.findings if finding.severity >= Severity.MEDIUM}
