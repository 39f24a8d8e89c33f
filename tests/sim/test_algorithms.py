"""Every algorithm by its name: it runs, resumes to the bit, and is the same masked as in clear."""

import contextlib
from dataclasses import fields, replace

import numpy as np
import pytest
from doubles import Silent
from records import checkpoint_of

from deltafl.fl.models import MODELS as BUILDERS
from deltafl.fl.strategies.base import TrainingState, Visibility
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import DevicePolicy, PeerError
from deltafl.sim.cohort.backends.choice import Choice, open_backend
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.algorithms import (
    build_strategy,
    check_session,
    policy_of,
    sessions_of,
    strategy_of,
)
from deltafl.sim.run.arms import session_of
from deltafl.sim.run.engine import play
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.run.simulated import SimulatedPopulation, spec_of
from deltafl.sim.settings.config import ALGORITHMS, MODELS, PRIVATE
from deltafl.sim.settings.config_io import build_config
from deltafl.sim.settings.policy import PolicyConfig

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
        backend = open_backend(Choice("reference", 0, 1), spec_of(config, dataset))
        population = SimulatedPopulation(dataset, backend)
        with directory.claim(config, resume=True) as record:
            play(config, directory, record, population, progress or Silent())
            return load_checkpoint(record).state

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
    assert checkpoint_of(tmp_path / "stopped").state.round == 1
    resumed = run(config, "stopped")
    assert resumed.model.tobytes() == whole.model.tobytes()
    assert whole.memory.keys() == resumed.memory.keys()
    assert all(np.array_equal(whole.memory[name], resumed.memory[name]) for name in whole.memory)
    assert any(name.startswith("server_optimizer.") for name in whole.memory)


@pytest.mark.slow
@pytest.mark.parametrize("mean", ["fedavg", "fedprox", "q-ffl", "tilted-erm", "propfair"])
def test_a_masked_run_ends_in_the_model_of_the_run_in_clear(mean, run):
    clear = run(settings(mean), "clear").model
    masked = run(settings(PRIVATE + mean), "masked").model
    other = run(settings(PRIVATE + mean, {"training": {"l2": 0.5}}), "other").model
    assert np.abs(clear - masked).max() < 1e-4
    assert np.abs(clear - other).max() > 1e-3  # the bound is no matter of course


@pytest.mark.slow
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
        (
            ("fedavg", {"strategy": {"eta_every": 5}}),
            "only federation.algorithm = 'delta-fl' reads it",
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
    how = {"resume": False, "progress": Silent(), "warn": print}
    with pytest.raises(ConfigError, match=sentence):
        run_experiment(settings("aaggff-s", layer), tmp_path / "run", **how)
    assert not (tmp_path / "run").exists()


def test_the_settings_know_the_models_that_can_be_built():
    assert set(BUILDERS) == set(MODELS)


def private(**privacy):
    search = privacy.pop("search", None)
    sections = {"privacy": privacy, "quantile": {} if search is None else {"search": search}}
    return settings("private-delta-fl", sections)


def searches_of(config):
    """Whether the search is verified, and what the session and the policy say of it."""
    sessions = sessions_of(config)
    rounds = build(config)
    return rounds.encoding.search.verified, sessions


@pytest.mark.parametrize(
    ("chosen", "verified"),
    [
        ({}, False),
        ({"signed": True}, False),
        ({"signed": True, "search": "verified"}, True),
        ({"signed": True, "search": "verified", "graph": "complete"}, True),
        ({"adversary": "noncolluding"}, False),
        ({"adversary": "active"}, True),
        ({"adversary": "active", "graph": "complete"}, True),
        ({"adversary": "active", "search": "verified"}, True),
    ],
)
def test_devices_check_the_search_of_an_active_server(chosen, verified):
    found, sessions = searches_of(private(**chosen))
    assert found is verified
    assert sessions.policy.adversary == chosen.get("adversary", "curious")


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"search": "verified"}, ["quantile.search = 'verified'", "privacy.signed = false"]),
        (
            {"search": "verified", "signed": True, "graph": "sparse"},
            ["quantile.search = 'verified'", "privacy.graph = 'sparse'"],
        ),
        (
            {"adversary": "active", "graph": "sparse"},
            ["privacy.graph = 'sparse'", "'active'"],
        ),
        ({"adversary": "active", "search": "trusted"}, ["'trusted'", "'active'"]),
    ],
)
def test_a_search_that_no_device_can_check_is_refused_by_both_settings(chosen, named):
    with pytest.raises(ConfigError) as caught:
        build(private(**chosen))
    assert all(name in str(caught.value) for name in named)


@pytest.mark.parametrize("algorithm", ["private-fedavg", "private-q-ffl"])
def test_algorithms_without_a_search_do_not_mind_the_setting(algorithm):
    sections = {"quantile": {"search": "verified"}, "privacy": {"graph": "sparse"}}
    config = settings(algorithm, sections)
    assert not build(config).rounds.encoding.search.verified
    everybody = {"federation": {"theta": 1}}
    build(settings("private-delta-fl", sections, everybody))


def test_a_verified_search_takes_the_complete_graph_of_any_cohort():
    large = {"federation": {"cohort_size": 100}}
    chosen = {"privacy": {"signed": True}, "quantile": {"search": "verified"}}
    graphs = {}
    for name, more in (("trusted", {"privacy": {"signed": True}}), ("verified", chosen)):
        config = settings("private-delta-fl", large, more)
        sessions = sessions_of(config)
        levels = build(config).levels_for(TrainingState(np.zeros(5, np.float32)), 100)
        graphs[name] = sessions.params_of_levels(levels, bytes(20), bytes(32)).is_complete
    assert graphs == {"trusted": False, "verified": True}


def test_all_levels_are_checked_alike():
    levels = {"federation": {"levels": ["1", "0.5"]}}
    strategy = strategy_of(
        settings(
            "private-delta-fl",
            levels,
            {"privacy": {"signed": True}},
            {"quantile": {"search": "verified"}},
        )
    )
    strategy.levels_for(TrainingState(np.zeros(10, np.float32)), COHORT)
    assert [level.encoding.search.verified for level in strategy.strategies] == [True, True]


def test_devices_insist_on_the_smallest_tail_of_the_settings():
    assert sessions_of(private(min_honest_tail=4)).policy.min_honest_tail == 4


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mm", "bracketed", "histogram"])
@pytest.mark.parametrize("search", ["auto", "trusted"])
def test_a_run_against_an_active_server_is_the_same_masked_and_ideal(method, search, run):
    sections = {"quantile": {"method": method, "search": search, "resolution_bits": 8}}
    open_to_many = {"policy": {"max_pivots": 320, "max_mm_pivots_per_device": 10}}
    active = {"privacy": {"adversary": "active"}}
    config = settings("private-delta-fl", sections, active, open_to_many)
    models = {
        sums: run(replace(config, privacy=replace(config.privacy, sums=sums)), sums).model
        for sums in ("masked", "ideal")
    }
    assert models["masked"].tobytes() == models["ideal"].tobytes()
    assert models["ideal"].any()


def test_devices_insist_on_the_limits_of_the_settings():
    own = {field.name for field in fields(PolicyConfig)}
    limits = {field.name for field in fields(RoundPolicy)}
    limits -= {field.name for field in fields(DevicePolicy)}
    assert limits - own == {"min_honest_tail"}
    for name in own:
        changed = getattr(RoundPolicy(), name) + 1
        config = settings("private-delta-fl", {"policy": {name: changed}})
        assert getattr(sessions_of(config).policy, name) == changed


def test_devices_search_over_their_smallest_cohort():
    assert sessions_of(private(min_cohort=7)).policy.min_cohort == 7


@pytest.mark.parametrize(
    ("algorithm", "accepted"),
    [
        ("private-q-ffl", (0, 2**40)),
        ("private-tilted-erm", (0, 2**40)),
        ("private-fedavg", (8, 8192)),
        ("private-delta-fl", (8, 8192)),
    ],
)
def test_only_devices_of_real_weights_accept_whole_units(algorithm, accepted):
    policy = sessions_of(settings(algorithm)).policy
    assert (policy.min_update_resolution_bits, policy.max_weight) == accepted


REMOTE = {"federation": {"devices": "remote"}, "privacy": {"sums": "masked"}}
LARGE = {
    "histogram": ({"quantile": {"method": "histogram"}}, {"max_pivots": 320}),
    "histogram of equals": (
        {"quantile": {"method": "histogram", "weights": "equal", "max_queries": 6}},
        {"max_pivots_if_equal": 384},
    ),
    "mm": ({"quantile": {"method": "mm"}}, {"max_mm_pivots_per_device": 6}),
    "levels": (
        {
            "federation": {"levels": ["0.9", "0.5"], "cohort_size": 40},
            "privacy": {"min_cohort": 36},
        },
        {"max_pivots": 52},
    ),
    "grid": (
        {"quantile": {"resolution_bits": 20, "loss_bound": 64}},
        {"max_loss_resolution_bits": 20, "max_loss_bound": 64},
    ),
    "updates": (
        {"privacy": {"max_weight": 10000, "update_resolution_bits": 5, "update_clip": 8}},
        {"max_weight": 10000, "min_update_resolution_bits": 5, "max_update_clip": 8},
    ),
    "small updates": ({"privacy": {"update_clip": 0.01}}, {"min_update_clip": 0.01}),
    "noise": (
        {"federation": {"theta": 1}, "dp": {"noise": 1, "clip": 80}, "privacy": {"max_weight": 1}},
        {"max_update_norm": 80},
    ),
}


@pytest.mark.parametrize("case", LARGE)
def test_simulated_devices_accept_what_the_run_asks_for_and_nothing_else(case):
    layer, accepted = LARGE[case]
    config = settings("private-delta-fl", layer)
    usual, policy = RoundPolicy(), policy_of(config)
    found = {
        field.name: getattr(policy, field.name)
        for field in fields(PolicyConfig)
        if getattr(policy, field.name) != getattr(usual, field.name)
    }
    assert found == accepted
    session_of(config, 5)


@pytest.mark.parametrize("case", LARGE)
def test_devices_on_machines_of_their_own_accept_no_more_than_usual(case):
    layer, accepted = LARGE[case]
    config = settings("private-delta-fl", layer)
    own, usual = policy_of(config, own=True), RoundPolicy()
    assert all(getattr(own, name) == getattr(usual, name) for name in accepted)
    if case != "noise":  # which only simulated devices add
        remote = settings("private-delta-fl", layer, REMOTE)
        assert policy_of(remote) == policy_of(remote, own=True)
        with pytest.raises(ConfigError, match="below the device's policy"):
            session_of(remote, 5)


def test_ideal_sums_of_a_simulation_leave_devices_on_machines_of_their_own_as_strict():
    ideal = private(sums="ideal", min_honest_tail=20)
    assert (policy_of(ideal).min_honest_tail, policy_of(ideal, own=True).min_honest_tail) == (0, 20)


def test_a_run_outside_of_its_policy_is_refused_with_the_limit_to_change():
    asked = {"quantile": {"method": "histogram"}, "policy": {"max_pivots": 32}}
    config = settings("private-delta-fl", asked)
    with pytest.raises(PeerError, match=r"320 pivots is above max_pivots=32$"):
        check_session(config, build(config), TrainingState(np.zeros(5, np.float32)), COHORT)
