"""Losses and measures of samples: what they are, and what is no loss."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from deltafl.fl.criterion import CLASSIFIES, criterion_of
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.evaluation import measure
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.parameters import to_vector

OUTPUTS = torch.tensor([[1.0, -2.0], [0.5, 0.5], [3.0, 4.0]])
LABELS = torch.tensor([0, 1, 0])
NUMBERS = torch.tensor([1.5, -1.0, 4.0])


def device(numbers=True, count=7):
    rng = np.random.default_rng(count)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    y = x @ np.array([1.0, -2.0], np.float32) if numbers else (x[:, 0] > 0).astype(np.int64)
    return DeviceData(str(count), x, y)


def test_the_usual_criterion_is_that_of_the_papers():
    losses, missed = CLASSIFIES.measure(OUTPUTS, LABELS)
    wanted = functional.cross_entropy(OUTPUTS.double(), LABELS, reduction="none")
    assert torch.equal(losses, wanted)
    assert missed.tolist() == [0.0, 1.0, 1.0]
    assert CLASSIFIES.mean(OUTPUTS, LABELS) == functional.cross_entropy(OUTPUTS, LABELS)


@pytest.mark.parametrize("columns", [(), (1,)])
def test_of_numbers_the_distance_is_reported(columns):
    outputs = torch.tensor([1.0, 1.0, 1.0]).reshape(3, *columns)
    squares, distances = criterion_of("mse", of_numbers=True).measure(outputs, NUMBERS)
    assert squares.tolist() == [0.25, 4.0, 9.0]
    assert distances.tolist() == [0.5, 2.0, 3.0]
    absolute, _ = criterion_of("mae", of_numbers=True).measure(outputs, NUMBERS)
    assert absolute.tolist() == distances.tolist()


def test_of_several_numbers_the_mean_over_them_is():
    targets = torch.zeros(2, 2)
    losses, _ = criterion_of("mse", of_numbers=True).measure(
        torch.tensor([[1.0, 3.0], [0.0, 2.0]]), targets
    )
    assert losses.tolist() == [5.0, 2.0]


def test_a_loss_of_ones_own_gets_what_the_module_gave():
    seen = []

    def loss(outputs, targets):
        seen.append((outputs.dtype, targets.dtype))
        return (outputs.squeeze(1) - targets).abs() ** 1.5

    criterion = criterion_of(loss, of_numbers=True)
    losses, _ = criterion.measure(torch.ones(3, 1), NUMBERS)
    assert losses.dtype == torch.float64
    assert losses.tolist() == pytest.approx([0.5**1.5, 2**1.5, 3**1.5])
    assert seen == [(torch.float32, torch.float32)]


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        (lambda out, y: (out.squeeze(1) - y).mean(), r"loss: a tensor of shape \(\) for 3 samples"),
        (lambda *_: 0.5, "loss: a float for 3 samples"),
        (lambda out, y: out.squeeze(1) - y - 9, "has the loss -12: losses must be at least 0"),
    ],
)
def test_what_is_no_loss_of_samples_is_refused(loss, complaint):
    criterion = criterion_of(loss, of_numbers=True)
    with pytest.raises(ValueError, match=complaint):
        criterion.measure(torch.ones(3, 1), NUMBERS)


@pytest.mark.parametrize("outputs", [torch.ones(3, 1), torch.ones(3), torch.ones(3, 2, 2)])
def test_nobody_guesses_which_outputs_are_misclassified(outputs):
    criterion = criterion_of(
        lambda out, _: out.flatten(1).sum(1) if out.dim() > 1 else out, of_numbers=False
    )
    with pytest.raises(ValueError, match=r"no logits of two classes or more.*pass `metric`"):
        criterion.measure(outputs, LABELS)
    told = criterion_of(criterion.losses, lambda _, y: y.float(), of_numbers=False)
    assert told.measure(outputs, LABELS)[1].tolist() == [0.0, 1.0, 0.0]


def test_outputs_of_another_shape_than_the_targets_are_refused():
    with pytest.raises(ValueError, match=r"outputs of shape \(2,\) for targets of shape \(\)"):
        criterion_of("mse", of_numbers=True).measure(OUTPUTS, NUMBERS)


@pytest.mark.parametrize(
    ("loss", "of_numbers", "complaint"),
    [
        ("msee", True, "loss='msee': must be one of 'cross-entropy', 'mse', 'mae', or a function"),
        ("cross-entropy", True, "the targets are numbers"),
        ("mse", False, "the targets are classes"),
    ],
)
def test_losses_that_are_not_for_the_targets_are_refused(loss, of_numbers, complaint):
    with pytest.raises(ValueError, match=complaint):
        criterion_of(loss, of_numbers=of_numbers)


def test_a_device_trains_by_its_own_loss():
    """One step down the squared error, against the gradient by hand."""
    module = nn.Linear(2, 1)
    start, data = to_vector(module), device()
    learner = Learner(nn.Linear(2, 1), criterion=criterion_of("mse", of_numbers=True))
    (update,) = learner.updates(start, [data], LocalTraining(0.1, batch_size=7), [3])
    missed = data.x @ start[:2] + start[2] - data.y
    gradient = 2 * np.array([*(missed @ data.x), missed.sum()]) / 7
    assert update == pytest.approx(-0.1 * gradient, rel=1e-4)


def test_numbers_of_devices_are_measured_across_batches():
    module = nn.Linear(2, 1)
    criterion = criterion_of("mse", of_numbers=True)
    devices = [device(count=count) for count in (3, 2500, 1)]
    found = measure(module, devices, torch.device("cpu"), criterion)
    for one, data in zip(found, devices, strict=True):
        with torch.inference_mode():
            missed = module(torch.from_numpy(data.x)).squeeze(1).numpy() - data.y
        assert one.loss == pytest.approx((missed**2).mean(), rel=1e-5)
        assert one.error == pytest.approx(np.abs(missed).mean(), rel=1e-5)


def test_what_is_random_in_a_module_follows_from_the_seed():
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
    start, data, how = to_vector(module), device(numbers=False), LocalTraining(0.1, 2)
    learner = Learner(module)
    before = torch.random.get_rng_state()

    def trained(*seeds):
        return [one.tobytes() for one in learner.updates(start, [data] * len(seeds), how, seeds)]

    both = trained(1, 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(77)
        assert trained(1) + trained(2) == both
    assert len(set(trained(1, 2))) == 2
    assert torch.equal(torch.random.get_rng_state(), before)
