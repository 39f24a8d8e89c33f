"""Modules of one's own on data of one's own, by any method: in full, through files and audit."""

import json
import re
import threading
from dataclasses import replace
from inspect import signature

import numpy as np
import pytest
import torch
from api_network import network
from records import events_of, toml_of
from torch import nn

import deltafl as dfl
from deltafl.fl.bundle import Bundle
from deltafl.fl.errors import DataError
from deltafl.fl.parameters import to_vector
from deltafl.sim.cli import main
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import build_config, read_table

FEW = {"rounds": 3, "cohort_size": 10, "progress": False}


class Linear(nn.Module):
    """The papers' linear model, as somebody else writes it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x):
        return self.layer(x.reshape(len(x), -1))


@pytest.fixture(scope="module")
def trained(federation, tmp_path_factory):
    out = tmp_path_factory.mktemp("api") / "run"
    return dfl.train(network, federation, dfl.PrivateDeltaFL(0.5), seeds=2, out=out, **FEW)


def test_python_and_settings_have_one_set_of_defaults(federation, tmp_path):
    config = RunConfig()
    said = dict(re.findall(r"^ +(\w+): [^:]*; by default (\d\S*)\.$", dfl.train.__doc__, re.M))
    usual = {"rounds": config.federation.rounds, "seeds": config.experiment.num_seeds}
    for name in ("learning_rate", "batch_size", "epochs"):
        usual[name] = getattr(config.training, name)
    assert said == {name: f"{value:g}" for name, value in usual.items()}
    assert signature(dfl.train).parameters["optimizer"].default == config.training.optimizer
    result = dfl.train("linear", federation, "fedavg", rounds=1, out=tmp_path, progress=False)
    written = read_table(toml_of(tmp_path), "")
    same = {"data": {"source": federation.dataset.name}, "federation": {"algorithm": "fedavg"}}
    same["federation"] |= {"rounds": 1, "evaluate_every": 1}
    by_python, by_settings = (
        replace(build_config([one]), data=None, experiment=None) for one in (written, same)
    )
    assert by_python == by_settings
    assert result.is_finished


@pytest.mark.slow
def test_a_run_of_ones_own_module_is_a_run_like_any_other(trained, capsys):
    assert main(["audit", str(trained.path), "--fail-on", "medium", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    checks = [check for one in report["runs"] for check in one["checks"]]
    failed = [check["name"] for check in checks if check["outcome"] == "failed"]
    assert not failed
    assert trained.summary["model"] == "own"
    assert trained.summary["rounds"] == 3


def test_the_module_is_the_one_that_was_measured(trained, federation):
    for seed in trained.seeds:
        module, table = trained.module(seed), trained.devices()
        own = table[(table["seed"] == seed) & (table["split"] == "test")]
        for device, error in zip(federation.dataset.test, own["error"], strict=True):
            with torch.inference_mode():
                missed = module(torch.from_numpy(device.x)).argmax(1).numpy() != device.y
            assert missed.mean() == pytest.approx(error)


@pytest.mark.slow
def test_each_seed_begins_with_weights_of_its_own_unless_a_module_is_given(federation, tmp_path):
    module = network()
    given = to_vector(module).copy()
    before = torch.random.get_rng_state()
    options = FEW | {"learning_rate": 1e-30, "seeds": 2}
    made = dfl.train(network, federation, "fedavg", out=tmp_path / "made", **options)
    kept = dfl.train(module, federation, "fedavg", out=tmp_path / "kept", **options)
    assert torch.equal(torch.random.get_rng_state(), before)
    vectors = [to_vector(made.module(seed)) for seed in made.seeds]
    assert not np.array_equal(*vectors)
    for seed in kept.seeds:
        assert to_vector(kept.module(seed)).tobytes() == given.tobytes()
    assert to_vector(module).tobytes() == given.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["private-delta-fl", "fedavg", "private-q-ffl", "afl"])
def test_a_module_written_anew_comes_to_the_same_model(tmp_path, strategy):
    """By autograd in place of a gradient that is written out."""
    data = dfl.Federation.load("digits", num_devices=30)
    found = [
        dfl.train(model, data, strategy, out=tmp_path / str(number), **FEW)
        for number, model in enumerate(["linear", Linear])
    ]
    theirs, ours = (to_vector(one.module()) for one in found)
    assert np.abs(theirs).max() > 0.01
    np.testing.assert_allclose(ours, theirs, atol=2e-3 if "private" in strategy else 1e-5)


@pytest.mark.slow
def test_methods_are_compared_with_the_same_cohorts(federation, tmp_path):
    methods = [dfl.PrivateDeltaFL(0.5), dfl.FedAvg(private=True), "fedavg"]
    found = dfl.compare(network, federation, methods, seeds=2, out=tmp_path / "both", **FEW)
    table = found.table()
    assert list(table.index) == ["private-delta-fl, θ = 0.5", "private-fedavg", "fedavg"]
    assert table.loc["fedavg", ["difference", "p"]].isna().all()
    assert table.loc["private-fedavg", "p90"] == pytest.approx(table.loc["fedavg", "p90"], abs=0.02)
    assert 0 <= table.loc["private-delta-fl, θ = 0.5", "p"] <= 1
    cohorts = [[event["cohort"] for event in events_of(one.path)] for one in found.results]
    assert cohorts[0] == cohorts[1] == cohorts[2]
    assert found["fedavg"] is found.results[2]
    assert "p90" in found._repr_html_()
    again = dfl.Comparison.open(tmp_path / "both")
    assert again.table().equals(table)
    assert [one.label for one in again.results] == list(table.index)


@pytest.mark.slow
def test_settings_reach_every_corner(federation, tmp_path):
    settings = {"training": {"epochs": 2}, "quantile": {"method": "bracketed"}}
    found = dfl.train(network, federation, settings=settings, out=tmp_path / "run", **FEW)
    assert found.summary["quantile_method"] == "bracketed"
    assert "epochs = 2" in toml_of(tmp_path / "run")


def trained_by(backend, out, model, federation, **options):
    settings = {"training": {"backend": backend, "workers": 2}}
    return dfl.train(model, federation, "fedavg", settings=settings, out=out, **FEW | options)


@pytest.mark.slow
def test_many_devices_at_once_come_to_the_same_model(federation, tmp_path):
    model = network()
    found = [trained_by(one, tmp_path / one, model, federation) for one in ("reference", "batched")]
    one, other = (to_vector(each.module()) for each in found)
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert np.abs(one - to_vector(model)).max() > 1e-3


@pytest.mark.slow
def test_worker_processes_train_what_nobody_could_import(federation, numbers, tmp_path):
    """To the same bits as this process: with dropout, a constant in a closure, and numbers."""
    width, scale = 6, torch.tensor(0.5)

    class Local(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.2), nn.ReLU())
            self.last = nn.Linear(width, outputs)

        def forward(self, x):
            return self.last(self.layers(x))

    def halved(outputs, targets):
        return scale * (outputs.squeeze(1) - targets).square()

    for name, model, data, options in (
        ("made", lambda: Local(2), federation, {}),
        ("given", Local(2), federation, {}),
        ("numbers", lambda: Local(1), numbers, {"loss": halved}),
    ):
        here = trained_by("reference", tmp_path / f"{name}-here", model, data, **options)
        there = trained_by("processes", tmp_path / f"{name}-there", model, data, **options)
        assert there.module().state_dict().keys() == here.module().state_dict().keys()
        assert to_vector(there.module()).tobytes() == to_vector(here.module()).tobytes()
        assert there.history().equals(here.history())
        moved = np.abs(to_vector(here.module()) - to_vector(here._build(0))).max()
        assert moved > 1e-3


def test_a_module_that_cannot_be_sent_is_told_with_what_would_be_right(federation, tmp_path):
    lock = threading.Lock()

    def locked():
        with lock:
            return network()

    with pytest.raises(ConfigError, match=r"cannot be sent to other processes .*take 'reference'"):
        trained_by("processes", tmp_path / "run", locked, federation)
    assert trained_by("reference", tmp_path / "here", locked, federation).is_finished


@pytest.mark.parametrize(
    ("model", "options", "complaint"),
    [
        (lambda: network().double(), {}, "parameter '0.weight' is torch.float64"),
        (nn.Identity, {}, "has 0 parameters"),
        (lambda: 3, {}, "int is no torch.nn.Module"),
        (lambda: nn.Linear(5, 2), {}, "mat1 and mat2|shape"),
        ("lineer", {}, "model.name"),
        (network, {"strategy": "fedavgg"}, "fedavg"),
        (network, {"rounds": 0}, "federation.rounds"),
        (network, {"settings": {"data": {"standardise": "train"}}}, "data.standardise cannot be"),
        (network, {"settings": {"training": {"loss": "mse"}}}, "training.loss cannot .* `loss`"),
        (network, {"settings": {"training": 3}}, "must be a table of settings"),
        (
            network,
            {"settings": {"federation": {"devices": "remote"}}, "strategy": "private-fedavg"},
            "`train` simulates devices.*deltafl serve",
        ),
        (network, {"settings": {"experiment": {"baselines": ["afl"]}}}, "give all methods to"),
        (network, {"settings": {"federation": {"levels": ["0.8", "0.5"]}}}, "give a method for"),
        (lambda: nn.Linear(4, 1), {}, r"outputs of shape \(1,\) .* must be \(2,\), a logit for"),
        (3, {}, "model = 3: must be a module"),
        (
            "linear",
            {"loss": nn.CrossEntropyLoss(reduction="none")},
            "the papers' models are trained by cross-entropy",
        ),
        (network, {"loss": nn.HuberLoss}, "must be a function"),
        (network, {"metric": "mae"}, "metric = 'mae': must be a function"),
        (network, {"callbacks": dfl.EarlyStopping()}, "callbacks: must be a list"),
        (network, {"rounds": "2"}, "federation.rounds = '2': must be a whole number"),
        (
            network,
            {"learning_rate": 0.1, "settings": {"training": {"learning_rate": 0.3}}},
            "training.learning_rate is 0.1 in the arguments and 0.3 in settings: give it once",
        ),
        (
            network,
            {"strategy": dfl.DeltaFL(0.5), "settings": {"federation": {"theta": 0.2}}},
            "federation.theta is 0.2 in settings and 0.5 in the method delta-fl, θ = 0.5: give it",
        ),
        (
            network,
            {"strategy": dfl.Method("fedavg", {"training": {"epochs": 3}}), "epochs": 2},
            "training.epochs is 2 in the arguments and 3 in the method fedavg: give it once",
        ),
        (network, {"loss": "hinge"}, "hinge"),
        (network, {"cohort_size": 0}, "federation.cohort_size = 0"),
        (network, {"cohort_size": 41}, "cohort_size = 41 is more than the 20"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_would_be_right(
    federation, tmp_path, model, options, complaint
):
    with pytest.raises(UserError, match=complaint):
        dfl.train(model, federation, out=tmp_path / "run", **(FEW | options))


def test_methods_that_cannot_be_told_apart_are_refused(federation):
    for methods in (["fedavg"], ["fedavg", dfl.FedAvg()]):
        with pytest.raises(ValueError, match="give two or more, each once, or with a label"):
            dfl.compare(network, federation, methods, **FEW)


def test_a_method_at_two_settings_is_told_apart_by_them(federation):
    steep = dfl.Method("fedavg", {"training": {"learning_rate": 0.5}})
    shared = FEW | {"learning_rate": 0.2, "settings": {"training": {"l2": 0.1}}}
    found = dfl.compare(network, federation, [steep, "fedavg"], **shared)
    assert [one.label for one in found.results] == ["fedavg, training.learning_rate=0.5", "fedavg"]
    written = [read_table(toml_of(one.path), "")["training"] for one in found.results]
    assert [(one["learning_rate"], one["l2"]) for one in written] == [(0.5, 0.1), (0.2, 0.1)]


def test_what_all_methods_of_a_comparison_say_themselves_is_not_said_to_all(federation):
    methods = [dfl.DeltaFL(0.5), dfl.DeltaFL(0.2)]
    with pytest.raises(ConfigError, match=r"federation\.theta is 0\.3 in settings and 0\.5 in"):
        dfl.compare(network, federation, methods, settings={"federation": {"theta": 0.3}}, **FEW)


def test_a_comparison_that_is_refused_leaves_labels_as_they_were(federation, tmp_path):
    out = tmp_path / "out"
    first = dfl.compare(network, federation, ["fedavg", "delta-fl"], out=out, **FEW)
    with pytest.raises(UserError, match="has another comparison, in which 1-delta-fl is 'delta-f"):
        dfl.compare(network, federation, ["fedavg", dfl.DeltaFL(0.3)], out=out, **FEW)
    labels = [one.label for one in dfl.Comparison.open(out).results]
    assert labels == [one.label for one in first.results]
    more = ["fedavg", "delta-fl", "q-ffl"]
    longer = dfl.compare(network, federation, more, out=out, resume=True, **FEW)
    assert [one.label for one in longer.results] == more
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file is a file: give a folder"):
        dfl.compare(network, federation, more, out=tmp_path / "file", **FEW)


def test_a_run_goes_on_with_the_module_that_it_began_with(federation, tmp_path):
    dfl.train(lambda: nn.Linear(4, 2), federation, "fedavg", out=tmp_path, **FEW)
    longer = FEW | {"rounds": 4}
    with (
        pytest.warns(UserWarning, match="from 3 to 4 rounds"),
        pytest.raises(UserError, match=r"parameters, and the one that it began with 10: pass"),
    ):
        dfl.train(network, federation, "fedavg", out=tmp_path, resume=True, **longer)


def test_a_comparison_that_stopped_at_once_has_nothing_to_compare(federation):
    class Now(dfl.Callback):
        def begin(self, *_):
            raise dfl.Stop

    found = dfl.compare(network, federation, ["fedavg", "afl"], callbacks=[Now()], **FEW)
    with pytest.raises(ValueError, match="no evaluations: a run was stopped before its first"):
        found.table()


def test_what_is_no_federation_and_no_list_is_told(federation):
    with pytest.raises(ConfigError, match="federation of type dict: make one of your data"):
        dfl.train(network, {}, **FEW)
    with pytest.raises(ConfigError, match="strategies = 'fedavg': must be a list"):
        dfl.compare(network, federation, "fedavg", **FEW)


def test_numbers_of_numpy_are_numbers(federation, tmp_path):
    more = FEW | {"rounds": np.int64(1), "out": tmp_path / "run"}
    assert dfl.train(network, federation, "fedavg", **more).rounds == {1: 1}


def test_the_command_line_says_that_it_has_no_module(trained, tmp_path, capsys):
    again = ["run", str(trained.path), "--out", str(tmp_path / "run")]
    assert main(again) == 2
    assert "passed to `deltafl.train`" in capsys.readouterr().err
    with pytest.raises(DataError, match="a module of somebody"):
        Bundle.load(trained.path / "bundle.npz")


def test_a_model_that_does_not_fit_the_data_is_told_before_anything_is_written(
    federation, tmp_path
):
    with pytest.raises(ConfigError):
        dfl.train(lambda: nn.Linear(5, 2), federation, out=tmp_path / "run", **FEW)
    assert not (tmp_path / "run").exists()


def test_three_sites_sum_unless_more_are_asked_for(tmp_path):
    rng = np.random.default_rng(0)
    sites = {name: (rng.normal(size=(12, 4)), rng.integers(0, 2, 12)) for name in "abc"}
    federation = dfl.Federation.from_devices(sites, split="samples")
    options = FEW | {"cohort_size": 3, "strategy": "private-fedavg", "out": tmp_path / "run"}
    with pytest.raises(UserError, match=r"or lower the other, to 2 at least"):
        dfl.train(network, federation, settings={"privacy": {"min_cohort": 10}}, **options)
    found = dfl.train(network, federation, **options)
    assert found.summary["secure_sums"] == 3
    assert found.summary["lost_rounds"] == 0


def test_sections_that_are_not_there_are_named(federation):
    with pytest.raises(UserError, match="unknown section 'optimizer': known are data, model"):
        dfl.train(network, federation, settings={"optimizer": {}}, **FEW)
