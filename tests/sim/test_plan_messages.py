"""The planned sizes of messages are those of rounds that are played."""

from collections import Counter

import numpy as np
import pytest
from toy_devices import Quadratic

from deltafl.fl.strategies.base import TrainingState
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.session import NoObserver
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.plan.messages import trips
from deltafl.sim.run.algorithms import sessions_of, strategy_of
from deltafl.sim.run.arms import session_of
from deltafl.sim.settings.config_io import build_config

LENGTH = 300
VARYING = 20  # bytes of η and δ, and of the slot's number in their message
TINY = {
    "federation": {"algorithm": "private-delta-fl", "rounds": 1, "cohort_size": 12},
    "privacy": {"min_cohort": 6},
}
ACTIVE = {"privacy": {"adversary": "active", "expected_dropout": 0.1}}
SETTINGS = {
    "one level": [],
    "all devices are kept": [{"federation": {"theta": 1}}],
    "by a histogram": [
        {"quantile": {"method": "histogram", "max_queries": 3}, "policy": {"max_pivots": 320}}
    ],
    "verified": [ACTIVE],
    "whole first slot": [{"quantile": {"min_cohort": 6}}],
    "levels": [
        {
            "federation": {"levels": ["0.9", "0.4"]},
            "policy": {"max_pivots": 60},
            "privacy": {"min_honest_tail": 0},
        }
    ],
    "real weights": [{"federation": {"algorithm": "private-q-ffl"}}],
    "proved votes": [ACTIVE, {"quantile": {"votes": "proved"}}],
    "noisy updates": [
        {
            "quantile": {"method": "noisy", "weights": "equal", "noise": 4},
            "privacy": {"colluding": 0.0, "max_weight": 1},
            "dp": {"noise": 2.0, "clip": 1.0},
        }
    ],
    "sparse": [
        {
            "federation": {"cohort_size": 60},
            "privacy": {"graph": "sparse"},
        }
    ],
}


FAST = "whole first slot"


class Counted(NoObserver):
    """Counts the bytes that go to each device and come from it, and the exchanges."""

    def __init__(self):
        self.down, self.up, self.trips = Counter(), Counter(), Counter()

    def message(self, *, sent, peer, data):
        (self.down if sent else self.up)[peer] += len(data)
        self.trips[peer] += sent


def played(config):
    """What passes in a round of these settings, the levels' queries, and what was planned."""
    levels, params = session_of(config, LENGTH)
    counted = Counted()
    rounds = MaskedRounds(sessions_of(config), SeededRandomness(b"s" * 32), counted)
    size = config.federation.cohort_size
    devices = [Quadratic(k, 0.01 * k, 1 + k) for k in range(size)]
    strategy = strategy_of(config)
    model = np.arange(LENGTH * len(levels.rounds), dtype=np.float32) / 1e4  # levels differ
    _, report = strategy.apply(strategy.init(model, size), cohort_of(devices, rounds))
    reports = report.levels.values() if hasattr(report, "levels") else (report,)
    queries = [one.num_queries for one in reports]
    assert all(one.aborted is None for one in reports)
    return counted, queries, trips(levels, params, LENGTH, queries)


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param(layers, id=name, marks=() if name == FAST else pytest.mark.slow)
        for name, layers in SETTINGS.items()
    ],
)
def test_a_round_takes_as_many_trips_and_bytes_as_are_planned(layers):
    counted, queries, planned = played(build_config([TINY, *layers]))
    up, down = sum(trip.up for trip in planned), sum(trip.down for trip in planned)
    assert set(counted.trips.values()) == {len(planned)}
    assert set(counted.up.values()) == {up}
    assert max(counted.down.values()) <= down
    assert min(counted.down.values()) >= down - VARYING * len(queries)


def test_long_vectors_are_planned_without_being_made():
    config = build_config([TINY])
    short, long = 100_000, 40_000_000
    few, many = (trips(*session_of(config, d), d, [0]) for d in (short, long))
    levels, params = session_of(config, short)
    bits = params.slots[-1].ring_bits
    assert many[0].down - few[0].down == 4 * (long - short)
    masked = [next(t.up for t in found if t.what == "masked vectors") for found in (few, many)]
    assert abs(8 * (masked[1] - masked[0]) - bits * (long - short)) < 8
    assert isinstance(levels.common.update_length, int)


def test_the_session_is_that_of_the_run():
    config = build_config([TINY])
    levels, params = session_of(config, LENGTH)
    strategy = strategy_of(config)
    own = strategy.levels_for(TrainingState(np.zeros(LENGTH, dtype=np.float32)), 12)
    assert levels == own
    assert params.slots == own.slots()
