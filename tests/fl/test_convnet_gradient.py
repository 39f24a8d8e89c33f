"""The ConvNet's written-out gradient and its evaluation, against autograd and float64."""

import copy
import math
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d, relu
from torch.nn.grad import conv2d_input, conv2d_weight

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Differentiated, Learner, LocalTraining
from deltafl.fl.models import build_model, convnet, convnet_gradient, winograd
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.parameters import to_vector

NAMES = ["weight1", "bias1", "weight2", "bias2", "weight", "bias"]


class FollowedConvolution(torch.autograd.Function):
    """The values of the written-out pass, with the gradients of PyTorch's convolution.

    What rounding decides, such as the larger of two that are nearly equal, is then decided alike.
    Without a bias it is the second convolution. The first is PyTorch's there too, but nothing is
    recorded, for which a kernel may be another one; nor is it here.
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return winograd.convolution(x, weight)[0] if bias is None else conv2d(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return (
            conv2d_input(x.shape, weight, gradient) if ctx.needs_input_grad[0] else None,
            conv2d_weight(x, weight.shape, gradient),
            gradient.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None,
        )


class ByAutograd(nn.Module):
    """The same module, which does not say that it has a gradient of its own."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        conv1, conv2 = self.module.conv1, self.module.conv2
        side = math.isqrt(x[0].numel())
        maps = FollowedConvolution.apply(x.reshape(-1, 1, side, side), conv1.weight, conv1.bias)
        x = relu(max_pool2d(maps, 2))
        maps = FollowedConvolution.apply(x, conv2.weight, None)
        x = relu(max_pool2d(maps, 2) + conv2.bias[:, None, None])
        return self.module.output(x.flatten(1))


def build(side=28, classes=62, seed=1):
    return build_model("convnet", input_shape=(side, side), num_classes=classes, seed=seed)


def samples(n, side=28, classes=62, seed=0):
    """Images with an empty background, as characters have: there, whole windows are ties."""
    rng = np.random.default_rng(seed)
    x = rng.random((n, side, side), dtype=np.float32)
    x[:, :: 2 * 6] = 0
    x[:, side // 2 :, side // 2 :] = 0
    return x, rng.integers(0, classes, n)


def batch(*arguments, **names):
    return tuple(torch.tensor(array) for array in samples(*arguments, **names))


def device(*arguments, **names):
    return DeviceData("a", *samples(*arguments, **names))


def by_autograd(module, parameters, x, y):
    """Autograd's gradient; ties, and what is nearly one, go the way of the written-out pass."""
    leaves = [p.detach().requires_grad_() for p in parameters]
    followed = ByAutograd(module)
    names = [name for name, _ in followed.named_parameters()]
    logits = torch.func.functional_call(followed, dict(zip(names, leaves, strict=True)), (x,))
    loss = cross_entropy(logits, y)
    return loss.detach(), torch.autograd.grad(loss, leaves)


def decided(maps, bias=0.0):
    """Where the largest of each window is, and whether it gets through ReLU."""
    largest, places = max_pool2d(maps, 2, return_indices=True)
    return places, largest + bias > 0


def pooled(maps, places, is_positive):
    """The pooling of the textbook, but that what float32 found decides ties.

    Nothing else is left to it: what it took is within some tens of roundings of the largest.
    """
    taken = maps.flatten(2).gather(2, places.flatten(2)).view(places.shape)
    taken = taken.where(is_positive, 0)
    textbook, most = max_pool2d(relu(maps), 2), 5e-6 * float(maps.detach().abs().max())
    np.testing.assert_allclose(taken.detach(), textbook.detach(), rtol=0, atol=most)
    return taken


def exactly(parameters, x, y):
    """The textbook's: in float64, row-major, ReLU before pooling.

    The largest number of a window takes all of its gradient, and of two that are nearly equal
    rounding makes either the largest. So the maps of float32 decide which it is.
    """
    images = x[:, None]
    with torch.no_grad():
        maps = conv2d(images, parameters[0], parameters[1])
        first = decided(maps)
        maps, _ = winograd.convolution(relu(max_pool2d(maps, 2)), parameters[2])
        second = decided(maps, parameters[3][:, None, None])
    leaves = [p.detach().double().contiguous().requires_grad_() for p in parameters]
    weight1, bias1, weight2, bias2, weight, bias = leaves
    hidden = pooled(conv2d(images.double(), weight1, bias1), *first)
    hidden = pooled(conv2d(hidden, weight2, bias2), *second)
    loss = cross_entropy(linear(hidden.flatten(1), weight, bias), y)
    return loss.detach(), torch.autograd.grad(loss, leaves)


def assert_alike(found, expected):
    """Within some hundred roundings of float32, by the largest number of each tensor.

    And within a few by 1: the gradient of the last bias is a sum of such numbers and may cancel.
    The longest sums have ten thousand terms, whose roundings go either way and add up to about a
    hundred; the bound is three times that. A sixth of it was needed.
    """
    pairs = zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True)
    for name, (a, b) in zip(["loss", *NAMES], pairs, strict=True):
        assert a.shape == b.shape, name
        most = 2e-5 * float(b.abs().max()) + 2e-7
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=most, err_msg=name)


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 18), st.sampled_from([16, 19, 28, 32]), st.sampled_from([2, 62]), st.data())
def test_gradient_is_autograds(n, side, classes, data):
    module = build(side, classes, seed=data.draw(st.integers(0, 99)))
    x, y = batch(n, side, classes, seed=data.draw(st.integers(0, 99)))
    parameters = list(module.parameters())
    found = module.loss_and_gradients(parameters, x, y)
    assert not any(tensor.requires_grad for tensor in (found[0], *found[1]))
    assert_alike(found, by_autograd(module, parameters, x, y))


@pytest.mark.parametrize("side", [16, 28, 32])
def test_gradient_is_the_textbooks_in_float64(side):
    module = build(side)
    x, y = batch(16, side)
    parameters = list(module.parameters())
    assert_alike(module.loss_and_gradients(parameters, x, y), exactly(parameters, x, y))


def test_parameters_may_be_any_and_row_major():
    module = build()
    others = [torch.randn(p.shape).mul_(0.1) for p in module.parameters()]
    before = copy.deepcopy(module.state_dict())
    x, y = batch(5)
    assert_alike(module.loss_and_gradients(others, x, y), by_autograd(module, others, x, y))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_images_in_three_shapes():
    x, y = batch(3)
    found = [
        build_model("convnet", input_shape=shape, num_classes=62, seed=1).loss_and_gradients(
            list(build().parameters()), x.reshape(3, *shape), y
        )
        for shape in ((28, 28), (1, 28, 28), (784,))
    ]
    for loss, gradients in found[1:]:
        assert torch.equal(loss, found[0][0])
        assert all(map(torch.equal, gradients, found[0][1]))


# Each of these is a mistake that the comparison must notice


def last_of_equals(maps, bias=None):
    pooled, places = torch.ops.aten.max_pool2d_with_indices(maps.flip(-1, -2), (2, 2), (2, 2))
    pooled = pooled if bias is None else pooled + bias[:, None, None]
    return pooled.flip(-1, -2).clamp_min(0), (maps[0, 0].numel() - 1 - places).flip(-1, -2)


def no_relu(gradient, out):
    return gradient.contiguous(memory_format=torch.channels_last)


MISTAKES = {
    "_through_relu": no_relu,
    "_pooled_relu": last_of_equals,
    "one_hot": lambda labels, classes: nn.functional.one_hot(labels.roll(1), classes),
}


@pytest.mark.parametrize("twin", ["autograd", "float64"])
@pytest.mark.parametrize("name", MISTAKES)
def test_comparison_notices(name, twin, monkeypatch):
    module = build()
    x, y = batch(8)
    parameters = list(module.parameters())
    with torch.no_grad():
        module.conv1.weight[::2] = 0  # ties between windows on which the images differ
        module.conv1.bias[::2] = 1
    if twin == "autograd":
        expected = by_autograd(module, parameters, x, y)
    else:
        expected = exactly(parameters, x, y)
    assert_alike(module.loss_and_gradients(parameters, x, y), expected)
    monkeypatch.setattr(convnet_gradient, name, MISTAKES[name])
    with pytest.raises(AssertionError, match="Not equal"):
        assert_alike(module.loss_and_gradients(parameters, x, y), expected)


# Training


@dataclass
class Step:
    """What a step of `Learner` began with, whose samples it took, and where it led."""

    before: list[torch.Tensor]
    images: torch.Tensor
    labels: torch.Tensor
    after: list[torch.Tensor]


def copies(parameters):
    return [parameter.detach().clone() for parameter in parameters]


def steps_of(module, side, training, objective):
    """Train on the same 19 samples, shuffled alike."""
    learner, begun = Learner(module), []
    gradient_of = learner._loss_and_gradients

    def noted(parameters, images, labels):
        begun.append((copies(parameters), images, labels))
        return gradient_of(parameters, images, labels)

    learner._loss_and_gradients = noted
    order = torch.Generator().manual_seed(3)
    learner.train(to_vector(module), device(19, side), training, order, objective)
    ends = [before for before, _, _ in begun[1:]] + [copies(module.parameters())]
    return [Step(*one, after) for one, after in zip(begun, ends, strict=True)]


def assert_steps(module, steps, training, objective):
    """Each leads from where it began to w − γ·(s·∇f + λ·w + μ·(w − w_t)), with autograd's ∇f.

    A step is compared from where it began, not from where the same step of another training did:
    two trainings are alike only until a pooling finds one number the larger in one, and another in
    the other, because steps were rounded.

    The bound is what `assert_alike` allows ∇f, and f, of which s = 1 / (ceiling − f) has the
    derivative s²; one rounding of w; and eight of the other terms, more than operations on them.
    """
    rounding, rate, ceiling = 2.0**-24, training.learning_rate, objective.ceiling
    for step in steps:
        loss, gradients = by_autograd(module, step.before, step.images, step.labels)
        slope, of_slope = 1.0, 0.0
        if ceiling is not None:
            room = ceiling - float(loss)
            assert abs(room - 0.2) > 0.1, "s jumps there"
            slope = 1 / (room if room >= 0.2 else ceiling)
            of_slope = slope**2 * (2e-5 * float(loss) + 2e-7) if room >= 0.2 else 0.0
        rows = zip(NAMES, step.before, steps[0].before, gradients, step.after, strict=True)
        for name, before, origin, gradient, after in rows:
            before, origin, gradient = (each.double() for each in (before, origin, gradient))
            others = training.l2 * before + objective.proximal * (before - origin)
            expected = before - rate * (slope * gradient + others)
            largest = float(gradient.abs().max())
            of_gradient = slope * (2e-5 * largest + 2e-7) + of_slope * largest
            of_others = 8 * rounding * float(others.abs().max())
            most = rate * (of_gradient + of_others) + rounding * float(before.abs().max())
            np.testing.assert_allclose(after, expected, rtol=0, atol=most, err_msg=name)


OBJECTIVES = [
    (0.0, PLAIN),
    (0.02, PLAIN),
    (0.0, LocalObjective(proximal=0.5)),
    (0.01, LocalObjective(ceiling=6.0)),
    (0.0, LocalObjective(ceiling=3.0)),  # the losses are above it
]


@pytest.mark.parametrize("side", [16, 28, 32])
@pytest.mark.parametrize(("l2", "objective"), OBJECTIVES)
def test_steps_are_the_same_either_way(side, l2, objective):
    module, training = build(side), LocalTraining(0.1, 8, 2, l2)
    written_out, recorded = (
        steps_of(m, side, training, objective) for m in (build(side), ByAutograd(build(side)))
    )
    assert [len(step.labels) for step in written_out] == [8, 8, 3] * 2
    for mine, other in zip(written_out, recorded, strict=True):
        assert torch.equal(mine.images, other.images)
        assert torch.equal(mine.labels, other.labels)
    for steps in (written_out, recorded):
        assert all(map(torch.equal, steps[0].before, module.parameters()))
        assert_steps(module, steps, training, objective)
    # what is a little stronger, or of other samples, would be noticed
    others = [
        (written_out, replace(training, l2=l2 + 1e-4), objective),
        (written_out, training, replace(objective, proximal=1.01 * objective.proximal + 1e-3)),
        (written_out, training, replace(objective, ceiling=(objective.ceiling or 400) * 1.001)),
        ([replace(step, labels=step.labels.roll(1)) for step in written_out], training, objective),
    ]
    for arguments in others:
        with pytest.raises(AssertionError, match="Not equal"):
            assert_steps(module, *arguments)


@pytest.mark.parametrize("name", ["_through_relu", "one_hot"])
def test_mistakes_in_a_step_are_noticed(name, monkeypatch):
    monkeypatch.setattr(convnet_gradient, name, MISTAKES[name])
    training = LocalTraining(0.1, 8)
    steps = steps_of(build(), 28, training, PLAIN)
    with pytest.raises(AssertionError, match="Not equal"):
        assert_steps(build(), steps, training, PLAIN)


def test_learner_takes_the_written_out_gradient(monkeypatch):
    module, data = build(16, 5), device(5, 16, 5)
    vector, training = to_vector(module), LocalTraining(0.1, 2)
    assert isinstance(module, Differentiated)
    assert not isinstance(ByAutograd(module), Differentiated)
    sizes = []

    def counted(parameters, images, labels):
        sizes.append(len(labels))
        assert len(images) == len(labels)
        return torch.tensor(0.0), list(parameters)

    monkeypatch.setattr(convnet_gradient, "loss_and_gradients", counted)
    for m in (ByAutograd(module), module):
        assert not sizes
        Learner(m).train(vector, data, training, torch.Generator().manual_seed(3))
    assert sizes == [2, 2, 1]


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 9), st.integers(16, 33), st.integers(0, 99))
def test_evaluation_pools_the_same_bits_as_training(n, side, seed):
    module, (x, _) = build(side, 10, seed), batch(n, side, seed=seed)
    maps, expected = module.conv1(x[:, None]), module(x)
    assert expected.requires_grad
    largest = convnet._pooled(maps)
    with torch.inference_mode():
        np.testing.assert_array_equal(convnet._pooled(maps.detach()), largest.detach())
        # a kernel may be another where nothing is recorded
        torch.testing.assert_close(module(x), expected.detach(), rtol=2e-6, atol=2e-6)


def test_gradients_by_function_transforms_send_ties_one_way():
    module, (x, y) = build(16, 5), batch(4, 16, 5)
    x = torch.zeros_like(x)  # nothing but ties
    parameters = dict(module.named_parameters())

    def loss(parameters):
        return cross_entropy(torch.func.functional_call(module, parameters, x), y)

    with torch.no_grad():  # which the transform does not heed
        found = torch.func.grad(loss)(parameters)
    expected = by_autograd(module, parameters.values(), x, y)[1]
    for a, b in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(a, b)


# Memory

FAULTS = """
import resource
import numpy as np, torch
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.models import build_model
from deltafl.fl.parameters import to_vector

torch.set_num_threads(1)
module = build_model("convnet", input_shape=(28, 28), num_classes=10, seed=1)
data = DeviceData("a", np.ones((32, 28, 28), np.float32), np.zeros(32, np.int64))
learner, vector = Learner(module), to_vector(module)

def train():
    learner.train(vector, data, LocalTraining(0.1, 16), torch.Generator().manual_seed(1))

for _ in range(5):
    train()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    train()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
"""


def page_faults_per_step(**environment):
    printed = subprocess.run(  # noqa: S603 our own interpreter, with a fresh allocator
        [sys.executable, "-c", FAULTS],
        capture_output=True,
        check=True,
        env=os.environ | environment,
    )
    return float(printed.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc's allocator only")
def test_training_steps_use_the_memory_of_the_step_before():
    assert page_faults_per_step() < 50
    # a threshold that is given is not learnt: every large tensor is new memory
    assert page_faults_per_step(MALLOC_MMAP_THRESHOLD_="65536") > 500
