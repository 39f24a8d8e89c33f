from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_devices import cohort

from deltafl.fl.strategies.aggregation import add_mean_update
from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.choices import DeviceWeights
from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.fedavg import FedAvg
from deltafl.fl.superquantile import weighted_quantile
from deltafl.sim.cohort.simulated import cohort_of

HALF = Fraction(1, 2)


def start(value=0.0):
    return TrainingState(np.full(1, value, dtype=np.float32))


cohorts = st.lists(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(-8, 8).map(lambda k: k / 4)),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=6,
)


def algorithm_2(model, eta, devices, theta, weighting):
    """One round as the paper has it, η measured anew."""
    weights = [d.weight if weighting is DeviceWeights.SAMPLES else 1 for d in devices]
    if not sum(weights):
        return model, eta
    losses = [d.loss(model) for d in devices]
    eta = weighted_quantile(losses, weights, theta)
    kept = [k for k, loss in enumerate(losses) if loss >= eta]
    ids = [devices[k].id for k in kept]
    return add_mean_update(model, cohort_of(devices), ids, [weights[k] for k in kept]), eta


@given(cohorts, st.sampled_from(list(DeviceWeights)))
@settings(max_examples=40)
def test_a_period_of_one_is_algorithm_2_bit_for_bit(rounds, weighting):
    strategy, state = DeltaFL(HALF, weighting), start()
    model, eta = state.model, None
    for pairs in rounds:
        state, report = strategy.apply(state, cohort_of(cohort(*pairs)))
        model, eta = algorithm_2(model, eta, cohort(*pairs), HALF, weighting)
        assert state.model.tobytes() == model.tobytes()
        assert state.eta == eta
        assert report.empty == (weighting is DeviceWeights.SAMPLES and not any(w for w, _ in pairs))


def test_eta_is_measured_every_period_and_kept_between():
    strategy, state = DeltaFL(HALF, eta_every=3), start()
    etas, measured = [], []
    for _ in range(7):
        devices = cohort((1, 0.0), (1, 1.0), (1, 10.0))
        measured.append(weighted_quantile([d.loss(state.model) for d in devices], [1] * 3, HALF))
        state, report = strategy.apply(state, cohort_of(devices))
        etas.append(report.eta)
        assert state.eta == report.eta
    assert etas == [measured[0]] * 3 + [measured[3]] * 3 + [measured[6]]
    assert len(set(measured)) == 7  # or the line above would show nothing


def test_rounds_between_filter_by_the_eta_of_before():
    strategy = DeltaFL(HALF, eta_every=2)
    state, first = strategy.apply(start(), cohort_of(cohort((1, 1.0), (1, 2.0), (1, 3.0))))
    assert (first.eta, state.model[0]) == (2.0, 1.25)
    # from 1.25, centres at −1, 3.25 and 4 have losses 2.53, 2 and 3.78: all at or above 2
    devices = cohort((1, -1.0), (1, 3.25), (1, 4.0), (1, 1.0))
    state, second = strategy.apply(state, cohort_of(devices))
    assert (second.eta, second.kept_devices) == (2.0, 3)
    assert [d.num_updates for d in devices] == [1, 1, 1, 0]
    # Algorithm 2 would have measured 2 again only by chance: here it is the second loss of four
    assert state.model[0] == pytest.approx(1.25 + (6.25 / 3 - 1.25) / 2)


@pytest.mark.parametrize("pairs", [[(5, 0.0), (5, 0.5)], [(0, 9.0), (5, 0.0)]])
def test_an_empty_tail_leaves_the_model_and_says_so(pairs):
    state, _ = DeltaFL(HALF, eta_every=9).apply(
        start(), cohort_of(cohort((1, 1.0), (1, 2.0), (1, 3.0)))
    )
    after, report = DeltaFL(HALF, eta_every=9).apply(state, cohort_of(cohort(*pairs)))
    assert report.empty
    assert (report.kept_devices, report.kept_weight, report.train_loss) == (0, 0, None)
    assert (report.eta, after.eta, after.round) == (2.0, 2.0, 2)
    assert after.model.tobytes() == state.model.tobytes()


def test_a_run_that_could_not_measure_yet_does_so_as_soon_as_it_can():
    strategy = DeltaFL(HALF, eta_every=5)
    state, lost = strategy.apply(start(), cohort_of(cohort((0, 1.0))))
    assert (lost.empty, lost.eta, state.eta) == (True, None, None)
    state, report = strategy.apply(state, cohort_of(cohort((1, 2.0))))
    assert report.eta == state.eta == 2.0


def test_theta_one_keeps_everybody_in_every_round_of_a_period():
    # each round a device comes that is better served than the best one of the first round
    rounds = [cohort((1, 4.0), (2, 5.0)), cohort((1, 2.0), (2, 5.0)), cohort((3, 2.5), (1, 9.0))]
    plain, state = start(), start()
    for devices in rounds:
        plain, _ = FedAvg().apply(plain, cohort_of(devices))
        state, report = DeltaFL(Fraction(1), eta_every=9).apply(state, cohort_of(devices))
        assert report.kept_devices == len(devices)
        assert state.model.tobytes() == plain.model.tobytes()
    # a smaller θ does leave them out
    state, _ = DeltaFL(HALF, eta_every=9).apply(start(), cohort_of(rounds[0]))
    _, report = DeltaFL(HALF, eta_every=9).apply(state, cohort_of(rounds[1]))
    assert report.kept_devices < 2


def test_resuming_in_the_middle_of_a_period_changes_nothing():
    strategy = DeltaFL(HALF, eta_every=3)
    devices = cohort((1, 0.0), (1, 1.0), (1, 10.0))
    state, _ = strategy.apply(start(), cohort_of(devices))
    resumed = TrainingState(state.model, state.round, state.eta)
    on, _ = strategy.apply(state, cohort_of(devices))
    again, _ = strategy.apply(resumed, cohort_of(devices))
    assert (on.eta, on.model.tobytes()) == (again.eta, again.model.tobytes())


def test_a_period_is_at_least_one():
    with pytest.raises(ValueError, match="eta_every=0 is not at least 1"):
        DeltaFL(HALF, eta_every=0)
