from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, minimize

from deltafl.fl.errors import DivergenceError
from deltafl.fl.simplex import minimise_quadratic, stationarity_gap
from deltafl.fl.strategies.base import Visibility
from deltafl.fl.strategies.fedmgda import FedMGDA, inner_products
from deltafl.sim.cohort.simulated import cohort_of


@dataclass
class Fixed:
    """A device whose update is given."""

    id: int
    delta: tuple[float, ...]
    weight: int = 1

    def loss(self, _model):
        raise AssertionError("FedMGDA+ asks for no losses")

    def update(self, _model):
        return np.array(self.delta, dtype=np.float32)


def play(epsilon, *deltas):
    devices = [Fixed(k, delta) for k, delta in enumerate(deltas)]
    strategy = FedMGDA(epsilon)
    start = strategy.init(np.zeros(len(deltas[0]), dtype=np.float32), len(deltas))
    state, report = strategy.apply(start, cohort_of(devices))
    return state.model, report


def normalised(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_two_directions_have_a_closed_form():
    # g1 = (1, 0) and g2 = (0, 1): half each; and for any two unit vectors alike
    np.testing.assert_allclose(play(1.0, (3.0, 0.0), (0.0, 0.2))[0], [0.5, 0.5], atol=1e-7)
    model, _ = play(1.0, (5.0, 0.0), (3.0, 4.0))
    np.testing.assert_allclose(model, [0.8, 0.4], atol=1e-7)


def test_the_length_of_an_update_does_not_count():
    short, _ = play(0.5, (1.0, 2.0), (-3.0, 1.0), (0.5, 0.1))
    long, _ = play(0.5, (100.0, 200.0), (-0.03, 0.01), (0.5, 0.1))
    np.testing.assert_allclose(short, long, atol=1e-6)


def test_a_step_is_the_papers():
    rows = np.random.default_rng(3).normal(size=(4, 6))
    model, _ = play(0.3, *map(tuple, rows))
    unit = normalised(rows)
    # an independent solver, in λ with the last weight eliminated
    solved = minimize(
        lambda x: np.sum((np.append(x, 1 - x.sum()) @ unit) ** 2),
        np.full(3, 0.25),
        method="trust-constr",
        bounds=[(0, 0.55)] * 3,
        constraints=LinearConstraint(np.ones((1, 3)), 0.45, 1.0),
        options={"gtol": 1e-10, "xtol": 1e-12},
    )
    np.testing.assert_allclose(model, np.append(solved.x, 1 - solved.x.sum()) @ unit, atol=1e-5)


def test_long_updates_are_multiplied_in_blocks():
    rows = np.random.default_rng(4).normal(size=(2, 70_000)).astype(np.float32)
    exact = rows.astype(np.float64) @ rows.astype(np.float64).T
    np.testing.assert_allclose(inner_products(list(rows)), exact, rtol=1e-12)


def test_opposite_directions_cancel():
    model, _ = play(1.0, (1.0, 0.0), (-2.0, 0.0))
    np.testing.assert_allclose(model, [0.0, 0.0], atol=1e-7)


def test_epsilon_zero_is_the_mean_of_the_directions():
    rows = np.random.default_rng(0).normal(size=(5, 4))
    model, report = play(0.0, *map(tuple, rows))
    np.testing.assert_allclose(model, normalised(rows).mean(0), atol=1e-6)
    assert (report.kept_devices, report.train_loss) == (5, None)


def test_an_update_of_zero_stays_zero():
    # it is the shortest point of the hull by itself; an ε keeps some weight on the other
    np.testing.assert_allclose(play(1.0, (0.0, 0.0), (3.0, 4.0))[0], [0.0, 0.0], atol=1e-7)
    np.testing.assert_allclose(play(0.25, (0.0, 0.0), (3.0, 4.0))[0], [0.15, 0.2], atol=1e-7)
    assert play(1.0, (0.0, 0.0), (0.0, 0.0))[0].tolist() == [0.0, 0.0]


def test_without_a_limit_no_device_is_worse_off_to_first_order():
    rows = np.random.default_rng(1).normal(size=(8, 20)) + 0.5
    model, _ = play(1.0, *map(tuple, rows))
    # at the minimum-norm point of the hull, ⟨ĝ_k, step⟩ ≥ ‖step‖² for every k
    assert (normalised(rows) @ model >= model @ model - 1e-6).all()
    mean = normalised(rows)[:1].mean(0)
    assert not (normalised(rows) @ mean >= mean @ mean - 1e-6).all()


def least_over_the_limits(gradient, lower, upper):
    """min ⟨gradient, x⟩ over the same set: fill the cheapest coordinates first."""
    x, room = np.full(gradient.size, float(lower)), 1 - lower * gradient.size
    for k in np.argsort(gradient):
        x[k] += min(upper - lower, room)
        room -= min(upper - lower, room)
    return gradient @ x


@settings(max_examples=40)
@given(
    m=st.integers(1, 12), rank=st.integers(1, 12), epsilon=st.floats(0, 1), seed=st.integers(0, 999)
)
def test_the_mixture_is_optimal_and_within_its_limits(m, rank, epsilon, seed):
    directions = normalised(np.random.default_rng(seed).normal(size=(m, rank)))
    mixture = FedMGDA(epsilon).mix(directions @ directions.T)
    assert mixture.sum() == pytest.approx(1, abs=1e-9)
    assert (np.abs(mixture - 1 / m) <= epsilon + 1e-12).all()
    assert (mixture >= 0).all()
    # for a convex function ⟨∇, x⟩ − min ⟨∇, ·⟩ bounds how far x is from the minimum
    gradient = 2 * directions @ (mixture @ directions)
    lower, upper = max(0, 1 / m - epsilon), min(1, 1 / m + epsilon)
    assert gradient @ mixture - least_over_the_limits(gradient, lower, upper) <= 1e-6


def test_a_hundred_devices_are_solved_to_optimality():
    rng = np.random.default_rng(2)
    directions = normalised(rng.normal(size=(100, 50)) + rng.normal(size=50))
    matrix = directions @ directions.T
    x = minimise_quadratic(matrix, np.zeros(100), upper=0.11)
    assert stationarity_gap(matrix @ x, x, lower=0.0, upper=0.11) < 1e-7
    # the negative control: the equal mixture is not optimal
    equal = np.full(100, 0.01)
    assert stationarity_gap(matrix @ equal, equal, lower=0.0, upper=0.11) > 0.01


def solve_by_enumeration(matrix, linear):
    """Try every support: on it a linear system has the stationary point."""
    m, best, value = linear.size, None, np.inf
    for mask in range(1, 2**m):
        support = [k for k in range(m) if mask >> k & 1]
        size = len(support)
        system = np.ones((size + 1, size + 1))
        system[:size, :size], system[size, size] = matrix[np.ix_(support, support)], 0
        solved = np.linalg.solve(system, np.append(-linear[support], 1.0))
        x = np.zeros(m)
        x[support] = solved[:size]
        if (x >= 0).all() and 0.5 * x @ matrix @ x + linear @ x < value:
            best, value = x, 0.5 * x @ matrix @ x + linear @ x
    return best


@pytest.mark.slow
@settings(max_examples=40)
@given(m=st.integers(1, 5), scale=st.sampled_from([1e-6, 1.0, 1e6]), seed=st.integers(0, 999))
def test_the_quadratic_programme_finds_what_enumeration_finds(m, scale, seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(m, m))
    matrix, linear = scale * (root @ root.T + 0.1 * np.eye(m)), scale * rng.normal(size=m)
    expected = solve_by_enumeration(matrix, linear)
    np.testing.assert_allclose(minimise_quadratic(matrix, linear), expected, atol=1e-6)


def test_impossible_programmes_are_refused():
    with pytest.raises(ValueError, match="leave no point"):
        minimise_quadratic(np.eye(3), np.zeros(3), upper=0.3)
    with pytest.raises(ValueError, match=r"pass \[m, m\]"):
        minimise_quadratic(np.eye(3), np.zeros(2))
    with pytest.raises(ArithmeticError, match="not finite"):
        minimise_quadratic(np.eye(2), np.array([np.nan, 0.0]))


def test_fedmgda_refuses_what_it_cannot_play():
    with pytest.raises(DivergenceError, match="update of device 1"):
        play(0.5, (1.0,), (np.nan,))
    for epsilon in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match="epsilon"):
            FedMGDA(epsilon)


def test_the_server_of_fedmgda_sees_updates():
    assert (FedMGDA(0.5).name, FedMGDA(0.5).server_sees) == ("fedmgda", Visibility.UPDATES)
