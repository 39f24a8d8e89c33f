"""Geometric medians of updates, against Weiszfeld's algorithm as the paper has it."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from deltafl.fl.strategies.aggregation import step_by_mean
from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.geometric_median import (
    SMOOTHING,
    Robustly,
    factor,
    next_smoothing,
    robust_step,
)

WHOLE = 2**16
numbers = st.floats(-4, 4, width=32)
vectors = arrays(np.float32, 5, elements=numbers)
smoothings = st.floats(1e-6, 1e3)
dyadic = arrays(np.int64, 5, elements=st.integers(-(2**10), 2**10)).map(
    lambda whole: (whole / 2**8).astype(np.float32)
)
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
    eight, share = robust_step(zero, both, 8, 0.3)
    assert np.linalg.norm(mean - honest) > 10
    assert np.linalg.norm(three - honest) < 1.5
    assert np.linalg.norm(eight - honest) < 0.5
    assert 0.25 < share < 0.9


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_what_all_say_is_what_comes_out(seed, smoothing):
    weights, updates = drawn(seed, num_devices=4)
    updates[:] = updates[0]
    found, share = robust_step(START, contributions(weights, updates), 3, smoothing)
    assert np.allclose(found, START + updates[0], atol=1e-6)
    assert share == 1.0


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
    mean_factor, smoothing = 0.0, 1.0
    for index in range(12):
        each = contributions(*drawn(index, num_devices=30, spread=scale))
        _, mean_factor = robust_step(START, each, 3, smoothing)
        _, learnt = robustly.step(state, each)
        state, smoothing = TrainingState(START, memory=learnt), float(learnt[SMOOTHING][0])
    assert 0.3 < mean_factor < 0.7
    assert scale / 4 < state.memory[SMOOTHING][0] < 4 * scale


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


# --- factors


@given(vectors, vectors, smoothings)
def test_it_is_the_share_of_the_smoothing_in_the_distance_within_its_limits(update, centre, nu):
    """The exact distance lies within 2^-40 of the one of float64, which may move a half by one."""
    squared = sum(
        (Fraction(float(u)) - Fraction(float(v))) ** 2 for u, v in zip(update, centre, strict=True)
    )
    exact = WHOLE * nu / max(nu, math.sqrt(squared))
    found = factor(update, centre, nu)
    assert type(found) is int
    assert abs(found - min(max(exact, 1), WHOLE)) <= 0.5 + 1e-9
    assert 1 <= found <= WHOLE


@pytest.mark.slow
@given(vectors, vectors, vectors, smoothings)
def test_who_is_farther_away_counts_no_more(one, other, centre, nu):
    near, far = sorted(
        (one, other), key=lambda update: float(np.sum((update.astype(float) - centre) ** 2))
    )
    assert factor(far, centre, nu) <= factor(near, centre, nu)


@pytest.mark.slow
@given(dyadic, dyadic, dyadic, smoothings)
def test_it_depends_on_the_difference_alone(update, centre, shift, nu):
    assert factor(update + shift, centre + shift, nu) == factor(update, centre, nu)


@pytest.mark.slow
@given(vectors, vectors, st.integers(-20, 20))
def test_it_has_no_unit(update, centre, power):
    scale = np.float32(2.0**power)
    assume(np.all((np.abs(update) > 1e-20) | (update == 0)))
    assume(np.all((np.abs(centre) > 1e-20) | (centre == 0)))
    assert factor(scale * update, scale * centre, 2.0**power) == factor(update, centre, 1.0)


@pytest.mark.parametrize("nu", [5e-324, 1e-300, 1.0, 1e300, 1.7e308])
@pytest.mark.parametrize("far", [0.0, 1.0, 3e38, 1e300])
def test_extremes_do_not_overflow(nu, far):
    """Distances up to 2·10^300·√2, whose squares are beyond a float64."""
    update = np.array([far, far])
    found = factor(update, -update, nu)
    assert 1 <= found <= WHOLE
    assert found == (WHOLE if 2 * math.sqrt(2) * far <= nu and far < 1e150 else found)


def test_nobody_vanishes_and_nobody_counts_more_than_in_full():
    zeros = np.zeros(3, dtype=np.float32)
    assert factor(zeros, zeros, 1e-3) == WHOLE
    assert factor(zeros + 1, zeros, 1e-9) == 1
