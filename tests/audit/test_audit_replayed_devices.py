"""Who may fall silent in a simulation: whom its plan has, and who refuses."""

import pytest
from honest_runs import config_of

from deltafl.secagg.states import Stage, Step
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.replayed_devices import ReplayedDevices
from deltafl.sim.inspect.audit.rounds_again import Kept
from deltafl.sim.run.algorithms import dropouts_of

FIRST, LATER = Step(Stage.ADVERTISE, 0), Step(Stage.MASK, 1)


def unfounded(config, silent, refused=None):
    """Of a round of ten devices."""
    devices = ReplayedDevices(config, {})
    kept = Kept(tuple(range(10)), Evidence(1), silent=silent, refused=refused)
    found = dict(devices.unfounded(kept, 0, 4))
    return found, sorted(devices.untold)


def test_whoever_is_in_the_plan_may_fall_silent_from_then_on():
    config = config_of(faults={"dropout": 0.5})
    plan = dropouts_of(config)(0, range(10), 4)
    assert 1 < len(plan) < 10
    assert unfounded(config, {device: one.step for device, one in plan.items()}) == ({}, [])
    device = max(plan, key=lambda one: plan[one].step.order)
    assert plan[device].step.order > FIRST.order
    assert unfounded(config, {device: FIRST})[0] == {device: FIRST}


@pytest.mark.parametrize("step", [FIRST, LATER])
def test_whoever_is_not_may_if_the_truth_says_that_it_refused(step):
    config = config_of()
    assert unfounded(config, {3: step, 7: step}) == ({3: step, 7: step}, [])
    assert unfounded(config, {3: step, 7: step}, frozenset({3})) == ({7: step}, [])


def test_all_at_once_may_and_it_is_told():
    config = config_of()
    everybody = dict.fromkeys(range(10), LATER)
    assert unfounded(config, everybody) == ({}, [1])
    some = dict.fromkeys(range(9), LATER)
    assert unfounded(config, some) == (some, [])
    assert unfounded(config, everybody, frozenset()) == (everybody, [])
    at_first = dict.fromkeys(range(10), FIRST)  # a run does not begin if devices refuse it
    assert unfounded(config, at_first) == (at_first, [])
