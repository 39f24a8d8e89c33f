"""Training on a device by other optimisers than plain SGD, against torch's own loop."""

from functools import partial
from itertools import pairwise
from threading import Thread

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deltafl.fl.batched import BatchedLearner
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.models import seeded
from deltafl.fl.models.linear import Linear
from deltafl.fl.objectives import LocalObjective
from deltafl.fl.parameters import to_vector
from deltafl.fl.schedule import CosineDecay, StepDecay, WarmUp

RATE, L2, PULL = 0.1, 0.01, 0.3
RNG = np.random.default_rng(0)
DATA = DeviceData("a", RNG.normal(size=(11, 4)).astype(np.float32), RNG.integers(0, 3, 11))


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def by_torch(make, *, passes=2, limit=None, steps=None, pull=0.0):
    """The update that torch's optimiser comes to, over the same minibatches."""
    module, generator = network(), torch.Generator().manual_seed(9)
    origins = [one.detach().clone() for one in module.parameters()]
    optimizer, done = make(list(module.parameters()), RATE), 0
    for _ in range(passes):
        for rows in torch.randperm(11, generator=generator).split(4):
            if done == steps:
                break
            done += 1
            optimizer.zero_grad()
            loss = cross_entropy(module(torch.tensor(DATA.x)[rows]), torch.tensor(DATA.y)[rows])
            pairs = list(zip(module.parameters(), origins, strict=True))
            decay = L2 / 2 * sum(one.square().sum() for one, _ in pairs)
            near = pull / 2 * sum((one - start).square().sum() for one, start in pairs)
            (loss + decay + near).backward()
            if limit is not None:
                torch.nn.utils.clip_grad_norm_(module.parameters(), limit)
            optimizer.step()
    return to_vector(module) - to_vector(network())


def ours(own=None, learner=Learner, pull=0.0, **how):
    module = network()
    training = LocalTraining(RATE, 4, **{"epochs": 2, "l2": L2, **how})
    objective = LocalObjective(proximal=pull)
    made = learner(module, optimizer=own)
    [update] = made.updates(to_vector(module), [DATA], training, [9], objective)
    return update


def update_of(learner, vector, **how):
    [update] = learner.updates(vector, [DATA], LocalTraining(RATE, 4, **how), [9])
    return update


SGD, ADAM = torch.optim.SGD, torch.optim.Adam
HEAVY = partial(SGD, momentum=0.9)


@pytest.mark.parametrize("learner", [Learner, BatchedLearner])
@pytest.mark.parametrize(
    ("how", "own", "theirs"),
    [
        ({}, None, {"make": SGD}),
        ({"momentum": 0.9}, None, {"make": HEAVY}),
        ({"optimizer": "adam"}, None, {"make": ADAM}),
        ({"optimizer": "own"}, torch.optim.AdamW, {"make": torch.optim.AdamW}),
        ({"max_grad_norm": 0.05}, None, {"make": SGD, "limit": 0.05}),
        ({"max_grad_norm": 1e9}, None, {"make": SGD}),
        ({"max_grad_norm": 0.05, "optimizer": "adam"}, None, {"make": ADAM, "limit": 0.05}),
        ({"steps": 5, "epochs": 1}, None, {"make": SGD, "steps": 5}),
        ({"steps": 2, "epochs": 1}, None, {"make": SGD, "steps": 2}),
        ({"steps": 8, "epochs": 1}, None, {"make": SGD, "steps": 8, "passes": 3}),
        ({"momentum": 0.9, "pull": PULL}, None, {"make": HEAVY, "pull": PULL}),
    ],
)
def test_a_device_trains_as_torch_does(learner, how, own, theirs):
    expected = by_torch(**theirs)
    np.testing.assert_allclose(ours(own, learner, **how), expected, atol=2e-6)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("how", [{"optimizer": "adam"}, {"momentum": 0.9}, {"steps": 5}])
def test_stacks_of_devices_leave_what_they_cannot_do_to_the_learner(how):
    def update(learner, **how):
        return update_of(learner(Linear((4,), 3)), np.zeros(12, np.float32), **how)

    assert update(BatchedLearner, **how).tobytes() == update(Learner, **how).tobytes()
    assert not np.array_equal(update(Learner, **how), update(Learner))


def test_an_optimiser_begins_anew_on_every_device():
    module = network()
    vector, training = to_vector(module), LocalTraining(RATE, 4, momentum=0.9)
    one, other = Learner(module).updates(vector, [DATA, DATA], training, [9, 9])
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("own", "complaint"),
    [(None, "pass it again"), (lambda _p, _r: 3, "must be a function of parameters and")],
)
def test_what_is_no_optimiser_is_refused(own, complaint):
    with pytest.raises(ValueError, match=complaint):
        ours(own, optimizer="own")


@pytest.mark.parametrize("how", [{"max_grad_norm": 1.0}, {"optimizer": "adam"}])
def test_training_that_diverges_ends_in_numbers_that_are_not_finite(how):
    vector = np.full_like(to_vector(network()), np.inf)
    assert not np.isfinite(update_of(Learner(network()), vector, **how)).any()


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(5, 5)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("how", [{}, {"optimizer": "adam"}])
def test_a_layer_that_is_not_used_has_a_gradient_of_zero(how):
    module = Partly()
    update = update_of(Learner(module), to_vector(module), **how)
    assert np.abs(update[:15]).min() > 0
    assert not update[15:].any()


def dropped_out(seed, found):
    torch.set_num_threads(1)
    module = seeded(lambda: nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3)), 0)
    vector = np.linspace(-1, 1, to_vector(module).size, dtype=np.float32)
    devices, seeds = [DATA] * 60, range(seed, seed + 60)
    updates = Learner(module).updates(vector, devices, LocalTraining(RATE, 2), seeds)
    found[seed] = np.stack(list(updates)).tobytes()


def test_two_threads_draw_what_each_would_alone():
    alone, together = {}, {}
    for seed in (1, 1000):
        dropped_out(seed, alone)
    threads = [Thread(target=dropped_out, args=(seed, together)) for seed in (1, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert alone[1] != alone[1000]


def test_the_rate_falls_as_a_cosine_and_grows_at_first():
    cosine = WarmUp(CosineDecay(0.4, 0.1, over_rounds=10), rounds=4)
    rates = [cosine.rate(t) for t in range(20)]
    assert rates[:4] == [0.1, 0.2, pytest.approx(0.3), 0.4]
    assert rates[4] == 0.4
    assert rates[9] == pytest.approx((0.4 + 0.04) / 2)
    assert rates[14:] == [pytest.approx(0.04)] * 6
    assert all(later <= earlier for earlier, later in pairwise(rates[4:]))
    steps = WarmUp(StepDecay(1.0, 0.5, 2), rounds=1)
    assert [steps.rate(t) for t in range(4)] == [1.0, 1.0, 1.0, 0.5]


@pytest.mark.parametrize("arguments", [(0.0, 0.5, 1), (1.0, 0.0, 1), (1.0, 1.1, 1), (1.0, 0.5, 0)])
def test_cosines_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match="is not"):
        CosineDecay(*arguments)


@pytest.mark.parametrize("rounds", [0, 3])
def test_no_round_is_before_the_first(rounds):
    with pytest.raises(ValueError, match="negative"):
        WarmUp(CosineDecay(1.0, 0.5, 4), rounds).rate(-1)
