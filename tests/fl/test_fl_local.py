import math

import numpy as np
import pytest
import torch
from minibatches import shuffling, softmax
from torch import nn
from torch.nn.functional import cross_entropy

from deltafl.fl.batched import BatchedLearner
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.models import build_model
from deltafl.fl.parameters import load_vector, num_parameters, to_vector
from deltafl.fl.schedule import StepDecay


def device(n, shape=(28, 28), classes=62, seed=0):
    rng = np.random.default_rng(seed)
    return DeviceData("a", rng.random((n, *shape), dtype=np.float32), rng.integers(0, classes, n))


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_one_step_of_the_linear_model_in_closed_form(l2):
    data = device(6, (3,), 4)
    module = build_model("linear", input_shape=(3,), num_classes=4, seed=0)
    w = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    delta = Learner(module).train(w.reshape(-1), data, LocalTraining(0.5, 6, 1, l2), shuffling())
    gradient = (softmax(data.x @ w.T) - np.eye(4)[data.y]).T @ data.x / 6 + l2 * w
    np.testing.assert_allclose(delta.reshape(4, 3), -0.5 * gradient, atol=1e-6)
    assert delta.dtype == np.float32


def train_with_torch(module, vector, data, training, generator):
    load_vector(module, vector)
    optimiser = torch.optim.SGD(
        module.parameters(), lr=training.learning_rate, weight_decay=training.l2
    )
    x, y = torch.tensor(data.x), torch.tensor(data.y)
    num_steps = 0
    for _ in range(training.epochs):
        order = torch.randperm(len(y), generator=generator)
        for start in range(0, len(y), training.batch_size):
            rows = order[start : start + training.batch_size]
            optimiser.zero_grad()
            cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()
            num_steps += 1
    return to_vector(module) - vector, num_steps


@pytest.mark.parametrize("name", ["linear", "convnet"])
@pytest.mark.parametrize("l2", [0.0, 1e-2])
def test_update_equals_a_plain_torch_sgd_loop(name, l2):
    data = device(19)  # batches of 8, 8 and 3
    module = build_model(name, input_shape=(28, 28), num_classes=62, seed=3)
    training = LocalTraining(0.1, 8, 2, l2)
    vector = to_vector(module)
    vector += np.random.default_rng(2).normal(0, 0.01, vector.shape).astype(np.float32)
    found = Learner(module).train(vector, data, training, shuffling())
    twin = build_model(name, input_shape=(28, 28), num_classes=62, seed=4)
    expected, num_steps = train_with_torch(twin, vector, data, training, shuffling())
    assert num_steps == 6
    np.testing.assert_allclose(found, expected, atol=1e-7)
    other, _ = train_with_torch(twin, vector, data, training, shuffling(8))
    assert not np.allclose(found, other, atol=1e-7)  # the shuffling matters, so it is compared


def test_equal_arguments_give_equal_bits():
    data = device(40)
    learners = [
        Learner(build_model("convnet", input_shape=(28, 28), num_classes=62, seed=s))
        for s in (1, 2)
    ]
    vector = to_vector(build_model("convnet", input_shape=(28, 28), num_classes=62, seed=5))
    training = LocalTraining(0.3, 16)
    learners[1].mean_loss(vector, data)  # what was computed before leaves no trace
    first, second = (k.train(vector, data, training, shuffling()) for k in learners)
    np.testing.assert_array_equal(first, second)


def test_training_touches_neither_its_arguments_nor_the_global_random_state():
    data = device(10, (4,), 3)
    x, state = data.x.copy(), torch.get_rng_state()
    vector = np.zeros(12, dtype=np.float32)
    learner = Learner(build_model("linear", input_shape=(4,), num_classes=3, seed=1))
    learner.train(vector, data, LocalTraining(0.5, 4), shuffling())
    assert not vector.any()
    np.testing.assert_array_equal(data.x, x)
    assert torch.equal(torch.get_rng_state(), state)


def test_loss_and_error_over_more_samples_than_one_batch():
    data = device(1100, (5,), 4)
    module = build_model("linear", input_shape=(5,), num_classes=4, seed=1)
    w = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    logits = (data.x @ w.T).astype(np.float64)
    chosen = softmax(logits)[np.arange(1100), data.y]
    learner = Learner(module)
    (metrics,) = learner.evaluate(w.reshape(-1), [data])
    assert metrics.loss == pytest.approx(-np.log(chosen).mean(), rel=1e-6)
    assert np.diff(np.sort(logits)[:, -2:]).min() > 1e-5  # too far apart for rounding to decide
    assert metrics.error == (logits.argmax(1) != data.y).mean()
    assert (metrics.id, metrics.num_samples) == ("a", 1100)
    assert learner.mean_loss(w.reshape(-1), data) == metrics.loss


def test_sure_and_wrong_is_a_finite_loss():
    data = DeviceData("a", np.array([[1000.0]], dtype=np.float32), np.array([0]))
    learner = Learner(build_model("linear", input_shape=(1,), num_classes=2, seed=1))
    assert learner.mean_loss(np.array([-1.0, 1.0], dtype=np.float32), data) == 2000.0


def test_sure_and_right_is_a_loss_above_zero():
    data = DeviceData("a", np.array([[20.0]], dtype=np.float32), np.array([1]))
    learner = Learner(build_model("linear", input_shape=(1,), num_classes=2, seed=1))
    loss = learner.mean_loss(np.array([0.0, 1.0], dtype=np.float32), data)
    assert loss == pytest.approx(np.log1p(np.exp(-20)))  # float32 would round it to zero


def test_pixels_are_scaled_when_they_are_used():
    rng = np.random.default_rng(0)
    pixels, y = rng.integers(0, 256, (20, 8, 8), dtype=np.uint8), rng.integers(0, 10, 20)
    floats = (pixels / 255).astype(np.float32)
    module = build_model("linear", input_shape=(8, 8), num_classes=10, seed=1)
    learner, vector = Learner(module), np.zeros(num_parameters(module), dtype=np.float32)
    deltas = [
        learner.train(vector, DeviceData("a", x, y), LocalTraining(0.5, 8), shuffling())
        for x in (pixels, floats)
    ]
    np.testing.assert_allclose(*deltas, atol=1e-6)


def test_training_lowers_the_loss():
    data = device(50, (6,), 3)
    learner = Learner(build_model("linear", input_shape=(6,), num_classes=3, seed=1))
    vector = np.zeros(18, dtype=np.float32)
    delta = learner.train(vector, data, LocalTraining(0.5, 10, 20), shuffling())
    assert learner.mean_loss(vector + delta, data) < learner.mean_loss(vector, data) - 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1), "learning_rate=0.0"),
        ((float("nan"), 1), "learning_rate=nan"),
        ((0.1, 0), "batch_size=0"),
        ((0.1, 1, 0), "epochs=0"),
        ((0.1, 1, 1, -1.0), "l2=-1.0"),
    ],
)
def test_training_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LocalTraining(*arguments)


def test_learning_rate_falls_in_steps():
    decay = StepDecay(0.32, 0.5, 400)
    rates = [decay.rate(t) for t in range(1000)]
    assert rates == sorted(rates, reverse=True)
    assert [rates.count(rate) for rate in (0.32, 0.16, 0.08)] == [400, 400, 200]
    assert StepDecay(0.1).rate(10_000) == 0.1


@pytest.mark.parametrize("arguments", [(0.0,), (0.1, 2.0), (0.1, 0.0), (0.1, 0.5, 0)])
def test_schedules_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match="is not"):
        StepDecay(*arguments)


def test_rounds_count_from_zero():
    with pytest.raises(ValueError, match="round_number=-1"):
        StepDecay(0.1).rate(-1)


# --- what a server may craft --------------------------------------------------------------------

HOSTILE = {
    "scaled": lambda w: np.concatenate([w[: len(w) // 2] * 1e-20, w[len(w) // 2 :] * 1e20]),
    "largest": lambda w: np.copysign(3.4e38, w),
    "subnormal": lambda w: np.copysign(1e-45, w),
    "infinite": lambda w: w / 0.0,
    "not a number": lambda w: w * math.nan,
}
SHAPES = {"linear": (9,), "logistic-bias": (9,), "convnet": (16, 16), "convnet-groupnorm": (16, 16)}


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("craft", HOSTILE.values(), ids=HOSTILE)
# a step of γ·λ = 2 turns the weights around: the largest then move by more than a float32 holds
def test_no_model_makes_training_raise_or_warn(craft, name, batched):
    module = build_model(name, input_shape=SHAPES[name], num_classes=3, seed=0)
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        vector = craft(rng.standard_normal(num_parameters(module))).astype(np.float32)
    learner = (BatchedLearner if batched else Learner)(module)
    data = [device(n, SHAPES[name], 3, seed=n) for n in (1, 3)]
    updates = list(learner.updates(vector, data, LocalTraining(1e30, 2, l2=2e-30), [1, 2]))
    assert [update.shape for update in updates] == [vector.shape] * 2
    assert all(isinstance(loss, float) for loss in learner.losses(vector, data))


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)


def test_what_is_infinite_and_does_not_move_makes_no_warning():
    vector = np.full(30, np.inf, np.float32)
    (update,) = Learner(HalfUsed()).updates(
        vector, [device(0, (4,), 3, seed=1)], LocalTraining(0.1, 2), [1]
    )
    assert np.isnan(update).all()


@pytest.mark.parametrize("learner", [Learner, BatchedLearner])
def test_a_device_without_samples_is_not_moved(learner):
    module = build_model("linear", input_shape=(3,), num_classes=4, seed=0)
    w = np.ones(12, np.float32)
    training = LocalTraining(0.5, 6, 2, l2=0.1)
    (delta,) = learner(module).updates(w, [device(0, (3,), 4)], training, [1])
    np.testing.assert_array_equal(delta, 0)
