"""The ConvNet: it is evaluated as it is trained, and a step takes the memory of the step before."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from deltafl.fl.models import build_model, convnet


def build(side=28, classes=62, seed=1):
    return build_model("convnet", input_shape=(side, side), num_classes=classes, seed=seed)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 9), st.integers(16, 33), st.integers(0, 99))
def test_evaluation_pools_the_same_bits_as_training(n, side, seed):
    module = build(side, 10, seed)
    x = torch.rand(n, side, side, generator=torch.Generator().manual_seed(seed))
    maps, expected = module.conv1(x[:, None]), module(x)
    assert expected.requires_grad
    largest = convnet._pooled(maps)
    with torch.inference_mode():
        np.testing.assert_array_equal(convnet._pooled(maps.detach()), largest.detach())
        # a kernel may be another where nothing is recorded
        torch.testing.assert_close(module(x), expected.detach(), rtol=2e-6, atol=2e-6)


def test_gradients_by_function_transforms_are_autograds():
    module, y = build(16, 5), torch.tensor([0, 3, 1, 4])
    x = torch.zeros(4, 16, 16)  # nothing but ties
    parameters = dict(module.named_parameters())

    def loss(parameters):
        return cross_entropy(torch.func.functional_call(module, parameters, x), y)

    with torch.no_grad():  # which the transform does not heed
        found = torch.func.grad(loss)(parameters)
    expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
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


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc's allocator only")
def test_training_steps_use_the_memory_of_the_step_before():
    assert page_faults_per_step() < 50
    # a threshold that is given is not learnt: every large tensor is new memory
    assert page_faults_per_step(MALLOC_MMAP_THRESHOLD_="65536") > 500
