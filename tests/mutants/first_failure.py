"""A pytest plugin of `run.py`: what failed first, as JSON in the file that MUTANTS_REPORT names."""

import json
import os
import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

MISWRITTEN = (ImportError, NameError, SyntaxError)
"""What a fault raises that breaks the program rather than the protocol: no test noticed it."""

_MEMORY = 8 << 30  # a fault may ask for all that there is


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Limit the memory, and what Hypothesis does where nobody will read its example."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    settings.register_profile(
        "mutants",
        settings.get_profile("ci"),
        phases=[phase for phase in settings().phases if phase.name in ("explicit", "generate")],
        report_multiple_bugs=False,
        # They judge how inputs are drawn, and how fast: they must not pass for a noticed fault.
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Write down the first test that fails, and whether the fault is to blame for it."""
    report = yield
    if report.failed and call.excinfo is not None:
        _write(item.nodeid, call.excinfo.typename, issubclass(call.excinfo.type, MISWRITTEN))
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write down the first file that cannot be collected."""
    if report.failed:
        _write(report.nodeid, str(report.longrepr).strip().rpartition("\n")[2], miswritten=True)


def _write(test: str, error: str, miswritten: bool) -> None:
    path = Path(os.environ["MUTANTS_REPORT"])
    if not path.exists():
        first = {"test": test, "error": error, "miswritten": miswritten}
        path.write_text(json.dumps(first), encoding="utf-8")
