"""What a path is, and what vouches for it; limits and verdicts that follow from its settings."""

import pytest
import records
from real_runs import leave
from reports import serious

from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.source import find_source
from deltafl.sim.settings.config_io import build_config

pytestmark = pytest.mark.usefixtures("no_figures")

ONE = {"federation": {"rounds": 1, "cohort_size": 6}, "data": {"num_devices": 12}}


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)


def test_a_source_knows_what_vouches_for_it(tmp_path):
    config = build_config([{"experiment": {"num_seeds": 2, "baselines": ["fedavg"]}}])
    records.write_run(tmp_path, config, summary={"record_sha256": "ab" * 32})
    source = find_source(tmp_path)
    assert source.head == b"\xab" * 32
    assert (len(source.arms), source.is_in_clear, source.data) == (4, False, None)
    bare = find_source(tmp_path / "record.sqlite")
    assert (bare.config, bare.head, bare.directory) == (None, None, None)
    clear = build_config([{"federation": {"algorithm": "fedavg"}}])
    records.write_run(tmp_path / "clear", clear)
    assert find_source(tmp_path / "clear").is_in_clear


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("summary", {"record_sha256": "not hex"}, "digest of the record is none"), ("", "", "is not")],
)
def test_what_cannot_be_audited_is_refused_in_a_sentence(tmp_path, name, value, said):
    if name:
        records.write_run(tmp_path, build_config([{}]), **{name: value})
    with pytest.raises(UserError, match=said):
        find_source(tmp_path)


@pytest.mark.slow
def test_the_limits_are_those_of_the_settings(tmp_path):
    assert leave(tmp_path / "run", **ONE)
    facts = dict(audit(tmp_path / "run").facts)
    assert (facts["adversary"], facts["algorithm"]) == ("curious", "private-delta-fl")
    assert "cohort.below-floor" in serious(audit(tmp_path / "run", Options(min_cohort=7)))
    assert "algorithm" not in dict(audit(tmp_path / "run" / "record.sqlite").facts)
