"""Batch norm: what takes its place, and what is left of it where it is frozen."""

import numpy as np
import pytest
import torch
from torch import nn

from deltafl.fl.batch_norm import set_training, with_group_norm
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.parameters import fixed, load_vector, num_parameters, to_vector


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 48, 3)
        self.norm = self.same = nn.BatchNorm2d(48, eps=1e-3)
        self.plain = nn.BatchNorm2d(48, affine=False)
        self.none = None

    def forward(self, x):
        return self.plain(self.same(self.norm(self.conv(x))))


def test_every_batch_norm_is_replaced_and_nothing_else():
    given = nn.Sequential(Block(), nn.Flatten(), nn.Linear(48 * 36, 2), nn.BatchNorm1d(2))
    before = {name: one.clone() for name, one in given.state_dict().items()}
    made = with_group_norm(given)
    assert not any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in made.modules())
    assert all(torch.equal(one, before[name]) for name, one in given.state_dict().items())
    assert made[0].norm is made[0].same
    assert (made[0].norm.num_groups, made[0].norm.eps, made[0].plain.affine) == (3, 1e-3, False)
    assert num_parameters(made) == num_parameters(given)
    assert torch.equal(made[2].weight, given[2].weight)
    assert made[2].weight is not given[2].weight


@pytest.mark.parametrize(
    ("channels", "groups"), [(2, 1), (8, 1), (16, 1), (31, 1), (32, 2), (33, 1), (64, 4), (96, 6)]
)
def test_a_group_has_sixteen_channels_or_more(channels, groups):
    assert with_group_norm(nn.BatchNorm2d(channels)).num_groups == groups


def test_what_a_sample_gets_does_not_depend_on_its_batch():
    module = with_group_norm(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(module(x)[:1], module(x[:1]), atol=1e-6)
    assert module(x).std(0).min() > 0.05  # and is not the same for all


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(1), nn.LazyBatchNorm1d()])
def test_what_group_norm_cannot_do_is_refused(layer):
    with pytest.raises(ValueError, match=r"'1' is of one number|a lazy module"):
        with_group_norm(nn.Sequential(nn.Flatten(), layer))


def backbone():
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))
    module[1].running_mean += 1
    for parameter in module[:2].parameters():
        parameter.requires_grad_(False)
    return module


def test_a_frozen_backbone_stays_as_it_is_and_its_head_is_trained():
    module = backbone()
    before, head = fixed(module), module[3].weight.clone()
    assert set(before) == {"0.weight", "0.bias", *(f"1.{name}" for name in module[1].state_dict())}
    rng = np.random.default_rng(1)
    data = DeviceData("a", rng.normal(size=(9, 4)).astype(np.float32), rng.integers(0, 2, 9))
    vector = to_vector(module)
    assert vector.size == num_parameters(module) == 8 * 2 + 2
    [update] = Learner(module).updates(vector, [data], LocalTraining(0.5, 4), [7])
    assert fixed(module) == before
    assert np.abs(update).min() > 0
    assert not torch.equal(module[3].weight, head)
    load_vector(module, vector)
    assert torch.equal(module[3].weight, head)


@pytest.mark.parametrize(
    ("layer", "trains"),
    [
        (nn.BatchNorm1d(8), True),
        (nn.BatchNorm1d(8, affine=False), True),
        (nn.BatchNorm1d(8).requires_grad_(False), False),
        (nn.BatchNorm1d(8, track_running_stats=False).requires_grad_(False), True),
        (nn.Dropout(0.1), True),
    ],
)
def test_only_what_is_frozen_with_its_statistics_is_left_out_of_training(layer, trains):
    set_training(nn.Sequential(layer).eval())
    assert layer.training == trains
