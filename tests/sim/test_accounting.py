"""What a noisy search costs: the bound on ρ holds for the noise as it is, and rounds add up."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from doubles import Silent
from hypothesis import given
from hypothesis import strategies as st
from records import events_of

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.noise import Noise
from deltafl.sim.errors import ConfigError
from deltafl.sim.run.accounting import DELTA, epsilon_of, excess, privacy_of, rho_of
from deltafl.sim.run.algorithms import build_strategy
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.settings.config_io import build_config, to_toml

NOISY_RUN = {
    "data": {"num_devices": 24},
    "federation": {
        "algorithm": "private-delta-fl",
        "rounds": 2,
        "cohort_size": 8,
        "evaluate_every": 2,
    },
    "privacy": {"min_cohort": 6, "colluding": 0.0},
    "quantile": {"method": "noisy", "weights": "equal", "noise": 2},
    "training": {"batch_size": 64, "device": "cpu"},
}


def config_of(**changes):
    return build_config(
        [
            {
                name: {**NOISY_RUN.get(name, {}), **changes.get(name, {})}
                for name in {*NOISY_RUN, *changes}
            }
        ]
    )


# --- the bound ----------------------------------------------------------------------------------


def sum_of_shares(share_variance, num_devices, most):
    """The distribution of a sum of discrete Gaussians on [-most, most], by convolution."""
    values = np.arange(-most, most + 1)
    share = np.exp(-(values**2) / (2 * share_variance))
    share /= share.sum()
    total = share
    for _ in range(num_devices - 1):
        total = np.convolve(total, share, mode="same")
    return total / total.sum()


def divergence(distribution, shift, order):
    """Rényi's, from a distribution to itself moved by `shift` steps."""
    with np.errstate(divide="ignore"):
        log = np.log(distribution)
    here, there = log[shift:], log[:-shift]
    known = (here > -600) & (there > -600)  # no underflow; sums of positive terms lose no digits
    inside = order * here[known] + (1 - order) * there[known]
    return float(np.log(np.exp(inside).sum()) / (order - 1))


@pytest.mark.parametrize(("variance", "num_devices"), [(1, 4), (Fraction(1, 2), 3), (4, 9)])
@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_moving_a_device_from_bin_to_bin_costs_no_more_than_is_accounted_for(
    variance, num_devices, order
):
    noise = Noise(Fraction(variance), num_devices)
    total = sum_of_shares(float(noise.share_variance), num_devices, 400)
    one_bin = divergence(total, 1 << noise.resolution_bits, order)
    accounted = order * rho_of(noise, 17)
    assert 2 * one_bin <= accounted * (1 + 1e-9)  # it leaves one bin, and comes to another
    assert 2 * one_bin >= 0.999 * accounted


def test_shares_coarser_than_ours_would_cost_more_than_their_sum_seems_to():
    """Ten shares of variance 1/40, in whole devices: this is why numbers have a resolution."""
    total = sum_of_shares(1 / 40, 10, 60)
    assert divergence(total, 1, 2.0) > 1.5 * 2 / (2 * 10 / 40)
    assert excess(1 / 40, 10) > 10  # the bound says so too
    assert excess(4.0, 10) < 1e-15


@given(st.floats(0.5, 20), st.integers(1, 3000))
def test_the_excess_is_bounded_from_above_closely(share_variance, num_devices):
    exact = 10 * math.fsum(
        math.exp(-2 * math.pi**2 * share_variance * k / (k + 1)) for k in range(1, num_devices)
    )
    assert exact * (1 - 1e-12) <= excess(share_variance, num_devices) <= exact * 1.5 + 1e-300


@pytest.mark.parametrize("num_devices", [1, 2, 30, 3000])
@pytest.mark.parametrize("num_bins", [2, 17, 65])
@pytest.mark.parametrize("deviation", [Fraction(1, 2), Fraction(1), Fraction(4)])
def test_a_round_costs_one_over_the_variance(deviation, num_bins, num_devices):
    rho = rho_of(Noise(deviation**2, num_devices), num_bins)
    assert rho == pytest.approx(1 / float(deviation) ** 2, rel=1e-12)


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.5, 3.75, 60.0])
def test_epsilon_is_better_than_by_the_textbook_and_not_by_much(rho):
    textbook = rho + 2 * math.sqrt(rho * math.log(1 / DELTA))  # Bun & Steinke 2016
    assert 0.8 * rho < epsilon_of(rho, DELTA) < textbook
    assert epsilon_of(rho, DELTA) > 0.6 * textbook
    assert epsilon_of(rho, 1e-9) > epsilon_of(rho, 1e-5) > epsilon_of(rho / 2, 1e-5)


# --- of a run -----------------------------------------------------------------------------------


def test_rounds_add_up():
    config = config_of()
    one, sixty = (privacy_of(config, rounds) for rounds in (1, 60))
    assert one.rho == sixty.rho == pytest.approx(1 / 4)
    assert one.epsilon == epsilon_of(one.rho, 1e-5)
    assert sixty.epsilon == pytest.approx(epsilon_of(15.0, 1e-5), rel=1e-9)
    assert privacy_of(config, 60, delta=1e-7).epsilon > sixty.epsilon
    assert (one.delta, privacy_of(config, 60, delta=1e-7).delta) == (1e-5, 1e-7)


def test_what_the_server_does_with_a_sum_costs_nothing_and_hides_no_cost():
    momentum = config_of(strategy={"server_optimizer": "momentum"})
    assert privacy_of(momentum, 60) == privacy_of(config_of(), 60)


def test_runs_without_a_noisy_search_have_no_account():
    exact = {"quantile": {"method": "histogram", "noise": 0}}
    for changes in (exact, {"federation": {"theta": 1}}, {"federation": {"algorithm": "delta-fl"}}):
        assert privacy_of(config_of(**changes), 60) is None


def noise_of(**changes):
    return build_strategy(config_of(**changes)).search_noise(8)


def test_the_noise_comes_from_the_devices_that_are_certain():
    assert noise_of() == Noise(Fraction(4), 6)
    assert noise_of(quantile={"min_cohort": 8}) == Noise(Fraction(4), 8)
    assert noise_of(privacy={"colluding": 0.25}) == Noise(Fraction(4), 4)
    assert noise_of(quantile={"noise": "1/3"}) == Noise(Fraction(1, 9), 6)
    with pytest.raises(ConfigurationError, match="noise from 0 devices"):
        noise_of(privacy={"colluding": 0.75})


@pytest.mark.parametrize(
    ("quantile", "named"),
    [
        ({"noise": 0}, r"quantile\.noise = 0.0: must be above 0"),
        ({"method": "mm"}, r"quantile\.noise = 2.0: must be 0 with .* 'mm'"),
        ({"noise": -1}, r"quantile\.noise = -1: must be at least 0"),
    ],
)
def test_noise_and_method_belong_together(quantile, named):
    with pytest.raises(ConfigError, match=named):
        noise_of(quantile=quantile)


def test_the_noise_is_written_and_read_exactly():
    for noise in ("1/3", 1.5, 0.1):
        config = config_of(quantile={"noise": noise})
        assert config.quantile.noise == Fraction(str(noise))
        assert f"noise = {json.dumps(noise)}\n" in to_toml(config)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("sums", ["masked", "ideal"])
def test_a_noisy_run_tells_what_its_searches_cost(sums, tmp_path):
    config = config_of(privacy={"sums": sums})
    summary = run_experiment(
        config, tmp_path / "run", resume=False, progress=Silent(), warn=pytest.fail
    )
    privacy = privacy_of(config, 2)
    assert summary["search_privacy"] == {
        "rho": privacy.rho,
        "epsilon": privacy.epsilon,
        "delta": 1e-5,
    }
    for event in events_of(tmp_path / "run"):
        assert (event["search_ended"], event["certified"]) == ("noisy", False)
        assert (event["num_queries"], event["secure_sums"]) == (1, 2)
