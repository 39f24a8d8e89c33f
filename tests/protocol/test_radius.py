"""Updates up to a radius: what a device contributes, which radii there are, what a round says."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from given_devices import SIZE, devices_of, ideal, masked, random_devices
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from round_parties import MODEL, comparable, make_config, play_single

from deltafl.protocol import device as device_module
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.levels import Levels
from deltafl.protocol.radius import Clipped, check_radius, least_radius, within

CLIP, BITS, WEIGHT, RADIUS = 4.0, 12, 321, 1.5
CONFIG = make_config(aggregation=Clipped(RADIUS), max_queries=0)
DEVICE = DeviceRound.measured(CONFIG, 1.5, WEIGHT)
updates = arrays(np.float32, 4, elements=st.floats(-6, 6, width=32))


def scaled(update, radius=RADIUS, clip=CLIP):
    """The plain reference: clipped by number, then scaled down to the radius, in float64."""
    numbers = np.clip(np.asarray(update, dtype=np.float64), -clip, clip)
    length = np.linalg.norm(numbers)
    return numbers * min(1.0, radius / length) if length else numbers, length > radius


def summed(vector):
    return {name: one.tolist() for name, one in CONFIG.update_layout.decode(vector).items()}


@given(updates, st.floats(2.0**-20, 2.0**20))
def test_no_update_is_longer_than_the_radius_and_shorter_ones_stay(update, radius):
    found, is_longer = within(update, radius)
    wanted, longer = scaled(update, radius, clip=np.inf)
    assert np.linalg.norm(found) <= radius * (1 + 2.0**-50)
    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=0)
    if abs(np.linalg.norm(update.astype(float)) - radius) > 1e-12 * radius:
        assert is_longer == longer
    if not is_longer:
        assert found.tolist() == update.tolist()


def test_an_update_of_exactly_the_radius_is_not_longer():
    numbers, is_longer = within(np.array([3, 4], dtype=np.float32), 5.0)
    assert (numbers.tolist(), is_longer) == ([3, 4], False)
    assert within(np.array([3, 4], dtype=np.float32), math.nextafter(5.0, 0))[1]


@given(updates)
def test_a_device_contributes_what_the_reference_does(update):
    """Its numerators are those of n·Δ in multiples of 2^-BITS, rounded: to half of one."""
    wanted, longer = scaled(update)
    assume(abs(np.linalg.norm(wanted) - RADIUS) > 1e-9 or longer)
    sums = summed(DEVICE.contribution(update))
    exact = WEIGHT * wanted * 2**BITS
    assert np.all(np.abs(np.array(sums["update"]) - exact) <= 0.5 + 1e-6)
    assert (sums["weight"], sums["count"], sums["longer"]) == ([WEIGHT], [1], [int(longer)])
    without = DeviceRound.measured(make_config(max_queries=0), 1.5, WEIGHT)
    plain = without.config.update_layout.decode(without.contribution(update))
    assert sums["clipped"] == plain["clipped"].tolist()  # numbers, as ever
    assert "longer" not in plain


def test_who_did_not_pass_adds_nothing_and_does_the_same_work(monkeypatch):
    asked = []
    monkeypatch.setattr(device_module, "within", lambda *own: asked.append(own) or within(*own))
    assert not DEVICE.contribution(None).any()
    assert len(asked) == 1
    assert asked[0][0].tolist() == [0] * 4


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_counts_as_zeros_that_are_not_longer(wrong):
    sums = summed(DEVICE.contribution(np.array([wrong, 9, 9, 9], dtype=np.float32)))
    assert (sums["update"], sums["longer"]) == ([0] * 4, [0])
    assert (sums["weight"], sums["clipped"]) == ([WEIGHT], [4])


@pytest.mark.slow
@given(arrays(np.float32, 30, elements=st.floats(-4, 4, width=32)), st.integers(0, 12))
def test_under_no_radius_does_a_scaled_update_round_to_zeros(update, bits):
    """However little a device weighs: the bound below which a radius is refused."""
    radius = least_radius(30, bits)
    config = make_config(
        aggregation=Clipped(radius), update_length=30, update_resolution_bits=bits, max_queries=0
    )
    device = DeviceRound.measured(config, 1.5, 1)
    sums = config.update_layout.decode(device.contribution(update))
    assert sums["update"].any() or not sums["longer"][0]


@given(st.integers(1, 2**28), st.integers(0, 53))
def test_the_least_radius_is_accepted_and_a_little_less_is_not(length, bits):
    least = least_radius(length, bits)
    check_radius(least, length, bits)
    with pytest.raises(ConfigurationError, match=f"update_length={length} numbers"):
        check_radius(math.nextafter(math.nextafter(least, 0), 0), length, bits)


@pytest.mark.parametrize("radius", [math.nan, math.inf, -math.inf, 0.0, -1.5])
def test_a_radius_is_a_positive_number(radius):
    with pytest.raises(ConfigurationError, match=r"radius=.* is not a positive number"):
        Clipped(radius)


def test_only_a_round_with_a_radius_counts_longer_updates():
    plain, own = (
        [field.name for field in config.update_layout.fields]
        for config in (make_config(), make_config(aggregation=Clipped(RADIUS)))
    )
    assert plain == ["update", "weight", "weighted_loss", "count", "clipped"]
    assert own == [*plain, "longer"]


def some_round(theta=Fraction(1), **changes):
    return make_config(cohort_size=SIZE, theta=theta, max_queries=3, **changes)


def bounded(theta=Fraction(1)):
    return some_round(theta, aggregation=Clipped(0.6))


@pytest.mark.parametrize("theta", [Fraction(1), Fraction(1, 2)])
def test_a_masked_round_is_the_ideal_one_and_the_reference(theta):
    """A mean of m devices is off by m·2^-bits / (2·Σ n) at most in each number."""
    devices, config = random_devices(), bounded(theta)
    one, other = (play_single(how(), config, MODEL, devices).outcome for how in (masked, ideal))
    assert comparable(one) == comparable(other)
    assert one.secure_sums - (one.search.num_queries if one.search else 0) == 1
    kept = [
        own for own in devices if one.search.threshold.passes(config.search.grid.tick(own.value)[0])
    ]
    found = [scaled(own.vector, 0.6) for own in kept]
    weights = np.array([own.weight for own in kept], dtype=np.float64)
    wanted = weights @ np.array([numbers for numbers, _ in found]) / weights.sum()
    bound = len(kept) * 2.0**-BITS / (2 * weights.sum())
    assert np.all(np.abs(one.update - wanted) <= bound + 1e-12)
    assert one.longer == sum(longer for _, longer in found)
    assert 0 < one.longer <= len(kept)
    mean = play_single(ideal(), some_round(theta), MODEL, devices).outcome
    assert mean.longer is None
    assert np.linalg.norm(mean.update - wanted) > 10 * bound


def test_no_device_moves_the_mean_by_more_than_its_weight_times_the_radius():
    still = devices_of(np.zeros((6, 4)))
    devices = [*still[:-1], replace(still[-1], vector=np.full(4, 4, dtype=np.float32))]
    found = play_single(ideal(), bounded(), MODEL, devices).outcome
    most = devices[-1].weight * 0.6 / sum(own.weight for own in devices)
    assert np.linalg.norm(found.update) == pytest.approx(most, rel=1e-3)
    assert found.longer == 1


def test_levels_have_one_radius():
    lower = Levels.at(bounded(), (Fraction(1), Fraction(1, 2)), (None, None))
    assert [one.update.aggregation for one in lower.rounds] == [Clipped(0.6)] * 2
