"""What a run with noise in all sums spends: as by hand, and never beyond its budget."""

import math
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
import pytest
from doubles import Silent
from records import events_of

from deltafl.protocol.update_noise import Sizes, UpdateNoise
from deltafl.sim.cohort.sampling import dealt, participations
from deltafl.sim.errors import ConfigError, RunError
from deltafl.sim.run.accounting import (
    Account,
    account_of,
    epsilon_of,
    rho_of_update,
    rounded_up,
    spent_by,
)
from deltafl.sim.run.algorithms import build_strategy
from deltafl.sim.run.arms import check_arms
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.run.summary import _privacy_of_all
from deltafl.sim.run.table import spent_by_all
from deltafl.sim.settings.config_io import build_config, preset_text, read_table

RUN = {
    "data": {"num_devices": 60},
    "federation": {
        "algorithm": "private-delta-fl",
        "rounds": 4,
        "cohort_size": 8,
        "evaluate_every": 4,
    },
    "privacy": {"min_cohort": 6, "colluding": 0.0, "max_weight": 1, "sums": "ideal"},
    "quantile": {"method": "noisy", "weights": "equal", "noise": 2},
    "dp": {"noise": 1, "clip": 0.5},
    "training": {"batch_size": 64, "device": "cpu"},
}


def config_of(**changes):
    names = {*RUN, *changes}
    return build_config([{n: {**RUN.get(n, {}), **changes.get(n, {})} for n in names}])


def by_hand(rho, delta):
    """ε of ρ-zCDP: the best order of ε = ρ·a + log(1 - 1/a) - log(δ·a)/(a - 1), by trying many."""
    orders = 1 + np.geomspace(1e-3, 1e4, 200_001)
    return float(
        np.min(rho * orders + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))
    )


# --- ε ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("z", "sigma", "theta", "times", "delta"),
    [(2, 10, "1/2", 1, 1e-6), (4, 5, "1/2", 10, 1e-5), (1, 0, "1", 3, 1e-5)],
)
def test_epsilon_is_that_of_a_computation_by_hand(z, sigma, theta, times, delta):
    """ρ of a round is 1/2z² for the update and 1/σ² for the search; rounds add up."""
    search = {"method": "noisy", "noise": sigma} if sigma else {"method": "bracketed", "noise": 0}
    config = config_of(
        dp={"noise": z, "delta": delta},
        quantile=search,
        federation={"theta": theta, "cohort_size": 500},
        privacy={"min_cohort": 400},
    )
    account = account_of(config, num_devices=1000, update_length=50)
    spent = account.after(2 * times)  # two rounds use all devices once
    assert spent.participations == times
    rho = times * (1 / (2 * z**2) + (1 / sigma**2 if sigma else 0))
    assert spent.epsilon == pytest.approx(by_hand(rho, delta), rel=0.02)
    assert spent.epsilon != pytest.approx(by_hand(2 * rho, delta), rel=0.2)
    # The noise is a whole number of steps, rounded up.
    assert spent.rho_update <= 1 / (2 * z**2) * (1 + 1e-9)
    assert spent.rho_update == pytest.approx(1 / (2 * z**2), rel=0.05)


def test_rho_is_the_square_of_the_sensitivity_over_twice_the_variance():
    sizes, noise = Sizes.of(50, 400), UpdateNoise(1.0, 100, 300)
    farthest = 4 * sizes.square_bound + 3 * sizes.scalar**2
    assert rho_of_update(noise, sizes) == pytest.approx(farthest / (2 * 300 * 100**2), rel=1e-9)
    assert rho_of_update(replace(noise, norm=9.0), sizes) == rho_of_update(noise, sizes)


# --- who is invited how often ---------------------------------------------------------------------


@pytest.mark.parametrize(("num_devices", "size"), [(10, 3), (12, 4), (5, 5), (100, 7)])
def test_no_device_is_dealt_more_often_than_it_is_accounted_for(num_devices, size):
    counts = np.zeros(num_devices, dtype=int)
    for index in range(40):
        due = dealt(np.random.default_rng, num_devices, size, index)
        assert len(due) == size
        assert sorted(set(due)) == due.tolist()
        counts[due] += 1
        assert counts.max() == participations(index + 1, num_devices, size)


def test_shuffles_differ():
    first, again = (dealt(np.random.default_rng, 12, 4, index) for index in (0, 3))
    assert first.tolist() != again.tolist()


# --- the budget -----------------------------------------------------------------------------------


ACCOUNT = Account(
    rho_search=0.0, rho_update=0.5, delta=1e-5, budget=0.0, num_devices=10, cohort_size=5
)


def test_a_budget_is_enough_for_the_rounds_that_are_named():
    budget = ACCOUNT.after(7).epsilon  # four participations, also of the eighth round
    account = replace(ACCOUNT, budget=budget)
    account.check(8)
    with pytest.raises(RunError, match=r"set federation\.rounds = 8") as refused:
        account.check(100)
    assert f"dp.epsilon_budget is {budget:g}" in str(refused.value)
    with pytest.raises(RunError, match="not enough for a single round"):
        replace(ACCOUNT, budget=0.1).check(1)
    ACCOUNT.check(10**6)


def test_a_run_beyond_its_budget_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="not enough for a single round"):
        run(config_of(dp={"epsilon_budget": 0.5}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_no_round_begins_that_would_exceed_it_whoever_begins_it(tmp_path, monkeypatch):
    monkeypatch.setattr("deltafl.sim.run.experiment.check_fit", lambda *_: None)
    once = account_of(config_of(), 30, 650).after(1).epsilon
    with pytest.raises(RunError, match="enough for 3 rounds"):
        run(config_of(dp={"epsilon_budget": once * 1.01}), tmp_path / "run")
    assert len(events_of(tmp_path / "run")) == 3


def run(config, path, **others):
    return run_experiment(
        config, path, resume=False, progress=Silent(), warn=lambda _: None, plots=False, **others
    )


@pytest.mark.slow
def test_every_round_and_the_summary_say_what_was_spent(tmp_path):
    config = config_of(federation={"rounds": 8})
    summary = run(config, tmp_path / "run")
    events = events_of(tmp_path / "run")
    account = account_of(config, summary["train_devices"], summary["model_parameters"])
    assert summary["train_devices"] == 30  # three cohorts and six more
    epsilons = [event["epsilon"] for event in events]
    assert epsilons == [account.after(number).epsilon for number in range(1, 9)]
    assert [event["delta"] for event in events] == [1e-5] * 8
    assert len(set(epsilons)) == 3
    assert summary["privacy"]["epsilon"] == epsilons[-1]
    assert summary["privacy"]["participations"] == 3
    counts = np.bincount([device for event in events for device in event["cohort"]])
    assert counts.max() == 3
    for first in (0, 3):
        invited = [device for event in events[first : first + 3] for device in event["cohort"]]
        assert len(set(invited)) == 24


def test_runs_of_several_seeds_add_up():
    account = account_of(config_of(), 30, 650)
    spent = account.after(8)
    rho = spent.participations * (spent.rho_search + spent.rho_update)
    arms = [{"privacy": asdict(spent)}] * 3
    one, three = (
        spent_by_all(_privacy_of_all(arms[:number])["privacy"], number) for number in (1, 3)
    )
    assert spent_by([spent] * 3) == pytest.approx(epsilon_of(3 * rho, 1e-5))
    assert f"ε = {rounded_up(spent.epsilon)} at δ = 1e-05; none was invited to more than 3" in one
    assert f"ε = {rounded_up(epsilon_of(3 * rho, 1e-5))} at δ = 1e-05: 3 runs over" in three
    assert f"One run has ε = {rounded_up(spent.epsilon)}" in three


def test_without_noise_nothing_says_so():
    config = config_of(dp={"noise": 0})
    assert account_of(config, 30, 10) is None
    noise = build_strategy(config).update_noise(8, 10)
    assert noise is None


# --- settings that contradict it ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"federation": {"algorithm": "fedavg"}}, "only 'private-delta-fl' adds noise"),
        ({"federation": {"algorithm": "private-fedavg"}}, "only 'private-delta-fl' adds noise"),
        ({"quantile": {"method": "bracketed", "noise": 0}}, "must be 'noisy' with dp.noise = 1"),
        ({"federation": {"levels": ("0.8", "0.5")}}, "federation.levels"),
        ({"dp": {"noise": 0, "epsilon_budget": 3}}, "with dp.epsilon_budget = 3"),
        ({"quantile": {"noise": 1e-3}}, "quantile.noise = 0.001: must be at least 0.01"),
        ({"dp": {"noise": 1e-3}}, "dp.noise = 0.001: must be at least 0.01"),
    ],
)
def test_what_would_be_without_noise_is_refused(changes, told):
    with pytest.raises(ConfigError, match=r"dp\.") as refused:
        build_strategy(config_of(**changes))
    assert told in str(refused.value)


def test_noise_hides_devices_of_one_weight():
    with pytest.raises(ConfigError, match=r"privacy.max_weight = 2 with noise .* set it to 1"):
        check_arms(config_of(privacy={"max_weight": 2}), 10, None)


def test_the_search_of_a_round_that_keeps_everybody_needs_no_noise():
    config = config_of(
        federation={"theta": 1}, quantile={"method": "bracketed", "noise": 0, "weights": "samples"}
    )
    account = account_of(config, 30, 10)
    assert account.rho_search == 0


def test_the_preset_spends_what_its_page_says():
    config = build_config([read_table(preset_text("population-100k-dp"), "preset")])
    account = account_of(config, num_devices=50_000, update_length=50)
    account.check(config.federation.rounds)
    spent = account.after(config.federation.rounds)
    assert (spent.participations, config.dp.delta) == (1, 1e-6)
    assert 2 < spent.epsilon < 2.6
    assert config.policy.min_update_noise == config.dp.noise
    assert math.isclose(config.policy.max_update_norm, config.dp.clip)
    assert Fraction(config.policy.min_noise) == config.quantile.noise
