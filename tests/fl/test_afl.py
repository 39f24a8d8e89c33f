from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_devices import Quadratic, begin, population

from deltafl.fl.errors import DivergenceError
from deltafl.fl.simplex import minimise_quadratic, project_to_simplex
from deltafl.fl.strategies.afl import AFL, MIXTURE
from deltafl.fl.strategies.base import Visibility
from deltafl.sim.cohort.simulated import cohort_of

points = st.lists(st.floats(-1e3, 1e3, allow_nan=False, width=32), min_size=1, max_size=8).map(
    lambda values: np.array(values, dtype=np.float64)
)


def nearest_by_enumeration(point):
    """Try every support: on it the projection is the point shifted to sum one."""
    best, distance = None, np.inf
    for mask in range(1, 2**point.size):
        support = np.array([mask >> k & 1 for k in range(point.size)], dtype=bool)
        x = np.where(support, point - (point[support].sum() - 1) / support.sum(), 0.0)
        if (x >= -1e-9).all() and np.linalg.norm(x - point) < distance:
            best, distance = x, np.linalg.norm(x - point)
    return best


@settings(max_examples=40)
@given(points)
def test_the_projection_is_the_nearest_point_of_the_simplex(point):
    projected = project_to_simplex(point)
    assert (projected >= 0).all()
    assert projected.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(projected, nearest_by_enumeration(point), atol=1e-9)


def test_the_projection_agrees_with_a_quadratic_programme():
    rng = np.random.default_rng(0)
    for size in (2, 7, 40):
        point = rng.normal(size=size)
        # ½‖x − p‖² without its constant
        solved = minimise_quadratic(np.eye(size), -point)
        np.testing.assert_allclose(project_to_simplex(point), solved, atol=1e-7)


@pytest.mark.slow
@given(points)
def test_a_mixture_is_its_own_projection_and_a_shift_changes_nothing(point):
    mixture = project_to_simplex(point)
    np.testing.assert_allclose(project_to_simplex(mixture), mixture, atol=1e-12)
    np.testing.assert_allclose(project_to_simplex(point + 7), mixture, atol=1e-9)


def test_huge_coordinates_still_sum_to_one():
    assert project_to_simplex(np.array([1e17, 1e17 - 64, 0.0])).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [np.zeros(0), np.zeros((2, 2)), np.array([1.0, np.nan])])
def test_what_is_no_point_is_refused(bad):
    with pytest.raises(ValueError, match="point"):
        project_to_simplex(bad)


def test_rounds_are_the_papers_simultaneous_steps():
    # full participation and one gradient step per device: Δ_k = −γ_w ∇F_k
    centres, rate_w, rate_mixture = np.array([0.0, 1.0, 3.0]), 0.25, 0.1
    w, mixture = 2.0, np.full(3, 1 / 3)
    strategy = AFL(rate_mixture)
    devices = population(*centres, rate=rate_w)
    state = begin(strategy, devices, w)
    for _ in range(8):
        state, _ = strategy.apply(state, cohort_of(devices))
        losses, gradients = 0.5 * (w - centres) ** 2, w - centres
        w, mixture = (
            w - rate_w * mixture @ gradients,
            nearest_by_enumeration(mixture + rate_mixture * losses),
        )
        assert state.model[0] == pytest.approx(w, abs=1e-6)
        np.testing.assert_allclose(state.memory[MIXTURE], mixture, atol=1e-6)
    # the negative control: with λ moved before the step of the model, the run is another
    assert abs(w - moved_first(centres, 2.0, rate_w, rate_mixture)) > 1e-3


def moved_first(centres, w, rate_w, rate_mixture):
    mixture = np.full(centres.size, 1 / centres.size)
    for _ in range(8):
        mixture = nearest_by_enumeration(mixture + rate_mixture * 0.5 * (w - centres) ** 2)
        w = w - rate_w * mixture @ (w - centres)
    return w


def test_the_average_finds_the_midpoint_of_the_extremes():
    # min over w of the largest ½(w − c)² over centres 0, 1 and 10 is at 5; the mean is 11/3
    devices = population(0.0, 1.0, 10.0, rate=0.05)
    strategy = AFL(0.002)
    state, iterates = begin(strategy, devices), []
    for _ in range(1000):
        state, _ = strategy.apply(state, cohort_of(devices))
        iterates.append(state.model[0])
    assert np.mean(iterates) == pytest.approx(5.0, abs=0.05)
    np.testing.assert_allclose(state.memory[MIXTURE].sum(), 1, atol=1e-9)


def test_only_the_cohorts_entries_move():
    everybody = population(0.0, 1.0, 4.0, 2.0)
    strategy = AFL(0.01)
    state, _ = strategy.apply(begin(strategy, everybody), cohort_of([everybody[2], everybody[1]]))
    moved = state.memory[MIXTURE]
    assert moved[[0, 3]].tolist() == [0.25, 0.25]
    # losses 8 and ½, half each before: 0.5 ± 0.01·(8 − ½)/2, in the order of the ids
    np.testing.assert_allclose(moved[[2, 1]], [0.5375, 0.4625])
    # the step is taken from half each
    assert state.model[0] == pytest.approx(0.5 * (0.5 * 4 + 0.5 * 1))


def test_the_cohorts_entries_are_projected_before_both_steps():
    devices = population(0.0, 1.0, 2.0)
    strategy = AFL(0.2)
    state = begin(strategy, devices)
    remembered = {**state.memory, MIXTURE: np.array([0.9, 0.5, 0.0])}
    state, _ = strategy.apply(replace(state, memory=remembered), cohort_of(devices))
    # q = (0.7, 0.3, 0); the losses are 0, ½ and 2, so that q + γ_λ·F = (0.7, 0.4, 0.4)
    assert state.model[0] == pytest.approx(0.3 * 0.5)
    np.testing.assert_allclose(state.memory[MIXTURE], np.array([0.7, 0.4, 0.4]) - 0.5 / 3)


def test_a_device_of_no_weight_does_not_train():
    devices = population(0.0, 4.0)
    strategy = AFL(1.0)
    state, first = strategy.apply(begin(strategy, devices), cohort_of(devices))
    _, second = strategy.apply(
        replace(state, model=np.zeros(1, dtype=np.float32)), cohort_of(devices)
    )
    assert (first.kept_devices, second.kept_devices) == (2, 1)
    assert second.train_loss == 8.0
    assert [device.num_updates for device in devices] == [1, 2]


def test_the_reported_loss_weighs_devices_by_their_samples():
    devices = [Quadratic(0, 2.0, weight=3), Quadratic(1, 4.0, weight=1)]
    strategy = AFL(0.1)
    _, report = strategy.apply(begin(strategy, devices), cohort_of(devices))
    assert report.train_loss == pytest.approx((3 * 2.0 + 1 * 8.0) / 4)


def test_afl_refuses_what_it_cannot_play():
    devices = population(0.0, 1.0)
    strategy = AFL(0.1)
    with pytest.raises(ValueError, match=r"device id 7 is not in 0\.\.1"):
        strategy.apply(begin(strategy, devices), cohort_of([Quadratic(7, 0.0)]))
    with pytest.raises(ValueError, match="cohort is empty"):
        strategy.apply(begin(strategy, devices), cohort_of([]))
    with pytest.raises(DivergenceError, match="loss of device 1"):
        strategy.apply(begin(strategy, devices), cohort_of([Quadratic(1, np.inf)]))
    for rate in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="mixture_rate"):
            AFL(rate)


def test_the_server_of_afl_sees_losses():
    assert (AFL(0.1).name, AFL(0.1).server_sees) == ("afl", Visibility.LOSSES)
