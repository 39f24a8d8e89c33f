"""Server optimisers against the algorithms written out, over several rounds."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.fl.strategies.base import RoundReport, TrainingState, Visibility
from deltafl.fl.strategies.server_optimizer import (
    Adaptive,
    Momentum,
    SecondMoment,
    Sgd,
    WithServerOptimizer,
)
from deltafl.sim.cohort.simulated import cohort_of

BETA1, BETA2, TAU, RATE = 0.9, 0.99, 1e-2, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LostReport(RoundReport):
    aborted: str | None


def report(*, empty=False, aborted=None):
    return LostReport(kept_devices=1, kept_weight=1, empty=empty, aborted=aborted)


@dataclass
class Moves:
    """Moves the model by given changes, counts its rounds in its memory, and reports."""

    changes: list
    reports: list | None = None
    name = "moves"
    server_sees = Visibility.SUMS

    def init(self, model, num_devices):
        del num_devices
        return TrainingState(model, memory={"count": np.zeros(1)})

    def apply(self, state, devices):
        del devices
        number = int(state.memory["count"][0])
        assert set(state.memory) == {"count"}  # moments are none of its business
        model = (state.model + self.changes[number]).astype(np.float32)
        memory = {"count": state.memory["count"] + 1}
        told = self.reports[number] if self.reports else report()
        return TrainingState(model, state.round + 1, 0.5, memory), told


def adaptive(kind, beta1=BETA1, rate=RATE):
    return Adaptive(SecondMoment(kind), rate, beta1, BETA2, TAU)


def run(optimizer, changes, *, reports=None, start=0.0):
    changes = [np.asarray(change, dtype=np.float64) for change in changes]
    strategy = WithServerOptimizer(Moves(changes, reports), optimizer)
    state = strategy.init(np.full(changes[0].shape, start, dtype=np.float32), 3)
    states = [state]
    for _ in changes:
        state, _ = strategy.apply(state, cohort_of([]))
        states.append(state)
    return states


def written_out(kind, changes, beta1=BETA1):
    """Algorithm 2, element by element."""
    model = np.zeros_like(changes[0])
    m, v = np.zeros_like(model), np.full_like(model, TAU**2)
    for change in changes:
        for i, delta in enumerate(change):
            m[i] = beta1 * m[i] + (1 - beta1) * delta
            if kind == "adagrad":
                v[i] += delta**2
            elif kind == "adam":
                v[i] = BETA2 * v[i] + (1 - BETA2) * delta**2
            else:
                v[i] -= (1 - BETA2) * delta**2 * np.sign(v[i] - delta**2)
            model[i] += RATE * m[i] / (math.sqrt(v[i]) + TAU)
    return model


change = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=3, max_size=3)
several = st.lists(change, min_size=1, max_size=6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SecondMoment))
@given(changes=several)
def test_adaptive_rounds_are_algorithm_2(kind, changes):
    # the strategy moves from a model that the optimiser has placed; float32 rounds every round
    final = run(adaptive(kind), changes)[-1].model
    expected = written_out(str(kind), np.array(changes))
    np.testing.assert_allclose(final, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", list(SecondMoment))
def test_moments_accumulate_over_rounds(kind):
    changes = np.array([[0.5, -0.25], [0.5, -0.25], [0.5, -0.25]])
    states = run(adaptive(kind), changes)
    np.testing.assert_allclose(states[-1].model, written_out(str(kind), changes), rtol=1e-5)
    first = written_out(str(kind), changes[:1])
    # an optimiser that is made anew in every round would repeat its first step
    assert not np.allclose(states[-1].model, 3 * first, rtol=0.05)
    m = 0.5 * (1 - BETA1**3)
    assert states[-1].memory["server_optimizer.m"][0] == pytest.approx(m, rel=1e-5)


def test_the_second_moment_starts_from_tau_squared_and_decays_once_a_round():
    state = run(adaptive("adam"), [[0.5, 0.0]])[-1]
    v = state.memory["server_optimizer.v"]
    expected = [BETA2 * TAU**2 + (1 - BETA2) * 0.25, BETA2 * TAU**2]
    np.testing.assert_allclose(v, expected, rtol=1e-6)
    assert v[1] != pytest.approx(BETA2**2 * TAU**2, rel=1e-3)  # twice would be visible
    # no correction of bias: m/(1 − β1) would make the first step ten times as long
    step = RATE * (1 - BETA1) * 0.5 / (math.sqrt(expected[0]) + TAU)
    assert state.model[0] == pytest.approx(step, rel=1e-5)


def test_the_change_is_squared_and_not_its_mean_over_rounds():
    state = run(adaptive("adagrad"), [[1.0], [-1.0]])[-1]
    assert state.memory["server_optimizer.v"][0] == pytest.approx(TAU**2 + 2)


def test_yogi_moves_towards_the_square_by_its_size():
    above = run(adaptive("yogi"), [[1.0], [0.1]])
    v = [state.memory["server_optimizer.v"][0] for state in above[1:]]
    assert v[0] == pytest.approx(TAU**2 + (1 - BETA2) * 1.0, rel=1e-5)
    assert v[1] == pytest.approx(v[0] - (1 - BETA2) * 0.01, rel=1e-4)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_momentum_adds_up_to_a_geometric_series(decay):
    states = run(Momentum(0.3, decay), [[1.0]] * 8)
    steps = np.diff([state.model[0] for state in states])
    expected = [0.3 * sum(decay**k for k in range(t + 1)) for t in range(8)]
    np.testing.assert_allclose(steps, expected, rtol=1e-5)


def test_sgd_scales_the_change():
    states = run(Sgd(0.25), [[1.0, -2.0]], start=1.0)
    np.testing.assert_array_equal(states[-1].model, np.array([1.25, 0.5], dtype=np.float32))


@given(several)
def test_a_whole_step_is_the_strategy_itself(changes):
    inner = Moves([np.array(one) for one in changes])
    state = other = inner.init(np.ones(3, dtype=np.float32), 3)
    wrapped = WithServerOptimizer(inner, Sgd(1.0))
    for _ in changes:
        state, _ = inner.apply(state, cohort_of([]))
        other, _ = wrapped.apply(other, cohort_of([]))
    assert state.model.tobytes() == other.model.tobytes()
    assert dict(state.memory) == dict(other.memory)


def test_a_whole_step_is_exact_where_a_difference_would_round():
    class Jumps(Moves):
        def apply(self, state, devices):
            state, told = super().apply(state, devices)
            return TrainingState(np.array([1e-30], np.float32), 1, None, state.memory), told

    wrapped = WithServerOptimizer(Jumps([np.zeros(1)]), Sgd(1.0))
    start = wrapped.init(np.ones(1, np.float32), 1)
    assert wrapped.apply(start, cohort_of([]))[0].model[0] == np.float32(1e-30)
    assert np.float32(1.0 + (np.float64(np.float32(1e-30)) - 1.0)) == 0  # what it would have been


@pytest.mark.parametrize("optimizer", [Momentum(1.0, 0.9), adaptive("adam"), adaptive("yogi")])
@pytest.mark.parametrize("lost", [report(empty=True), report(aborted="too few were left")])
def test_a_lost_round_leaves_model_and_moments(optimizer, lost):
    reports = [report(), lost, report()]
    states = run(optimizer, [[1.0], [0.0], [1.0]], reports=reports)
    np.testing.assert_array_equal(states[2].model, states[1].model)
    moments = [
        {name: array for name, array in state.memory.items() if name != "count"} for state in states
    ]
    assert moments[2] == moments[1]
    assert moments[3] != moments[2]  # a round that is not lost does change them
    assert states[2].memory["count"][0] == 2  # the strategy's own memory goes on
    without = run(optimizer, [[1.0], [1.0]])
    np.testing.assert_array_equal(states[3].model, without[2].model)


def test_all_but_model_and_moments_is_the_strategys_own():
    strategy = WithServerOptimizer(Moves([np.ones(1)]), adaptive("adam"))
    before = strategy.init(np.zeros(1, np.float32), 3)
    kept = dict(before.memory)
    state, told = strategy.apply(before, cohort_of([]))
    assert (strategy.name, strategy.server_sees) == ("moves", Visibility.SUMS)
    assert (state.round, state.eta, told) == (1, 0.5, report())
    assert set(state.memory) == {"count", "server_optimizer.m", "server_optimizer.v"}
    assert dict(before.memory) == kept
    assert state.model.dtype == np.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sgd(0.0), "learning_rate=0.0 is not a positive number"),
        (lambda: Momentum(math.nan, 0.9), "learning_rate=nan"),
        (lambda: Momentum(1.0, 1.0), r"decay=1.0 is not in \[0, 1\)"),
        (lambda: Adaptive(SecondMoment.ADAM, 1.0, -0.1, 0.9, 1.0), r"beta1=-0.1 is not in"),
        (lambda: Adaptive(SecondMoment.ADAM, 1.0, 0.9, 1.0, 1.0), r"beta2=1.0 is not in"),
        (lambda: Adaptive(SecondMoment.ADAM, 1.0, 0.9, 0.9, 0.0), "tau=0.0 is not a positive"),
    ],
)
def test_constants_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
