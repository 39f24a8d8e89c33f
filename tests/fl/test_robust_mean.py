"""Strategies that step by geometric medians in clear."""

from fractions import Fraction

import numpy as np
import pytest
from toy_devices import cohort

from deltafl.fl.objectives import PLAIN
from deltafl.fl.strategies.base import TrainingState, Visibility
from deltafl.fl.strategies.choices import DeviceWeights
from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.fedavg import FedAvg, FedProx
from deltafl.fl.strategies.geometric_median import (
    SMOOTHING,
    Robustly,
    next_smoothing,
    robust_step,
)
from deltafl.fl.strategies.q_ffl import QFFL
from deltafl.fl.strategies.robust_mean import RobustMean
from deltafl.sim.cohort.simulated import cohort_of

ROBUSTLY = Robustly(3, 0.5)
PAIRS = [(5, 0.1), (0, 99.0), (7, 0.4), (2, -0.3), (9, 0.2), (3, 40.0)]


def start():
    return TrainingState(np.zeros(1, dtype=np.float32))


def updates_of(devices, objective=PLAIN):
    model = start().model
    return [
        (one.weight, cohort_of([one]).reveal_updates(model, None, objective)[0].result())
        for one in devices
        if one.weight
    ]


def test_fedavg_steps_by_the_median_of_all_devices_with_samples():
    strategy = RobustMean(FedAvg(), ROBUSTLY)
    state, report = strategy.apply(start(), cohort_of(cohort(*PAIRS)))
    wanted, factor = robust_step(start().model, updates_of(cohort(*PAIRS)), 3, 0.5)
    assert state.model.tobytes() == wanted.tobytes()
    assert state.memory[SMOOTHING] == next_smoothing(0.5, factor)
    assert (state.round, report.kept_weight, report.secure_sums) == (1, 26, 3)
    assert (report.empty, report.kept_devices, report.eta) == (False, 6, None)
    assert (strategy.name, strategy.server_sees) == ("fedavg", Visibility.SUMS)
    plain, _ = FedAvg().apply(start(), cohort_of(cohort(*PAIRS)))
    assert plain.model.tobytes() != state.model.tobytes()


def test_the_second_round_uses_what_the_first_has_learnt():
    strategy = RobustMean(FedAvg(), ROBUSTLY)
    first, _ = strategy.apply(start(), cohort_of(cohort(*PAIRS)))
    second, _ = strategy.apply(first, cohort_of(cohort(*PAIRS)))
    assert second.memory[SMOOTHING] != first.memory[SMOOTHING]
    assert second.round == 2


def test_fedprox_keeps_its_objective():
    asked = []

    class Cohort:
        def __init__(self, inner):
            self.inner, self.weights = inner, inner.weights

        def reveal_updates(self, model, ids, objective):
            asked.append(objective)
            return self.inner.reveal_updates(model, ids)

    prox = FedProx(0.3)
    RobustMean(prox, ROBUSTLY).apply(start(), Cohort(cohort_of(cohort(*PAIRS))))
    assert asked == [prox.objective]


def test_a_cohort_without_samples_leaves_the_model():
    state, report = RobustMean(FedAvg(), ROBUSTLY).apply(start(), cohort_of(cohort((0, 1.0))))
    assert report.empty
    assert (state.round, state.model.tolist(), dict(state.memory)) == (1, [0.0], {})


@pytest.mark.parametrize("weighting", list(DeviceWeights))
def test_delta_fl_steps_by_the_median_of_its_tail(weighting):
    half = Fraction(1, 2)
    devices = cohort(*PAIRS)
    plain, kept = DeltaFL(half, weighting).apply(start(), cohort_of(cohort(*PAIRS)))
    state, report = DeltaFL(half, weighting, robustly=ROBUSTLY).apply(start(), cohort_of(devices))
    losses = [device.loss(start().model) for device in cohort(*PAIRS)]
    tail = [one for one, loss in zip(cohort(*PAIRS), losses, strict=True) if loss >= kept.eta]
    weight = {DeviceWeights.SAMPLES: lambda n: n, DeviceWeights.UNIFORM: lambda _: 1}[weighting]
    each = [(weight(one.weight), updates_of([one])[0][1]) for one in tail if one.weight]
    if weighting is DeviceWeights.UNIFORM:
        each = [(1, cohort_of([one]).reveal_updates(start().model)[0].result()) for one in tail]
    wanted, _ = robust_step(start().model, each, 3, 0.5)
    assert state.model.tobytes() == wanted.tobytes()
    assert (report.eta, report.kept_devices) == (kept.eta, kept.kept_devices)
    assert (report.secure_sums, state.eta, state.round) == (3, kept.eta, 1)
    assert SMOOTHING in state.memory
    assert SMOOTHING not in plain.memory


def test_an_empty_round_of_delta_fl_forgets_nothing():
    strategy = DeltaFL(Fraction(1, 2), robustly=ROBUSTLY)
    state, _ = strategy.apply(start(), cohort_of(cohort(*PAIRS)))
    after, report = strategy.apply(state, cohort_of(cohort((0, 1.0))))
    assert report.empty
    assert after.memory[SMOOTHING] == state.memory[SMOOTHING]


def test_real_weights_are_refused():
    with pytest.raises(ValueError, match="q-ffl weighs devices by real numbers"):
        RobustMean(QFFL(1.0, lambda _: 0.1), ROBUSTLY)
