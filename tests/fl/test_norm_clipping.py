"""Norm clipping in clear, against NumPy, and how its radius follows the devices."""

import math
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_devices import cohort

from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.fedavg import FedAvg
from deltafl.fl.strategies.norm_clipping import RADIUS, NormClipping, next_radius
from deltafl.fl.strategies.robust_mean import RobustMean
from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.radius import Clipped, least_radius
from deltafl.protocol.round import RoundOutcome
from deltafl.sim.cohort.simulated import cohort_of

CLIPPING = NormClipping(quantile=0.5, rate=0.2, radius=0.7)
PAIRS = [(5, 0.1), (0, 99.0), (7, 0.4), (2, -0.3), (9, 0.2), (3, 40.0)]


def state_at(radius, size=3):
    memory = MappingProxyType({RADIUS: np.array([radius])})
    return TrainingState(np.zeros(size, dtype=np.float32), memory=memory)


def reference(model, contributions, radius):
    """The plain twin: the step, and the share of updates that are not longer than the radius."""
    weights = np.array([weight for weight, _ in contributions], dtype=np.float64)
    updates = np.array([update for _, update in contributions], dtype=np.float64)
    lengths = np.linalg.norm(updates, axis=1)
    scaled = updates * np.minimum(1, radius / np.maximum(lengths, 1e-300))[:, None]
    return model + weights @ scaled / weights.sum(), np.mean(lengths <= radius)


@given(st.integers(0, 10_000), st.floats(0.05, 3))
def test_a_step_is_the_reference(seed, radius):
    rng = np.random.default_rng(seed)
    contributions = [
        (int(rng.integers(1, 90)), rng.normal(0, 0.6, 3).astype(np.float32)) for _ in range(7)
    ]
    state = state_at(radius)
    model, memory = CLIPPING.step(state, contributions)
    wanted, share = reference(state.model, contributions, radius)
    np.testing.assert_allclose(model, wanted, atol=1e-7)
    assert memory[RADIUS].tolist() == pytest.approx([radius * math.exp(-0.2 * (share - 0.5))])


def test_one_far_update_moves_a_step_by_its_weight_times_the_radius_at_most():
    still = [(10, np.zeros(3, dtype=np.float32)) for _ in range(9)]
    far = (30, np.array([1e30, 0, 0], dtype=np.float32))
    model, _ = CLIPPING.step(state_at(0.7), [*still, far])
    assert model.tolist() == pytest.approx([30 * 0.7 / 120, 0, 0])


@given(st.floats(1e-3, 1e3), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_radius_grows_while_more_updates_are_longer_than_wanted(radius, share, gamma, rate):
    following = next_radius(radius, share, gamma, rate)
    assert following == pytest.approx(radius * math.exp(-rate * (share - gamma)))
    if rate > 1e-6 and abs(share - gamma) > 1e-6:
        assert (following > radius) == (share < gamma)


@pytest.mark.parametrize("gamma", [0.1, 0.5, 0.8])
def test_the_radius_comes_to_the_wanted_quantile_of_lengths(gamma):
    """Lengths are 0.1, 0.2, …, 2.0; each round moves R by at most exp(±η_C)."""
    lengths = [(1, np.array([0.1 * k], dtype=np.float32)) for k in range(1, 21)]
    clipping = NormClipping(gamma, 0.1, radius=30.0)
    state = state_at(30.0, size=1)
    for _ in range(400):
        _, memory = clipping.step(state, lengths)
        state = state_at(memory[RADIUS][0], size=1)
    assert abs(memory[RADIUS][0] - 2 * gamma) < 0.15


@pytest.mark.parametrize(("longer", "devices"), [(9, 3), (3, 3)])
def test_who_lies_about_longer_moves_the_radius_no_more_than_all_devices_could(longer, devices):
    found = CLIPPING.learnt(2.0, longer, devices)[RADIUS]
    assert found.tolist() == [pytest.approx(2 * math.exp(0.1))]


def test_a_round_without_updates_keeps_the_radius():
    assert CLIPPING.learnt(2.0, 0, 0)[RADIUS].tolist() == [2.0]
    lost = RoundOutcome(None, 0, None, 0, 0, None, 0, {}, "aborted")
    update = UpdateParams(aggregation=Clipped(2.0))
    assert CLIPPING.remembered(update, lost)[RADIUS].tolist() == [2.0]


@pytest.mark.parametrize("radius", [1e-30, 1e30])
def test_the_radius_stays_in_its_range(radius):
    assert 2.0**-40 <= next_radius(radius, 0.5, 0.5, 1.0) <= 2.0**40


def test_devices_are_asked_for_a_radius_that_they_accept():
    """Below it their updates would round to zeros."""
    own = UpdateParams(resolution_bits=10)
    assert CLIPPING.params(own, state_at(0.25)).aggregation == Clipped(0.25)
    assert CLIPPING.params(own, state_at(1e-9)).aggregation == Clipped(least_radius(3, 10))
    start = TrainingState(np.zeros(3, dtype=np.float32))
    assert CLIPPING.params(own, start).aggregation == Clipped(0.7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"quantile": -0.1},
        {"quantile": 1.1},
        {"quantile": math.nan},
        {"rate": -0.1},
        {"rate": math.inf},
        {"radius": 0.0},
        {"radius": math.nan},
    ],
)
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        NormClipping(**wrong)


def test_fedavg_and_delta_fl_step_by_clipped_updates_and_remember_the_radius():
    start = TrainingState(np.zeros(1, dtype=np.float32))
    for strategy in (
        RobustMean(FedAvg(), CLIPPING),
        DeltaFL(Fraction(1), robustly=CLIPPING),
    ):
        state, report = strategy.apply(start, cohort_of(cohort(*PAIRS)))
        updates = [
            (one.weight, cohort_of([one]).reveal_updates(start.model)[0].result())
            for one in cohort(*PAIRS)
            if one.weight
        ]
        wanted, memory = CLIPPING.step(start, updates)
        assert state.model.tobytes() == wanted.tobytes()
        assert state.memory[RADIUS].tolist() == memory[RADIUS].tolist()
        assert report.secure_sums == 1
        plain, _ = FedAvg().apply(start, cohort_of(cohort(*PAIRS)))
        assert plain.model.tobytes() != state.model.tobytes()
