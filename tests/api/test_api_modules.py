"""Modules as people bring them: they train, or a sentence says what would."""

from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from api_network import network
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations

import deltafl as dfl
from deltafl.fl.errors import DivergenceError
from deltafl.fl.parameters import to_vector
from deltafl.sim.errors import ConfigError

QUICK = {"rounds": 2, "cohort_size": 10, "progress": False}


def trained(model, federation, **options):
    return dfl.train(model, federation, "fedavg", **QUICK | options)


def made(inputs, seed=0):
    """Thirty devices with inputs of the caller's, and labels of two classes."""
    rng = np.random.default_rng(seed)
    return dfl.Federation.from_devices({k: (inputs(rng), rng.integers(0, 2, 8)) for k in range(30)})


@pytest.fixture(scope="module")
def tokens():
    return made(lambda rng: rng.integers(0, 20, (8, 6)))


def normed(**options):
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, **options), nn.Linear(8, 2))


class Giving(nn.Module):
    """A module that wraps what it computes."""

    def __init__(self, wrap):
        super().__init__()
        self.layer, self.wrap = nn.Linear(4, 2), wrap

    def forward(self, x):
        return self.wrap(self.layer(x), x)


class Frozen(nn.Module):
    """A backbone as somebody pretrained it, with batch norm, and a low-rank change of a layer."""

    def __init__(self):
        super().__init__()
        self.backbone = normed()[:2].requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return self.up(self.down(self.backbone(x)))


def test_batch_norm_is_refused_with_what_takes_its_place(federation):
    for options in ({}, {"track_running_stats": False}):
        with pytest.raises(ConfigError, match=r"'1' is a BatchNorm1d.* deltafl.with_group_norm"):
            trained(lambda: normed(**options), federation)  # noqa: B023
    assert trained(lambda: dfl.with_group_norm(normed()), federation).is_finished


class Remembering(nn.Module):
    """Keeps a running mean in an attribute, which is no buffer."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 2), torch.zeros(4)

    def forward(self, x):
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
        return self.layer(x - self.seen)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (
            lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 2))),
            r"'0.parametrizations.weight.0._u'",
        ),
        (lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 2))), "'0.weight_u'"),
        (
            lambda: nn.Sequential(
                nn.Unflatten(1, (2, 2)),
                nn.InstanceNorm1d(2, track_running_stats=True),
                nn.Flatten(),
                nn.Linear(4, 2),
            ),
            "'1.running_mean'",
        ),
        (Remembering, "'seen'"),
    ],
)
def test_a_state_that_passes_from_device_to_device_is_refused_by_name(federation, model, named):
    with pytest.raises(ConfigError, match=f"{named} is no parameter .* changes in training"):
        trained(model, federation)


def centred(outputs, targets):
    return cross_entropy(outputs - outputs.mean(0), targets, reduction="none")


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (lambda: Giving(lambda y, _x: y - y.mean(0)), {}),
        (lambda: Giving(lambda y, _x: nn.functional.dropout(y, 0.5)), {}),
        (network, {"loss": centred}),
        (network, {"metric": lambda outputs, _: outputs.sum(1) / outputs.abs().max()}),
    ],
)
def test_figures_that_depend_on_other_devices_are_refused(federation, model, options):
    with pytest.raises(
        ConfigError, match="depends on the other samples of its batch, or on chance"
    ):
        trained(model, federation, **options)


def test_outputs_that_are_alike_at_first_hide_no_dependence(federation):
    def silent():
        module = Giving(lambda y, _x: y - y.mean(0))
        nn.init.zeros_(module.layer.weight)
        nn.init.zeros_(module.layer.bias)
        return module

    with pytest.raises(ConfigError, match="depends on the other samples"):
        trained(silent, federation)


@pytest.mark.parametrize(
    "wrap", [lambda y, _: {"logits": y}, lambda y, _: SimpleNamespace(logits=y)]
)
def test_logits_are_found_where_hugging_face_has_them(federation, wrap):
    found = trained(lambda: Giving(wrap), federation)
    plain = trained(lambda: Giving(lambda y, _: y), federation)
    assert to_vector(found.module()).tobytes() == to_vector(plain.module()).tobytes()
    assert found.history().equals(plain.history())


def test_other_outputs_are_for_functions_of_ones_own(federation):
    def pair():
        return Giving(lambda y, x: (y, x))

    with pytest.raises(ConfigError, match=r"gives a tuple: .* 'logits'; or pass a `loss`"):
        trained(pair, federation)
    found = trained(
        pair,
        federation,
        loss=lambda given, y: cross_entropy(given[0], y, reduction="none"),
        metric=lambda given, y: given[0].argmax(1) != y,
    )
    assert found.is_finished


@pytest.mark.parametrize(
    "backend", ["reference", "batched", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_what_is_frozen_stays_as_it_was_made_wherever_it_trains(federation, backend):
    def decaying(parameters, rate):
        return torch.optim.AdamW(parameters, rate, weight_decay=0.1)

    settings = {"training": {"backend": backend, "workers": 2}}
    found = trained(Frozen, federation, settings=settings, optimizer=decaying)
    here = trained(Frozen, federation, optimizer=decaying)
    assert found.summary["model_parameters"] == 8 * 2 + 2 * 2
    for name, one in found.module().state_dict().items():
        assert torch.equal(one, here.module().state_dict()[name])
    begun = found._build(0)
    for name, one in begun.backbone.state_dict().items():
        assert torch.equal(found.module().backbone.state_dict()[name], one)
    assert not torch.equal(found.module().up.weight, begun.up.weight)


def test_a_pretrained_module_keeps_its_own_numbers(federation):
    module = Frozen()
    kept = {name: one.clone() for name, one in module.state_dict().items()}
    found = trained(module, federation)
    for name, one in module.state_dict().items():
        assert torch.equal(one, kept[name])
        if name.startswith("backbone"):
            assert torch.equal(found.module().state_dict()[name], one)


class Graph(nn.Module):
    """State of many types that does not change: sparse, half, whole, with NaN, of no element."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.mask = torch.tensor(True)
        self.register_buffer("links", torch.eye(4).to_sparse())
        self.register_buffer("halves", torch.full((2, 3), torch.nan, dtype=torch.bfloat16).T)
        self.register_buffer("none", torch.zeros(0, dtype=torch.int64), persistent=False)

    def forward(self, x):
        return self.layer((self.links @ x.T).T)


def test_what_does_not_change_may_be_of_any_type(federation):
    assert trained(Graph, federation).is_finished


def by_numpy():
    module = Frozen()
    module.backbone[0].weight.data += torch.tensor(np.random.default_rng().normal(size=(8, 4)))
    return module


SHARED = network()


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (by_numpy, "'backbone.0.weight' is not trained, and is another each time"),
        (lambda: SHARED, "gives one module each time"),
        (lambda: nn.Sequential(nn.LazyLinear(2)), "'0.weight' has no shape yet: pass a batch"),
        (nn.Sequential(nn.LazyLinear(2)), "'0.weight' has no shape yet: pass a batch"),
        (lambda: nn.Linear(4, 2).requires_grad_(False), "has 0 parameters that are trained"),
        (lambda: nn.Linear(4, 17_000_000), "85,000,000 .* must be from 1 to 67,108,864.* LoRA"),
        (lambda: nn.Linear(5, 2), r"RuntimeError: mat1 .*inputs are float32 of shape \(4,\)"),
        (
            lambda: Giving(lambda y, _: y.squeeze()),
            r"of shape \(2,\) for one sample: .*squeeze",
        ),
        (lambda: Giving(lambda y, _: y.sum()), r"of shape \(\) for one sample"),
        (lambda: Giving(lambda y, _: y.unsqueeze(2)), r"of shape \(2, 1\) .* must be \(2,\)"),
        (lambda: Giving(lambda y, _: y if 1 / 0 else None), "ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_made_or_trained_is_named(federation, model, complaint):
    with pytest.raises(ConfigError, match=complaint):
        trained(model, federation)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
def test_what_is_computed_of_parameters_is_no_state(federation, norm):
    assert trained(lambda: nn.Sequential(norm(nn.Linear(4, 2))), federation).is_finished


def test_lazy_layers_train_once_they_have_seen_a_batch(federation):
    def lazy():
        module = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2))
        module(torch.zeros(1, 4))
        return module

    assert trained(lazy, federation).is_finished


def test_images_into_a_linear_layer_are_told_of_flatten():
    images = made(lambda rng: rng.random((8, 4, 4)))
    with pytest.raises(ConfigError, match=r"of shape \(4, 4\) for a sample; nn.Flatten\(\) makes"):
        trained(lambda: nn.Linear(16, 2), images)


class Reader(nn.Module):
    """Tied weights, an LSTM and dropout over tokens."""

    def __init__(self, vocabulary=20):
        super().__init__()
        self.embedding, self.drop = nn.Embedding(vocabulary, 8), nn.Dropout(0.2)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.words = nn.Linear(8, vocabulary, bias=False)
        self.words.weight = self.embedding.weight
        self.output = nn.Linear(vocabulary, 2)

    def forward(self, x):
        states, _ = self.lstm(self.drop(self.embedding(x)))
        return self.output(self.words(states[:, -1]))


def test_tokens_stay_whole_numbers_for_a_module_that_takes_them(tokens):
    found = trained(Reader, tokens, learning_rate=0.5)
    assert np.abs(to_vector(found.module()) - to_vector(found._build(0))).max() > 1e-3
    assert found.summary["model_parameters"] == sum(one.numel() for one in Reader().parameters())


def test_whole_numbers_become_numbers_for_a_module_that_takes_those(tokens):
    data = tokens.dataset
    floats = {one.id: (one.x.astype("float32"), one.y) for one in (*data.train, *data.test)}
    same = dfl.Federation.from_devices(floats)
    for model in (lambda: nn.Linear(6, 2), "linear"):
        one, other = (trained(model, given, learning_rate=0.01) for given in (tokens, same))
        assert one.history().equals(other.history())
        assert to_vector(one.module()).tobytes() == to_vector(other.module()).tobytes()


def test_devices_of_whole_numbers_and_others_go_together():
    kinds = iter(["int64", "float64"] * 15)
    mixed = made(lambda rng: rng.integers(0, 9, (8, 3)).astype(next(kinds)))
    assert trained(lambda: nn.Linear(3, 2), mixed, learning_rate=0.01).is_finished


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (lambda: Reader(10), "index out of range .*whole numbers from 0 to 19"),
        (lambda: nn.Linear(5, 2), r"shapes cannot be multiplied.* of shape \(6,\)"),
    ],
)
def test_tokens_that_a_module_cannot_take_are_told_with_their_range(tokens, model, complaint):
    with pytest.raises(ConfigError, match=complaint):
        trained(model, tokens)


class Columns(nn.Module):
    """Each column of whole numbers is a category of its own."""

    def __init__(self):
        super().__init__()
        self.few, self.many, self.output = nn.Embedding(3, 4), nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.output(self.few(x[:, 0]) + self.many(x[:, 1]))


def test_columns_may_have_vocabularies_of_their_own():
    table = made(lambda rng: rng.integers(0, [3, 20], (8, 2)))
    assert trained(Columns, table).is_finished


def test_pixels_are_told_where_tokens_were_meant():
    letters = made(lambda rng: rng.integers(0, 20, (8, 6)).astype(np.uint8))
    with pytest.raises(ConfigError, match=r"float32 .* made of uint8 as pixels"):
        trained(Reader, letters)


def test_a_vocabulary_has_to_hold_the_tokens_of_every_device():
    rare = made(lambda rng: np.minimum(rng.integers(0, 10, (8, 6)) + 10 * (rng.random() < 0.1), 19))
    assert max(one.x.max() for one in rare.dataset.train[1:]) > 10 > rare.dataset.train[0].x.max()
    with pytest.raises(ConfigError, match="index out of range"):
        trained(lambda: Reader(10), rare)


@pytest.mark.parametrize("name", ["gru-embedding", "lstm"])
def test_the_papers_models_read_tokens_of_ones_own(name):
    rng = np.random.default_rng(1)
    devices = {k: (rng.integers(0, 12, (8, 5)), rng.integers(0, 12, 8)) for k in range(30)}
    vectors = rng.normal(size=(12, 4))
    data = dfl.Federation.from_devices(devices, embedding=vectors if name == "lstm" else None)
    assert trained(name, data).is_finished


def test_an_embedding_is_a_table():
    with pytest.raises(ValueError, match=r"embedding of shape \(3,\) is no table"):
        dfl.Federation.from_devices({k: ([[1]], [0]) for k in "ab"}, embedding=[1.0, 2.0, 3.0])


def missed(outputs, targets):
    return (outputs.argmax(1) != targets).float()


def test_a_metric_of_devices_is_over_all_their_samples(federation):
    accuracy = dfl.DeviceMetric(lambda y, t: (y.argmax(1) == t).double().mean(), best=1.0)
    one = trained(network, federation, metric=accuracy)
    other = trained(network, federation, metric=missed)
    np.testing.assert_allclose(one.test_errors(), other.test_errors(), atol=1e-12)
    assert one.devices().columns[-1] == "metric"


@pytest.mark.parametrize(
    ("metric", "complaint", "kind"),
    [
        (dfl.DeviceMetric(lambda _y, _t: float("nan")), "such as 0.5 for the AUC", DivergenceError),
        (dfl.DeviceMetric(lambda y, _t: y), "a DeviceMetric must give one number", ValueError),
    ],
)
def test_a_metric_of_devices_gives_one_finite_number(federation, metric, complaint, kind):
    with pytest.raises(kind, match=complaint):
        trained(network, federation, metric=metric)


def test_a_loss_that_is_no_number_is_named_and_not_the_learning_rate(federation):
    def logarithm(outputs, _targets):
        return (outputs[:, 0] - 9).log()

    with pytest.raises(
        DivergenceError, match="nothing has been trained yet, so it is `loss`"
    ) as told:
        trained(network, federation, loss=logarithm)
    assert not hasattr(told.value, "__notes__")  # there is no finished round


class Failing(dfl.Callback):
    def played(self, event):
        del event
        raise KeyError("mine")


def test_what_ones_own_code_raises_says_where_finished_rounds_are(federation, tmp_path):
    with pytest.raises(KeyError) as told:
        trained(network, federation, out=tmp_path / "run", callbacks=[Failing()])
    assert "Finished rounds are kept: pass out=" in told.value.__notes__[0]
    found = trained(network, federation, out=tmp_path / "run", resume=True)
    assert found.rounds == {1: 2}


@pytest.mark.slow
def test_what_a_module_raises_in_another_process_is_told(federation):
    def late(y, x):
        if torch.is_grad_enabled() and len(x) > 2:
            raise MemoryError("mine")
        return y

    settings = {"training": {"backend": "processes", "workers": 1}}
    with pytest.raises(Exception, match="a device's work failed: MemoryError: mine") as told:
        trained(lambda: Giving(late), federation, settings=settings)
    assert "Finished rounds are kept" in told.value.__notes__[0]


def test_clipping_is_told_once_and_only_where_it_is_much(federation):
    with pytest.warns(UserWarning, match=r"of the numbers .* in round 1 were clipped.*±2 ") as told:
        dfl.train(network, federation, learning_rate=1e4, **QUICK)
    assert len(told) == 1
    assert dfl.train(network, federation, **QUICK).is_finished  # where a warning is an error


@pytest.mark.slow
def test_two_threads_train_as_each_would_alone(federation):
    def dropping():
        return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2))

    def run(seed, found):
        settings = {"experiment": {"seed": seed}}
        one = trained(dropping, federation, rounds=8, settings=settings)
        found[seed] = to_vector(one.module()).tobytes()

    alone, together = {}, {}
    for seed in (1, 2):
        run(seed, alone)
    threads = [Thread(target=run, args=(seed, together)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_any_optimiser_of_torch_trains(federation):
    plain = to_vector(trained(network, federation).module())
    for optimizer in ("adam", torch.optim.AdamW):
        found = trained(network, federation, optimizer=optimizer)
        assert found.is_finished
        assert not np.array_equal(to_vector(found.module()), plain)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"optimizer": "lion"}, "training.optimizer = 'lion': must be one of sgd, adam"),
        ({"optimizer": lambda _p, _r: None}, "that makes a torch.optim.Optimizer, such as"),
        (
            {"optimizer": torch.optim.SGD(network().parameters(), 0.1)},
            "must be a function of parameters",
        ),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS.step.* 'closure'"),
        (
            {"optimizer": "adam", "settings": {"training": {"momentum": 0.9}}},
            "only 'sgd' has a momentum",
        ),
        (
            {"epochs": 2, "settings": {"training": {"local_steps": 3}}},
            "steps take the place of epochs",
        ),
        ({"settings": {"training": {"decay_shape": "cosine"}}}, "training.decay = 1.0: must be be"),
        ({"settings": {"training": {"optimizer": "adam"}}}, "cannot be set: pass `optimizer`"),
    ],
)
def test_training_that_cannot_be_is_refused(federation, options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        trained(network, federation, **options)
