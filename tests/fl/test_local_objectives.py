"""Local training with a changed objective (FedProx, PropFair), and on tokens."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from minibatches import is_decided, shuffling, softmax
from numpy.lib.stride_tricks import sliding_window_view

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.models import build_model
from deltafl.fl.objectives import PLAIN, PROPFAIR_MARGIN, LocalObjective
from deltafl.fl.parameters import to_vector

FEATURES, CLASSES = 3, 4


def device(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, FEATURES)).astype(np.float32)
    return DeviceData("a", x, rng.integers(0, CLASSES, n))


def start(seed=1, scale=1.0):
    weights = np.random.default_rng(seed).normal(0, scale, CLASSES * FEATURES)
    return weights.astype(np.float32)


def learner():
    return Learner(build_model("linear", input_shape=(FEATURES,), num_classes=CLASSES, seed=0))


def squared_distance(w, origin):
    """The gradient of ½‖w − w_t‖²."""
    return w - origin


def distance(w, origin):
    """The gradient of ½‖w − w_t‖, which several published FedProx have."""
    length = np.linalg.norm(w - origin)
    return (w - origin) / (2 * length) if length else 0 * w


def train_plainly(vector, data, training, objective, *, pull=squared_distance):
    """The update in NumPy, in float64, with the losses of its minibatches."""
    w = origin = vector.reshape(CLASSES, FEATURES).astype(np.float64)
    losses, generator = [], shuffling()
    for _ in range(training.epochs):
        order = torch.randperm(data.num_samples, generator=generator).numpy()
        for first in range(0, data.num_samples, training.batch_size):
            rows = order[first : first + training.batch_size]
            x, y = data.x[rows].astype(np.float64), data.y[rows]
            chances = softmax(x @ w.T)
            loss = -np.log(chances[np.arange(len(y)), y]).mean()
            gradient = (chances - np.eye(CLASSES)[y]).T @ x / len(y)
            if objective.ceiling is not None:
                room = objective.ceiling - loss
                gradient /= room if room >= 0.2 else objective.ceiling
            gradient += training.l2 * w + objective.proximal * pull(w, origin)
            w = w - training.learning_rate * gradient
            losses.append(loss)
    return (w - origin).reshape(-1), losses


def train(vector, data, training, *objective):
    return learner().train(vector, data, training, shuffling(), *objective)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([0.0, 0.01, 1.0, 3.0]),
    st.sampled_from([None, 0.1, 1.5, 2.0, 50.0]),
    st.sampled_from([0.0, 0.1]),
    st.integers(1, 20),
    st.integers(1, 3),
)
def test_training_in_numpy(proximal, ceiling, l2, batch_size, epochs):
    data, training = device(17), LocalTraining(0.2, batch_size, epochs, l2)
    objective = LocalObjective(proximal, ceiling)
    expected, losses = train_plainly(start(), data, training, objective)
    assume(is_decided(losses, objective))
    np.testing.assert_allclose(train(start(), data, training, objective), expected, atol=3e-6)


def test_one_step_does_not_know_the_proximal_term():
    data, training = device(6), LocalTraining(0.5, 6)
    np.testing.assert_array_equal(
        train(start(), data, training, LocalObjective(proximal=5.0)), train(start(), data, training)
    )


def test_proximal_term_is_the_squared_distance():
    data, training = device(12), LocalTraining(0.3, 4, epochs=2)
    objective = LocalObjective(proximal=1.0)
    found = train(start(), data, training, objective)
    right, _ = train_plainly(start(), data, training, objective)
    wrong, _ = train_plainly(start(), data, training, objective, pull=distance)
    np.testing.assert_allclose(found, right, atol=1e-6)
    assert np.abs(found - wrong).max() > 0.02


def test_a_strong_pull_ends_at_the_start():
    # with γμ = 1 a step forgets where it was: w ← w_t − γ∇f(w)
    data, rate = device(4), 0.1
    found = train(start(), data, LocalTraining(rate, 4, 2), LocalObjective(proximal=1 / rate))
    once = train(start(), data, LocalTraining(rate, 4, 1))
    np.testing.assert_allclose(
        found, train(start() + once, data, LocalTraining(rate, 4, 1)), atol=1e-6
    )


@pytest.mark.parametrize("distance_to_margin", [-1e-3, 1e-3])
def test_propfair_divides_by_what_is_left_or_by_the_ceiling(distance_to_margin):
    data, training = device(6), LocalTraining(0.5, 6)
    loss = learner().mean_loss(start(), data)
    ceiling = loss + PROPFAIR_MARGIN + distance_to_margin
    plain = train(start(), data, training)
    found = train(start(), data, training, LocalObjective(ceiling=ceiling))
    divisor = ceiling - loss if distance_to_margin > 0 else ceiling
    np.testing.assert_allclose(found, plain / divisor, rtol=1e-4, atol=1e-7)


def test_propfair_looks_at_minibatches_not_at_the_device():
    data, training = device(40), LocalTraining(0.01, 4)
    objective = LocalObjective(ceiling=2.0)
    expected, losses = train_plainly(start(), data, training, objective)
    assert min(losses) < 1.8 < max(losses)
    assert is_decided(losses, objective)
    np.testing.assert_allclose(train(start(), data, training, objective), expected, atol=1e-6)
    mean = LocalObjective(ceiling=2.0 + max(losses))  # every minibatch on the same side
    assert np.abs(train(start(), data, training, mean) - expected).max() > 1e-3


def test_losses_above_the_ceiling_stay_finite():
    data, training = device(8), LocalTraining(0.1, 4)
    far = start(scale=20.0)
    assert learner().mean_loss(far, data) > 1.0  # the logarithm of a negative number
    assert np.isfinite(train(far, data, training, LocalObjective(ceiling=1.0))).all()


@pytest.mark.parametrize("name", ["linear", "convnet"])
def test_the_plain_objective_changes_no_bit(name):
    rng = np.random.default_rng(0)
    x = rng.random((9, 16, 16), dtype=np.float32)
    data = DeviceData("a", x, rng.integers(0, 5, 9))
    module = build_model(name, input_shape=(16, 16), num_classes=5, seed=1)
    vector, training = to_vector(module), LocalTraining(0.1, 4, 2, 0.01)
    found = Learner(module).train(vector, data, training, shuffling())
    same = Learner(module).train(vector, data, training, shuffling(), LocalObjective(0.0, None))
    np.testing.assert_array_equal(found, same)
    other = Learner(module).train(vector, data, training, shuffling(), LocalObjective(1e-3))
    assert not np.array_equal(found, other)
    assert LocalObjective() == PLAIN


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"proximal": -0.1}, "proximal=-0.1"),
        ({"proximal": float("inf")}, "proximal=inf"),
        ({"ceiling": 0.0}, "ceiling=0.0"),
        ({"ceiling": float("nan")}, "ceiling=nan"),
    ],
)
def test_objectives_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LocalObjective(**arguments)


# Tokens


def text(n, seed=0):
    """Windows of 20 symbols and the next one, as views of a text of one byte per symbol."""
    codes = np.random.default_rng(seed).integers(0, 53, n + 20).astype(np.int8)
    return DeviceData("a", sliding_window_view(codes[:-1], 20), codes[20:].astype(np.int64))


def gru(seed=1):
    return build_model("gru", input_shape=(20,), num_classes=53, seed=seed)


def test_tokens_train_and_evaluate():
    data = text(40)
    module = gru()
    vector, training = to_vector(module), LocalTraining(0.5, 16, 3)
    copied = DeviceData("a", data.x.astype(np.int64), data.y)
    deltas = [Learner(module).train(vector, d, training, shuffling()) for d in (data, copied)]
    np.testing.assert_array_equal(*deltas)
    before, after = (Learner(module).mean_loss(v, data) for v in (vector, vector + deltas[0]))
    assert 0 < after < before - 0.05
    assert before == pytest.approx(np.log(53), abs=0.1)
    assert data.x.strides == (1, 1)  # the windows are still views of one text


def test_tokens_with_a_changed_objective():
    data, training = text(12), LocalTraining(0.5, 4, 2)
    module = gru()
    vector = to_vector(module)
    plain, pulled, fair = (
        Learner(module).train(vector, data, training, shuffling(), objective)
        for objective in (PLAIN, LocalObjective(proximal=1.0), LocalObjective(ceiling=5.0))
    )
    assert np.linalg.norm(pulled) < np.linalg.norm(plain)
    assert np.isfinite(fair).all()


def test_evaluation_makes_models_inputs_of_one_batch_at_a_time(monkeypatch):
    sizes, inputs = [], DeviceData.inputs
    monkeypatch.setattr(
        DeviceData, "inputs", lambda self: sizes.append(self.num_samples) or inputs(self)
    )
    data, module = text(1100), gru()
    metrics = Learner(module).evaluate(to_vector(module), [data])[0]
    assert sizes == [501, 501, 98]  # a token counts for several numbers
    with torch.no_grad():
        logits = module(torch.tensor(data.x.astype(np.int64))).double()
    first, second = logits.topk(2).values.unbind(1)
    assert (first - second).min() > 1e-5  # too far apart for rounding to decide
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(data.y))
    assert metrics.loss == pytest.approx(float(loss), rel=1e-6)
    assert metrics.error == float((logits.argmax(1).numpy() != data.y).mean())
