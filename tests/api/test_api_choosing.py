"""Validation devices choose: when to stop, which model is best, which settings are taken."""

import numpy as np
import pytest
import torch
from records import evaluations_of
from torch import nn
from torch.utils.data import TensorDataset

import deltafl as dfl
from deltafl.fl.errors import DataError, DivergenceError
from deltafl.fl.parameters import to_vector
from deltafl.sim.errors import ConfigError, RunError

FEW = {"rounds": 6, "cohort_size": 10, "progress": False}


def devices(count=40, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for number in range(count):
        x = rng.normal(size=(10, 3)).astype(np.float32)
        found[f"p{number:02}"] = x, (x[:, 0] + rng.normal() > 0).astype(int)
    return found


@pytest.fixture(scope="module")
def held_out():
    return dfl.Federation.from_devices(devices(), validation=0.2)


def net():
    return nn.Linear(3, 2)


@pytest.fixture(scope="module")
def found(held_out, tmp_path_factory):
    out = tmp_path_factory.mktemp("chosen") / "run"
    return dfl.train(net, held_out, "fedavg", seeds=2, learning_rate=2.0, out=out, **FEW)


def test_the_model_that_did_best_on_validation_devices_can_be_had(found, held_out):
    folders = [found.path, found.path / "arms" / "fedavg-seed-2"]
    for seed, folder in zip(found.seeds, folders, strict=True):
        means = {
            one.round: np.mean([device.error for device in one.validation])
            for one in evaluations_of(folder)
        }
        wanted = min(means, key=lambda number: (means[number], number))
        assert found.best_rounds()[seed] == wanted
        module = found.module(seed, best=True)
        errors = [
            (module(torch.from_numpy(one.x)).argmax(1).numpy() != one.y).mean()
            for one in held_out.dataset.validation
        ]
        assert np.mean(errors) == pytest.approx(means[wanted])


def test_a_resumed_run_keeps_the_same_best_model(held_out, tmp_path):
    options = FEW | {"learning_rate": 2.0}
    whole = dfl.train(net, held_out, "fedavg", out=tmp_path / "whole", **options)
    part = tmp_path / "part"
    dfl.train(net, held_out, "fedavg", out=part, **(options | {"rounds": 3}))
    with pytest.warns(UserWarning, match="from 3 to 6 rounds"):
        again = dfl.train(net, held_out, "fedavg", out=part, resume=True, **options)
    assert again.best_rounds() == whole.best_rounds()
    models = [to_vector(one.module(best=True)).tobytes() for one in (whole, again)]
    assert len(set(models)) == 1


def test_without_validation_devices_nothing_is_best(tmp_path):
    federation = dfl.Federation.from_devices(devices())
    found = dfl.train(net, federation, "fedavg", out=tmp_path / "run", **FEW)
    with pytest.raises(RunError, match="has no best model, for it has no validation devices"):
        found.module(best=True)
    for call in (
        lambda: dfl.train(net, federation, "fedavg", callbacks=[dfl.EarlyStopping()], **FEW),
        lambda: dfl.tune(net, federation, "fedavg", grid={"learning_rate": [0.1]}, **FEW),
    ):
        with pytest.raises(ConfigError, match="no validation devices: hold some out"):
            call()


def test_training_stops_when_validation_gets_no_better(held_out, tmp_path):
    stopping = dfl.EarlyStopping(patience=2)
    options = FEW | {"rounds": 30, "settings": {"federation": {"evaluate_every": 1}}}
    found = dfl.train(
        net, held_out, "fedavg", out=tmp_path / "run", callbacks=[stopping], **options
    )
    history = [
        np.mean([device.error for device in one.validation]) for one in evaluations_of(found.path)
    ]
    best = int(np.argmin(history))
    assert len(history) == best + 3 < 31


@pytest.mark.parametrize("arguments", [{"patience": 0}, {"by": "median"}])
def test_stopping_out_of_range_is_refused(arguments):
    with pytest.raises(ValueError, match="must be at least 1, and one of mean, p90"):
        dfl.EarlyStopping(**arguments)


def test_settings_are_chosen_by_validation_and_not_by_the_test(held_out, tmp_path):
    grid = {"learning_rate": [0.001, 0.5], "training.l2": [0.0, 0.1]}
    tuned = dfl.tune(net, held_out, "fedavg", grid=grid, out=tmp_path / "grid", **FEW)
    assert len(tuned.points) == 4
    by_hand = [
        np.mean([device.error for device in one.final()[0].validation]) for one in tuned.results
    ]
    assert tuned.scores == pytest.approx(by_hand)
    assert tuned.best is tuned.results[int(np.argmin(by_hand))]
    assert tuned.settings["learning_rate"] == 0.5
    table = tuned.table()
    assert list(table.columns) == ["learning_rate", "training.l2", "validation"]
    l2 = tuned.settings["settings"]["training"]["l2"]
    assert tuned.best.label == f"learning_rate=0.5, training.l2={l2}"
    assert "of 4 points" in repr(tuned)
    again = dfl.train(net, held_out, "fedavg", **FEW, **tuned.settings)
    assert np.array_equal(again.test_errors(), tuned.best.test_errors())


class Exploding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(3, 3) for _ in range(12)), nn.Linear(3, 2))

    def forward(self, x):
        return self.layers(x)


def test_points_at_which_training_diverges_are_the_worst(held_out, tmp_path):
    diverged = pytest.warns(UserWarning, match=r"learning_rate=1e\+30: .* diverged")
    with pytest.warns(UserWarning, match="no point is better than no training"), diverged:
        tuned = dfl.tune(
            Exploding, held_out, "fedavg", grid={"learning_rate": [1e30, 0.1]}, out=tmp_path, **FEW
        )
    assert tuned.scores[0] == np.inf
    assert tuned.settings == {"learning_rate": 0.1}
    with pytest.warns(UserWarning, match="diverged"), pytest.raises(DivergenceError):
        dfl.tune(Exploding, held_out, "fedavg", grid={"learning_rate": [1e30]}, **FEW)


@pytest.mark.parametrize(
    ("strategy", "grid", "options"),
    [
        (dfl.DeltaFL(0.5), {"federation.theta": [0.5, 0.2]}, {}),
        ("fedavg", {"learning_rate": [0.1, 0.2]}, {"learning_rate": 0.1}),
        ("fedavg", {"training.learning_rate": [0.1, 0.2]}, {"learning_rate": 0.1}),
        ("fedavg", {"training.l2": [0.0, 0.1]}, {"settings": {"training": {"l2": 0.0}}}),
    ],
)
def test_what_is_tried_is_given_in_the_grid_alone(held_out, strategy, grid, options):
    with pytest.raises(ConfigError, match=r"which is given beside it"):
        dfl.tune(net, held_out, strategy, grid=grid, **FEW, **options)


def test_what_is_no_argument_is_told(held_out):
    with pytest.raises(
        ConfigError, match=r"'theta', which is no argument of `train`.*federation\."
    ):
        dfl.tune(net, held_out, "delta-fl", grid={"theta": [0.5, 0.8]}, **FEW)


def test_settings_of_all_points_are_among_those_chosen(held_out, tmp_path):
    shared = {"training": {"l2": 0.1}}
    grid = {"training.epochs": [1]}
    tuned = dfl.tune(
        net, held_out, "fedavg", grid=grid, settings=shared, out=tmp_path / "grid", **FEW
    )
    assert tuned.settings == {"settings": {"training": {"l2": 0.1, "epochs": 1}}}


class StopOnce(dfl.Callback):
    """Ends the first of several runs before its first evaluation."""

    times = 1

    def begin(self, *_):
        if self.times:
            self.times -= 1
            raise dfl.Stop


def test_a_point_that_was_not_measured_is_not_chosen(held_out, tmp_path):
    arguments = {"grid": {"learning_rate": [0.1, 0.2]}, "out": tmp_path / "grid"}
    tuned = dfl.tune(net, held_out, "fedavg", callbacks=[StopOnce()], **arguments, **FEW)
    assert tuned.scores[0] == np.inf
    assert tuned.settings == {"learning_rate": 0.2}
    never = StopOnce()
    never.times = 2
    with pytest.raises(RunError, match="every point was stopped before its error was measured"):
        dfl.tune(net, held_out, "fedavg", grid=arguments["grid"], callbacks=[never], **FEW)


def test_a_point_that_is_refused_is_named(held_out):
    with pytest.raises(ConfigError, match=r"learning_rate = -1") as refused:
        dfl.tune(net, held_out, "fedavg", grid={"learning_rate": np.array([0.1, -1])}, **FEW)
    assert refused.value.__notes__ == ["tune: at learning_rate=-1.0"]
    with pytest.raises(ConfigError, match="'strategy', which is given beside it"):
        dfl.tune(net, held_out, "fedavg", grid={"strategy": ["fedavg"]}, **FEW)


@pytest.mark.parametrize(
    "arguments",
    [
        {"grid": {}},
        {"grid": {"rounds": []}},
        {"grid": {"rounds": 3}},
        {"grid": {"optimizer": "adam"}},
        {"grid": {"rounds": [1]}, "by": "best"},
    ],
)
def test_grids_of_nothing_are_refused(held_out, arguments):
    with pytest.raises(ConfigError, match="tune: by="):
        dfl.tune(net, held_out, "fedavg", **arguments)


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.1], np.array([0.2, 0.2]), [1, 0.5, 1.0]])
def test_a_value_is_tried_once(held_out, values):
    with pytest.raises(ConfigError, match=r"learning_rate=\S+ more than once: give it once"):
        dfl.tune(net, held_out, "fedavg", grid={"learning_rate": values}, **FEW)
    with pytest.raises(ConfigError, match="optimizer=adam more than once"):
        dfl.tune(net, held_out, "fedavg", grid={"optimizer": ["adam", "sgd", "adam"]}, **FEW)


def test_settings_that_are_no_better_than_no_training_are_warned_of(held_out, tmp_path):
    """With the error before the first round. That of others is below it."""
    grid, options = {"learning_rate": [1e-9, 2e-9]}, {"out": tmp_path, **FEW}
    with pytest.warns(UserWarning, match="no point is better than no training") as warned:
        tuned = dfl.tune(net, held_out, "fedavg", grid=grid, **options)
    (first,) = tuned.best.first()
    before = np.mean([device.error for device in first.validation])
    assert first.round == 0
    told = f"{min(tuned.scores):.4g}, with learning_rate=1e-09, and before the first round it is"
    assert f"{told} {before:.4g}" in str(warned[0].message)


def test_new_inputs_are_scaled_as_those_that_were_trained_on(tmp_path):
    shifted = {name: (x * 50 + 1000, y) for name, (x, y) in devices().items()}
    federation = dfl.Federation.from_devices(shifted, standardise="train")
    found = dfl.train(net, federation, "fedavg", out=tmp_path / "run", **FEW)
    device = federation.dataset.test[0]
    table = found.devices()
    error = table[(table["split"] == "test") & (table["device"] == device.id)]["error"].item()
    assert (found.predict(shifted[device.id][0]) != device.y).mean() == pytest.approx(error)
    with pytest.raises(DataError, match=r"x of shape \(4, 2\): must be \[n, 3\]"):
        found.predict(np.zeros((4, 2)))
    with pytest.raises(DataError, match="not a finite"):
        found.predict([[np.nan, 0, 0]])


def test_numbers_of_a_small_type_are_no_pixels(tmp_path):
    bytes_of = {name: (np.uint8(x * 20 + 128), y) for name, (x, y) in devices().items()}
    table = {name: (x.astype(np.int64), y) for name, (x, y) in bytes_of.items()}
    x = bytes_of[next(iter(bytes_of))][0]
    for number, given in enumerate((bytes_of, table)):
        federation = dfl.Federation.from_devices(given)
        found = dfl.train(net, federation, "fedavg", out=tmp_path / str(number), **FEW)
        scaled = torch.tensor(x / np.float32(255 if number == 0 else 1), dtype=torch.float32)
        assert found.predict(x).tolist() == found.module()(scaled).argmax(1).tolist()


def test_pixels_that_were_scaled_are_pixels_again(tmp_path):
    images = {name: (np.uint8(x * 20 + 128), y) for name, (x, y) in devices().items()}
    federation = dfl.Federation.from_devices(images, standardise="train")
    found = dfl.train(net, federation, "fedavg", out=tmp_path, **FEW)
    for device in federation.dataset.test:
        scaled = torch.from_numpy(device.x)
        said = found.predict(images[device.id][0])
        assert said.tolist() == found.module()(scaled).argmax(1).tolist()


def test_what_devices_scaled_by_themselves_cannot_be_scaled_again(tmp_path):
    federation = dfl.Federation.from_devices(devices(), standardise="device")
    found = dfl.train(net, federation, "fedavg", out=tmp_path / "run", **FEW)
    with pytest.raises(RunError, match="each device's own numbers"):
        found.predict(np.zeros((2, 3)))


def test_other_seeds_go_on_where_one_is_stopped(held_out, tmp_path):
    class Once(dfl.Callback):
        def begin(self, config, _rounds_done):
            self.ends = config.experiment.seed == 1

        def played(self, _event):
            if self.ends:
                raise dfl.Stop

    found = dfl.train(net, held_out, "fedavg", seeds=2, out=tmp_path, callbacks=[Once()], **FEW)
    assert found.rounds == {1: 1, 2: FEW["rounds"]}


def test_after_the_last_round_there_is_nothing_to_stop(held_out, tmp_path):
    class Late(dfl.Callback):
        def __init__(self):
            self.told = []

        def played(self, event):
            self.told.append(event["round"])

        def evaluated(self, round_number, _errors):
            if round_number == FEW["rounds"]:
                raise dfl.Stop

    late = Late()
    found = dfl.train(net, held_out, "fedavg", out=tmp_path, callbacks=[late], **FEW)
    assert found.is_finished
    assert late.told == list(range(1, FEW["rounds"] + 1))


def test_a_finished_run_is_not_taken_for_that_of_another_module(held_out, tmp_path):
    dfl.train(net, held_out, "fedavg", out=tmp_path, **FEW)
    with pytest.raises(RunError, match="pass that one"):
        dfl.train(Exploding, held_out, "fedavg", out=tmp_path, resume=True, **FEW)


def test_a_module_is_exported_without_pickle(found, tmp_path):
    found.export(tmp_path / "model.npz", best=True)
    with np.load(tmp_path / "model.npz", allow_pickle=False) as archive:
        state = {name: torch.from_numpy(archive[name]) for name in archive.files}
    again = net()
    again.load_state_dict(state)
    assert np.array_equal(to_vector(again), to_vector(found.module(best=True)))
    with pytest.raises(FileExistsError):
        found.export(tmp_path / "model.npz")


def test_a_data_set_of_torch_is_a_devices_samples():
    given = {n: TensorDataset(torch.tensor(x), torch.tensor(y)) for n, (x, y) in devices().items()}
    ours, theirs = dfl.Federation.from_devices(devices()), dfl.Federation.from_devices(given)
    for one, other in zip(ours.dataset.train, theirs.dataset.train, strict=True):
        assert np.array_equal(one.x, other.x)
        assert np.array_equal(one.y, other.y)


def test_who_tests_may_be_named_or_given():
    everybody = devices(8)
    names = list(everybody)
    named = dfl.Federation.from_devices(everybody, test=names[4:], validation=names[3:4])
    given = dfl.Federation.from_devices(
        {name: everybody[name] for name in names[:3]},
        validation={names[3]: everybody[names[3]]},
        test={name: everybody[name] for name in names[4:]},
    )
    for one in (named, given):
        sides = {name: [d.id for d in side] for name, side in one.dataset.sides.items()}
        assert sides == {"train": names[:3], "validation": names[3:4], "test": names[4:]}
    assert "3 training, 1 validation and 4 test devices" in repr(given)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"test": ["nobody"]}, DataError, "test names 'nobody', which is no device that trains"),
        ({"validation": ["nobody"]}, DataError, "validation names 'nobody'"),
        ({"validation": 1.0}, ValueError, "validation=1.0: must be a share from 0 and below 1"),
        ({"validation": devices(1)}, ValueError, "give both so"),
        ({"test": ["p00"], "split": "samples"}, ValueError, "divides none: give a share"),
        ({"standardise": "legacy"}, ValueError, "standardise='legacy': must be one of none"),
    ],
)
def test_parts_that_cannot_be_are_refused(options, error, said):
    with pytest.raises(error, match=said):
        dfl.Federation.from_devices(devices(8), **options)


NOISY = {
    "dp": {"noise": "1.5"},
    "quantile": {"method": "noisy", "noise": 4, "weights": "equal"},
    "privacy": {"max_weight": 1, "sums": "ideal"},
}


class StopAfterTwo(dfl.Callback):
    def played(self, event):
        if event["round"] == 2:
            raise dfl.Stop


def test_what_noise_has_cost_is_over_all_seeds_and_known_of_a_run_that_stopped(tmp_path):
    federation = dfl.Federation.from_devices(devices(60))
    options = FEW | {"cohort_size": 15, "settings": NOISY, "rounds": 3}
    one, two = (
        dfl.train(net, federation, seeds=seeds, out=tmp_path / str(seeds), **options)
        for seeds in (1, 2)
    )
    assert two.privacy["epsilon"] > 1.2 * one.privacy["epsilon"] > 0
    for found in (one, two):
        assert found.privacy["epsilon"] == found.summary["privacy"]["epsilon"]
        assert "ε = " in repr(found)
    stopped = dfl.train(net, federation, out=tmp_path / "s", callbacks=[StopAfterTwo()], **options)
    assert stopped.summary == {}
    assert 0 < stopped.privacy["epsilon"] <= one.privacy["epsilon"]
