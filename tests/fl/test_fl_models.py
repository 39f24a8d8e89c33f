import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d, linear, max_pool2d, relu

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner
from deltafl.fl.models import build_model
from deltafl.fl.parameters import load_vector, num_parameters, to_vector
from deltafl.fl.vectors import vector_sha256


def build(name, shape=(28, 28), classes=62, seed=1):
    return build_model(name, input_shape=shape, num_classes=classes, seed=seed)


@pytest.mark.parametrize(("name", "count"), [("linear", 48_608), ("convnet", 115_646)])
def test_parameter_counts_are_the_papers(name, count):
    assert num_parameters(build(name)) == count
    assert to_vector(build(name)).shape == (count,)


def test_linear_starts_at_zero_and_has_loss_ln_classes():
    rng = np.random.default_rng(0)
    data = DeviceData("a", rng.random((30, 28, 28), dtype=np.float32), rng.integers(0, 62, 30))
    module = build("linear")
    assert not to_vector(module).any()
    assert Learner(module).mean_loss(to_vector(module), data) == pytest.approx(np.log(62), rel=1e-6)


def test_a_model_that_is_too_large_is_refused_before_it_is_built():
    with pytest.raises(ValueError, match="at most 67,108,864 can be trained"):
        build("linear", (1 << 20, 1 << 20))


def test_convnet_is_relu_before_pooling_too():
    module = build("convnet")
    x = torch.rand(5, 28, 28, generator=torch.Generator().manual_seed(3))
    hidden = max_pool2d(relu(conv2d(x[:, None], module.conv1.weight, module.conv1.bias)), 2)
    hidden = max_pool2d(relu(conv2d(hidden, module.conv2.weight, module.conv2.bias)), 2)
    assert hidden.shape == (5, 64, 4, 4)
    expected = linear(hidden.flatten(1), module.output.weight, module.output.bias)
    torch.testing.assert_close(module(x), expected)


def test_convnet_takes_images_in_three_shapes():
    x = torch.rand(2, 28, 28, generator=torch.Generator().manual_seed(3))
    expected = build("convnet")(x)
    for shape in ((784,), (1, 28, 28)):
        assert torch.equal(build("convnet", shape)(x.reshape(2, *shape)), expected)


def test_convnet_gradient_fits_the_vector_order():
    # channels-last storage must not leak into vectors: they are row-major
    module = build("convnet")
    expected = np.concatenate(
        [p.detach().contiguous().numpy().reshape(-1) for p in module.parameters()]
    )
    np.testing.assert_array_equal(to_vector(module), expected)


def test_initialisation_follows_the_seed_and_leaves_the_global_state_alone():
    state = torch.get_rng_state()
    first, again, other = (to_vector(build("convnet", seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("convnet", (8, 8), 10, "8×8 pixels are too small .* linear model"),
        ("convnet", (783,), 62, "no image"),
        ("convnet", (3, 28, 28), 62, "no image"),
        ("resnet", (28, 28), 62, "choose one of linear, convnet"),
        ("linear", (28, 28), 1, "num_classes=1"),
    ],
)
def test_models_that_do_not_fit_are_refused(name, shape, classes, message):
    with pytest.raises(ValueError, match=message):
        build(name, shape, classes)


@pytest.mark.parametrize("name", ["linear", "convnet"])
def test_vector_round_trip(name):
    module = build(name)
    vector = np.random.default_rng(0).standard_normal(num_parameters(module), dtype=np.float32)
    strides = [p.stride() for p in module.parameters()]
    load_vector(module, vector)
    np.testing.assert_array_equal(to_vector(module), vector)
    assert [p.stride() for p in module.parameters()] == strides


def test_vector_is_a_copy():
    module = build("linear", (2,), 2)
    vector = np.ones(4, dtype=np.float32)
    load_vector(module, vector)
    copy = to_vector(module)
    vector[:] = 5
    np.testing.assert_array_equal(to_vector(module), np.ones(4))
    load_vector(module, vector)
    np.testing.assert_array_equal(copy, np.ones(4))


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.zeros(3, np.float32), r"shape \(3,\) does not fit a model of 4"),
        (np.zeros((4, 1), np.float32), "shape"),
        (np.zeros(4), "float64 is not float32"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(vector, message):
    with pytest.raises(ValueError, match=message):
        load_vector(build("linear", (2,), 2), vector)


def test_hash_does_not_depend_on_byte_order():
    vector = np.array([1.0, -2.5], dtype=np.float32)
    assert vector_sha256(vector) == vector_sha256(vector.astype(">f4"))
    assert vector_sha256(vector) != vector_sha256(-vector)
