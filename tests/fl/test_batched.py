"""Many devices at once do what one device after another does."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from minibatches import is_decided
from torch import nn
from torch.nn.functional import avg_pool1d, avg_pool2d

from deltafl.fl import batched
from deltafl.fl.batched import BatchedLearner
from deltafl.fl.criterion import CLASSIFIES
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.models import MODELS, build_model, convnet, m5
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.parameters import to_vector
from deltafl.fl.stacked import StackedByMapping

VECTORS = np.random.default_rng(3).standard_normal((9, 5)).astype(np.float32)
SHAPES = {
    "linear": ((5, 4), 7),
    "convnet": ((16, 16), 5),
    "logistic": ((6,), 2),
    "logistic-bias": ((6,), 3),
    "lstm": ((4,), 3),
    "gru": ((6,), 9),
    "gru-embedding": ((6,), 9),
    "convnet-groupnorm": ((16, 16), 4),
    "lstm-stacked": ((4,), 9),
    "m5": ((1100,), 3),
}
TOKENS = {"lstm", "gru", "gru-embedding", "lstm-stacked"}
TOLERANCE = 2e-5
OBJECTIVES = [PLAIN, LocalObjective(proximal=0.7), LocalObjective(ceiling=2.0)]


def module(name):
    shape, classes = SHAPES[name]
    return build_model(name, input_shape=shape, num_classes=classes, seed=1, embedding=VECTORS)


def devices(name, sizes):
    shape, classes = SHAPES[name]
    rng = np.random.default_rng(0)

    def inputs(n):
        if name in TOKENS:
            return rng.integers(0, 9, (n, *shape), dtype=np.int8)
        return rng.random((n, *shape), dtype=np.float32)

    return [DeviceData(str(i), inputs(n), rng.integers(0, classes, n)) for i, n in enumerate(sizes)]


def start(name):
    vector = to_vector(module(name))
    return vector + np.random.default_rng(2).normal(0, 0.05, vector.shape).astype(np.float32)


def both(name, sizes, training, objective=PLAIN, build=module):
    """Both learners' updates, and whether the objective is decided: see `is_decided`."""
    data, vector, seeds = devices(name, sizes), start(name), range(10, 10 + len(sizes))
    one_by_one, losses = Learner(build(name)), []
    mean = CLASSIFIES.mean

    def noted(*arguments):
        loss = mean(*arguments)
        losses.append(loss.item())
        return loss

    one_by_one._criterion = SimpleNamespace(mean=noted)
    found, expected = (
        list(learner.updates(vector, data, training, seeds, objective))
        for learner in (BatchedLearner(build(name)), one_by_one)
    )
    return found, expected, is_decided(losses, objective)


def assert_equal(found, expected, atol=TOLERANCE):
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == np.float32
        assert mine.flags.c_contiguous
        np.testing.assert_allclose(mine, other, atol=atol)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_as_one_by_one(name, objective):
    sizes = [7, 1, 12] if name == "lstm-stacked" else [7, 1, 12, 5, 8]
    found, expected, decided = both(name, sizes, LocalTraining(0.1, 4, 2, 0.01), objective)
    assert decided
    assert_equal(found, expected)


class Recorded(nn.Module):
    """A module that has no gradient of its own."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ["m5", "convnet-groupnorm", "convnet"])
def test_mapped_models_train_as_one_by_one(name, objective, monkeypatch):
    """With smooth layers, for ReLU and the largest of a window make a jump of a rounding.

    Where they do not, the gradients are compared in test_stacked_kernels.
    """
    monkeypatch.setattr(batched, "stacked", lambda module, *_: (StackedByMapping(module), 2))
    for of_model in (m5, convnet):
        monkeypatch.setattr(of_model, "relu", torch.tanh)
    monkeypatch.setattr(m5, "max_pool1d", avg_pool1d)
    monkeypatch.setattr(convnet, "max_pool2d", avg_pool2d)
    monkeypatch.setattr(convnet, "_pooled", lambda maps: avg_pool2d(maps, 2))

    def recorded(name):
        return Recorded(module(name))

    # a change of the model one starts with grows sixfold; with steps of 0.1 it was seventyfold
    training, sizes = LocalTraining(0.03, 4, 2, 0.01), [5, 1, 8]
    found, expected, decided = both(name, sizes, training, objective, recorded)
    assert decided
    assert_equal(found, expected)
    # negative control: steps that are a little longer would be seen
    longer, _, _ = both(name, sizes, replace(training, learning_rate=0.0303), objective, recorded)
    with pytest.raises(AssertionError, match="Not equal"):
        assert_equal(longer, expected)


@settings(max_examples=12)
@given(
    st.sampled_from(["linear", "logistic", "logistic-bias"]),
    st.lists(st.integers(1, 40) | st.integers(150, 200), min_size=1, max_size=6),
    st.integers(3, 20),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([None, 1.5]),
)
def test_ragged_devices_of_linear_models(name, sizes, batch, epochs, l2, proximal, ceiling):
    training = LocalTraining(0.05, batch, epochs, l2)
    found, expected, decided = both(name, sizes, training, LocalObjective(proximal, ceiling))
    assume(decided)
    assert_equal(found, expected, atol=5e-5)


@pytest.mark.slow
def test_more_devices_than_are_trained_together():
    sizes = list(np.random.default_rng(5).integers(1, 25, 300))
    found, expected, _ = both("linear", sizes, LocalTraining(0.1, 6))
    assert_equal(found, expected)
    # negative control: another order, or somebody else's shuffling, would have been seen
    assert not np.allclose(found[1], expected[2], atol=TOLERANCE)
    data, vector = devices("linear", sizes), start("linear")
    others = list(
        BatchedLearner(module("linear")).updates(vector, data, LocalTraining(0.1, 6), range(300))
    )
    assert (
        sum(not np.allclose(a, b, atol=TOLERANCE) for a, b in zip(others, found, strict=True)) > 100
    )


def test_equal_devices_have_equal_updates():
    data = devices("linear", [23]) * 5
    learner = BatchedLearner(module("linear"))
    updates = list(learner.updates(start("linear"), data, LocalTraining(0.1, 4, 2), [9] * 5))
    for update in updates[1:]:
        np.testing.assert_array_equal(update, updates[0])


def test_pixels_are_scaled_and_read_only_arrays_are_taken():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (11, 5, 4), dtype=np.uint8)
    frozen = rng.random((6, 5, 4), dtype=np.float32)
    y = rng.integers(0, 7, 11)
    for array in (frozen, y):
        array.flags.writeable = False
    data = [DeviceData("a", pixels, y), DeviceData("b", frozen, y[:6])]
    learners = BatchedLearner(module("linear")), Learner(module("linear"))
    arguments = start("linear"), data, LocalTraining(0.1, 4), [1, 2]
    assert_equal(*(list(learner.updates(*arguments)) for learner in learners))


def test_updates_are_made_as_they_are_asked_for():
    asked = []

    class Lazy:
        def __iter__(self):
            for data in devices("linear", [3] * 1000):
                asked.append(data.id)
                yield data

    found = BatchedLearner(module("linear")).updates(
        start("linear"), Lazy(), LocalTraining(0.1, 4), range(1000)
    )
    assert not asked
    list(itertools.islice(found, 3))
    assert len(asked) < 300


def test_nobody_to_train():
    learner = BatchedLearner(module("linear"))
    assert not list(learner.updates(start("linear"), [], LocalTraining(0.1, 4), []))


def test_a_vector_that_does_not_fit_is_refused():
    learner = BatchedLearner(module("linear"))
    with pytest.raises(ValueError, match="does not fit"):
        next(learner.updates(np.zeros(3, np.float32), [], LocalTraining(0.1, 4), []))


@pytest.mark.parametrize(("name", "message"), [("logistic-bias", "are tokens"), ("gru", "tokens")])
def test_inputs_of_the_wrong_kind_are_refused(name, message):
    x = np.zeros((3, 6), np.int8) if name != "gru" else np.zeros((3, 6), np.float32)
    data = [DeviceData("a", x, np.zeros(3, np.int64))]
    with pytest.raises(ValueError, match=message):
        list(BatchedLearner(module(name)).updates(start(name), data, LocalTraining(0.1, 4), [1]))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_devices_whose_inputs_differ_in_shape_are_refused(order):
    """A device would train on what happens to lie in memory, and no error would say so."""
    y = np.zeros(6, np.int64)
    data = [DeviceData("a", np.zeros((6, 5, 4), np.float32), y)]
    data.append(DeviceData("b", np.zeros((6, 5, 5), np.float32), y))
    learner = BatchedLearner(module("linear"))
    updates = learner.updates(
        start("linear"), [data[i] for i in order], LocalTraining(0.1, 4), [1, 2]
    )
    with pytest.raises(ValueError, match=r"inputs of user .* have shape"):
        list(updates)


def test_training_touches_neither_the_global_random_state_nor_the_data():
    data, state = devices("linear", [9, 4]), torch.get_rng_state()
    before = [device.x.copy() for device in data]
    vector = start("linear")
    kept = vector.copy()
    list(BatchedLearner(module("linear")).updates(vector, data, LocalTraining(0.1, 4), [1, 2]))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(vector, kept)
    for device, x in zip(data, before, strict=True):
        np.testing.assert_array_equal(device.x, x)


def test_losses_and_metrics_are_the_learners():
    data, vector = devices("linear", [9, 4, 1]), start("linear")
    mine, other = BatchedLearner(module("linear")), Learner(module("linear"))
    assert mine.losses(vector, data) == pytest.approx(other.losses(vector, data))
    for a, b in zip(mine.evaluate(vector, data), other.evaluate(vector, data), strict=True):
        assert (a.id, a.num_samples, a.error) == (b.id, b.num_samples, b.error)
        assert a.loss == pytest.approx(b.loss)
