"""A measured lower bound on ε: below the accountant's where there is noise, above it where not."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.inspect.canaries.experiment import (
    Told,
    chance,
    epsilon_at_least,
    guesses_to_make,
    play,
    signal,
    without_noise,
)
from deltafl.sim.run.accounting import account_of
from deltafl.sim.run.algorithms import sessions_of
from deltafl.sim.settings.config import (
    DPConfig,
    FaultsConfig,
    FederationConfig,
    PrivacyConfig,
    QuantileConfig,
    RunConfig,
)

DELTA = 1e-5
FEW, MANY = 40, 400


def settings(noise, size, rounds=1, theta=Fraction(1)):
    """A run in which nobody may drop out, and a tenth may collude."""
    return RunConfig(
        federation=FederationConfig(
            algorithm="private-delta-fl", rounds=rounds, cohort_size=size, theta=theta
        ),
        quantile=QuantileConfig(method="noisy", weights="equal", noise=Fraction(4)),
        privacy=PrivacyConfig(sums="ideal", min_cohort=size, expected_dropout=0.0, max_weight=1),
        dp=DPConfig(noise=Fraction(noise), clip=1.0, delta=DELTA),
    )


def played(config, num_devices, length):
    """A run in which nothing is left to chance."""

    def source(device):
        return SeededRandomness(int(device).to_bytes(32, "big"))

    return play(config, num_devices, length, IdealRounds(sessions_of(config), source))


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["1/4", "1/2", "2"])
def test_the_bound_is_below_the_accountants_and_without_noise_above(noise):
    config = settings(noise, MANY)
    claimed = account_of(config, MANY, MANY).after(1).epsilon
    guesses = guesses_to_make(signal(config, MANY, 1), MANY, DELTA)
    bound = epsilon_at_least(played(config, MANY, MANY).right(guesses), guesses, MANY, DELTA)
    assert bound <= claimed
    if noise != "2":
        assert bound > 0.5  # it does find something
    bare = played(without_noise(config), MANY, MANY)
    assert np.array_equal(np.sign(bare.scores), bare.coins)
    most = epsilon_at_least(bare.right(MANY), MANY, MANY, DELTA)
    assert most > 4.5  # as much as so many canaries can show
    if noise == "2":
        assert most > claimed


def test_the_control_hides_no_canary_and_the_run_does():
    config = settings("2", FEW)
    bare = played(without_noise(config), FEW, FEW)
    assert np.array_equal(np.sign(bare.scores), bare.coins)
    assert played(config, FEW, FEW).right(FEW) < FEW


@pytest.mark.parametrize("theta", [Fraction(1, 2), Fraction(1)])
def test_canaries_pass_the_filter_and_are_the_first_of_each_cohort(theta):
    """Of two cohorts of forty, thirty each: a model of thirty parameters has no room for more."""
    config = settings("2", FEW, rounds=2, theta=theta)
    bare = played(without_noise(config), 2 * FEW, 30)
    assert len(bare.coins) == 60
    assert bare.right(60) == 60
    assert set(bare.coins) == {-1, 1}


def test_canaries_that_drop_out_are_none():
    config = replace(
        settings("2", FEW),
        privacy=PrivacyConfig(sums="ideal", min_cohort=20, expected_dropout=0.3, max_weight=1),
        faults=FaultsConfig(dropout=0.2),
    )
    bare = played(without_noise(config), FEW, FEW)
    assert 20 <= len(bare.coins) < FEW
    assert bare.right(len(bare.coins)) == len(bare.coins)


@pytest.mark.slow
def test_scores_add_up_over_the_rounds_in_which_a_canary_sends():
    """Its coin is the same in all of them."""
    once = played(without_noise(settings("2", FEW)), FEW, FEW)
    thrice = played(without_noise(settings("2", FEW, rounds=3)), FEW, FEW)
    assert np.array_equal(once.coins, thrice.coins)
    assert np.abs(thrice.scores) == pytest.approx(3 * np.abs(once.scores), rel=0.2)


def test_the_signal_is_what_the_scores_show():
    config = settings("1/2", MANY)
    assert signal(config, MANY, 1) == pytest.approx(1, rel=0.1)  # C over z times 2C, or a bit less
    assert signal(config, MANY, 4) == pytest.approx(2 * signal(config, MANY, 1))
    assert signal(settings("2", MANY), MANY, 1) == pytest.approx(0.25, rel=0.1)


def test_guesses_are_of_the_scores_that_stand_out():
    told = Told(np.array([0.1, -5.0, 3.0, 0.0]), np.array([-1, -1, 1, 1]))
    assert [told.right(number) for number in range(5)] == [0, 1, 2, 2, 2]


@pytest.mark.slow
def test_the_clearer_the_canaries_the_more_are_guessed():
    numbers = [guesses_to_make(signal, 1000, DELTA) for signal in (0.5, 1, 2, 5, 50)]
    assert numbers == sorted(numbers)
    assert numbers[0] < 500
    assert numbers[-1] == 1000
    assert guesses_to_make(1.0, 1, DELTA) == 1


def test_guesses_that_are_all_right_refute_what_they_should():
    """Without δ, r right guesses of r have a chance of (1 + exp(-ε))^-r."""
    found = epsilon_at_least(100, 100, 100, 0.0)
    assert (1 + math.exp(-found)) ** -100 == pytest.approx(0.05, rel=1e-6)
    assert epsilon_at_least(50, 100, 100, 0.0) == pytest.approx(0, abs=1e-9)
    assert epsilon_at_least(100, 100, 100, 1e-3) < found
    assert epsilon_at_least(99, 100, 100, 0.0) < found
    assert epsilon_at_least(100, 100, 100, 0.0, confidence=0.99) < found


@pytest.mark.slow
def test_randomised_response_is_not_refuted():
    """The mechanism for which the bound is exact: a coin that is told truly with e^ε/(1 + e^ε)."""
    epsilon, generator = 1.5, np.random.default_rng(3)
    truth = 1 / (1 + math.exp(-epsilon))
    bounds = [
        epsilon_at_least(int(generator.binomial(1000, truth)), 1000, 1000, 0.0) for _ in range(200)
    ]
    assert np.mean(np.array(bounds) > epsilon) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    assert np.median(bounds) > 1.2


def plainly(right, guesses, canaries, epsilon, delta):
    """Theorem 5.2 as it is written: β + 2mδ·max_i (P[v > W ≥ v - i]) / i, by sums of binomials."""
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    chances = [
        math.comb(guesses, k) * truth**k * (1 - truth) ** (guesses - k) for k in range(guesses + 1)
    ]
    nearly = max(
        (math.fsum(chances[max(right - i, 0) : right]) / i for i in range(1, canaries + 1)),
    )
    return min(math.fsum(chances[right:]) + 2 * canaries * delta * nearly, 1.0)


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-4, 1e-3])
@pytest.mark.parametrize(("guesses", "canaries"), [(12, 12), (20, 80), (60, 60)])
def test_the_chance_is_that_of_the_theorem(guesses, canaries, delta):
    for right in range(guesses + 1):
        for epsilon in (0.0, 0.7, 2.5):
            found = chance(right, guesses, canaries, epsilon, delta)
            expected = plainly(right, guesses, canaries, epsilon, delta)
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("more", [1, 5, 20])
def test_what_happens_with_probability_delta_is_not_refuted(more):
    """Randomised response that, with a probability of mδ/i, lays i more coins bare."""
    epsilon, canaries, delta, generator = 1.0, 1000, 1e-4, np.random.default_rng(4)
    right = generator.binomial(canaries, 1 / (1 + math.exp(-epsilon)), 4000)
    right += more * (generator.random(4000) < canaries * delta / more)
    refuted = min(
        v for v in range(700, 1000) if chance(v, canaries, canaries, epsilon, delta) < 0.05
    )
    assert np.mean(right >= refuted) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize(("too_little", "found"), [(1, False), (2, False), (5, True), (10, True)])
def test_a_fifth_of_the_noise_is_found_and_a_half_is_not(too_little, found):
    """The preset: a claim of 2.53, and a signal of 0.20 in a thousand scores."""
    canaries, delta, claimed, strength = 1000, 1e-6, 2.53, 0.2028
    generator = np.random.default_rng(5)
    guesses = guesses_to_make(strength, canaries, delta)
    coins = generator.choice([-1, 1], canaries)
    told = Told(coins * strength * too_little + generator.normal(size=canaries), coins)
    bound = epsilon_at_least(told.right(guesses), guesses, canaries, delta)
    assert (bound > claimed) == found


def test_chances_are_probabilities_that_fall_with_right_guesses():
    told = [chance(right, 50, 60, 1.0, 1e-4) for right in range(51)]
    assert told[0] == 1
    assert all(0 <= after <= before for before, after in pairwise(told))
