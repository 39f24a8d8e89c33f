"""Rounds from which everybody vanished: what the strategies in clear remember goes on as it was."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from toy_devices import population

from deltafl.fl.strategies.aaggff import AAggFFDevice
from deltafl.fl.strategies.afl import AFL
from deltafl.fl.strategies.choices import Response
from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.strategies.server_optimizer import Momentum, WithServerOptimizer
from deltafl.secagg import Stage, Step, Vanish
from deltafl.sim.cohort.dropouts import WithDropouts
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from deltafl.sim.record.record import write_record

START = np.zeros(1, np.float32)
MARK = Mark(0, bytes(32))


DEVICES = population(0.0, 1.0, 10.0)


def losing(strategy, *rounds):
    """The strategy with all devices gone in these rounds, wrapped as in a run."""
    if isinstance(strategy, WithServerOptimizer):
        return replace(strategy, strategy=losing(strategy.strategy, *rounds))

    def dropouts(index, ids, num_slots):
        del num_slots
        return {number: Vanish(Step(Stage.SHARE)) for number in ids if index in rounds}

    return WithDropouts(strategy, dropouts)


def play(strategy, num_rounds, state=None):
    state = strategy.init(START, len(DEVICES)) if state is None else state
    reports = []
    for _ in range(num_rounds):
        state, report = strategy.apply(state, cohort_of(DEVICES))
        reports.append(report)
    return state, reports


def test_a_lost_round_that_would_have_measured_eta_leaves_the_one_before():
    period = DeltaFL(Fraction(1, 2), eta_every=2)
    _, reports = play(losing(period, 2), 6)
    etas = [report.eta for report in reports]
    assert reports[2].aborted
    assert etas[2] is None
    assert etas[0] == etas[1] == etas[3] != etas[4] == etas[5]
    # without the loss round 2 measures
    _, whole = play(losing(period), 6)
    assert whole[3].eta == whole[2].eta != etas[3]


def test_a_strategy_in_clear_takes_no_secure_sums_of_devices_that_are_gone():
    with pytest.raises(ValueError, match="strategies in clear take no secure sums"):
        play(losing(PrivateDeltaFL(Fraction(1, 2))), 1)


def test_a_run_that_loses_its_first_rounds_measures_eta_in_the_next():
    state, reports = play(losing(DeltaFL(Fraction(1, 2), eta_every=5), 0, 1), 4)
    assert [report.eta for report in reports[:2]] == [None, None]
    # at 0 the losses are 0, ½ and 50
    assert reports[2].eta == reports[3].eta == state.eta == 0.5


def test_afl_plays_on_where_it_was_before_lost_rounds():
    lost, reports = play(losing(AFL(0.1), 1, 2), 5)
    played, _ = play(AFL(0.1), 3)
    assert [report.aborted is not None for report in reports] == [False, True, True, False, False]
    assert lost.model.tobytes() == played.model.tobytes()
    assert {key: one.tobytes() for key, one in lost.memory.items()} == {
        key: one.tobytes() for key, one in played.memory.items()
    }


@pytest.mark.parametrize(
    "strategy",
    [
        DeltaFL(Fraction(1, 2), eta_every=4),
        AFL(0.1),
        AAggFFDevice(Response.WEIBULL),
        WithServerOptimizer(DeltaFL(Fraction(1, 2), eta_every=4), Momentum(0.5, 0.9)),
        WithServerOptimizer(AFL(0.1), Momentum(0.5, 0.9)),
    ],
)
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_resumed_after_a_lost_round_is_the_same_to_the_bit(tmp_path, strategy, stop):
    losses = losing(strategy, 1)
    whole, reports = play(losses, 6)
    state, first = play(losses, stop)
    with write_record(tmp_path / "record.sqlite") as record:
        save_checkpoint(record, Checkpoint(state, MARK))
        restored = load_checkpoint(record).state
    resumed, then = play(losses, 6 - stop, restored)
    assert resumed.model.tobytes() == whole.model.tobytes()
    assert [*first, *then] == reports
    # what is remembered matters: without it the run would go another way
    forgetful, _ = play(losses, 6 - stop, replace(strategy.init(state.model, 3), round=stop))
    assert forgetful.model.tobytes() != whole.model.tobytes()
