"""Geometric medians of updates, against Weiszfeld's algorithm as the paper has it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from deltafl.fl.strategies.aggregation import step_by_mean
from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.geometric_median import SMOOTHING, Robustly, next_smoothing, robust_step

START = np.array([0.5, -1.0, 2.0], dtype=np.float32)


def drawn(seed, num_devices=9, size=3, spread=0.3):
    rng = np.random.default_rng(seed)
    updates = rng.normal(0.0, spread, (num_devices, size)).astype(np.float32)
    return rng.integers(1, 60, num_devices), updates


def smoothed_weiszfeld(weights, updates, passes, smoothing):
    """Algorithm 2 of the paper, in float64: α_k / max(ν, ‖v − w_k‖), normalised."""
    shares = weights / weights.sum()
    exact = updates.astype(np.float64)
    centre = shares @ exact
    for _ in range(passes - 1):
        factors = shares / np.maximum(smoothing, np.linalg.norm(exact - centre, axis=1))
        centre = factors @ exact / factors.sum()
    return centre


def contributions(weights, updates):
    return [(int(weight), update) for weight, update in zip(weights, updates, strict=True)]


@pytest.mark.parametrize("passes", [2, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_a_step_is_that_of_the_paper_up_to_the_rounding_of_factors(seed, passes):
    weights, updates = drawn(seed)
    found, _ = robust_step(START, contributions(weights, updates), passes, 0.4)
    wanted = START + smoothed_weiszfeld(weights, updates, passes, 0.4)
    # Factors are in 2^-16ths, here all above 2^-3: each is off by at most 2^-14 of itself, which
    # moves a mean by at most so much of the largest distance; a pass does not make it worse.
    widest = np.linalg.norm(updates[:, None] - updates[None], axis=2).max()
    assert np.linalg.norm(found - wanted) < widest * 2**-14
    mean = START + smoothed_weiszfeld(weights, updates, 1, 0.4)
    assert np.linalg.norm(found - mean) > np.linalg.norm(found - wanted)


def test_many_passes_find_the_geometric_median():
    weights, updates = drawn(7, num_devices=15)
    smoothing = 0.1
    found, _ = robust_step(np.zeros(3, np.float32), contributions(weights, updates), 200, smoothing)

    def smoothed_distance(point):
        apart = np.linalg.norm(updates - point, axis=1)
        near = apart**2 / (2 * smoothing) + smoothing / 2
        return weights @ np.where(apart > smoothing, apart, near)

    best = minimize(smoothed_distance, np.zeros(3), method="Nelder-Mead", tol=1e-10)
    assert smoothed_distance(found) < best.fun * (1 + 1e-5)
    assert smoothed_distance(updates.T @ weights / weights.sum()) > best.fun * (1 + 1e-3)


def test_liars_move_the_mean_and_not_the_median():
    weights, updates = drawn(3, num_devices=20)
    honest = smoothed_weiszfeld(weights[4:], updates[4:], 1, 1.0)
    updates[:4] = 50.0
    both = contributions(weights, updates)
    zero = np.zeros(3, np.float32)
    mean = step_by_mean(zero, ((weight, 1.0, update) for weight, update in both))
    three, _ = robust_step(zero, both, 3, 0.3)
    eight, factor = robust_step(zero, both, 8, 0.3)
    assert np.linalg.norm(mean - honest) > 10
    assert np.linalg.norm(three - honest) < 1.5
    assert np.linalg.norm(eight - honest) < 0.5
    assert 0.25 < factor < 0.9


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_what_all_say_is_what_comes_out(seed, smoothing):
    weights, updates = drawn(seed, num_devices=4)
    updates[:] = updates[0]
    found, factor = robust_step(START, contributions(weights, updates), 3, smoothing)
    assert np.allclose(found, START + updates[0], atol=1e-6)
    assert factor == 1.0


def test_devices_without_weight_do_not_count():
    weights, updates = drawn(5)
    weights[2], updates[2] = 0, 1e30
    others = [one for one in contributions(weights, updates) if one[0]]
    with_it, _ = robust_step(START, contributions(weights, updates), 3, 0.3)
    without, _ = robust_step(START, others, 3, 0.3)
    assert with_it.tobytes() == without.tobytes()
    with pytest.raises(ValueError, match="at least one must be positive"):
        robust_step(START, [(0, updates[0])], 3, 0.3)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_the_smoothing_comes_to_the_size_of_the_distances(scale):
    robustly, state = Robustly(passes=3, smoothing=1.0), TrainingState(START)
    factor = 0.0
    for index in range(12):
        weights, updates = drawn(index, num_devices=30, spread=scale)
        smoothing = robustly.smoothing_of(state)
        _, factor = robust_step(START, contributions(weights, updates), 3, smoothing)
        state = TrainingState(START, memory=robustly.learnt(smoothing, factor))
    assert 0.3 < factor < 0.7
    assert scale / 4 < state.memory[SMOOTHING][0] < 4 * scale


def test_a_round_without_a_second_pass_leaves_the_smoothing():
    robustly = Robustly(3, 0.25)
    assert robustly.learnt(0.125, None)[SMOOTHING].tolist() == [0.125]


@given(st.floats(2.0**-40, 2.0**40), st.floats(2.0**-16, 1.0))
def test_the_smoothing_stays_a_positive_number(smoothing, factor):
    after = next_smoothing(smoothing, factor)
    assert 2.0**-40 <= after <= 2.0**40
    assert math.isfinite(after)


def test_what_is_no_robust_mean_is_refused():
    with pytest.raises(ValueError, match="passes=1 is not at least 2"):
        Robustly(passes=1)
    for smoothing in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="smoothing="):
            Robustly(smoothing=smoothing)
