import tracemalloc
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg.shamir import PRIME
from deltafl.sim.inspect.audit import participation
from deltafl.sim.inspect.audit.participation import Participation, draw_prime

COHORTS = st.lists(st.frozensets(st.integers(0, 5)), max_size=8)


def audit(cohorts, **arguments):
    """The result over cohorts of rounds 1, 2, …"""
    sums = Participation(**arguments)
    for number, cohort in enumerate(cohorts, 1):
        sums.add(number, cohort)
    return sums.result()


def rational_rank(rows):
    """Rank by Gaussian elimination over the rationals."""
    rows = [[Fraction(entry) for entry in row] for row in rows]
    rank = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column] / rows[rank][column]
            rows[r] = [x - factor * y for x, y in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank


def matrix(cohorts, devices):
    return [[int(device in cohort) for device in devices] for cohort in cohorts]


def follows(cohorts, device):
    """Whether the device's unit vector is in the row space, over the rationals."""
    devices = sorted(frozenset().union(*cohorts, {device}))
    rows = matrix(cohorts, devices)
    return rational_rank(rows) == rational_rank([*rows, *matrix([{device}], devices)])


@pytest.mark.slow
@given(COHORTS)
def test_rank_and_solvable_devices_are_those_over_the_rationals(cohorts):
    result = audit(cohorts)
    devices = sorted(frozenset().union(*cohorts))
    assert (result.sums, result.devices, result.sums_left_out) == (len(cohorts), len(devices), 0)
    assert result.rank == rational_rank(matrix(cohorts, devices))
    first = {
        device: next((n for n in range(len(cohorts) + 1) if follows(cohorts[:n], device)), None)
        for device in devices
    }
    assert result.first_round_by_device == {d: n for d, n in first.items() if n is not None}
    assert result.num_solvable == len(result.first_round_by_device)


@pytest.mark.slow
@given(COHORTS)
def test_the_rounds_that_are_named_are_enough(cohorts):
    result = audit(cohorts)
    assert result.solvable.keys() == result.first_round_by_device.keys()
    for device, rounds in result.solvable.items():
        assert max(rounds) == result.first_round_by_device[device]
        assert follows([cohorts[number - 1] for number in rounds], device)


@pytest.mark.slow
@given(COHORTS)
def test_no_combination_isolates_fewer_devices_than_the_smallest_batch(cohorts):
    result = audit(cohorts)
    devices = sorted(frozenset().union(*cohorts))

    def isolated(group):
        """Whether some combination of the sums holds nobody outside the group."""
        others = [device for device in devices if device not in group]
        return rational_rank(matrix(cohorts, others)) < result.rank

    if not devices:
        assert (result.smallest_group, result.smallest_batch) == ((), None)
        return
    sizes = range(1, len(devices) + 1)
    fewest = next(n for n in sizes if any(isolated(group) for group in combinations(devices, n)))
    assert result.smallest_batch <= fewest <= len(result.smallest_group)
    assert isolated(result.smallest_group)
    assert (len(result.smallest_group) == 1) == bool(result.num_solvable)


@pytest.mark.slow
@given(COHORTS)
def test_batches_are_the_equal_columns(cohorts):
    result = audit(cohorts)
    columns = list(zip(*matrix(cohorts, sorted(frozenset().union(*cohorts))), strict=True))
    sizes = [columns.count(column) for column in set(columns)]
    assert result.batches == len(sizes)
    assert result.batched_devices == sum(size for size in sizes if size > 1)
    assert result.smallest_batch == min(sizes, default=None)


@pytest.mark.slow
@given(COHORTS)
def test_the_smallest_difference_is_that_of_the_closest_unequal_sums(cohorts):
    differences = [len(a ^ b) for a, b in combinations(cohorts, 2) if a != b]
    result = audit(cohorts)
    assert result.smallest_difference == min(differences, default=None)
    if differences and min(differences):
        assert len(result.smallest_group) <= min(differences)


@pytest.mark.slow
@given(COHORTS, st.permutations([-(2**70), -1, 0, 7, 2**31, 2**70]))
def test_ids_are_only_names(cohorts, names):
    renamed = audit([[names[device] for device in cohort] * 2 for cohort in cohorts])
    result = audit(cohorts)
    assert renamed.rank == result.rank
    assert renamed.first_round_by_device == {
        names[device]: n for device, n in result.first_round_by_device.items()
    }


def test_least_squares_agrees_on_larger_matrices():
    rng = np.random.default_rng(0)
    rows = np.zeros((120, 120))
    rows[:80, :40] = rng.random((80, 40)) < 0.2  # more sums than devices
    rows[80:, 40:] = rng.random((40, 80)) < 0.2  # fewer
    result = audit([np.flatnonzero(row).tolist() for row in rows])
    assert result.rank == np.linalg.matrix_rank(rows)
    solution = np.linalg.lstsq(rows.T, np.eye(120), rcond=None)[0]
    residuals = np.abs(rows.T @ solution - np.eye(120)).max(axis=0)
    assert np.flatnonzero(residuals < 1e-6).tolist() == list(range(40))
    assert sorted(result.first_round_by_device) == list(range(40))
    for device, rounds in result.solvable.items():
        used = rows[np.array(rounds) - 1]
        weights = np.linalg.lstsq(used.T, np.eye(120)[device], rcond=None)[0]
        assert np.abs(used.T @ weights - np.eye(120)[device]).max() < 1e-6
        assert np.abs(weights).min() > 1e-9


def test_so_et_al_random_selection_gives_everybody_away_after_about_as_many_rounds_as_devices():
    rng = np.random.default_rng(0)
    result = audit([rng.choice(40, 8, replace=False).tolist() for _ in range(60)])
    assert (result.rank, result.num_solvable) == (40, 40)
    assert all(36 <= number <= 50 for number in result.first_round_by_device.values())
    assert len(result.solvable) == participation.LISTED_DEVICES


def test_so_et_al_batches_hide_their_devices_in_one_another():
    rng = np.random.default_rng(0)
    batches = np.arange(40).reshape(10, 4)
    result = audit([batches[rng.choice(10, 2, replace=False)].ravel() for _ in range(60)])
    assert (result.rank, result.num_solvable, result.solvable) == (10, 0, {})
    assert (result.batches, result.batched_devices, result.smallest_batch) == (10, 40, 4)
    assert len(result.smallest_group) == 4


def test_equal_cohorts_tell_nothing_new():
    result = audit([[1, 2, 3]] * 5)
    assert (result.sums, result.rank, result.batches, result.num_solvable) == (5, 1, 1, 0)
    assert (result.smallest_difference, result.smallest_group) == (None, (1, 2, 3))


def test_a_sum_over_nobody_is_a_sum():
    result = audit([[]])
    assert (result.sums, result.devices, result.rank, result.smallest_group) == (1, 0, 0, ())


def test_a_round_may_release_two_sums():
    sums = Participation()
    sums.add(7, [1, 2])
    sums.add(7, [2])
    result = sums.result()
    assert result.first_round_by_device == {1: 7, 2: 7}
    assert result.solvable == {1: (7,), 2: (7,)}


def test_results_in_between_change_nothing():
    sums = Participation()
    for number, cohort in enumerate([[1, 2, 3], [3, 4], [1, 2]], 1):
        sums.add(number, cohort)
        sums.result()
    assert sums.result() == audit([[1, 2, 3], [3, 4], [1, 2]])


def test_elimination_in_blocks_is_elimination(monkeypatch):
    rng = np.random.default_rng(0)
    cohorts = [rng.choice(40, 8, replace=False).tolist() for _ in range(45)]
    whole = audit(cohorts)
    monkeypatch.setattr(participation, "_BLOCK", 60)
    assert audit(cohorts) == whole


@pytest.mark.parametrize("size", [1, 63, 64, 65, 130])
def test_systems_are_solved_exactly(size):
    rng = np.random.default_rng(size)
    lower, upper = np.tril(rng.integers(1, PRIME, (2, size, size))).astype(object)
    matrix = lower @ upper.T % PRIME  # all leading minors are regular
    solutions = rng.integers(0, PRIME, (size, 3))
    targets = matrix @ solutions.astype(object) % PRIME
    solved = participation._solve(matrix.astype(np.int64), targets.astype(np.int64), PRIME)
    assert np.array_equal(solved, solutions)


def test_the_widest_products_are_exact():
    rng = np.random.default_rng(0)
    left = rng.integers(0, 1 << 15, (5, participation._PANEL)) << 16 | 0xFFFF
    right = PRIME - rng.integers(1, 100, (participation._PANEL, 5))
    exact = left.astype(object) @ right.astype(object) % PRIME
    assert np.array_equal(participation._product(left % PRIME, right, PRIME), exact)


def test_a_large_population_costs_only_the_devices_seen():
    rng = np.random.default_rng(0)
    cohorts = [rng.integers(0, 100_000, 100).tolist() for _ in range(100)]
    tracemalloc.start()
    result = audit(cohorts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (result.rank, result.num_solvable) == (100, 0)
    assert result.batches < 1000
    assert peak < 16 << 20


def test_sums_beyond_the_limit_are_counted_and_left_out(monkeypatch):
    cohorts = [[1, 2], [2, 3], [1, 3], [3]]
    assert audit(cohorts).num_solvable == 3
    monkeypatch.setattr(participation, "MAX_ENTRIES", 13)  # the last would fit again
    result = audit(cohorts)
    assert (result.sums, result.sums_left_out, result.num_solvable) == (2, 2, 0)


def test_a_prime_that_divides_a_minor_hides_devices():
    cohorts = [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]  # of determinant -3
    assert audit(cohorts).num_solvable == 4
    assert audit(cohorts, prime=5).num_solvable == 4
    assert audit(cohorts, prime=3).num_solvable == 0


def test_drawn_primes_depend_on_the_seed_alone():
    primes = {draw_prime(bytes([seed])) for seed in range(50)}
    assert len(primes) == 50
    assert all(2**30 < prime < 2**31 for prime in primes)
    assert draw_prime(b"seed") == draw_prime(b"seed")
    assert audit([[1, 2], [2]], prime=draw_prime(b"seed")) == audit([[1, 2], [2]])


def test_moduli_that_are_no_primes_are_refused():
    sieve = np.ones(3000, dtype=bool)
    sieve[:2] = False
    for number in range(2, 55):
        sieve[2 * number :: number] = False

    def accepts(number):
        try:
            Participation(number)
        except ValueError:
            return False
        return True

    assert [n for n in range(3000) if accepts(n)] == np.flatnonzero(sieve).tolist()
    # strong pseudoprimes to base 2, 3 and 5 (OEIS A014233), and a prime that is too large
    assert not any(map(accepts, [2047, 1_373_653, 25_326_001, 2**31 + 11, -7]))
    assert accepts(2**31 - 1)
