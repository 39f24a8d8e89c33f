from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from deltafl.fl.smoothing import (
    smooth_positive_part,
    smooth_step,
    smoothed_objective,
    smoothed_quantile,
    smoothed_superquantile,
    smoothed_weights,
)
from deltafl.fl.superquantile import superquantile, weighted_quantile

few = settings(max_examples=40)

# eighths and halves are exact in binary, so ties and sums that meet 1 − θ do occur
losses = st.integers(-16, 16).map(lambda k: k / 8)
samples = st.lists(st.tuples(losses, st.integers(1, 9)), min_size=1, max_size=9).map(
    lambda pairs: ([loss for loss, _ in pairs], [weight for _, weight in pairs])
)
thetas = st.sampled_from([Fraction(1, 10), Fraction(1, 3), Fraction(1, 2), Fraction(9, 10)])
nus = st.sampled_from([2**-10, 0.125, 0.5, 3.0])


@few
@given(st.floats(-10, 10), nus)
def test_the_smoothing_is_within_half_of_nu(rho, nu):
    gap = smooth_positive_part(np.array([rho]), nu)[0] - max(rho, 0)
    assert -1e-12 <= gap <= nu / 2 + 1e-12


@few
@given(st.floats(-10, 10), nus)
def test_the_smoothing_is_the_maximum_of_its_dual_form(rho, nu):
    # equation (10): max over γ in [0, 1] of ργ − νγ²/2, plus ν/2, reached at γ = g′
    gamma = np.linspace(0, 1, 101)
    value, slope = (f(np.array([rho]), nu)[0] for f in (smooth_positive_part, smooth_step))
    assert (rho * gamma - nu * gamma**2 / 2 + nu / 2 <= value + 1e-9).all()
    assert rho * slope - nu * slope**2 / 2 + nu / 2 == pytest.approx(value, abs=1e-9)


def test_the_pieces_meet():
    nu = 0.5
    at = np.array([-1.0, 0.0, 0.25, 0.5, 2.0])
    np.testing.assert_array_equal(
        smooth_positive_part(at, nu), [0.25, 0.25, 0.25 + 0.0625, 0.5, 2.0]
    )
    np.testing.assert_array_equal(smooth_step(at, nu), [0.0, 0.0, 0.5, 1.0, 1.0])


@few
@given(st.floats(-2, 2), nus)
def test_the_step_is_the_derivative(rho, nu):
    h = 1e-6 * nu
    up, down = (smooth_positive_part(np.array([rho + d]), nu)[0] for d in (h, -h))
    assert (up - down) / (2 * h) == pytest.approx(smooth_step(np.array([rho]), nu)[0], abs=1e-4)


def derivative(sample, theta, nu, eta):
    """∂F̄/∂η = 1 − Σ α_k g′(F_k − η)/θ, written out."""
    values, weights = (np.array(row, dtype=float) for row in sample)
    inside = np.clip((values - eta) / nu, 0, 1)
    return 1 - weights @ inside / weights.sum() / float(theta)


@few
@given(samples, thetas, nus)
def test_the_minimisers_are_the_interval(sample, theta, nu):
    low, high = smoothed_quantile(*sample, theta, nu)
    assert low <= high
    for eta in (low, (low + high) / 2, high):
        assert derivative(sample, theta, nu, eta) == pytest.approx(0, abs=1e-9)
    # and no more than the interval
    assert derivative(sample, theta, nu, low - 1e-3 * nu) < 0
    assert derivative(sample, theta, nu, high + 1e-3 * nu) > 0


@few
@given(samples, thetas, nus)
def test_no_numerical_search_finds_better(sample, theta, nu):
    bounds = (min(sample[0]) - nu, max(sample[0]) + nu)
    found = minimize_scalar(
        lambda eta: smoothed_objective(*sample, theta, nu, eta), bounds=bounds, method="bounded"
    )
    best = smoothed_superquantile(*sample, theta, nu)
    assert best <= found.fun + 1e-12
    assert found.fun == pytest.approx(best, abs=1e-6)


@pytest.mark.slow
@few
@given(samples, thetas, nus)
def test_the_closed_form_holds_where_gaps_exceed_nu(sample, theta, nu):
    # Property 9's special case, with weights that are strictly positive
    values, weights = np.array(sample[0]), np.array(sample[1])
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    assume(values.size == 1 or np.diff(values).min() > nu)
    alpha = [Fraction(int(w), int(weights.sum())) for w in weights]
    j = next(j for j in range(values.size) if sum(alpha[: j + 1]) >= 1 - theta)
    overshoot = sum(alpha[: j + 1]) - (1 - theta)
    eta = values[j] - float(nu * overshoot / alpha[j])
    low, high = smoothed_quantile(*sample, theta, nu)
    assert low == pytest.approx(eta, abs=1e-12)
    # a whole interval is optimal just where the weights meet 1 − θ
    assert (high > low) == (overshoot == 0 and j + 1 < values.size)


def test_an_interval_of_minimisers():
    # half of the weight is at 1, half at 3: flat from 1 to 3 − ν
    assert smoothed_quantile([1.0, 3.0], [2, 2], Fraction(1, 2), 0.5) == (1.0, 2.5)
    # the negative control: one more sample, and it is a point
    low, high = smoothed_quantile([1.0, 3.0], [3, 2], Fraction(1, 2), 0.5)
    assert low == high < 1.0


def test_overlapping_pieces_are_interpolated():
    # both losses are in their quadratic piece at the optimum: ½(1 − η)/2 + ½(2 − η)/2 = ½
    assert smoothed_quantile([1.0, 2.0], [1, 1], Fraction(1, 2), 2.0) == (0.5, 0.5)


@few
@given(samples, thetas)
def test_as_nu_falls_the_quantile_and_superquantile_remain(sample, theta):
    low, _ = smoothed_quantile(*sample, theta, 2.0**-30)
    assert low == pytest.approx(weighted_quantile(*sample, theta), abs=1e-8)
    assert smoothed_superquantile(*sample, theta, 2.0**-30) == pytest.approx(
        superquantile(*sample, theta), abs=1e-8
    )


@few
@given(samples, thetas, nus)
def test_the_smoothed_superquantile_is_above_by_at_most_delta(sample, theta, nu):
    gap = smoothed_superquantile(*sample, theta, nu) - superquantile(*sample, theta)
    assert -1e-9 <= gap <= nu / (2 * float(theta)) + 1e-9


@few
@given(samples, thetas, nus)
def test_the_weights_are_a_mixture_of_the_conformity(sample, theta, nu):
    eta, _ = smoothed_quantile(*sample, theta, nu)
    mixture = smoothed_weights(*sample, theta, nu, eta)
    alpha = np.array(sample[1]) / sum(sample[1])
    assert mixture.sum() == pytest.approx(1, abs=1e-9)
    assert ((mixture >= 0) & (mixture <= alpha / float(theta) + 1e-12)).all()


@few
@given(samples, thetas, nus, st.floats(-3, 3))
def test_the_weights_are_the_gradient_in_the_losses(sample, theta, nu, eta):
    values, weights = sample
    mixture, h = smoothed_weights(values, weights, theta, nu, eta), 1e-6 * nu
    for k in range(len(values)):
        up, down = (
            smoothed_objective(
                np.array(values) + d * np.eye(len(values))[k], weights, theta, nu, eta
            )
            for d in (h, -h)
        )
        assert (up - down) / (2 * h) == pytest.approx(mixture[k], abs=1e-4)


@pytest.mark.parametrize("theta", [Fraction(0), Fraction(1), Fraction(3, 2)])
def test_a_theta_without_a_tail_is_refused(theta):
    with pytest.raises(ValueError, match=r"theta=.* is not in \(0, 1\)"):
        smoothed_quantile([1.0], [1], theta, 0.5)


@pytest.mark.parametrize("nu", [0.0, -1.0, float("nan"), float("inf")])
def test_a_nu_that_is_not_positive_is_refused(nu):
    for compute in (
        lambda: smoothed_quantile([1.0], [1], Fraction(1, 2), nu),
        lambda: smooth_positive_part(np.zeros(1), nu),
        lambda: smooth_step(np.zeros(1), nu),
    ):
        with pytest.raises(ValueError, match="nu="):
            compute()
