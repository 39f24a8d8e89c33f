"""Strategies that are one weighted mean, against formulas written out, and in closed form."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from toy_devices import GAMMA, constant_rate

from deltafl.fl.errors import DivergenceError
from deltafl.fl.objectives import PLAIN
from deltafl.fl.schedule import StepDecay
from deltafl.fl.strategies.base import TrainingState, Visibility
from deltafl.fl.strategies.choices import DeviceWeights
from deltafl.fl.strategies.fedavg import FedAvg, FedProx, PropFair
from deltafl.fl.strategies.q_ffl import LOSS_GUARD, QFFL
from deltafl.fl.strategies.tilted_erm import TiltedERM
from deltafl.fl.strategies.weighted_mean import Share, relative_weights
from deltafl.sim.cohort.simulated import cohort_of

START = np.array([0.5, -1.0], dtype=np.float32)


@dataclass
class Quadratic:
    """F(w) = ½·h·‖w − c‖² + offset, and one exact gradient step of size γ on what it is asked."""

    id: int
    weight: int
    centre: float
    curvature: float = 1.0
    offset: float = 0.0
    num_losses: int = 0
    num_updates: int = 0

    def loss(self, model):
        self.num_losses += 1
        return self._loss(model)

    def _loss(self, model):
        distance = model.astype(np.float64) - self.centre
        return float(0.5 * self.curvature * distance @ distance) + self.offset

    def update(self, model, objective=PLAIN):
        self.num_updates += 1
        gradient = self.curvature * (model.astype(np.float64) - self.centre)
        if objective.ceiling is not None:
            gradient = gradient / (objective.ceiling - self._loss(model))
        return (-GAMMA * gradient).astype(np.float32)


class Minimiser(Quadratic):
    """Goes all the way to the minimum of ½·h·‖w − c‖² + (μ/2)·‖w − w_t‖²."""

    def update(self, model, objective=PLAIN):
        pull = self.curvature + objective.proximal
        return (self.curvature / pull * (self.centre - model)).astype(np.float32)


def cohort(*pairs, kind=Quadratic, **settings):
    return [kind(k, n, centre, **settings) for k, (n, centre) in enumerate(pairs)]


def play(strategy, devices, model=START):
    state, report = strategy.apply(TrainingState(model), cohort_of(devices))
    return state.model, report


def parts(devices, model=START):
    """n, F and Δ of every device."""
    return (
        np.array([device.weight for device in devices], dtype=np.float64),
        np.array([replace(device).loss(model) for device in devices]),
        np.array([replace(device).update(model) for device in devices], dtype=np.float64),
    )


def of_fedavg(devices):
    n, _, delta = parts(devices)
    return n @ delta / n.sum()


def of_propfair(devices):
    n, loss, delta = parts(devices)
    return n @ (delta / (30 - loss)[:, None]) / n.sum()


def of_q_ffl(devices, q=2.5, prior=None, square=2):
    """As Algorithm 2 of q-FFL has it: powers in numerator and denominator."""
    n, loss, delta = parts(devices)
    prior = np.ones_like(n) if prior is None else prior
    loss, lipschitz = loss + LOSS_GUARD, 1 / GAMMA
    gradients = -lipschitz * delta
    norms = np.linalg.norm(gradients, axis=1) ** square
    h = q * loss ** (q - 1) * norms + lipschitz * loss**q
    return -(prior * loss**q) @ gradients / (prior @ h)


def of_tilted_erm(devices, prior=None):
    n, loss, delta = parts(devices)
    prior = np.ones_like(n) if prior is None else prior
    powers = prior * np.exp(1.5 * loss)
    return powers @ delta / powers.sum()


def samples_of(devices):
    return np.array([device.weight for device in devices], dtype=np.float64)


FORMULAS = [
    (FedAvg(), of_fedavg),
    (FedProx(0.7), of_fedavg),  # one step from w_t feels no pull back to it
    (PropFair(30.0), of_propfair),
    (QFFL(2.5, constant_rate), of_q_ffl),
    (
        QFFL(2.5, constant_rate, DeviceWeights.SAMPLES),
        lambda devices: of_q_ffl(devices, prior=samples_of(devices)),
    ),
    (TiltedERM(1.5), of_tilted_erm),
    (
        TiltedERM(1.5, DeviceWeights.SAMPLES),
        lambda devices: of_tilted_erm(devices, prior=samples_of(devices)),
    ),
]

cohorts = st.lists(
    st.tuples(st.integers(1, 9), st.integers(-16, 16).map(lambda k: k / 8)), min_size=1, max_size=8
)


@pytest.mark.parametrize(("strategy", "formula"), FORMULAS)
@given(pairs=cohorts)
@settings(max_examples=40)
def test_a_round_is_the_formula(strategy, formula, pairs):
    model, report = play(strategy, cohort(*pairs))
    np.testing.assert_allclose(model - START, formula(cohort(*pairs)), rtol=1e-4, atol=1e-6)
    assert report.kept_weight == sum(n for n, _ in pairs)
    assert (report.kept_devices, report.secure_sums, report.empty) == (len(pairs), 1, False)


def test_the_formulas_can_tell_the_strategies_apart():
    devices = cohort((1, 1.0), (4, -0.5), (2, 1.2))
    steps = [formula(devices) for _, formula in FORMULAS[1:]]
    for k, step in enumerate(steps):
        for other in steps[k + 1 :]:
            assert not np.allclose(step, other, rtol=1e-3)


@given(cohorts)
@settings(max_examples=40)
def test_no_pull_is_fedavg_bit_for_bit(pairs):
    plain, _ = play(FedAvg(), cohort(*pairs))
    np.testing.assert_array_equal(play(FedProx(0.0), cohort(*pairs))[0], plain)


@pytest.mark.parametrize("pull", [0.0, 0.5, 50.0])
def test_fedprox_settles_where_the_pulled_minimisers_balance(pull):
    # Σ n·h/(h + μ)·(c − w) = 0: without a pull the mean of the centres, with a strong one the
    # minimum of the mean loss
    n, h, c = np.array([1, 3]), np.array([4.0, 1.0]), np.array([1.0, -1.0])
    devices = [Minimiser(k, int(n[k]), c[k], h[k]) for k in range(2)]
    state = TrainingState(START)
    for _ in range(400):
        state, _ = FedProx(pull).apply(state, cohort_of(devices))
    weights = n * h / (h + pull)
    np.testing.assert_allclose(state.model, (weights @ c / weights.sum()).repeat(2), atol=1e-4)


def test_q_zero_is_the_plain_mean_of_the_devices():
    pairs = [(1, 1.0), (9, -3.0), (2, 5.0)]
    model, _ = play(QFFL(0.0, constant_rate), cohort(*pairs))
    uniform, _ = play(FedAvg(), cohort(*[(1, c) for _, c in pairs]))
    np.testing.assert_allclose(model, uniform, rtol=1e-6)
    by_samples, _ = play(QFFL(0.0, constant_rate, DeviceWeights.SAMPLES), cohort(*pairs))
    np.testing.assert_allclose(by_samples, play(FedAvg(), cohort(*pairs))[0], rtol=1e-6)


@pytest.mark.parametrize("q", [0.5, 3.0, 1000.0])
@pytest.mark.parametrize("centre", [1.0, 1e-3, 300.0])
def test_q_ffl_with_one_device_steps_against_its_gradient_by_known_length(q, centre):
    # F = ½‖g‖² at a distance g, so h = (2q + 1/γ)·F^q and the power of F cancels, however large
    model, _ = play(QFFL(q, constant_rate), cohort((5, centre)), np.zeros(2, np.float32))
    np.testing.assert_allclose(model, np.full(2, centre / (2 * q + 1 / GAMMA)), rtol=1e-3)


def test_q_ffl_squares_the_norm_once():
    devices = cohort((1, 1.0), (1, -0.5), (1, 3.0))
    step = play(QFFL(2.5, constant_rate), devices)[0] - START
    np.testing.assert_allclose(step, of_q_ffl(devices), rtol=1e-4)
    for wrong in (1, 4):
        assert not np.allclose(step, of_q_ffl(devices, square=wrong), rtol=1e-2)


def test_q_ffl_takes_the_rate_of_the_round():
    schedule = StepDecay(GAMMA, 0.5, every_rounds=10)
    strategy = QFFL(2.0, schedule.rate)
    devices = cohort((1, 1.0), (1, -2.0))
    first, _ = strategy.apply(TrainingState(START), cohort_of(devices))
    tenth, _ = strategy.apply(TrainingState(START, 9), cohort_of(devices))
    later, _ = strategy.apply(TrainingState(START, 10), cohort_of(devices))
    np.testing.assert_array_equal(first.model, tenth.model)
    assert not np.allclose(first.model, later.model)
    with pytest.raises(ValueError, match="learning_rate=0 of round 3 is not a positive number"):
        QFFL(2.0, lambda _: 0).apply(TrainingState(START, 3), cohort_of(devices))


def test_q_ffl_asks_for_the_loss_of_the_model_that_was_sent():
    device = Quadratic(0, 1, 2.0)
    _, report = play(QFFL(1.0, constant_rate), [device])
    assert report.train_loss == pytest.approx(replace(device).loss(START))
    assert (device.num_losses, device.num_updates) == (1, 1)


def test_no_tilt_is_the_plain_mean_and_a_great_one_the_worst_device():
    pairs = [(1, 1.0), (9, -3.0), (2, 5.0)]
    uniform, _ = play(FedAvg(), cohort(*[(1, c) for _, c in pairs]))
    np.testing.assert_allclose(play(TiltedERM(0.0), cohort(*pairs))[0], uniform, rtol=1e-6)
    np.testing.assert_allclose(play(TiltedERM(1e-7), cohort(*pairs))[0], uniform, rtol=1e-4)
    worst, _ = play(FedAvg(), cohort((2, 5.0)))
    for tilt in (1e3, 1e6, 1e300):
        np.testing.assert_array_equal(play(TiltedERM(tilt), cohort(*pairs))[0], worst)


def test_tilted_steps_are_whole_steps_of_a_convex_combination():
    # neither 1/m of one, nor twice one in the first round, nor of a size that depends on the past
    devices = cohort(*[(1, 3.0)] * 7)
    alone, _ = play(FedAvg(), devices[:1])
    state = TrainingState(START)
    for _ in range(3):
        before = state.model
        state, _ = TiltedERM(2.0).apply(state, cohort_of(devices))
        np.testing.assert_allclose(state.model - before, GAMMA * (3.0 - before), rtol=1e-5)
        assert state.memory == {}
    np.testing.assert_array_equal(play(TiltedERM(2.0), devices)[0], alone)
    mixed = cohort((1, 3.0), (1, -1.0), (1, 0.5))
    _, losses, deltas = parts(mixed)
    expected = softmax(2.0 * losses) @ deltas
    np.testing.assert_allclose(play(TiltedERM(2.0), mixed)[0] - START, expected, rtol=1e-5)


def test_a_shift_of_all_losses_does_not_tilt():
    pairs = [(1, 1.0), (1, -1.5), (1, 0.5)]
    plain, _ = play(TiltedERM(3.0), cohort(*pairs))
    shifted, _ = play(TiltedERM(3.0), cohort(*pairs, offset=1000.0))
    np.testing.assert_allclose(shifted, plain, rtol=1e-6)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(-300, 300)), min_size=1, max_size=6))
def test_weights_are_scaled_by_their_largest_power(pairs):
    shares = [Share(weight, log_scale) for weight, log_scale in pairs]
    scaled = relative_weights(shares)
    reference = max((s for w, s in pairs if w), default=0.0)
    for (weight, log_scale), found in zip(pairs, scaled, strict=True):
        assert found == pytest.approx(weight * math.exp(log_scale - reference), rel=1e-9)


def strategies():
    return [strategy for strategy, _ in FORMULAS]


@pytest.mark.parametrize("strategy", strategies())
def test_a_device_without_samples_takes_no_part(strategy):
    model, _ = play(strategy, cohort((1, 1.0), (2, -3.0)))
    idle = Quadratic(9, 0, 100.0)
    other, report = play(strategy, [*cohort((1, 1.0), (2, -3.0)), idle])
    np.testing.assert_array_equal(model, other)
    assert (idle.num_losses, idle.num_updates) == (0, 0)
    assert (report.kept_devices, report.kept_weight) == (3, 3)


@pytest.mark.parametrize("strategy", strategies())
def test_a_round_without_samples_leaves_the_model_and_what_else_is_known(strategy):
    before = TrainingState(START, 7, 0.25, {"kept": np.ones(1)})
    state, report = strategy.apply(before, cohort_of(cohort((0, 1.0), (0, 2.0))))
    assert report.empty
    assert report.train_loss is None
    assert (state.round, state.eta, dict(state.memory)) == (8, 0.25, dict(before.memory))
    np.testing.assert_array_equal(state.model, START)


@pytest.mark.parametrize("strategy", strategies())
def test_devices_train_once_and_measure_only_if_asked(strategy):
    devices = cohort((1, 1.0), (2, -3.0))
    _, report = play(strategy, devices)
    asks = isinstance(strategy, QFFL | TiltedERM)
    assert [device.num_updates for device in devices] == [1, 1]
    assert [device.num_losses for device in devices] == [int(asks)] * 2
    assert (report.train_loss is not None) == asks


def test_the_reported_loss_is_the_mean_by_the_same_weights():
    devices = cohort((1, 1.0), (2, -3.0))
    _, losses, _ = parts(devices)
    _, report = play(TiltedERM(0.1), devices)
    assert report.train_loss == pytest.approx(softmax(0.1 * losses) @ losses)


class Broken(Quadratic):
    def update(self, model, objective=PLAIN):
        del objective
        return np.full_like(model, np.nan)


@pytest.mark.parametrize("strategy", strategies())
def test_what_diverged_names_its_device(strategy):
    with pytest.raises(DivergenceError, match="update of device 4"):
        play(strategy, [*cohort((1, 0.5)), Broken(4, 1, 5.0)])
    if isinstance(strategy, QFFL | TiltedERM):
        with pytest.raises(DivergenceError, match="loss of device 1 is inf"):
            play(strategy, cohort((1, 0.5), (1, np.inf)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedProx(-0.1), "proximal=-0.1 is not a non-negative number"),
        (lambda: FedProx(math.nan), "proximal=nan"),
        (lambda: PropFair(0.0), "ceiling=0.0 is not a positive number"),
        (lambda: PropFair(math.inf), "ceiling=inf"),
        (lambda: QFFL(-1.0, constant_rate), "q=-1.0 is not a non-negative number"),
        (lambda: QFFL(math.inf, constant_rate), "q=inf"),
        (lambda: TiltedERM(-1.0), "tilt=-1.0 is not a non-negative number"),
        (lambda: TiltedERM(math.nan), "tilt=nan"),
    ],
)
def test_constants_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("strategy", strategies())
def test_impossible_cohorts_are_refused(strategy):
    with pytest.raises(ValueError, match="cohort is empty"):
        play(strategy, [])
    with pytest.raises(ValueError, match="weight=-1 of device 0"):
        play(strategy, cohort((-1, 0.0)))


def test_the_server_sees_sums_whatever_the_mean():
    assert {strategy.server_sees for strategy in strategies()} == {Visibility.SUMS}
    names = [strategy.name for strategy in strategies()]
    assert sorted(set(names)) == ["fedavg", "fedprox", "propfair", "q-ffl", "tilted-erm"]


def test_a_loss_of_zero_is_no_obstacle_to_q_ffl():
    learnt = Quadratic(0, 3, 0.5)
    start = np.full(2, 0.5, dtype=np.float32)
    assert replace(learnt).loss(start) == 0
    for q in (0.0, 0.5, 5.0):
        model, _ = play(QFFL(q, constant_rate), [learnt], start)
        np.testing.assert_array_equal(model, start)
