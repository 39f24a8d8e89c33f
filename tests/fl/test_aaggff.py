import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erfc
from toy_devices import Quadratic, begin, population

from deltafl.fl.errors import DivergenceError
from deltafl.fl.simplex import stationarity_gap
from deltafl.fl.strategies.aaggff import (
    DECISION,
    AAggFFDevice,
    AAggFFSilo,
    doubly_robust,
    linearised_gradient,
    newton_step,
    respond,
)
from deltafl.fl.strategies.base import Visibility
from deltafl.fl.strategies.choices import Response
from deltafl.sim.cohort.simulated import cohort_of

# --- responses -----------------------------------------------------------------------------------

TABLE_A1 = {
    "weibull": [0.05, 1.00, 0.19],
    "frechet": [0.01, 0.65, 0.11],
    "gumbel": [0.12, 0.76, 0.18],
    "exponential": [0.21, 0.90, 0.37],
    "logistic": [0.32, 0.79, 0.37],
    "normal": [0.22, 0.90, 0.29],
}
LOSSES = [0.01, 0.10, 0.02]


@pytest.mark.parametrize("response", list(Response))
def test_responses_are_those_of_table_a1(response):
    # the table cuts its digits off: 0.2951 is printed as 0.29
    np.testing.assert_allclose(respond(LOSSES, response), TABLE_A1[response], atol=0.006)


def test_the_normal_response_is_not_the_published_codes():
    # it has 1 + erfc for 1 + erf: decreasing, and above one
    z = np.array(LOSSES) / np.mean(LOSSES)
    published = 0.5 * (1 + erfc((z - 1) / math.sqrt(2)))
    np.testing.assert_allclose(published, [1.28, 0.60, 1.20], atol=0.005)
    assert not np.allclose(respond(LOSSES, Response.NORMAL), published, atol=0.1)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9), st.sampled_from(list(Response)))
def test_responses_are_bounded_and_keep_the_order(losses, response):
    responses = respond(losses, response)
    assert ((responses >= 0) & (responses <= 1)).all()
    order = np.argsort(losses, kind="stable")
    assert (np.diff(responses[order]) >= 0).all()


@pytest.mark.parametrize("response", list(Response))
def test_equal_losses_have_equal_responses_whatever_their_size(response):
    assert np.ptp(respond([0.0, 0.0], response)) == 0
    np.testing.assert_allclose(respond([0.0, 0.0], response), respond([5.0, 5.0], response))


@pytest.mark.parametrize("response", list(Response))
def test_a_loss_near_zero_has_the_least_response(response):
    low, high = respond([1e-320, 1.0], response)
    assert low == pytest.approx(respond([0.0, 1.0], response)[0], abs=1e-300)
    assert low < high


@pytest.mark.parametrize("losses", [[], [1.0, -0.5], [math.nan], [math.inf, 1.0]])
def test_losses_without_a_response_are_refused(losses):
    with pytest.raises(ValueError, match="losses"):
        respond(losses, Response.WEIBULL)


# --- AAggFF-S ------------------------------------------------------------------------------------


def responses_of_rounds(num_rounds, num_devices, seed=0):
    rng = np.random.default_rng(seed)
    lean = np.linspace(0.2, 1.0, num_devices)
    return lean * rng.uniform(size=(num_rounds, num_devices)) / num_devices


def play_newton(rows):
    """The decisions before each round and after the last, and the last memory."""
    size = rows.shape[1]
    memory = {
        "decision": np.full(size, 1 / size),
        "curvature": np.zeros((size, size)),
        "linear": np.zeros(size),
    }
    decisions = [memory["decision"]]
    for row in rows:
        memory = newton_step(row, **memory)
        decisions.append(memory["decision"])
    return np.array(decisions), memory


def gradient_of_the_paper(p, rows, decisions):
    """∇ of Σ⟨g,p⟩ + (α/2)‖p‖² + (β/2)Σ⟨g, p − p_τ⟩², term by term, α = 4 and β = K/4."""
    size = rows.shape[1]
    total = 4.0 * p
    for row, before in zip(rows, decisions, strict=True):
        g = -row / (1 + before @ row)
        total = total + g + size / 4 * g * (g @ (p - before))
    return total


def gradient_of_the_code(p, rows, decisions):
    """∇ of Σ⟨g,p⟩ + (α/2)‖p‖² + (β/2)·pᵀ(αI + Σggᵀ)p, the published code's objective."""
    size = rows.shape[1]
    total = 4.0 * p + size / 4 * 4.0 * p
    for row, before in zip(rows, decisions, strict=True):
        g = -row / (1 + before @ row)
        total = total + g + size / 4 * g * (g @ p)
    return total


@settings(max_examples=25)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 99))
def test_every_decision_is_optimal_for_the_papers_objective(num_rounds, size, seed):
    rows = responses_of_rounds(num_rounds, size, seed)
    decisions, _ = play_newton(rows)
    for t in range(1, num_rounds + 1):
        p = decisions[t]
        gradient = gradient_of_the_paper(p, rows[:t], decisions[:t])
        assert stationarity_gap(gradient, p, lower=0.0, upper=1.0) < 1e-6
        assert p.sum() == pytest.approx(1, abs=1e-9)
        assert (p >= 0).all()


def test_the_published_code_decides_differently():
    # without the cross term and with the ridge counted twice, the optimum lies elsewhere
    rows = responses_of_rounds(60, 6)
    decisions, _ = play_newton(rows)
    p = decisions[-1]
    papers = gradient_of_the_paper(p, rows, decisions[:-1])
    codes = gradient_of_the_code(p, rows, decisions[:-1])
    assert stationarity_gap(papers, p, lower=0.0, upper=1.0) < 1e-5
    assert stationarity_gap(codes, p, lower=0.0, upper=1.0) > 0.1


def test_the_first_decision_has_a_closed_form():
    # K = 2: with p = (½ + s, ½ − s) the objective is a parabola in s
    row = np.array([0.1, 0.4])
    g = -row / (1 + row.mean())
    difference = g[0] - g[1]
    s = -difference / (2 * 4.0 + 2 / 4 * difference**2)
    _, memory = play_newton(row[None])
    np.testing.assert_allclose(memory["decision"], [0.5 + s, 0.5 - s], atol=1e-7)


def test_a_round_in_the_silo_is_the_papers():
    centres = np.array([0.5, 1.0, 3.0])
    devices = population(*centres)
    strategy = AAggFFSilo(Response.EXPONENTIAL)
    state, report = strategy.apply(begin(strategy, devices), cohort_of(devices[::-1]))
    losses = 0.5 * centres**2
    responses = (1 - np.exp(-losses / losses.mean())) / 3
    decided = newton_step(responses, np.full(3, 1 / 3), np.zeros((3, 3)), np.zeros(3))["decision"]
    np.testing.assert_allclose(state.memory[DECISION], decided, atol=1e-12)
    # the new decision weighs the updates of the same round
    assert state.model[0] == pytest.approx(decided @ (centres / 2), abs=1e-6)
    assert decided @ centres != pytest.approx(centres.mean(), abs=1e-3)
    assert decided[2] > decided[1] > decided[0]
    assert (report.kept_devices, report.eta) == (3, None)


def test_the_silo_needs_everybody():
    devices = population(0.0, 1.0, 2.0)
    strategy = AAggFFSilo(Response.NORMAL)
    with pytest.raises(ValueError, match=r"cohort of 2: AAggFF-S plays with all 3 .* AAggFF-D"):
        strategy.apply(begin(strategy, devices), cohort_of(devices[:2]))
    with pytest.raises(DivergenceError, match="loss of device 0"):
        strategy.apply(begin(strategy, devices), cohort_of([Quadratic(0, np.nan), *devices[1:]]))


# --- AAggFF-D ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_the_doubly_robust_estimate_is_unbiased_up_to_a_known_factor(size):
    # over all cohorts; the imputed mean is of the same cohort, which shrinks the differences
    truth = np.array([0.1, 0.5, 0.2, 0.9, 0.3])
    cohorts = [list(ids) for ids in combinations(range(5), size)]
    expected = np.mean([doubly_robust(truth[ids], ids, 5) for ids in cohorts], axis=0)
    factor = (1 - 1 / size) * 5 / 4
    np.testing.assert_allclose(expected, truth.mean() + factor * (truth - truth.mean()))


def test_with_a_fixed_imputation_the_estimate_has_no_bias_at_all():
    # Lemma 4.3 takes the imputed value as given; then the 1/C undoes the chance to be drawn
    truth, mean = np.array([0.1, 0.5, 0.2, 0.9, 0.3]), 0.4
    estimates = [
        [mean + 2.5 * (r - mean) * (k in pair) for k, r in enumerate(truth)]
        for pair in combinations(range(5), 2)
    ]
    np.testing.assert_allclose(np.mean(estimates, axis=0), truth)


def test_selected_devices_keep_the_imputed_mean():
    # the published code has (1/C)·(r − r̄) alone for them, which may be below zero
    estimate = doubly_robust(np.array([0.2, 0.4]), [3, 0], 4)
    np.testing.assert_allclose(estimate, [0.5, 0.3, 0.3, 0.1])
    published = np.array([0.2, 0.3, 0.3, -0.2])
    assert np.abs(estimate - published).max() > 0.2


def test_everybody_there_needs_no_estimate():
    observed = np.array([0.3, 0.1, 0.8])
    np.testing.assert_allclose(doubly_robust(observed, [0, 1, 2], 3), observed)


def test_the_linearised_gradient_touches_the_true_one():
    rng = np.random.default_rng(0)
    p, r0 = rng.dirichlet(np.ones(4)), 0.3

    def true_gradient(r):
        return -r / (1 + p @ r)

    direction, h = rng.normal(size=4), 1e-5
    at = [linearised_gradient(p, r0 + k * h * direction, r0) for k in (0, 1, 2)]
    np.testing.assert_allclose(at[0], true_gradient(np.full(4, r0)), atol=1e-12)
    # the slope at r₀ is the true one, and the same everywhere
    slope = (true_gradient(r0 + h * direction) - true_gradient(r0 - h * direction)) / (2 * h)
    np.testing.assert_allclose((at[1] - at[0]) / h, slope, atol=1e-8)
    np.testing.assert_allclose((at[2] - at[1]) / h, slope, atol=1e-8)


def test_rounds_on_devices_are_the_papers():
    centres = np.array([0.5, 1.0, 3.0, 2.0, 0.25])
    devices, size = population(*centres), 5
    strategy = AAggFFDevice(Response.LOGISTIC)
    state = begin(strategy, devices)
    assert state.memory[DECISION].tolist() == [0.2] * 5  # the published code starts from C each
    w, p, total = 0.0, np.full(size, 0.2), np.zeros(size)
    for t, ids in enumerate([[4, 2], [0, 1], [2, 3]], start=1):
        state, _ = strategy.apply(state, cohort_of([devices[k] for k in ids]))
        losses, share = 0.5 * (w - centres[ids]) ** 2, 2 / 5
        r = share / (1 + np.exp(-(losses / losses.mean() - 1)))
        mean = r.mean()
        estimate = np.full(size, mean)
        for k, value in zip(ids, r, strict=True):
            estimate[k] = mean + (value - mean) / share
        r0 = np.full(size, mean)
        total = total + (-estimate / (1 + p @ r0) + r0 * (p @ (estimate - r0)) / (1 + p @ r0) ** 2)
        raw = np.exp(-total * math.sqrt(math.log(size)) / ((2 + share) * math.sqrt(t + 1)))
        p = raw / raw.sum()
        w += p[ids] / p[ids].sum() @ (centres[ids] - w) / 2
        np.testing.assert_allclose(state.memory[DECISION], p, atol=1e-6)
        assert state.model[0] == pytest.approx(w, abs=1e-5)


def test_a_single_device_is_all_of_the_mixture():
    devices = population(2.0)
    for strategy in (AAggFFSilo(Response.GUMBEL), AAggFFDevice(Response.GUMBEL)):
        state, _ = strategy.apply(begin(strategy, devices), cohort_of(devices))
        assert state.model.tolist() == [1.0]


def test_worse_devices_come_to_weigh_more():
    devices = population(0.0, 0.1, 0.2, 4.0)
    for strategy in (AAggFFSilo(Response.WEIBULL), AAggFFDevice(Response.WEIBULL)):
        state = begin(strategy, devices)
        for _ in range(60):
            state, _ = strategy.apply(state, cohort_of(devices))
        assert state.memory[DECISION].argmax() == 3
        assert state.model[0] > np.mean([0.0, 0.1, 0.2, 4.0])


def test_impossible_cohorts_are_refused_on_devices():
    strategy = AAggFFDevice(Response.NORMAL)
    state = begin(strategy, population(0.0, 1.0))
    with pytest.raises(ValueError, match=r"device id 2 is not in 0\.\.1"):
        strategy.apply(state, cohort_of([Quadratic(2, 0.0)]))
    with pytest.raises(ValueError, match="cohort is empty"):
        strategy.apply(state, cohort_of([]))


def test_the_server_of_aaggff_sees_losses():
    strategies = (AAggFFSilo(Response.NORMAL), AAggFFDevice(Response.NORMAL))
    assert [(s.name, s.server_sees) for s in strategies] == [
        ("aaggff-s", Visibility.LOSSES),
        ("aaggff-d", Visibility.LOSSES),
    ]
