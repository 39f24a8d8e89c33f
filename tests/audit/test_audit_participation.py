"""Who follows from sums over many cohorts, compared with a plain solver over the rationals."""

import tracemalloc
from math import isqrt

import numpy as np
import plain_solver
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.sim.inspect.audit import participation
from deltafl.sim.inspect.audit.participation import follows, solve

COHORTS = st.lists(st.frozensets(st.integers(0, 5)), max_size=6)
CYCLE = [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
"""Of determinant -3."""


def numbered(cohorts):
    """The cohorts of rounds 1, 2, …"""
    return [(number, sorted(cohort)) for number, cohort in enumerate(cohorts, 1)]


def facts(cohorts, colluding=0):
    return follows(numbered(cohorts), colluding)[0]


@pytest.mark.slow
@given(COHORTS)
def test_rank_and_solvable_devices_are_those_over_the_rationals(cohorts):
    found, devices = solve(numbered(cohorts)), plain_solver.devices_of(cohorts)
    assert found.devices == tuple(devices)
    assert found.rank == plain_solver.rank(plain_solver.matrix(cohorts, devices))
    for device in devices:
        first = next(
            (n for n in range(len(cohorts) + 1) if plain_solver.follows(cohorts[:n], device)), None
        )
        assert max(found.rounds.get(device, (None,))) == first


@pytest.mark.slow
@given(COHORTS)
def test_the_rounds_that_are_named_are_enough(cohorts):
    for device, rounds in solve(numbered(cohorts)).rounds.items():
        assert plain_solver.follows([cohorts[number - 1] for number in rounds], device)


@pytest.mark.slow
@settings(max_examples=40)
@given(COHORTS, st.integers(0, 2))
def test_of_how_many_it_follows_for_the_worst_coalition(cohorts, colluding):
    found = facts(cohorts, colluding)
    assert found.coalition_is_worst
    if found.devices > colluding:
        assert found.with_coalition == plain_solver.most_that_follow(cohorts, colluding)


@pytest.mark.slow
@settings(max_examples=40)
@given(COHORTS, st.integers(1, 3))
def test_a_coalition_that_is_put_together_greedily_promises_no_more_than_the_worst(
    cohorts, colluding
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(participation, "COALITIONS", 0)
        found = facts(cohorts, colluding)
    if found.devices > 1:
        assert not found.coalition_is_worst
        worst = plain_solver.most_that_follow(cohorts, min(colluding, found.devices - 1))
        assert found.solvable <= found.with_coalition <= worst


@pytest.mark.slow
@given(COHORTS)
def test_the_smallest_groups_are_bounds_of_the_smallest_there_is(cohorts):
    found = solve(numbered(cohorts))
    for group in found.groups:
        assert plain_solver.isolates(cohorts, group)
    if found.devices:
        smallest = min(map(len, found.groups))
        assert plain_solver.fewest_isolated(cohorts) <= smallest
        assert (smallest == 1) == bool(found.rounds)


def test_four_sums_of_three_give_all_away_and_two_give_one_to_a_colluding_device():
    assert facts(CYCLE).solvable == plain_solver.most_that_follow(CYCLE, 0) == 4
    assert facts(CYCLE[:2]).solvable == plain_solver.most_that_follow(CYCLE[:2], 0) == 0
    two = facts(CYCLE[:2], colluding=1)
    assert (two.with_coalition, two.coalition_is_worst) == (1, True)
    assert plain_solver.most_that_follow(CYCLE[:2], 1) == 1


def test_control_a_prime_that_divides_a_minor_is_noticed(monkeypatch):
    monkeypatch.setattr(participation, "_prime", lambda _: 3)
    assert facts(CYCLE).solvable == 0 < plain_solver.most_that_follow(CYCLE, 0)


def test_primes_are_primes_that_depend_on_all_cohorts():
    drawn = {participation._prime(bytes([seed])) for seed in range(10)}
    assert len(drawn) == 10
    for prime in drawn:
        assert 2**30 < prime < 2**31 + 2**10
        assert (prime % np.arange(2, isqrt(prime) + 1)).all()


def test_a_greedy_coalition_takes_all_but_one_of_a_small_group():
    cohorts = [range(10), range(8), range(8, 20)]
    found = facts(cohorts, colluding=1)
    assert (found.solvable, found.with_coalition, found.coalition_is_worst) == (0, 1, True)
    many = [*cohorts, range(20, 400)]
    found = facts(many, colluding=1)
    assert (found.solvable, found.with_coalition, found.coalition_is_worst) == (0, 1, False)


def test_so_et_al_random_selection_gives_everybody_away_after_about_as_many_rounds_as_devices():
    rng = np.random.default_rng(0)
    found = solve([(n, rng.choice(40, 8, replace=False)) for n in range(60)])
    assert (found.rank, len(found.rounds)) == (40, 40)
    assert all(36 <= max(rounds) + 1 <= 50 for rounds in found.rounds.values())


def test_so_et_al_batches_hide_their_devices_in_one_another():
    rng = np.random.default_rng(0)
    batches = np.arange(40).reshape(10, 4)
    found = facts([batches[rng.choice(10, 2, replace=False)].ravel() for _ in range(60)], 3)
    assert found.solvable == 0
    assert found.smallest_group == 4
    assert found.with_coalition == 1
    assert facts([batches[:2].ravel(), batches[1:3].ravel()], 1).with_coalition == 0


def test_sums_over_nobody_and_equal_sums_tell_nothing_new():
    assert facts([]) == participation.SolvableFacts()
    assert facts([[]]) == participation.SolvableFacts(sums=1)
    found = facts([[1, 2, 3]] * 5, 1)
    assert (found.sums, found.smallest_group, found.with_coalition) == (5, 3, 0)


@pytest.mark.slow
def test_a_large_population_costs_only_the_devices_seen():
    rng = np.random.default_rng(0)
    cohorts = [rng.integers(0, 100_000, 100) for _ in range(60)]
    tracemalloc.start()
    found = facts(cohorts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.solvable == 0
    assert peak < 32 << 20


def test_sums_beyond_the_limit_are_left_out(monkeypatch):
    cohorts = [[1, 2], [2, 3], [1, 3], [3]]
    assert facts(cohorts).solvable == 3
    monkeypatch.setattr(participation, "MAX_ENTRIES", 8)
    assert (facts(cohorts).sums, facts(cohorts).solvable) == (2, 0)
