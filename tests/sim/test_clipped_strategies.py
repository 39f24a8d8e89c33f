"""Norm clipping under secure sums: the step in clear up to rounding, its audit, a run resumed."""

from dataclasses import replace

import numpy as np
import pytest
from doubles import Killed, run
from hypothesis import given, settings
from hypothesis import strategies as st
from records import checkpoint_of
from resumed import kill_at_write, result
from robust_twins import HALF, RESOLUTION_BITS, SESSIONS, START, WHOLE, in_clear, private
from toy_devices import drawn_devices

from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.masked import MaskedMean
from deltafl.fl.strategies.norm_clipping import RADIUS, NormClipping
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.strategies.q_ffl import QFFL
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.errors import ConfigError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.run.algorithms import build_strategy
from deltafl.sim.run.arms import check_arms
from deltafl.sim.settings.config_io import build_config

CLIPPING = NormClipping(quantile=0.55, rate=0.5, radius=1.2)


@pytest.mark.slow
@pytest.mark.parametrize("theta", [WHOLE, HALF])
@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_three_rounds_are_those_in_clear(theta, seed):
    """Up to the rounding of sums: m·2^-bits / (2·Σ n) in each number, and float32 for the model.

    The radius is the same to the bit, because counts are exact.
    """
    devices = drawn_devices(seed)
    clear, secure = TrainingState(START), TrainingState(START)
    radii = []
    for _ in range(3):
        secure = replace(secure, memory=clear.memory, model=clear.model)
        clear, plain = in_clear(theta, CLIPPING).apply(
            clear, cohort_of(devices, IdealRounds(SESSIONS))
        )
        secure, report = private(theta, CLIPPING).apply(
            secure, cohort_of(devices, IdealRounds(SESSIONS))
        )
        bound = len(devices) * 2.0**-RESOLUTION_BITS / (2 * plain.kept_weight)
        assert report.kept_devices == plain.kept_devices
        assert np.abs(secure.model - clear.model).max() <= bound + 1e-6
        assert secure.memory[RADIUS].tobytes() == clear.memory[RADIUS].tobytes()
        assert report.secure_sums - report.num_queries == 1
        radii.append(float(clear.memory[RADIUS][0]))
    assert CLIPPING.radius not in radii


@pytest.mark.parametrize("theta", [WHOLE, HALF])
def test_real_sums_and_ideal_ones_are_the_same_to_the_bit(theta):
    found = []
    for rounds in (IdealRounds(SESSIONS), MaskedRounds(SESSIONS)):
        state = TrainingState(START)
        for index in range(2):
            state, report = private(theta, CLIPPING).apply(
                state, cohort_of(drawn_devices(index), rounds)
            )
            assert report.aborted is None
        found.append(state)
    one, other = found
    assert one.model.tobytes() == other.model.tobytes()
    assert one.memory[RADIUS].tobytes() == other.memory[RADIUS].tobytes()
    mean, _ = private(theta, None).apply(
        TrainingState(START), cohort_of(drawn_devices(0), IdealRounds(SESSIONS))
    )
    assert RADIUS not in mean.memory


def config_of(algorithm, **sections):
    sections = {"federation": {"algorithm": algorithm}, **sections}
    sections.setdefault("strategy", {}).setdefault("aggregation", "clipped")
    return build_config([sections])


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "delta-fl"])
def test_the_settings_make_the_strategy(name):
    own = {"clipped_quantile": 0.25, "clipped_rate": 0.5, "clipped_radius": 3.0}
    wanted = NormClipping(0.25, 0.5, 3.0)
    given_ = {"strategy": {"aggregation": "clipped", **own}}
    assert build_strategy(config_of(name, **given_)).strategy.robustly == wanted
    masked = build_strategy(config_of(f"private-{name}", **given_))
    rounds = masked if name == "delta-fl" else masked.rounds
    assert rounds.clipping == wanted


@pytest.mark.parametrize("name", ["q-ffl", "private-tilted-erm", "afl", "propfair", "fedmgda"])
def test_other_algorithms_have_no_radius(name):
    with pytest.raises(
        ConfigError, match=r"strategy.aggregation = 'clipped': must be 'mean' with federation"
    ):
        build_strategy(config_of(name))


def test_real_weights_are_refused():
    with pytest.raises(ValueError, match="private-q-ffl weighs devices by real numbers"):
        MaskedMean(QFFL(1.0, lambda _: 0.1), PrivateDeltaFL(WHOLE, clipping=CLIPPING))


def test_devices_that_trust_no_server_do_not_believe_its_radius():
    active = {"privacy": {"adversary": "active", "sums": "masked"}}
    trusting = {**active, "quantile": {"search": "trusted"}}
    for name in ("private-fedavg", "private-delta-fl"):
        with pytest.raises(ConfigError, match=r"quantile.search = 'auto': must be 'trusted' with"):
            config_of(name, **active)
    with pytest.raises(ConfigError, match=r"clipped_radius = 1.0: the server chooses it"):
        check_arms(config_of("private-fedavg", **trusting), 10, None)
    check_arms(config_of("private-delta-fl", **trusting), 10, None)


def test_several_levels_have_no_radius_and_devices_that_add_noise_another_clip():
    with pytest.raises(ConfigError, match=r"'mean' with federation.levels"):
        config_of("private-delta-fl", federation={"levels": ["0.8", "0.5"]})
    noisy = {"federation": {"theta": "1"}, "dp": {"noise": 1.0}, "privacy": {"max_weight": 1}}
    assert build_strategy(build_config([noisy])).update_noise is not None
    with pytest.raises(ConfigError, match=r"'clipped': must be 'mean' with dp.noise = 1.0"):
        config_of("private-delta-fl", **noisy)


def small(algorithm, **more):
    given_ = {
        "data": {"num_devices": 24},
        "federation": {"algorithm": algorithm, "rounds": 4, "cohort_size": 10},
        "training": {"batch_size": 64, "device": "cpu"},
        "strategy": {"aggregation": "clipped", "clipped_radius": 0.2},
        **more,
    }
    return build_config([given_])


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("algorithm", ["private-delta-fl", "private-fedavg"])
def test_an_audit_follows_the_radius(algorithm, tmp_path, monkeypatch):
    """And finds that it is not what the settings and sums lead to."""
    config = small(algorithm, privacy={"transcript": "full", "truth": True})
    run(config, tmp_path / "run")
    truth = tmp_path / "run" / "truth.sqlite"
    found = audit(tmp_path / "run", Options(truth=truth))
    assert {one.rule for one in found.findings} <= {"search.narrow", "search.losses-found"}
    other = replace(CLIPPING, radius=0.2, rate=0.25)
    monkeypatch.setattr("deltafl.sim.run.algorithms._clipping", lambda _: other)
    rules = {one.rule for one in audit(tmp_path / "run", Options()).findings}
    assert "record.disagrees" in rules


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("algorithm", ["delta-fl", "private-delta-fl"])
def test_a_run_that_is_killed_goes_on_with_its_radius(algorithm, tmp_path, monkeypatch):
    """To the same bits; with the first radius, it would not."""
    config = small(algorithm, privacy={"sums": "ideal"})
    run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        kill_at_write(patch, 7, after=True)  # two rounds are done
        with pytest.raises(Killed):
            run(config, tmp_path / "killed")
    kept = checkpoint_of(tmp_path / "killed").state
    assert 0 < kept.round < 4
    assert kept.memory[RADIUS] != config.strategy.clipped_radius
    run(config, tmp_path / "killed", resume=True)
    assert result(tmp_path / "killed") == result(tmp_path / "whole")
    done = checkpoint_of(tmp_path / "killed").state
    whole = checkpoint_of(tmp_path / "whole").state
    assert done.memory[RADIUS].tobytes() == whole.memory[RADIUS].tobytes()
