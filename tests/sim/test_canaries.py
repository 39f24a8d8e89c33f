"""A measured lower bound on ε: below the accountant's where there is noise, above it where not."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from deltafl.protocol.update_noise import NoisyUpdates, Sizes, UpdateNoise
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.canaries import chance, epsilon_at_least, guessed
from deltafl.sim.run.accounting import epsilon_of
from deltafl.sim.run.spending import rho_of_update

CANARIES, DELTA = 400, 1e-5


def randomness_of(device):
    return SeededRandomness(device.to_bytes(32, "big"))


def round_with(multiplier):
    """A round whose noise has this multiplier, of shares that all count."""
    sizes = Sizes.of(CANARIES, CANARIES)
    noise = UpdateNoise.at_least(multiplier, 1.0, CANARIES, sizes)
    return NoisyUpdates(noise, CANARIES, CANARIES, bytes(32)), sizes


def measured(updates, num_guesses=100):
    right = guessed(updates, num_guesses, np.random.default_rng(1), randomness_of)
    return epsilon_at_least(right, num_guesses, CANARIES, DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("multiplier", [Fraction(1, 4), Fraction(1, 2), Fraction(2)])
def test_the_bound_is_below_the_accountants_and_without_noise_above(multiplier, monkeypatch):
    updates, sizes = round_with(multiplier)
    accounted = epsilon_of(rho_of_update(updates.noise, sizes), DELTA)
    assert measured(updates) <= accounted
    if multiplier < 1:
        assert measured(updates) > 0.5  # it does find something

    def nothing(deviation, size, randomness):
        del deviation, randomness
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr("deltafl.protocol.update_noise.discrete_gaussians", nothing)
    without = measured(updates, num_guesses=CANARIES)
    assert without > 4.5  # as much as so many canaries can show
    if multiplier == 2:
        assert without > accounted


def test_guesses_that_are_all_right_refute_what_they_should():
    """Without δ, r right guesses of r have a chance of (1 + exp(-ε))^-r."""
    found = epsilon_at_least(100, 100, 100, 0.0)
    assert (1 + math.exp(-found)) ** -100 == pytest.approx(0.05, rel=1e-6)
    assert epsilon_at_least(50, 100, 100, 0.0) == pytest.approx(0, abs=1e-9)
    assert epsilon_at_least(100, 100, 100, 1e-3) < found
    assert epsilon_at_least(99, 100, 100, 0.0) < found
    assert epsilon_at_least(100, 100, 100, 0.0, confidence=0.99) < found


def test_randomised_response_is_not_refuted():
    """The mechanism for which the bound is exact: a coin that is told truly with e^ε/(1 + e^ε)."""
    epsilon, generator = 1.5, np.random.default_rng(3)
    truth = 1 / (1 + math.exp(-epsilon))
    bounds = [
        epsilon_at_least(int(generator.binomial(1000, truth)), 1000, 1000, 0.0) for _ in range(200)
    ]
    assert np.mean(np.array(bounds) > epsilon) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    assert np.median(bounds) > 1.2


def test_chances_are_probabilities_that_fall_with_right_guesses():
    told = [chance(right, 50, 60, 1.0, 1e-4) for right in range(51)]
    assert told[0] == 1
    assert all(0 <= after <= before for before, after in pairwise(told))
