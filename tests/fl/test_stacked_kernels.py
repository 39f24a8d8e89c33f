"""Each kernel's losses and gradients are those of autograd, client by client."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, dropout, pad

from deltafl.fl.models import build_model
from deltafl.fl.parameters import trained
from deltafl.fl.stacked import StackedByMapping, StackedLinear, stacked

CPU = torch.device("cpu")
MODELS = {
    "linear": ((5, 4), 7),
    "logistic": ((6,), 2),
    "logistic-bias": ((6,), 3),
    "m5": ((1100,), 3),
    "convnet-groupnorm": ((16, 16), 2),
}


def case(name, clients=3, batch=4, seed=0):
    shape, classes = MODELS[name]
    module = build_model(name, input_shape=shape, num_classes=classes, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    parameters = [
        p.detach() + 0.1 * torch.randn(clients, *p.shape, generator=generator)
        for p in module.parameters()
    ]
    x = torch.rand(clients, 8 * batch, *shape, generator=generator)
    x = torch.stack(
        [away_from_ties(module, *one)[:batch] for one in zip(x, *parameters, strict=True)]
    )
    y = torch.randint(classes, (clients, batch), generator=generator)
    weights = torch.full((clients, batch), 1 / batch)
    weights[-1] = torch.tensor([0.5, 0.5, 0, 0])  # two samples and padding
    return module, parameters, x, y, weights


def named(module, parameters):
    return dict(zip([name for name, _ in module.named_parameters()], parameters, strict=True))


def away_from_ties(module, x, *parameters):
    """The samples of which no window's largest number, nor its sign, hangs on rounding.

    Kernels round otherwise, by some 1e-6 where a normalisation makes numbers of about 1, and what
    they decide otherwise is another gradient.
    """
    clear = torch.ones(len(x), dtype=torch.bool)

    def look(norm, inputs, maps):
        if maps.dim() == 3:
            windows = maps.unfold(2, 4, 4)
        else:
            windows = pad(maps, (1, 1, 1, 1), value=-torch.inf).unfold(2, 2, 2).unfold(3, 2, 2)
        first, second = windows.flatten(maps.dim()).topk(2).values.unbind(-1)
        near = (first.abs() < 2e-5) | ((first > 0) & (first - second < 2e-5))
        clear.logical_and_(~near.flatten(1).any(1))

    handles = [norm.register_forward_hook(look) for norm in getattr(module, "norms", [])]
    with torch.no_grad():
        functional_call(module, named(module, parameters), (x,))
    for handle in handles:
        handle.remove()
    return x[clear]


def by_autograd(module, parameters, x, y, weights):
    losses, stacks = [], []
    for client in range(len(x)):
        own = [p[client].clone().requires_grad_() for p in parameters]
        real = weights[client] > 0
        logits = functional_call(module, named(module, own), (x[client][real],))
        loss = cross_entropy(logits, y[client][real])
        losses.append(loss.detach())
        stacks.append(torch.autograd.grad(loss, own))
    return torch.stack(losses), [torch.stack(s) for s in zip(*stacks, strict=True)]


def kernel_of(module):
    choice = stacked(module, CPU)
    return StackedByMapping(module) if choice is None else choice[0]


def differences(found, expected):
    pairs = zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients(name):
    arguments = case(name)
    expected = by_autograd(*arguments)
    kernel = kernel_of(arguments[0])
    assert differences(kernel.gradients(*arguments[1:]), expected) < 1e-5
    # negative control: padding that counts would be seen
    _, parameters, x, y, _ = arguments
    everything = torch.full(y.shape, 0.25)
    assert differences(kernel.gradients(parameters, x, y, everything), expected) > 1e-3


@pytest.mark.parametrize("name", ["m5", "convnet-groupnorm"])
def test_samples_full_of_ties_are_left_out(name):
    module, parameters, x, *_ = case(name)
    own = [p[0] for p in parameters]
    assert torch.equal(away_from_ties(module, x[0], *own), x[0])
    assert not len(away_from_ties(module, torch.zeros_like(x[0]), *own))


@pytest.mark.parametrize("name", ["linear", "logistic", "logistic-bias"])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_a_step_is_the_gradients_step(name, l2):
    module, parameters, *batch = case(name)
    kernel = StackedLinear(module)
    _, gradients = kernel.gradients(parameters, *batch)
    expected = [p - 0.2 * (g + l2 * p) for p, g in zip(parameters, gradients, strict=True)]
    kernel.descend(parameters, *batch, 0.2, l2)
    for found, right in zip(parameters, expected, strict=True):
        torch.testing.assert_close(found, right, atol=1e-6, rtol=1e-5)


def test_large_scores_stay_finite():
    module, parameters, *batch = case("logistic")
    losses, gradients = StackedLinear(module).gradients([p * 1e4 for p in parameters], *batch)
    assert losses.isfinite().all()
    assert all(g.isfinite().all() for g in gradients)


def test_who_has_a_kernel():
    def choice(name, shape, classes, device=CPU):
        module = build_model(name, input_shape=shape, num_classes=classes, seed=0)
        return stacked(module, device)

    accelerator = torch.device("cuda")  # only its name is looked at
    assert choice("linear", (4,), 3) is not None
    assert choice("gru", (4,), 3) is not None
    assert choice("convnet", (16, 16), 3) is None
    assert choice("convnet", (16, 16), 3, accelerator) is not None
    assert choice("lstm-stacked", (4,), 3, accelerator) is None


class Odd(nn.Module):
    """A frozen layer, one that is not used, and dropout as a function."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 5).requires_grad_(False)
        self.unused, self.last = nn.Linear(2, 2), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(dropout(self.frozen(x), 0.5, training=self.training))


def test_a_mapped_module_may_have_frozen_layers_unused_ones_and_dropout():
    torch.manual_seed(0)
    module, clients = Odd().eval(), 3
    parameters = [one.detach().expand(clients, *one.shape) for one in trained(module)]
    x, y = torch.randn(4, 4).expand(clients, 4, 4), torch.tensor([0, 1, 2, 0]).expand(clients, 4)
    weights = torch.full((clients, 4), 0.25)
    loss = cross_entropy(module(x[0]), y[0])
    expected = torch.autograd.grad(loss, trained(module), materialize_grads=True)
    _, gradients = StackedByMapping(module).gradients(parameters, x, y, weights)
    assert len(gradients) == len(expected) == 4
    for one, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, wanted.expand_as(one))
    _, drawn = StackedByMapping(module.train()).gradients(parameters, x, y, weights)
    assert not torch.equal(drawn[-2][0], drawn[-2][1])  # each client draws for itself
