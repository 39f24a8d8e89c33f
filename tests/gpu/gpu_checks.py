"""The checks of `make gpu`: what the GPU computes is what the CPU does.

Integers are compared bit for bit. Gradients and updates are compared with those of float64, or of
the plain learner, by the length of the difference over the length of the right one. Rounding of
float32 makes some 1e-6 of it; convolutions with inputs of 10 bits (TF32) make 1e-3.
"""

import hashlib
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

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
from deltafl.secagg import prg
from deltafl.secagg.primitives import PLAIN, pairwise_with
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.session import NoObserver
from deltafl.sim.cohort import gpu_masks
from deltafl.sim.cohort.backends.base import ModelSpec, SampleReference
from deltafl.sim.cohort.backends.in_process import InProcess
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.run.algorithms import sessions_of, strategy_of
from deltafl.sim.settings.config import (
    FederationConfig,
    PrivacyConfig,
    QuantileConfig,
    RunConfig,
)
from deltafl.sim.settings.policy import PolicyConfig

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


def check_masks(place, _end):
    """Vectors of words of both sizes, with seeds that are added and subtracted."""
    length, masks = (40, 4) if place.emulated else (115_646, 23)
    generator = np.random.default_rng(1)
    for word in (np.uint32, np.uint64):
        vector = generator.integers(0, np.iinfo(word).max, length, word, endpoint=True)
        seeds = [generator.bytes(prg.SEED_SIZE) for _ in range(masks)]
        both = seeds[: masks // 2], seeds[masks // 2 :]
        found, expected = vector.copy(), vector.copy()
        gpu_masks.add_masks(found, *both, device=place.device)
        prg.add_masks(expected, *both)
        same(f"masks of {word.__name__}", found, expected)
    return {"words": length, "masks": masks}


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


@dataclass(frozen=True)
class Fixed:
    """A device whose loss and update do not depend on the model: the same by every way."""

    id: int
    length: int
    weight: int = 3

    def loss(self, _model):
        return 1 + self.id / 7

    def update(self, _model):
        return np.random.default_rng(self.id).uniform(-1, 1, self.length).astype(np.float32)


class Messages(NoObserver):
    """A digest of all that the server sends and receives."""

    def __init__(self):
        self.digest = hashlib.sha256()

    def message(self, *, sent, peer, data):
        self.digest.update(b"%d %d " % (sent, peer) + data)


def check_round(place, _end):
    """A whole private round: masks by the kernel, masks by the CPU, and integers without masks."""
    return _compare(place, "bracketed", ())


def check_levels(place, _end):
    """The same at two conformity levels in one session."""
    return _compare(place, "bracketed", ("1", "0.4"))


def primitives_with(add_masks):
    """Primitives of parties that make no mask otherwise."""
    return replace(PLAIN, add_masks=add_masks, add_pairwise=pairwise_with(add_masks))


def _compare(place, method, levels):
    devices, length = (
        (4 + len(levels) // 2, 20) if place.emulated else (100 // max(1, len(levels)), 115_646)
    )
    config = _config(method, levels, devices)
    launched = []

    def add(total, added, subtracted):
        launched.append(len(total))
        gpu_masks.add_masks(total, added, subtracted, device=place.device)

    ways = {"kernel": partial(primitives_with, add), "cpu": lambda: PLAIN, "ideal": None}
    models, digests = {}, {}
    for name, primitives in ways.items():
        messages = Messages()
        rounds = IdealRounds(sessions_of(config))
        if primitives is not None:
            rounds = MaskedRounds(
                sessions_of(config), SeededRandomness(b"s" * 32), messages, primitives=primitives
            )
        strategy = strategy_of(config)
        # the models of several levels follow one another, and may not be equal
        start = np.linspace(0, 1, length * max(1, len(levels)), dtype=np.float32)
        state = strategy.init(start, devices)
        cohort = cohort_of([Fixed(k, length) for k in range(devices)], rounds)
        state, _ = strategy.apply(state, cohort)
        models[name], digests[name] = state.model, messages.digest.hexdigest()
        if np.array_equal(state.model, start):
            raise NotPassed("the round has changed nothing, so nothing is shown")
    if len(launched) < 2 * devices * max(1, len(levels)):  # own masks, and those of pairs
        raise NotPassed(f"the kernel was launched {len(launched)} times for {devices} devices")
    same("the model by the kernel's masks", models["kernel"], models["cpu"])
    same("the model by masks", models["cpu"], models["ideal"])
    if digests["kernel"] != digests["cpu"]:
        raise NotPassed("the messages by the kernel's masks are not those by the CPU's")
    return {"devices": devices, "numbers": length, "levels": max(1, len(levels))}


def _config(method, levels, devices):
    small = devices < 10
    return RunConfig(
        federation=FederationConfig(
            algorithm="private-delta-fl",
            cohort_size=devices,
            theta=Fraction(1, 2),
            levels=levels,
        ),
        quantile=QuantileConfig(method=method),
        privacy=PrivacyConfig(
            min_cohort=devices if small else 10,
            colluding=0.0 if small else 0.1,
            expected_dropout=0.0 if small else 0.1,
        ),
        policy=PolicyConfig(max_pivots=320, max_mm_pivots_per_device=Fraction(320)),
    )


def same(what, found, expected):
    """Compare bit for bit."""
    if found.dtype != expected.dtype or found.tobytes() != expected.tobytes():
        wrong = int(np.sum(found != expected)) if found.shape == expected.shape else "all"
        raise NotPassed(f"{what}: {wrong} of {expected.size} numbers differ")


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
    Step("masks", CHECK, 60, check_masks, "masks by the kernel are the CPU's, bit for bit"),
    Step("gradients", CHECK, 90, check_gradients, "every model's gradient is that of float64"),
    Step("backends", CHECK, 60, check_backends, "losses and updates are the plain learner's"),
    Step("round", CHECK, 60, check_round, "a private round equals the CPU's sums, bit for bit"),
    Step("levels", CHECK, 60, check_levels, "the same at two conformity levels"),
)
