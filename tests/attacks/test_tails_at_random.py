"""Servers that draw what they do in a verified search: no sum of updates is over less than two.

The server may end the search early, leave devices out, and call devices lost whose updates have
arrived. Losses may be equal and weights zero. Whatever it does, a sum that it gets help to unmask
is over at least two devices that passed the threshold. The negative control is a device that
counts nobody as lost.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from deltafl.protocol.client import RoundClient
from deltafl.secagg import PeerError
from deltafl.sim.inspect.attacks.own_round import (
    ACTIVE,
    VERIFIED_ROUND,
    Device,
    RoundDevices,
    make_devices,
)
from deltafl.sim.inspect.attacks.steering import Steering

METHODS = {"mm": None, "bracketed": None, "histogram": 6}
NUM_SERVERS = 14
POLICY = replace(ACTIVE, min_cohort=3, min_threshold=3, colluding_rate=0.0, min_honest_tail=2)


def devices_of(config, generator):
    """Devices with losses on few different levels, some of which have no data."""
    return {
        client: Device(
            float(generator.integers(0, 6)) / 2,
            int(generator.choice([0, 1, 7, 500])),
            device.update,
        )
        for client, device in make_devices(config).items()
    }


def some(positions, generator, most):
    """At most so many of some positions, possibly none."""
    drawn = generator.permutation(sorted(positions))
    return frozenset(drawn[: generator.integers(most, endpoint=True)].tolist())


def tail_that_was_summed(method, seed):
    """How many devices are in the sum of updates that the server gets; None if it gets none."""
    generator = np.random.default_rng(seed)
    theta = Fraction(*generator.choice([(2, 3), (3, 4), (9, 10)]).tolist())
    # With a minimum, the slot of the first query is whole.
    search = replace(
        VERIFIED_ROUND.search,
        max_queries=int(generator.integers(1, 12)),
        min_cohort=int(generator.choice([0, 3])),
    )
    config = replace(
        VERIFIED_ROUND,
        theta=theta,
        method=method,
        num_pivots=METHODS[method],
        warm_start=int(generator.integers(0, 1000)),
        search=search,
        update_length=4,
    )
    devices = devices_of(config, generator)
    steering = Steering(RoundDevices(config, devices, policy=POLICY, threshold=3))
    evil = steering.evil
    try:
        steering.run(most=int(generator.integers(0, 12)))
        left = evil.everyone - some(evil.everyone, generator, 1)
        shrank = left != evil.everyone
        threshold = steering.search.result(
            shrank=shrank, num_lost=len(evil.everyone) - len(left)
        ).threshold
        survivors = left - some(left, generator, 2)
        steering.ask(config.update_slot, threshold, left, survivors)
    except PeerError:
        return None
    if evil.refusals:  # of all devices, which are told the same
        return None
    passed = [steering.devices[p].measured(config).passes(threshold) for p in survivors]
    return sum(passed)


def tails(method):
    return [tail_that_was_summed(method, seed) for seed in range(NUM_SERVERS)]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_no_sum_of_updates_is_over_fewer_than_two(method):
    summed = [num for num in tails(method) if num is not None]
    assert len(summed) >= 3  # some were honest enough to get theirs
    assert min(summed) >= 2


@pytest.mark.slow
def test_devices_that_count_nobody_as_lost_would_be_summed_alone(monkeypatch):
    monkeypatch.setattr(RoundClient, "_check_tail", lambda *_: None)
    assert 1 in tails("bracketed")
