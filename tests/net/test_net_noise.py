"""Noise in all sums, where devices are on machines of their own: who adds it, and who counts it."""

import re
from dataclasses import replace

import pytest
from federations import Federation, settings, wired
from records import events_of

from deltafl.protocol.participations import limits_of
from deltafl.secagg.ledger import MemoryLedger
from deltafl.sim.cli import main
from deltafl.sim.errors import ConfigError, RunError
from deltafl.sim.net.device_cli import Spending
from deltafl.sim.net.frames import Reason
from deltafl.sim.run.accounting import account_of, epsilon_of, held_to
from deltafl.sim.run.algorithms import policy_of
from deltafl.sim.settings.config import REMOTE
from deltafl.sim.settings.config_io import check_together

ALL = {"dp": {"noise": "2", "clip": 1.0}, "privacy": {"max_weight": 1}}
NO_SEARCH = {**ALL, "federation": {"theta": "1"}}
SEARCH = {
    **ALL,
    "quantile": {"method": "noisy", "weights": "equal", "noise": "2"},
    "federation": {"theta": "0.5"},
}


def owners(said, **dp):
    """The settings of a device's owner."""
    return settings("private-delta-fl", said, {"dp": dp})


def held(said, **dp):
    config = owners(said, **dp)
    return held_to(policy_of(config, own=True), config)


def federation(said, **dp):
    """Devices that hold to the noise that the server's settings name, and to a budget."""
    made = Federation(settings("private-delta-fl", said))
    policy, account = held(said, **dp)
    for side in made.sides:
        side.policy = policy
    return made, account


def played(made, path):
    with wired(made):
        made.play(path)
    return events_of(path)


def counted(made):
    """In how many rounds each device has answered, by its ledger."""
    (limit, *_) = limits_of(made.sides[0].policy, None)
    return [limit.counted(ledger) for ledger in made.ledgers]


@pytest.mark.parametrize(
    "said", [SEARCH, pytest.param(NO_SEARCH, marks=pytest.mark.slow)], ids=["tail", "all"]
)
def test_a_run_spends_what_a_device_in_every_round_spends(said, tmp_path):
    made, account = federation(said)
    events = played(made, tmp_path / "run")
    assert [event["aborted"] for event in events] == [None] * 3
    spent = [account.after(number).epsilon for number in (1, 2, 3)]
    assert [event["epsilon"] for event in events] == pytest.approx(spent, rel=1e-6)
    rounds = [event["cohort"] for event in events]
    assert counted(made) == [sum(i in cohort for cohort in rounds) for i in range(len(made.sides))]
    assert not list((tmp_path / "run" / "measured").glob("*"))  # such sums would have no noise
    assert made.declined == []
    assert main(["audit", str(tmp_path / "run"), "--quiet"]) == 0


@pytest.mark.slow
def test_without_noise_models_are_measured(tmp_path):
    made = Federation(settings("private-delta-fl", {"federation": {"rounds": 1}}))
    played(made, tmp_path / "run")
    assert list((tmp_path / "run" / "measured").glob("*"))


def test_devices_whose_budget_is_used_up_decline(tmp_path):
    """Thirty devices, each of which can afford one: they are absent then, and lose one round."""
    once = held(NO_SEARCH)[1].after(1).epsilon
    five = {**NO_SEARCH, "federation": {"theta": "1", "rounds": 3, "cohort_size": 30}}
    made, _ = federation(five, epsilon_budget=once)
    object.__setattr__(made.site, "patience", 0.2)
    with pytest.raises(
        RunError, match=r"0 were there .* and 25 more \(settings: this device has take"
    ):
        played(made, tmp_path / "run")
    events = events_of(tmp_path / "run")
    assert [event["aborted"] is None for event in events] == [True, False]
    assert set(counted(made)) == {1}
    assert {reason for _, reason in made.declined} == {Reason.SETTINGS}
    assert made.said[0][2].endswith("(dp.epsilon_budget, or policy.max_participations): 1")


@pytest.mark.parametrize(
    ("said", "asks", "because"),
    [
        (
            NO_SEARCH,
            {"dp": {"noise": "3"}},
            r"is below policy\.min_update_noise \(a device's own dp\.noise\) = 3",
        ),
        (
            SEARCH,
            {"quantile": {"noise": "3"}},
            r"that of policy\.min_noise \(a device's own quantile\.noise\) = 3",
        ),
        (
            SEARCH,
            {"federation": {"theta": "1"}},
            r"is above policy\.max_pivots_if_equal = 0",
        ),
        (
            {"federation": {"theta": "1"}, "privacy": {"max_weight": 1}},
            ALL,
            "the update is without noise",
        ),
    ],
    ids=["less noise", "less in the search", "a search at all", "no noise"],
)
def test_devices_refuse_what_their_owners_do_not_accept(said, asks, because, tmp_path):
    made = Federation(settings("private-delta-fl", said))
    config = settings("private-delta-fl", said, asks)
    for side in made.sides:
        side.policy, _ = held_to(policy_of(config, own=True), config)
    with pytest.raises(RunError, match="3 rounds in a row were lost"):
        played(made, tmp_path / "run")
    assert len(made.said) >= 30
    assert all(re.search(because, detail) for _, _, detail in made.said)
    assert set(counted(made)) == {0}


@pytest.mark.slow
def test_whoever_is_connected_is_invited(tmp_path):
    """Nobody is dealt: who would be due may be away."""
    made, _ = federation(NO_SEARCH)
    there = range(15, 25)
    with wired(made, only=there):
        made.play(tmp_path / "run")
    assert counted(made) == [3 * (i in there) for i in range(len(made.sides))]


# --- what an owner's settings come to -------------------------------------------------------------


def test_without_noise_a_policy_stays_as_it_is():
    config = settings()
    policy = policy_of(config, own=True)
    assert held_to(policy, config) == (policy, None)


def test_the_noise_that_is_named_is_the_least():
    policy, account = held(SEARCH)
    assert (policy.min_update_noise, policy.min_noise) == (2, 2)
    assert (account.rho_update, account.rho_search) == (1 / 8, 1 / 4)
    stricter, _ = held({**SEARCH, "policy": {"min_update_noise": "5", "min_noise": "7"}})
    assert (stricter.min_update_noise, stricter.min_noise) == (5, 7)


@pytest.mark.parametrize("said", [NO_SEARCH, SEARCH])
def test_what_a_round_costs_by_a_devices_count_is_what_the_server_says(said):
    config = replace(owners(said), federation=replace(owners(said).federation, devices=REMOTE))
    served, own = account_of(config, 30, 650), held(said)[1]
    assert own.after(7).epsilon == pytest.approx(served.after(7).epsilon, rel=1e-6)
    assert served.after(7).participations == 7  # however many devices there are


def test_a_budget_is_enough_for_as_many_rounds_as_are_accepted():
    policy, account = held(NO_SEARCH, epsilon_budget=10.0)
    most = policy.max_participations
    assert epsilon_of(most / 8, 1e-5) <= 10 < epsilon_of((most + 1) / 8, 1e-5)
    assert account.after(most).epsilon <= 10
    few = {**NO_SEARCH, "policy": {"max_participations": most - 1}}
    assert held(few, epsilon_budget=10.0)[0].max_participations == most - 1
    many = {**NO_SEARCH, "policy": {"max_participations": most + 1}}
    assert held(many, epsilon_budget=10.0)[0].max_participations == most


def test_a_budget_that_is_not_enough_for_one_round_is_refused():
    with pytest.raises(ConfigError, match=r"dp\.epsilon_budget = 0\.5: a single round costs ε = "):
        held(NO_SEARCH, epsilon_budget=0.5)


def test_rounds_are_counted_where_only_noise_is_asked_for():
    assert held(NO_SEARCH)[0].max_participations == 65536


def test_a_device_says_what_it_has_spent():
    policy, account = held(NO_SEARCH, epsilon_budget=10.0)
    ledger, (limit, *_) = MemoryLedger(), limits_of(policy, None)
    spending = Spending(account, limit, ledger)
    assert str(spending).startswith("rounds counted: 0; ")
    ledger.admit([limit.entry(i) for i in range(3)])
    assert spending.left == policy.max_participations - 3
    assert str(spending).startswith("rounds counted: 3; ")
    assert "ask for, ε = 4.02 at δ = 1e-05 at most; 11 more are accepted" in str(spending)


def test_rounds_beyond_a_budget_that_was_lowered_are_told():
    policy, account = held(NO_SEARCH, epsilon_budget=3.0)
    (limit, *_), ledger = limits_of(policy, None), MemoryLedger()
    ledger.admit([limit.entry(i) for i in range(50)])
    spending = Spending(account, limit, ledger)
    assert (spending.counted, spending.left) == (50, 0)
    assert account.after(50).epsilon > 3


def test_settings_may_ask_for_noise_of_devices_on_machines_of_their_own():
    check_together(
        replace(owners(SEARCH), federation=replace(owners(SEARCH).federation, devices=REMOTE))
    )
