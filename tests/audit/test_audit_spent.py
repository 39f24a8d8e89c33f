"""What a run says that it spent is compared with its settings, and cohorts with those due."""

import json
import shutil

import pytest
from real_runs import leave
from reports import serious

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.run import drawing

PRIVATE = {
    "dp": {"noise": 2},
    "quantile": {"method": "noisy", "weights": "equal", "noise": "2", "max_queries": 0},
    "privacy": {"max_weight": 1, "transcript": "sums"},
    "federation": {"cohort_size": 5},
}


def details(path):
    found = audit(path, Options()).findings
    return [one.detail for one in found if one.rule == "record.disagrees"]


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    path = tmp_path_factory.mktemp("private") / "run"
    assert leave(path, **PRIVATE)
    return path


@pytest.mark.slow
def test_what_an_honest_run_says_is_right(left):
    assert details(left) == []


@pytest.mark.parametrize(("key", "value"), [("epsilon", 0.1), ("delta", 1e-9), ("epsilon", None)])
def test_another_epsilon_than_that_of_the_settings_is_found(left, tmp_path, key, value):
    copy = shutil.copytree(left, tmp_path / "run")
    events = [json.loads(line) for line in (copy / "events.jsonl").read_text().splitlines()]
    events[1][key] = value
    (copy / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert any(detail.startswith(f"{key} is {value}") for detail in details(copy))


@pytest.mark.slow
def test_a_cohort_that_was_not_due_is_found(tmp_path, monkeypatch):
    def again(generator_of, num_devices, cohort_size, round_index):
        del generator_of, num_devices, round_index
        return list(range(cohort_size))

    monkeypatch.setattr(drawing, "dealt", again)
    leave(tmp_path / "run", **PRIVATE)
    monkeypatch.undo()
    assert "record.disagrees" in serious(audit(tmp_path / "run", Options()))
    assert "round 2 invites other devices than the run's seed draws" in details(tmp_path / "run")
