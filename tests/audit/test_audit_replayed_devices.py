"""Who may fall silent in a simulation: whom its plan has, and who refuses."""

import numpy as np
import pytest
from honest_runs import config_of

from deltafl.fl.strategies.base import TrainingState
from deltafl.protocol.messages import Announce
from deltafl.secagg.messages import SessionOpen
from deltafl.secagg.states import Stage, Step
from deltafl.secagg.wire import encode
from deltafl.sim.cohort.masked import as_bytes
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.replayed_devices import Silences
from deltafl.sim.inspect.audit.rounds_again import Kept
from deltafl.sim.run.algorithms import build_strategy, dropouts_of, sessions_of

FIRST, LATER = Step(Stage.ADVERTISE, 0), Step(Stage.MASK, 1)


def kept_of(config, silent, refused=None, number=1):
    """A round of ten devices, as the record has it."""
    cohort, model = tuple(range(10)), np.full(2, number, np.float32)
    levels = build_strategy(config).levels_for(TrainingState(model), len(cohort))
    joined, usual = as_bytes([model]), sessions_of(config_of())  # whatever devices refuse
    params = usual.params_of_levels(levels, joined, bytes(32))
    announced = Announce(levels, joined, encode(SessionOpen(params), params))
    kept = Kept(cohort, Evidence(number), announced)
    kept.params, kept.silent, kept.refused = params, silent, refused
    return kept


def unfounded(config, silent, refused=None):
    silences = Silences(config)
    found = dict(silences.unfounded(kept_of(config, silent, refused), 0, 4))
    return found, silences.untold


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


@pytest.mark.parametrize(("bound", "is_found"), [(8, True), (7, False)])
def test_whoever_refuses_the_announcement_may(bound, is_found):
    config = config_of(policy={"max_loss_bound": bound})
    assert bool(unfounded(config, {3: FIRST})[0]) == is_found


def test_all_at_once_may_and_it_is_told():
    config = config_of()
    everybody = dict.fromkeys(range(10), LATER)
    assert unfounded(config, everybody) == ({}, [1])
    some = dict.fromkeys(range(9), LATER)
    assert unfounded(config, some) == (some, [])
    assert unfounded(config, everybody, frozenset()) == (everybody, [])


def test_whoever_has_taken_part_often_enough_refuses():
    config = config_of(policy={"max_participations": 2})
    silences = Silences(config)
    for number in (1, 2):
        assert not dict(
            silences.unfounded(kept_of(config, {4: FIRST}, frozenset({4}), number), 0, 4)
        )
    last = kept_of(config, dict.fromkeys((3, 4), FIRST), number=3)
    assert dict(silences.unfounded(last, 0, 4)) == {4: FIRST}
