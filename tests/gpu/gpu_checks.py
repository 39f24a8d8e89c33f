"""The checks of `make gpu`: what the GPU computes is what the CPU does.

Gradients and updates are compared with those of float64, or of
the plain learner, by the length of the difference over the length of the right one. Rounding of
float32 makes some 1e-6 of it; convolutions with inputs of 10 bits (TF32) make 1e-3.
"""

import numpy as np
import torch
from gpu_steps import CHECK, NotPassed, Step
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from deltafl.fl.batched import BatchedLearner
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.models import MODELS, READ_TOKENS, build_model
from deltafl.fl.parameters import to_vector
from deltafl.fl.stacked import stacked
from deltafl.sim.cohort.backends.base import ModelSpec, SampleReference
from deltafl.sim.cohort.backends.in_process import InProcess

TOLERANCE = 2e-4
SHAPES = {
    "linear": ((28, 28), 62),
    "logistic": ((50,), 2),
    "logistic-bias": ((13,), 2),
    "convnet": ((28, 28), 62),
    "convnet-groupnorm": ((32, 32), 2),
    "gru": ((20,), 53),
    "gru-embedding": ((20,), 53),
    "lstm": ((25,), 2),
    "lstm-stacked": ((10,), 200),
    "m5": ((1100,), 5),
}
"""The input and the classes of each model, by its name."""


def check_gradients(place, _end):
    """Losses and gradients of every model, three clients at once where it has a kernel."""
    return {name: _gradient_of(name, place.device) for name in MODELS}


def _gradient_of(name, device):
    shape, classes = SHAPES[name]
    embedding = None
    if name == "lstm":
        embedding = np.random.default_rng(0).normal(size=(40, 50)).astype(np.float32)
    module = build_model(name, input_shape=shape, num_classes=classes, seed=1, embedding=embedding)
    generator = torch.Generator().manual_seed(1)
    clients, batch = 3, 4
    vocabulary = 40 if name == "lstm" else classes
    if name in READ_TOKENS:
        x = torch.randint(vocabulary, (clients, batch, *shape), generator=generator)
    else:
        x = torch.rand(clients, batch, *shape, generator=generator)
    y = torch.randint(classes, (clients, batch), generator=generator)
    parameters = [
        p.detach() + 0.05 * torch.randn(clients, *p.shape, generator=generator)
        for p in module.parameters()
    ]
    expected = [_exact(module, [p[k] for p in parameters], x[k], y[k]) for k in range(clients)]
    there, inputs, labels = [p.to(device) for p in parameters], x.to(device), y.to(device)
    module.to(device)
    if choice := stacked(module, torch.device("cuda")):
        weights = torch.full((clients, batch), 1 / batch, device=device)
        _, gradients = choice[0].gradients(there, inputs, labels, weights)
        found = [[g[k] for g in gradients] for k in range(clients)]
    else:
        module.train()
        found = [
            _autograd(module, [p[k] for p in there], inputs[k], labels[k]) for k in range(clients)
        ]
    return max(
        near(f"the gradient of {name}", _flat(one), _flat(right))
        for one, right in zip(found, expected, strict=True)
    )


def _autograd(module, parameters, x, y):
    own = [p.detach().clone().requires_grad_() for p in parameters]
    names = [name for name, _ in module.named_parameters()]
    outputs = functional_call(module, dict(zip(names, own, strict=True)), (x,))
    return torch.autograd.grad(cross_entropy(outputs, y), own)


def _exact(module, parameters, x, y):
    """The gradient in float64, on the CPU."""
    module = module.double().train()
    inputs = x.double() if x.is_floating_point() else x
    found = _autograd(module, [p.double() for p in parameters], inputs, y)
    module.float()
    return found


def check_backends(place, _end):
    """Losses, errors and updates of devices of many sizes: the plain learner's on the CPU."""
    found = {}
    sizes = (9, 1, 22, 4) if place.emulated else (179, 101, 447, 33, 1, 250)
    for name in ("linear", "convnet", "gru"):
        devices = [device_of(name, number, size) for number, size in enumerate(sizes)]
        spec = ModelSpec(name, *SHAPES[name])
        start = to_vector(spec.build(1))
        learner = BatchedLearner(spec.build(), device=place.device)
        plain, backend = Learner(spec.build()), InProcess("cuda", learner)
        training = LocalTraining(0.05, batch_size=10, epochs=2, l2=1e-3)
        refs = [SampleReference(devices, k, size) for k, size in enumerate(sizes)]
        losses = [backend.begin_loss(start, ref) for ref in refs]
        updates = [backend.begin_update(start, ref, training, k) for k, ref in enumerate(refs)]
        right = plain.evaluate(start, devices)
        for pending, metrics in zip(losses, right, strict=True):
            near(f"a loss of {name}", np.array(pending.result()), np.array(metrics.loss))
        expected = plain.updates(start, devices, training, range(len(devices)))
        found[name] = max(
            near(f"an update of {name}", pending.result(), update, 20 * TOLERANCE)
            for pending, update in zip(updates, expected, strict=True)
        )
    return found


def device_of(name, number, size):
    """A device with random samples."""
    shape, classes = SHAPES[name]
    generator = np.random.default_rng(number)
    x = (
        generator.integers(0, classes, (size, *shape)).astype(np.int8)
        if name in READ_TOKENS
        else generator.random((size, *shape), np.float32)
    )
    return DeviceData(str(number), x, generator.integers(0, classes, size))


def near(what, found, expected, tolerance=TOLERANCE):
    """Compare by the length of the difference, as a share of the right one's."""
    difference = float(np.linalg.norm(found - expected))
    right = float(np.linalg.norm(expected))
    share = difference / max(right, 1e-12)
    if not share <= tolerance:
        raise NotPassed(f"{what}: differs by {share:.2g} of its length, more than {tolerance:g}")
    return float(f"{share:.2g}")


def _flat(gradients):
    return torch.cat([g.detach().double().flatten().cpu() for g in gradients]).numpy()


CHECKS = (
    Step("gradients", CHECK, 90, check_gradients, "every model's gradient is that of float64"),
    Step("backends", CHECK, 60, check_backends, "losses and updates are the plain learner's"),
)
