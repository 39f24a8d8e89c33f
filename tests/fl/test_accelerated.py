"""The learner for accelerators, on the CPU: the plain learner's losses and updates, up to rounding.

What a CPU cannot show is the recording of a step as a CUDA graph; `make gpu` checks it on a GPU.
"""

import numpy as np
import pytest
import torch

from deltafl.fl.accelerated import AcceleratedLearner, _Order
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.models import build_model
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.parameters import to_vector
from deltafl.fl.recorded import RecordedSteps

CPU = torch.device("cpu")
SIZES = (7, 1, 12, 9, 4)  # so that the order of sizes is not its own inverse
SHAPES = {
    "linear": ((6,), 4),
    "logistic-bias": ((6,), 2),
    "convnet": ((28, 28), 5),
    "gru": ((5,), 11),
    "lstm-stacked": ((5,), 11),
}
TRAINING = LocalTraining(0.1, batch_size=4, epochs=2, l2=0.05)
OBJECTIVES = {
    "plain": PLAIN,
    "proximal": LocalObjective(proximal=0.3),
    "ceiling": LocalObjective(ceiling=5.0),
    "both": LocalObjective(0.3, 1.6),
}


def device_of(name, number, size):
    shape, classes = SHAPES[name]
    rng = np.random.default_rng(number)
    x = (
        rng.integers(0, classes, (size, *shape)).astype(np.int8)
        if name in ("gru", "lstm-stacked")
        else rng.random((size, *shape), np.float32)
    )
    return DeviceData(str(number), x, rng.integers(0, classes, size))


def built(name):
    shape, classes = SHAPES[name]
    return build_model(name, input_shape=shape, num_classes=classes, seed=3)


def case(name, clients=None):
    devices = [device_of(name, number, size) for number, size in enumerate(SIZES)]
    learner = AcceleratedLearner(built(name), device=CPU, clients=clients)
    start = to_vector(built(name))
    start = start + np.random.default_rng(1).normal(0, 0.05, start.shape).astype(np.float32)
    return learner, Learner(built(name)), start, devices


def far(found, expected):
    return max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", SHAPES)
def test_losses_and_errors_are_the_plain_learners(name):
    learner, plain, start, devices = case(name)
    found, expected = learner.evaluate(start, devices), plain.evaluate(start, devices)
    for one, other in zip(found, expected, strict=True):
        assert (one.id, one.num_samples, one.error) == (other.id, other.num_samples, other.error)
        assert one.loss == pytest.approx(other.loss, abs=1e-6)
    assert learner.losses(start, devices) == [one.loss for one in found]


@pytest.mark.parametrize("clients", [1, 2, 8])
@pytest.mark.parametrize("name", ["linear", "gru"])
def test_updates_are_the_plain_learners_however_large_the_stacks(name, clients):
    learner, plain, start, devices = case(name, clients)
    asked = start, devices, TRAINING, range(len(devices))
    expected = list(plain.updates(*asked))
    assert far(learner.updates(*asked), expected) < 2e-6
    # the same buffers again, and other seeds are other updates
    assert far(learner.updates(*asked), expected) < 2e-6
    assert far(learner.updates(*asked[:3], range(9, 9 + len(devices))), expected) > 1e-4


@pytest.mark.parametrize("name", ["logistic-bias", "convnet", "lstm-stacked"])
def test_updates_of_other_models_are_the_plain_learners(name):
    learner, plain, start, devices = case(name)
    training = LocalTraining(0.01, batch_size=4)
    asked = start, devices, training, range(len(devices))
    assert far(learner.updates(*asked), plain.updates(*asked)) < 5e-5


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("l2", [0.0, 0.2])
def test_objectives_are_the_plain_learners(objective, l2):
    learner, plain, start, devices = case("linear")
    training = LocalTraining(0.1, batch_size=4, l2=l2)
    asked = start, devices, training, range(len(devices)), objective
    assert far(learner.updates(*asked), plain.updates(*asked)) < 2e-6


def test_a_device_that_has_finished_is_not_moved_by_the_penalty():
    """It takes part in no step, and a step also pulls towards zero."""
    learner, plain, start, devices = case("linear")
    short, long = devices[1], devices[2]
    asked = start, [long, short], LocalTraining(0.1, batch_size=1, l2=0.5), [0, 1]
    assert far(learner.updates(*asked), plain.updates(*asked)) < 2e-6


def test_the_order_is_that_of_the_plain_learner_and_padding_weighs_nothing():
    work = [(device_of("linear", number, size), number) for number, size in enumerate((9, 4, 1))]
    order = _Order(work, 4)
    index = order.shuffled()
    assert order.taking_part == [3, 1, 1]
    first = 0
    for client, (data, seed) in enumerate(work):
        generator = torch.Generator().manual_seed(seed)
        expected = torch.randperm(data.num_samples, generator=generator) + first
        flat, weights = index[:, client].flatten(), order.weights[:, client].flatten()
        assert flat[: data.num_samples].tolist() == expected.tolist()
        assert set(flat[data.num_samples :].tolist()) <= {first}
        assert not weights[data.num_samples :].any()
        first += data.num_samples
    assert order.weights.sum(2).T.tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]


def test_a_token_outside_the_alphabet_is_refused_before_a_step():
    learner, _, start, devices = case("gru")
    wrong = DeviceData("w", np.full((3, 5), 11, np.int8), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"not in 0\.\.10"):
        list(learner.updates(start, [devices[0], wrong], TRAINING, [0, 1]))


def test_a_device_without_samples_cannot_be_measured():
    learner, _, start, devices = case("linear")
    empty = DeviceData("e", np.zeros((0, 6), np.float32), np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="no samples to measure"):
        learner.losses(start, [devices[0], empty])


def test_stacks_of_like_sizes_are_played_by_the_same_recordings(monkeypatch):
    """The tail of a round has some devices more or less than the one before."""
    recorded, record = [], RecordedSteps._record
    monkeypatch.setattr(
        RecordedSteps,
        "_record",
        lambda steps, buffers, size: recorded.append(size) or record(steps, buffers, size),
    )
    learner, plain, start, _ = case("linear")
    for count in (8, 5, 7, 8, 6):
        devices = [device_of("linear", number, 3 + number) for number in range(count)]
        asked = start, devices, TRAINING, range(count)
        assert far(learner.updates(*asked), plain.updates(*asked)) < 2e-6
    assert sorted(recorded) == [1, 2, 4, 8]
    asked = start, devices[:3], TRAINING, range(3)  # of which one has a second step
    assert far(learner.updates(*asked), plain.updates(*asked)) < 2e-6
    assert sorted(recorded) == [1, 1, 2, 4, 4, 8]


def test_a_model_that_is_measured_between_stacks_moves_no_update():
    """Updates are made as they are asked for, and others may use the learner in between."""
    learner, plain, start, devices = case("linear", clients=2)
    asked = start, devices, TRAINING, range(len(devices))
    found, other = [], np.random.default_rng(2).normal(size=start.shape).astype(np.float32)
    for update in learner.updates(*asked):
        found.append(update)
        learner.evaluate(other, devices)
    assert far(found, plain.updates(*asked)) < 2e-6


@pytest.mark.parametrize("sizes", [(3, 0, 7), (0, 5, 0), (0, 0)])
def test_a_device_without_samples_is_not_moved(sizes):
    learner, plain, start, _ = case("linear")
    devices = [device_of("linear", number, size) for number, size in enumerate(sizes)]
    found = list(learner.updates(start, devices, TRAINING, range(len(devices))))
    for seed, (device, update) in enumerate(zip(devices, found, strict=True)):
        right = plain.updates(start, [device], TRAINING, [seed]) if device.num_samples else [0]
        assert far([update], right) < 2e-6


def test_a_step_before_a_stack_is_a_bug():
    steps = RecordedSteps(None, CPU)
    with pytest.raises(RuntimeError, match="this is a bug"):
        steps.step(1, *[torch.zeros(1, 1)] * 3)
