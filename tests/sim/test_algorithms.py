"""Every algorithm by its name: it runs, resumes to the bit, and is the same masked as in clear."""

import contextlib

import numpy as np
import pytest
from doubles import Silent

from deltafl.fl.models import MODELS as BUILDERS
from deltafl.fl.strategies.base import Visibility
from deltafl.sim.cohort.backends.choice import Choice, open_backend
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.algorithms import build_strategy
from deltafl.sim.run.engine import Resources, play, spec_of
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.settings.config import ALGORITHMS, MODELS, PRIVATE
from deltafl.sim.settings.config_io import build_config

COHORT = 10  # all train devices, which AAggFF-S wants
TINY = {
    "data": {"num_devices": 20},
    "training": {"learning_rate": 0.2, "device": "cpu"},
    "federation": {"rounds": 2, "cohort_size": COHORT, "evaluate_every": 2},
    "privacy": {"sums": "ideal", "min_cohort": 5},
}
SEES = {
    "delta-fl": Visibility.LOSSES,
    "afl": Visibility.LOSSES,
    "aaggff-s": Visibility.LOSSES,
    "aaggff-d": Visibility.LOSSES,
    "fedmgda": Visibility.UPDATES,
}


def settings(algorithm, *more):
    return build_config([TINY, {"federation": {"algorithm": algorithm}}, *more])


def build(config):
    return build_strategy(config)


@pytest.fixture(scope="module")
def dataset():
    return build_dataset(settings("fedavg").data)


@pytest.fixture
def run(dataset, tmp_path):
    def run(config, name, progress=None):
        directory = RunDirectory(tmp_path / name)
        directory.prepare(config)
        backend = open_backend(Choice("reference", 0, 1), spec_of(config, dataset))
        play(config, directory, Resources(dataset, backend, progress or Silent()))
        return load_checkpoint(directory.checkpoints).state

    return run


class StopsAfterOneRound(Silent):
    def played(self, event):
        del event
        raise KeyboardInterrupt


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_built_and_says_what_the_server_sees(algorithm):
    assert build(settings(algorithm)).server_sees is SEES.get(algorithm, Visibility.SUMS)


@pytest.mark.parametrize("algorithm", [a for a in ALGORITHMS if not a.startswith(PRIVATE)])
def test_every_algorithm_runs_and_resumes_to_the_bit(algorithm, run, tmp_path):
    config = settings(
        algorithm,
        {"strategy": {"server_optimizer": "yogi", "server_learning_rate": 0.1}},
        {"federation": {"rounds": 3}},
    )
    whole = run(config, "whole")
    with contextlib.suppress(KeyboardInterrupt):
        run(config, "stopped", StopsAfterOneRound())
    assert load_checkpoint(RunDirectory(tmp_path / "stopped").checkpoints).state.round == 1
    resumed = run(config, "stopped")
    assert resumed.model.tobytes() == whole.model.tobytes()
    assert whole.memory.keys() == resumed.memory.keys()
    assert all(np.array_equal(whole.memory[name], resumed.memory[name]) for name in whole.memory)
    assert any(name.startswith("server_optimizer.") for name in whole.memory)


@pytest.mark.parametrize("mean", ["fedavg", "fedprox", "q-ffl", "tilted-erm", "propfair"])
def test_a_masked_run_ends_in_the_model_of_the_run_in_clear(mean, run):
    clear = run(settings(mean), "clear").model
    masked = run(settings(PRIVATE + mean), "masked").model
    other = run(settings(PRIVATE + mean, {"training": {"l2": 0.5}}), "other").model
    assert np.abs(clear - masked).max() < 1e-4
    assert np.abs(clear - other).max() > 1e-3  # the bound is no matter of course


def test_the_server_optimiser_is_under_any_algorithm(run):
    plain = run(settings("fedavg"), "plain").model
    halved = {"strategy": {"server_learning_rate": 0.5}}
    clear = run(settings("fedavg", halved), "clear").model
    masked = run(settings("private-fedavg", halved), "masked").model
    assert np.abs(clear - plain).max() > 1e-3
    assert np.abs(masked - clear).max() < 1e-4


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("fedavg", {"strategy": {"eta_every": 5}}), "only 'delta-fl' can keep its threshold"),
        (
            ("private-q-ffl", {"privacy": {"truth": True}}),
            "records numbers of samples as the devices' weights",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(more, sentence):
    algorithm, layer = more
    with pytest.raises(ConfigError, match=sentence):
        build(settings(algorithm, layer))


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ({"federation": {"cohort_size": COHORT - 1}}, "cohort_size = 9: must be 10"),
        ({"faults": {"dropout": 0.1}}, r"faults\.dropout = 0\.1: must be 0"),
        ({"model": {"name": "gru"}}, "gru"),
    ],
)
def test_what_would_stop_a_run_is_found_before_anything_is_written(layer, sentence, tmp_path):
    config = settings("aaggff-s", layer)
    with pytest.raises(ConfigError, match=sentence):
        run_experiment(config, tmp_path / "run", resume=False, progress=Silent(), warn=print)
    assert not (tmp_path / "run").exists()


def test_the_settings_know_the_models_that_can_be_built():
    assert set(BUILDERS) == set(MODELS)
