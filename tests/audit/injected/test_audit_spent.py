"""What a run says that it spent follows from its settings and its record; cohorts are those due."""

import pytest
from real_runs import leave
from records import events_of
from reports import serious
from run_directories import in_event, real

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.run import drawing

PRIVATE = {
    "dp": {"noise": 2},
    "quantile": {"method": "noisy", "weights": "equal", "noise": "2", "max_queries": 0},
    "privacy": {"max_weight": 1, "transcript": "full"},
    "federation": {"cohort_size": 5},
}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    return real(tmp_path_factory.mktemp("private") / "run", **PRIVATE).path


@pytest.mark.slow
def test_what_an_honest_run_says_is_right_and_the_sums_cost_as_much(left):
    report = audit(left, Options())
    assert serious(report) == set()
    given = report.given_away
    assert (given.noisy, given.single.rounds, given.weights.sums) == (given.sums, 0, 0)
    said = events_of(left)[-1]
    assert given.delta == said["delta"]
    assert 0.999 * said["epsilon"] < given.epsilon <= said["epsilon"]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value"), [("epsilon", 0.1), ("delta", 1e-9), ("epsilon", None)])
def test_another_epsilon_than_that_of_the_settings_is_found(tmp_path, key, value):
    lying = real(tmp_path / "run", in_event(2, **{key: value}), **PRIVATE)
    assert "record.disagrees" in serious(audit(lying.path, Options()))


@pytest.mark.slow
def test_a_cohort_that_was_not_due_is_found(tmp_path, monkeypatch):
    def again(generator_of, num_devices, cohort_size, round_index):
        del generator_of, num_devices, round_index
        return list(range(cohort_size))

    monkeypatch.setattr(drawing, "dealt", again)
    leave(tmp_path / "run", **PRIVATE)
    monkeypatch.undo()
    assert serious(audit(tmp_path / "run", Options()))
