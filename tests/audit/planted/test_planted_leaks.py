"""Every plant is found, under its own rule and in its place; the run without it is clean."""

import functools
import json

import plants_of_devices  # noqa: F401 - the three fill the list of plants
import plants_of_servers  # noqa: F401
import plants_over_rounds  # noqa: F401
import pytest
from planted_runs import played, write, write_truth
from plants import PLANTS

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.cli import describe
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.options import Options

CASES = [(planted, mode) for planted in PLANTS for mode in planted.modes]
NAMES = [f"{planted.name}-{mode}" for planted, mode in CASES]


@functools.cache
def audit_of_twin(folder, stage, mode, options, with_truth):
    """Twins are shared by many plants."""
    run, path = played(stage), folder / f"{stage.__name__}-{mode}.bin"
    write(run.entries, path, mode)
    return audit(path, Options(**dict(options), truth=truth_of(run, path, mode, with_truth)))


def truth_of(run, path, mode, with_truth):
    if not with_truth:
        return None
    write_truth(run, path.with_suffix(".truth"), mode)
    return path.with_suffix(".truth")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("twins")


@pytest.mark.parametrize(("planted", "mode"), CASES, ids=NAMES)
def test_it_is_found(planted, mode, tmp_path):
    edit, path = planted.edited(), tmp_path / "t.bin"
    write(edit.entries, path, mode)
    truth = truth_of(edit.run, path, mode, planted.with_truth)
    report = audit(path, Options(**planted.options, truth=truth))
    assert json.dumps(report.to_json(), allow_nan=False)
    assert describe(report)
    found = [finding for finding in report.findings if finding.rule in planted.rules]
    assert found, [finding.rule for finding in report.findings]
    places = [place for finding in found for place in finding.evidence]
    if planted.round is not None:
        assert planted.round in {place.round for place in places}
    numbers = {edit.record_number(entry) for entry in edit.touched}
    if numbers:
        assert numbers & {place.record for place in places}, (numbers, places)


@pytest.mark.parametrize(("planted", "mode"), CASES, ids=NAMES)
def test_without_it_nothing_is_found(planted, mode, folder):
    options = tuple(planted.options.items())
    report = audit_of_twin(folder, planted.twin, mode, options, planted.with_truth)
    serious = [f for f in report.findings if f.severity >= Severity.MEDIUM]
    assert not serious
    assert not {finding.rule for finding in report.findings} & set(planted.rules)
