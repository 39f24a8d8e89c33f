"""Geometric medians under secure sums: the step in clear up to rounding, and their audit."""

from dataclasses import replace

import numpy as np
import pytest
from doubles import run
from hypothesis import given, settings
from hypothesis import strategies as st
from robust_twins import HALF, RESOLUTION_BITS, SESSIONS, START, WHOLE, in_clear, private
from toy_devices import drawn_devices

from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.geometric_median import SMOOTHING, Robustly
from deltafl.fl.strategies.masked import MaskedMean
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.strategies.q_ffl import QFFL
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Stage, Step, Vanish
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.errors import ConfigError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.run.algorithms import build_strategy
from deltafl.sim.run.arms import check_arms
from deltafl.sim.settings.config_io import build_config

ROBUSTLY = Robustly(passes=3, smoothing=0.5)


@pytest.mark.parametrize("theta", [WHOLE, HALF])
@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_three_rounds_are_those_in_clear(theta, seed):
    """Up to the rounding of sums and what it does to the factors of later passes.

    A mean of m devices is off by r = m·2^-bits / (2·Σ n·b), with the b of the pass in parts of 1. A
    centre that is off by r changes each distance by at most r, and so a factor by r/ν of itself, or
    by one multiple of 2^-16; a mean with factors that are off by x of themselves is off by at most
    2x times the largest distance between updates. Floats add what they are accurate to.
    """
    devices = drawn_devices(seed)
    clear, secure = TrainingState(START), TrainingState(START)
    for _ in range(3):
        nu = ROBUSTLY.smoothing_of(clear)
        secure = replace(secure, memory=clear.memory, model=clear.model)
        clear, plain = in_clear(theta, ROBUSTLY).apply(
            clear, cohort_of(devices, IdealRounds(SESSIONS))
        )
        secure, report = private(theta, ROBUSTLY).apply(
            secure, cohort_of(devices, IdealRounds(SESSIONS))
        )
        updates = np.array([one.given_update for one in devices])
        widest = np.linalg.norm(updates[:, None] - updates[None], axis=2).max()
        least = min(1.0, nu / (widest + 1)) * min(one.weight for one in devices)
        rounding = np.sqrt(3) * 2.0**-RESOLUTION_BITS / (2 * least)
        factors = rounding / nu + 2.0**-16 / min(1.0, nu / (widest + 1))
        bound = rounding + 2 * (2 * factors * widest) + 1e-5
        assert report.kept_devices == plain.kept_devices
        assert np.linalg.norm(secure.model - clear.model) <= bound
        assert secure.memory[SMOOTHING] == pytest.approx(clear.memory[SMOOTHING], rel=0.2)
        assert report.secure_sums - report.num_queries == ROBUSTLY.passes


@pytest.mark.parametrize("theta", [WHOLE, HALF])
def test_real_sums_and_ideal_ones_are_the_same_to_the_bit(theta):
    found = []
    for rounds in (IdealRounds(SESSIONS), MaskedRounds(SESSIONS)):
        state = TrainingState(START)
        for index in range(2):
            state, report = private(theta, ROBUSTLY).apply(
                state, cohort_of(drawn_devices(index), rounds)
            )
            assert report.aborted is None
        found.append(state)
    one, other = found
    assert one.model.tobytes() == other.model.tobytes()
    assert one.memory[SMOOTHING].tobytes() == other.memory[SMOOTHING].tobytes()
    mean, _ = private(theta, None).apply(
        TrainingState(START), cohort_of(drawn_devices(0), IdealRounds(SESSIONS))
    )
    assert mean.model.tobytes() != one.model.tobytes()


def test_a_device_that_is_lost_after_the_first_sum_ends_the_passes():
    """It was in the first sum; a second over the others would show it."""
    vanish = {4: Vanish(Step(Stage.UNMASK, 0), late=False)}
    for rounds in (IdealRounds(SESSIONS), MaskedRounds(SESSIONS)):
        cohort = cohort_of(drawn_devices(3), rounds, dropouts=lambda *_: vanish)
        state, report = private(WHOLE, ROBUSTLY).apply(TrainingState(START), cohort)
        mean, _ = private(WHOLE, None).apply(
            TrainingState(START), cohort_of(drawn_devices(3), IdealRounds(SESSIONS))
        )
        assert report.secure_sums == 1
        assert state.model.tobytes() == mean.model.tobytes()
        assert state.memory[SMOOTHING].tolist() == [ROBUSTLY.smoothing]


def test_real_weights_are_refused():
    with pytest.raises(ValueError, match="private-q-ffl weighs devices by real numbers"):
        MaskedMean(QFFL(1.0, lambda _: 0.1), PrivateDeltaFL(WHOLE, robustly=ROBUSTLY))


def config_of(algorithm, **sections):
    sections = {"federation": {"algorithm": algorithm}, **sections}
    sections.setdefault("strategy", {}).setdefault("aggregation", "rfa")
    return build_config([sections])


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "delta-fl"])
def test_the_settings_make_the_strategy(name):
    given = {
        "strategy": {"aggregation": "rfa", "rfa_passes": 5, "rfa_smoothing": 0.25},
        "policy": {"max_passes": 5},
    }
    clear = build_strategy(config_of(name, **given)).strategy
    assert clear.robustly == Robustly(5, 0.25)
    masked = build_strategy(config_of(f"private-{name}", **given))
    rounds = masked if name == "delta-fl" else masked.rounds
    assert rounds.robustly == Robustly(5, 0.25)
    assert build_strategy(build_config([{}])).robustly is None


def test_devices_have_to_be_told_that_they_may_give_several_sums():
    given = {"strategy": {"aggregation": "rfa"}, "policy": {"max_passes": 2}}
    with pytest.raises(
        ConfigError, match=r"strategy.rfa_passes = 3 is above policy.max_passes = 2"
    ):
        check_arms(config_of("private-fedavg", **given), 10, None)
    assert build_strategy(config_of("fedavg", **given)).strategy.robustly == Robustly()
    assert RoundPolicy().max_passes == 1


def test_devices_that_trust_no_server_do_not_believe_its_centres():
    given = {
        "policy": {"max_passes": 3},
        "privacy": {"adversary": "active", "sums": "masked", "signed": True},
    }
    for name in ("private-fedavg", "private-delta-fl"):
        with pytest.raises(ConfigError, match=r"rfa_passes = 3: the server chooses the centres"):
            check_arms(config_of(name, **given), 10, None)
    trusting = {**given, "quantile": {"search": "trusted"}}
    check_arms(config_of("private-delta-fl", **trusting), 10, None)
    clipped = {**given, "strategy": {"aggregation": "clipped"}}
    with pytest.raises(ConfigError, match=r"clipped_radius = 1.0: the server chooses it"):
        check_arms(config_of("private-delta-fl", **clipped), 10, None)
    trusting = config_of("private-delta-fl", **clipped, quantile={"search": "trusted"})
    check_arms(trusting, 10, None)


@pytest.mark.parametrize("name", ["q-ffl", "private-tilted-erm", "afl", "propfair", "fedmgda"])
def test_other_algorithms_have_no_median(name):
    with pytest.raises(
        ConfigError, match=r"strategy.aggregation = 'rfa': must be 'mean' with federation"
    ):
        build_strategy(config_of(name))


def test_several_levels_have_no_median():
    levels = {"algorithm": "private-delta-fl", "levels": ["0.8", "0.5"]}
    told = {"max_passes": 3}
    with pytest.raises(ConfigError, match=r"'mean' with federation.levels"):
        build_strategy(config_of("private-delta-fl", federation=levels, policy=told))


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("algorithm", ["private-delta-fl", "private-fedavg"])
def test_an_audit_follows_the_passes(algorithm, tmp_path, monkeypatch):
    """And finds that the smoothing is not what the settings and sums lead to."""
    given = {
        "data": {"num_devices": 24},
        "federation": {"algorithm": algorithm, "rounds": 3, "cohort_size": 10},
        "training": {"batch_size": 64, "device": "cpu"},
        "privacy": {"transcript": "full", "truth": True},
        "strategy": {"aggregation": "rfa"},
        "policy": {"max_passes": 3},
    }
    config = build_config([given])
    run(config, tmp_path / "run")
    truth = tmp_path / "run" / "truth.bin"
    found = audit(tmp_path / "run", Options(truth=truth))
    rules = {one.rule for one in found.findings}
    assert "policy.looser" in rules  # devices were told to give several sums
    assert rules <= {"search.narrow", "search.losses-found", "policy.looser"}
    other = Robustly(3, 0.75)
    monkeypatch.setattr("deltafl.sim.run.algorithms._robustly", lambda _: other)
    rules = {one.rule for one in audit(tmp_path / "run", Options()).findings}
    assert "record.disagrees" in rules
