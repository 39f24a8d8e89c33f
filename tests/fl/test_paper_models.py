"""The models of the papers' text, tabular, photograph and audio tasks (not linear, convnet)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import (
    adaptive_avg_pool2d,
    binary_cross_entropy_with_logits,
    conv2d,
    cross_entropy,
    group_norm,
    linear,
    max_pool2d,
    one_hot,
    relu,
)

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.models import MODELS, build_model
from deltafl.fl.models.binary import as_logits
from deltafl.fl.models.gru import last_state
from deltafl.fl.parameters import num_parameters, to_vector
from deltafl.sim.settings.config import MODELS as CONFIGURED

GLOVE = (30, 50)  # vocabulary, dimension

# name: input shape, classes, vocabulary of the tokens (None: numbers)
SMALL = {
    "logistic": ((50,), 2, None),
    "logistic-bias": ((13,), 2, None),
    "lstm": ((20,), 2, GLOVE[0]),
    "gru": ((20,), 53, 53),
    "gru-embedding": ((20,), 53, 53),
    "convnet-groupnorm": ((3, 16, 16), 2, None),
    "lstm-stacked": ((6,), 40, 40),
    "m5": ((1100,), 5, None),
}


def glove(shape=GLOVE):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def build(name, shape=None, classes=None, seed=1, embedding=True):
    default_shape, default_classes, _ = SMALL[name]
    return build_model(
        name,
        input_shape=default_shape if shape is None else shape,
        num_classes=classes or default_classes,
        seed=seed,
        embedding=glove() if embedding else None,
    )


def device(name, n=10, seed=0):
    shape, classes, vocabulary = SMALL[name]
    rng = np.random.default_rng(seed)
    if vocabulary is None:
        x = rng.standard_normal((n, *shape)).astype(np.float32)
    else:
        x = rng.integers(0, vocabulary, (n, *shape)).astype(np.int8)
    return DeviceData("a", x, rng.integers(0, classes, n))


def inputs(name, n=3, seed=0):
    return torch.tensor(device(name, n, seed).inputs())


def test_the_configuration_knows_the_same_models():
    assert tuple(MODELS) == CONFIGURED


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("logistic", (50,), 2, 50),
        ("logistic-bias", (13,), 2, 14),
        ("logistic-bias", (13,), 3, 3 * 14),
        ("lstm", (20,), 2, 20_451),
        ("gru", (20,), 53, 77_109),
        ("gru-embedding", (20,), 53, 69_928),
        ("convnet-groupnorm", (3, 84, 84), 2, 29_569),
        ("lstm-stacked", (10,), 10_000, 5_565_328),
        ("m5", (16_000,), 35, 150_819),
    ],
)
def test_parameter_counts(name, shape, classes, count):
    assert num_parameters(build(name, shape, classes)) == count


@pytest.mark.parametrize("name", SMALL)
def test_whatever_is_learnt_is_a_parameter(name):
    # running statistics, say, would stay behind when a vector leaves
    module = build(name)
    assert set(module.state_dict()) == {key for key, _ in module.named_parameters()}
    before = {key: value.clone() for key, value in module.named_buffers()}
    Learner(module).train(to_vector(module), device(name), LocalTraining(0.1, 4), torch.Generator())
    for key, value in module.named_buffers():
        assert torch.equal(value, before[key])


def test_running_statistics_would_be_found():
    module = nn.BatchNorm1d(3)
    assert set(module.state_dict()) != {key for key, _ in module.named_parameters()}


@pytest.mark.parametrize("name", SMALL)
def test_trains_and_evaluates(name):
    data, training = device(name, 20), LocalTraining(0.01, 8, epochs=3)
    vector = to_vector(build(name))
    learner, other = Learner(build(name, seed=2)), Learner(build(name, seed=3))
    before = learner.mean_loss(vector, data)
    first, second = (
        k.train(vector, data, training, torch.Generator().manual_seed(1)) for k in (learner, other)
    )
    np.testing.assert_array_equal(first, second)  # to the last bit
    assert np.isfinite(first).all()
    (metrics,) = learner.evaluate(vector + first, [data])
    assert metrics.loss < before
    assert 0 <= metrics.error <= 1


@pytest.mark.parametrize("name", SMALL)
def test_a_sample_counts_the_same_in_every_batch(name):
    module, x = build(name).eval(), inputs(name, 5)
    whole = module(x)
    torch.testing.assert_close(whole[:2], module(x[:2]), atol=1e-5, rtol=1e-5)
    module.train()
    torch.testing.assert_close(whole, module(x))


@pytest.mark.parametrize("name", sorted(set(SMALL) - {"logistic", "logistic-bias"}))
def test_initialisation_follows_the_seed(name):
    first, again, other = (to_vector(build(name, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


# Two classes from one score


def scores():
    return torch.tensor([[-40.0], [-1.5], [0.0], [1e-6], [2.0], [60.0]], requires_grad=True)


@pytest.mark.parametrize("label", [0, 1])
def test_two_logits_are_the_binary_cross_entropy(label):
    y = torch.full((6,), label)
    z, twin = scores(), scores()
    losses = cross_entropy(as_logits(z).double(), y, reduction="none")
    expected = binary_cross_entropy_with_logits(twin[:, 0].double(), y.double(), reduction="none")
    torch.testing.assert_close(losses, expected, atol=1e-15, rtol=1e-12)
    (gradient,) = torch.autograd.grad(losses.sum(), z)
    (wanted,) = torch.autograd.grad(expected.sum(), twin)
    torch.testing.assert_close(gradient, wanted, atol=1e-12, rtol=1e-6)


def test_a_score_of_zero_is_class_one():
    predictions = as_logits(scores()).argmax(1)
    assert predictions.tolist() == [0, 0, 1, 1, 1, 1]
    assert torch.equal(predictions, (torch.sigmoid(scores()[:, 0]) >= 0.5).long())
    plain = torch.cat([torch.zeros(6, 1), scores()], 1)  # what the tie would be without care
    assert plain.argmax(1).tolist() == [0, 0, 0, 1, 1, 1]


def test_more_classes_keep_their_scores():
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(1))
    assert as_logits(x) is x


@pytest.mark.parametrize("name", ["logistic", "logistic-bias"])
def test_logistic_starts_at_zero_and_calls_everything_class_one(name):
    module, data = build(name), device(name, 40)
    vector = to_vector(module)
    assert not vector.any()
    (metrics,) = Learner(module).evaluate(vector, [data])
    assert metrics.loss == pytest.approx(np.log(2), rel=1e-15)
    assert metrics.error == (data.y == 0).mean() != (data.y == 1).mean()


def test_logistic_is_one_weight_per_feature():
    module, x = build("logistic"), inputs("logistic")
    w = torch.rand(50, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        module.weight.copy_(w[None])
    torch.testing.assert_close(module(x)[:, 1], x @ w)


def test_bias_of_more_classes_is_multinomial():
    module = build("logistic-bias", (2,), 3)
    vector = np.array([1, 2, 3, 4, 5, 6, 0.5, 0, -1], dtype=np.float32)
    data = DeviceData("a", np.array([[1, -1]], dtype=np.float32), np.array([2]))
    logits = np.array([-1 + 0.5, -1, -1 - 1])
    loss = np.log(np.exp(logits).sum()) - logits[2]
    assert Learner(module).mean_loss(vector, data) == pytest.approx(loss, rel=1e-6)


# Recurrent models


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_lstm_in_numpy():
    module, x = build("lstm"), inputs("lstm")
    w_x, w_h, b_x, b_h, w_out, b_out = (p.detach().numpy() for p in module.parameters())
    h = c = np.zeros((3, 50))
    for t in range(20):
        gates = glove()[x[:, t]] @ w_x.T + b_x + h @ w_h.T + b_h
        i, f, g, o = np.split(gates, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    expected = h @ w_out.T + b_out
    np.testing.assert_allclose(module(x).detach()[:, 1:], expected, atol=1e-5)


def test_lstm_reads_padding():
    # the output after the last of the 20 tokens counts, padded or not
    module = build("lstm")
    text = torch.zeros(1, 20, dtype=torch.int64)
    text[0, :3] = torch.tensor([4, 8, 2])
    assert not torch.allclose(module(text), module(text[:, :3]))


def test_frozen_vectors_neither_train_nor_travel():
    module = build("lstm")
    assert "embedding" not in dict(module.named_parameters())
    assert "embedding" not in module.state_dict()
    np.testing.assert_array_equal(module.embedding, glove())


def test_read_only_vectors_are_taken():
    table = glove()
    table.flags.writeable = False
    module = build_model("lstm", input_shape=(20,), num_classes=2, seed=1, embedding=table)
    assert torch.equal(module(inputs("lstm")), build("lstm")(inputs("lstm")))


class PlainGRU(nn.Module):
    """The model as the paper states it, slow and plain."""

    def __init__(self, classes):
        super().__init__()
        self.classes = classes
        self.gru = nn.GRU(classes, 128, batch_first=True)
        self.output = nn.Linear(128, classes)

    def forward(self, x):
        return self.output(self.gru(one_hot(x, self.classes).float())[0][:, -1])


class PlainEmbeddingGRU(nn.Module):
    """The model of the published code, slow and plain."""

    def __init__(self, classes):
        super().__init__()
        self.embedding = nn.Embedding(classes, 8)
        self.gru = nn.GRU(8, 128, batch_first=True)
        self.output = nn.Linear(128, 128)

    def forward(self, x):
        return self.output(self.gru(self.embedding(x))[0][:, -1])


@pytest.mark.parametrize(
    ("name", "plain"), [("gru", PlainGRU), ("gru-embedding", PlainEmbeddingGRU)]
)
def test_gru_is_the_plain_gru(name, plain):
    module = build(name)
    twin = plain(53)
    twin.load_state_dict(module.state_dict())
    assert [k for k, _ in twin.named_parameters()] == [k for k, _ in module.named_parameters()]
    x, y = inputs(name, 16), torch.tensor(device(name, 16).y)
    torch.testing.assert_close(module(x), twin(x), atol=1e-6, rtol=1e-5)
    found, expected = (
        torch.autograd.grad(cross_entropy(m(x), y), list(m.parameters())) for m in (module, twin)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-4)
    assert not torch.allclose(module(x), twin(x.flip(1)), atol=1e-3)  # the order matters


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(2, 6),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_recurrence_and_its_gradient_are_those_of_torch(
    batch, num_tokens, vocabulary, hidden, with_vectors, seed
):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.rand(vocabulary, 3, generator=generator, dtype=torch.float64) * 4 - 2
    gru = nn.GRU(3 if with_vectors else vocabulary, hidden, batch_first=True).double()
    with torch.no_grad():
        for parameter in gru.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    vectors.requires_grad_(with_vectors)
    tokens = torch.randint(0, vocabulary, (batch, num_tokens), generator=generator)
    outside = torch.randn(batch, hidden, generator=generator, dtype=torch.float64)
    table = vectors if with_vectors else torch.eye(vocabulary, dtype=torch.float64)
    wanted = gru(table[tokens])[0][:, -1]
    state = last_state(gru, tokens, vectors if with_vectors else None)
    torch.testing.assert_close(state, wanted, atol=1e-12, rtol=1e-10)
    learnt = [*gru.parameters(), *([vectors] if with_vectors else [])]
    for one, other in zip(
        torch.autograd.grad((state * outside).sum(), learnt),
        torch.autograd.grad((wanted * outside).sum(), learnt),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-9)


def test_recurrence_cannot_be_differentiated_twice():
    # its gradient is by hand: a second one would be silently wrong
    module = build("gru")
    (gradient,) = torch.autograd.grad(
        module(inputs("gru")).sum(), [module.gru.weight_hh_l0], create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_published_gru_may_answer_with_no_symbol():
    module, data = build("gru-embedding"), device("gru-embedding", 4)
    assert module(torch.tensor(data.inputs())).shape == (4, 128)
    with torch.no_grad():
        module.output.bias[100] = 50.0
    assert Learner(module).evaluate(to_vector(module), [data])[0].error == 1.0


def test_stacked_lstm_predicts_a_word_from_the_last_state():
    module, x = build("lstm-stacked"), inputs("lstm-stacked")
    assert module.lstm.num_layers == 2
    states, (last, _) = module.lstm(module.embedding(x))
    assert states.shape == (3, 6, 256)
    torch.testing.assert_close(module(x), module.output(last[-1]))
    assert module(x).shape == (3, 40)


# Convolutions


def test_groupnorm_convnet_layer_by_layer():
    module = build("convnet-groupnorm", (3, 84, 84))
    x = hidden = torch.rand(2, 3, 84, 84, generator=torch.Generator().manual_seed(3))
    sides = []
    for convolution, norm, groups in zip(
        module.convolutions, module.norms, (32, 16, 8, 4), strict=True
    ):
        assert convolution.bias is None
        hidden = conv2d(hidden, convolution.weight, padding=1)
        hidden = max_pool2d(group_norm(hidden, groups, norm.weight, norm.bias), 2, padding=1)
        hidden = relu(hidden)
        sides.append(hidden.shape[-1])
    assert sides == [43, 22, 12, 7]
    features = adaptive_avg_pool2d(hidden, 5).flatten(1)
    z = linear(features, module.output.weight, module.output.bias)
    torch.testing.assert_close(module(x)[:, 1:], z)


def test_groupnorm_convnet_takes_grey_images():
    x = torch.rand(2, 20, 24, generator=torch.Generator().manual_seed(3))
    flat, deep = (build("convnet-groupnorm", shape, 4) for shape in ((20, 24), (1, 20, 24)))
    assert torch.equal(flat(x), deep(x[:, None]))
    assert flat(x).shape == (2, 4)


def test_m5_halves_time_to_one_vector():
    module = build("m5", (16_000,), 35)
    hidden = torch.rand(1, 1, 16_000, generator=torch.Generator().manual_seed(3))
    lengths = []
    for convolution, norm in zip(module.convolutions, module.norms, strict=True):
        hidden = nn.functional.max_pool1d(relu(norm(convolution(hidden))), 4)
        lengths.append(tuple(hidden.shape[1:]))
    assert lengths == [(64, 995), (64, 248), (128, 62), (256, 15)]


def test_m5_takes_a_channel_axis():
    x = inputs("m5", 2)
    assert torch.equal(build("m5")(x), build("m5", (1, 1100))(x[:, None]))


# Refusals


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("logistic", (50,), 3, "num_classes=3 is not 2: .* linear model"),
        ("lstm", (20, 50), 2, r"input_shape=\(20, 50\) is no row of tokens: lstm"),
        ("gru", (28, 28), 53, "no row of tokens: gru takes .* convnet"),
        ("gru", (0,), 53, "no row of tokens"),
        ("gru-embedding", (), 53, "no row of tokens: gru-embedding"),
        ("gru-embedding", (20,), 129, "num_classes=129 .* take gru"),
        ("lstm-stacked", (3, 4), 53, "no row of tokens: lstm-stacked"),
        ("convnet-groupnorm", (784,), 2, "no image: .* linear model"),
        ("convnet-groupnorm", (84, 84, 3), 2, "channels last"),
        ("convnet-groupnorm", (2, 84, 84), 2, "no image"),
        ("convnet-groupnorm", (3, 15, 84), 2, "15×84 pixels are too small"),
        ("m5", (2, 16_000), 35, "no waveform of one channel"),
        ("m5", (1099,), 35, "1099 samples is too short .* needs 1100"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(name, shape, classes, message):
    with pytest.raises(ValueError, match=message):
        build(name, shape, classes)


def test_lstm_needs_vectors():
    with pytest.raises(ValueError, match=r"the data set has none: .* or lstm-stacked"):
        build("lstm", embedding=False)
    with pytest.raises(ValueError, match=r"embedding of shape \(7,\) is no table"):
        build_model("lstm", input_shape=(20,), num_classes=2, seed=1, embedding=glove((7,)))


@pytest.mark.parametrize("name", SMALL)
def test_tokens_and_numbers_are_not_confused(name):
    shape, _, vocabulary = SMALL[name]
    wrong = torch.float32 if vocabulary else torch.int64
    message = f"no tokens and {name} reads" if vocabulary else f"are tokens and {name} takes"
    with pytest.raises(ValueError, match=message):
        build(name)(torch.zeros(2, *shape, dtype=wrong))


@pytest.mark.parametrize("name", ["lstm", "gru", "gru-embedding", "lstm-stacked"])
@pytest.mark.parametrize("place", ["below", "above"])
def test_unknown_tokens_are_refused(name, place):
    shape, _, vocabulary = SMALL[name]
    x = torch.zeros(2, *shape, dtype=torch.int64)
    x[1, 3] = vocabulary - 1
    build(name)(x)
    x[1, 3] = -1 if place == "below" else vocabulary
    with pytest.raises(ValueError, match=f"not in 0..{vocabulary - 1}, the vocabulary of {name}"):
        build(name)(x)
