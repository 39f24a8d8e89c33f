from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_devices import Quadratic, cohort

from deltafl.fl.errors import DivergenceError
from deltafl.fl.strategies.base import Strategy, TrainingState, Visibility
from deltafl.fl.strategies.choices import DeviceWeights
from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.fedavg import FedAvg
from deltafl.fl.superquantile import weighted_quantile
from deltafl.sim.cohort.simulated import cohort_of

HALF = Fraction(1, 2)


def start(value=0.0) -> TrainingState:
    return TrainingState(np.full(2, value, dtype=np.float32))


def strategies() -> list[Strategy]:
    return [FedAvg(), DeltaFL(HALF), DeltaFL(HALF, DeviceWeights.UNIFORM)]


def test_fedavg_by_hand():
    state, report = FedAvg().apply(start(), cohort_of(cohort((1, 2.0), (3, 6.0))))
    np.testing.assert_array_equal(state.model, np.full(2, (1 * 1 + 3 * 3) / 4, dtype=np.float32))
    assert (state.round, state.eta, report.kept_devices, report.kept_weight) == (1, None, 2, 4)
    assert report.train_loss is None
    assert report.secure_sums == 1


def test_delta_fl_by_hand():
    # losses 1, 4, 9 with weights 2, 1, 1: half of the weight is at or below 1, so eta = 1
    devices = cohort((2, 1.0), (1, 2.0), (1, 3.0))
    state, report = DeltaFL(HALF).apply(start(), cohort_of(devices))
    assert report.eta == 1.0
    assert report.kept_devices == 3
    # at theta = 2/5 the quantile is the middle device, and the first one does not train
    devices = cohort((2, 1.0), (1, 2.0), (1, 3.0))
    state, report = DeltaFL(Fraction(2, 5)).apply(start(), cohort_of(devices))
    assert (report.eta, report.kept_devices, report.kept_weight) == (4.0, 2, 2)
    assert report.train_loss == 6.5
    assert state.eta == 4.0
    np.testing.assert_array_equal(state.model, np.full(2, 1.25, dtype=np.float32))
    assert [device.num_updates for device in devices] == [0, 1, 1]


def test_weights_are_renormalised_over_the_survivors():
    state, report = DeltaFL(Fraction(3, 10)).apply(
        start(), cohort_of(cohort((6, 0.0), (3, 2.0), (1, 4.0)))
    )
    assert report.kept_weight == 4
    np.testing.assert_array_equal(state.model, np.full(2, (3 * 1 + 1 * 2) / 4, dtype=np.float32))


def test_uniform_weighting_counts_devices():
    # by samples the heavy middle device is the quantile; by heads it is the first
    devices = [(1, 1.0), (98, 2.0), (1, 3.0)]
    by_samples = DeltaFL(HALF).apply(start(), cohort_of(cohort(*devices)))
    by_heads = DeltaFL(HALF, DeviceWeights.UNIFORM).apply(start(), cohort_of(cohort(*devices)))
    assert by_samples[1].kept_weight == 99
    assert by_heads[1].kept_weight == by_heads[1].kept_devices == 2
    np.testing.assert_array_equal(by_heads[0].model, np.full(2, 1.25, dtype=np.float32))


cohorts = st.lists(
    st.tuples(st.integers(0, 9), st.integers(-8, 8).map(lambda k: k / 8)), min_size=1, max_size=9
)


@pytest.mark.slow
@given(cohorts)
def test_theta_one_is_fedavg_bit_for_bit(pairs):
    state = start(0.125)
    plain, _ = FedAvg().apply(state, cohort_of(cohort(*pairs)))
    delta, _ = DeltaFL(Fraction(1)).apply(state, cohort_of(cohort(*pairs)))
    np.testing.assert_array_equal(plain.model, delta.model)


@pytest.mark.slow
@given(cohorts.filter(lambda pairs: any(weight for weight, _ in pairs)))
def test_the_kept_are_those_at_or_above_the_quantile(pairs):
    devices = cohort(*pairs)
    losses = [device.loss(start().model) for device in devices]
    eta = weighted_quantile(losses, [weight for weight, _ in pairs], HALF)
    _, report = DeltaFL(HALF).apply(start(), cohort_of(devices))
    assert report.eta == eta
    assert report.kept_devices == sum(loss >= eta for loss in losses)
    assert 2 * report.kept_weight >= sum(weight for weight, _ in pairs)
    assert [device.num_updates for device in devices] == [
        int(loss >= eta and device.weight > 0) for device, loss in zip(devices, losses, strict=True)
    ]


def test_ties_keep_everybody():
    _, report = DeltaFL(Fraction(1, 10)).apply(start(), cohort_of(cohort(*[(5, 1.0)] * 6)))
    assert report.kept_devices == 6


def play(strategy, num_rounds):
    state = start(-5.0)
    for _ in range(num_rounds):
        state, _ = strategy.apply(state, cohort_of(cohort((1, 0.0), (1, 1.0), (1, 10.0))))
    return state.model[0]


def test_delta_fl_finds_the_midpoint_of_the_extremes():
    # the paper's illustration in one dimension: the mean serves most, the midpoint the worst
    assert play(FedAvg(), 60) == pytest.approx(11 / 3)
    assert play(DeltaFL(HALF), 60) == pytest.approx(5.0)


def test_a_whole_number_of_devices_keeps_one_more():
    # 2/3 of three equal devices are two, but the quantile is then the smallest loss itself
    assert play(DeltaFL(Fraction(2, 3)), 60) == pytest.approx(11 / 3)
    assert play(DeltaFL(Fraction(2, 3) - Fraction(1, 10**9)), 60) == pytest.approx(5.0)


@pytest.mark.parametrize("strategy", [FedAvg(), DeltaFL(HALF)])
def test_a_cohort_without_weight_leaves_the_model(strategy):
    before = TrainingState(np.ones(2, dtype=np.float32), 7, 0.25)
    state, report = strategy.apply(before, cohort_of(cohort((0, 1.0), (0, 2.0))))
    assert report.empty
    assert state.round == 8
    np.testing.assert_array_equal(state.model, before.model)


@pytest.mark.parametrize("strategy", [FedAvg(), DeltaFL(HALF)])
def test_devices_without_weight_change_nothing(strategy):
    state, _ = strategy.apply(start(), cohort_of(cohort((1, 1.0), (2, 3.0))))
    other, _ = strategy.apply(start(), cohort_of(cohort((1, 1.0), (2, 3.0), (0, 9.0))))
    np.testing.assert_array_equal(state.model, other.model)


@dataclass
class Broken(Quadratic):
    def update(self, model):
        return np.full_like(model, np.nan)


@pytest.mark.parametrize("strategy", strategies())
def test_an_update_that_diverged_names_its_device(strategy):
    with pytest.raises(DivergenceError, match="update of device 4"):
        strategy.apply(start(), cohort_of([*cohort((1, 0.5)), Broken(4, 5.0)]))


@pytest.mark.parametrize("centre", [float("nan"), float("inf")])
def test_a_loss_that_diverged_names_its_device(centre):
    with pytest.raises(DivergenceError, match="loss of device 1"):
        DeltaFL(HALF).apply(start(), cohort_of(cohort((1, 0.5), (1, centre))))


@pytest.mark.parametrize("strategy", strategies())
def test_impossible_cohorts_are_refused(strategy):
    with pytest.raises(ValueError, match="cohort is empty"):
        strategy.apply(start(), cohort_of([]))
    with pytest.raises(ValueError, match="not unique"):
        strategy.apply(start(), cohort_of([Quadratic(1, 0.0), Quadratic(1, 0.0)]))
    with pytest.raises(ValueError, match="weight=-1 of device 0"):
        strategy.apply(start(), cohort_of(cohort((-1, 0.0))))


def test_a_theta_that_is_no_level_is_refused():
    with pytest.raises(ValueError, match=r"theta=3/2 is not in \(0, 1\]"):
        DeltaFL(Fraction(3, 2))


def test_each_strategy_says_what_the_server_sees():
    assert [(s.name, s.server_sees) for s in (FedAvg(), DeltaFL(HALF))] == [
        ("fedavg", Visibility.SUMS),
        ("delta-fl", Visibility.LOSSES),
    ]


def test_rounds_do_not_change_the_state_they_start_from():
    before = start()
    for strategy in strategies():
        strategy.apply(before, cohort_of(cohort((1, 1.0))))
    assert not before.model.any()
    assert before.round == 0
