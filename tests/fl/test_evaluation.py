"""The one pass over many devices, beside one device at a time."""

import gc
import weakref
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.data.lazy import LazyDevices
from deltafl.fl.evaluation import measure
from deltafl.fl.models import MODELS, READ_TOKENS, build_model

CPU = torch.device("cpu")
SHAPES = {"convnet": (16, 16), "convnet-groupnorm": (16, 16), "m5": (1100,)}
NUM_CLASSES = 5


def built(name, seed=0):
    shape = SHAPES.get(name, (3,))
    table = np.random.default_rng(1).standard_normal((NUM_CLASSES, 4)).astype(np.float32)
    module = build_model(
        name, input_shape=shape, num_classes=classes(name), seed=seed, embedding=table
    )
    with torch.no_grad():  # the linear models begin with zeros, where everything is a tie
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(seed)))
    return module, shape


def classes(name):
    return 2 if name == "logistic" else NUM_CLASSES


def generator(seed):
    return torch.Generator().manual_seed(seed)


def made(name, shape, number, size):
    rng = np.random.default_rng([7, number])
    if name in READ_TOKENS:
        x = rng.integers(0, NUM_CLASSES, (size, *shape)).astype(np.int8)
    elif number % 2:
        x = rng.standard_normal((size, *shape)).astype(np.float32)
    else:
        x = rng.integers(0, 256, (size, *shape)).astype(np.uint8)
    return DeviceData(str(number), x, rng.integers(0, classes(name), size))


def one_at_a_time(module, data, batch=512):
    """The plain twin: (id, samples, loss, error) of one device, of batches of its own.

    And of how many samples the two largest logits are so near that rounding decides between them.
    """
    module.eval()
    loss, wrong, undecided = 0.0, 0, 0
    with torch.inference_mode():
        for start in range(0, data.num_samples, batch):
            rows = slice(start, start + batch)
            part = DeviceData(data.id, data.x[rows], data.y[rows])
            logits, y = module(torch.tensor(part.inputs())), torch.tensor(part.y)
            loss += float(cross_entropy(logits.double(), y, reduction="sum"))
            wrong += int((logits.argmax(1) != y).sum())
            first, second = logits.topk(2).values.unbind(1)
            undecided += int((first - second < 1e-5).sum())
    return data.id, data.num_samples, loss / data.num_samples, wrong / data.num_samples, undecided


def agree(measured, expected):
    for one, (name, count, _, error, undecided) in zip(measured, expected, strict=True):
        assert (one.id, one.num_samples) == (name, count)
        assert abs(round((one.error - error) * count)) <= undecided
    losses = [loss for _, _, loss, *_ in expected]
    np.testing.assert_allclose([one.loss for one in measured], losses, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_does_in_one_pass_as_on_one_device_at_a_time(name):
    module, shape = built(name)
    devices = [made(name, shape, number, size) for number, size in enumerate((1, 3, 20, 2, 6, 1))]
    expected = [one_at_a_time(module, data) for data in devices]
    for most_rows in (1, 7, 8, 512):
        with patch("deltafl.fl.evaluation._MOST_ROWS", most_rows):
            agree(measure(module, devices, CPU), expected)
    with pytest.raises(AssertionError):  # one sample counted for its neighbour
        agree(measure(module, swapped(devices, 2, 3), CPU), expected)


def swapped(devices, one, other):
    """The devices, two of which have exchanged their first samples."""
    changed = [DeviceData(data.id, data.inputs().copy(), data.y.copy()) for data in devices]
    for mine, theirs in ((devices[one], changed[other]), (devices[other], changed[one])):
        theirs.x[0], theirs.y[0] = mine.inputs()[0], mine.y[0]
    return changed


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    most_rows=st.integers(1, 50),
    seed=st.integers(0, 9),
)
def test_ragged_devices_get_their_own_samples_whatever_the_batch(sizes, most_rows, seed):
    module, shape = built("logistic-bias", seed)
    devices = [made("logistic-bias", shape, number, size) for number, size in enumerate(sizes)]
    with patch("deltafl.fl.evaluation._MOST_ROWS", most_rows):
        measured = measure(module, devices, CPU)
        assert measure(module, devices, CPU) == measured  # to the bit
    agree(measured, [one_at_a_time(module, data) for data in devices])


def test_large_inputs_make_small_batches():
    module, shape = built("linear")
    devices = [made("linear", shape, number, size) for number, size in enumerate((5, 9))]
    seen = []
    handle = module.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    with patch("deltafl.fl.evaluation._NUMBERS", 12), handle:
        measure(module, devices, CPU)
    assert seen == [4, 4, 4, 2]
    seen.clear()
    with (
        patch("deltafl.fl.evaluation._NUMBERS", 1),
        module.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0]))),
    ):
        measure(module, devices[:1], CPU)
    assert seen == [1] * 5


def test_a_token_counts_for_several_numbers():
    module, shape = built("gru")
    seen = []
    with (
        patch.multiple("deltafl.fl.evaluation", _NUMBERS=12 * 3, _TOKEN_NUMBERS=4),
        module.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0]))),
    ):
        measure(module, [made("gru", shape, 0, 7)], CPU)
    assert seen == [3, 3, 1]


def test_a_model_is_measured_as_it_is_used():
    module, shape = built("linear")
    module.train()
    measure(module, [made("linear", shape, 0, 2)], CPU)
    assert not module.training


def test_a_loss_that_is_no_number_stays_where_it_is():
    module, shape = built("linear")
    devices = [made("linear", shape, number, 3) for number in (1, 3, 5)]
    devices[1].x[1, 0] = np.nan
    losses = [one.loss for one in measure(module, devices, CPU)]
    assert np.isnan(losses).tolist() == [False, True, False]


def test_samples_of_one_loss_give_that_loss_to_the_bit():
    module = build_model("linear", input_shape=(3,), num_classes=NUM_CLASSES, seed=0)
    sizes = (1, 2, 3, 7, 49, 179, 700)
    devices = [made("linear", (3,), number, size) for number, size in enumerate(sizes)]
    with patch("deltafl.fl.evaluation._MOST_ROWS", 100):
        losses = {one.loss for one in measure(module, devices, CPU)}
    assert losses == {float(cross_entropy(torch.zeros(1, 5).double(), torch.tensor([0])))}
    assert len({one_at_a_time(module, data)[2] for data in devices}) > 1  # sums are rounded


def test_an_infinite_loss_is_told_as_one_that_is_not_finite():
    module, shape = built("linear")
    devices = [made("linear", shape, number, 3) for number in (1, 3, 5)]
    module.register_forward_hook(lambda *_: torch.tensor([0.0, 0, 0, 0, -np.inf]).repeat(9, 1))
    devices[1].y[:] = (4, 0, 4)
    for data in (devices[0], devices[2]):
        data.y[:] = 1
    losses = [one.loss for one in measure(module, devices, CPU)]
    assert np.isfinite(losses).tolist() == [True, False, True]


class Alive:
    """Counts the devices that are alive at once, of many that are made when asked for."""

    def __init__(self, shape, num_devices, size):
        self.now = self.most = 0
        self._shape = shape
        ids = [str(number) for number in range(num_devices)]
        sizes = np.full(num_devices, size)
        self.devices = LazyDevices(ids, sizes, self._make, "counted")

    def _make(self, number):
        device = made("linear", self._shape, number, int(self.devices.sizes[number]))
        self.now += 1
        self.most = max(self.most, self.now)
        weakref.finalize(device.x, self._gone)
        return device

    def _gone(self):
        self.now -= 1


@pytest.mark.slow
@patch.multiple("deltafl.fl.data.lazy", KEPT_BYTES=0, RECENT_BYTES=0)
def test_two_devices_are_alive_at_once_and_not_the_population():
    module, shape = built("linear")
    gc.collect()
    alive = Alive(shape, 300, 4)
    assert len(measure(module, alive.devices, CPU)) == 300
    assert alive.most <= 2  # the next is made before the last one goes
    held = Alive(shape, 300, 4)
    measure(module, list(held.devices), CPU)
    assert held.most == 300


def test_devices_that_do_not_go_together_are_refused():
    module, shape = built("linear")
    first = made("linear", shape, 1, 4)
    with pytest.raises(ValueError, match="'empty' has no samples"):
        measure(module, [first, DeviceData("empty", first.x[:0], first.y[:0])], CPU)
    for x in (first.x[:, :1], first.x.astype(np.int8)):
        with pytest.raises(ValueError, match="one shape and type"):
            measure(module, [first, DeviceData("other", x, first.y)], CPU)
    assert measure(module, [], CPU) == []
