"""Whether, when and how much a device sends does not depend on its loss, its update or its weight.

A server that crafts a model knows under which data a loss or an update overflows. If a device then
fell silent, or sent something of another size, the server would know its data, by name.
"""

import math
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from flat_configs import changed_round
from hypothesis import given, settings
from hypothesis import strategies as st
from round_parties import POLICY, Device, RoundParties, make_config, make_devices

from deltafl.protocol.errors import EncodingError
from deltafl.protocol.losses import LossGrid

EDGES = [0.0, -0.0, 1e-320, 3e38, -3e38, math.inf, -math.inf, math.nan]
numbers = st.one_of(st.sampled_from(EDGES), st.floats(width=32))
losses = st.one_of(st.sampled_from([*EDGES, 1e308]), st.floats())
weights = st.one_of(st.sampled_from([0, 1, 2**63, 2**200]), st.integers(0, 1000))

CONFIGS = {
    "all": make_config(theta=Fraction(1)),
    "mm": make_config(max_queries=4),
    "bracketed": make_config(method="bracketed", max_queries=4),
    "histogram": make_config(method="histogram", num_pivots=3, max_queries=4),
    "verified": changed_round(make_config(method="bracketed", max_queries=4), verified=True),
}


def traffic(config, devices):
    """Whom the server has heard in each trip, with the sizes, by step; and who was lost."""
    # a small tail ends a verified round for all devices alike, by what all of them know
    policy = replace(POLICY, min_tail=0)
    parties = RoundParties(config, devices=devices, policy=policy)
    sizes = defaultdict(set)
    outgoing = parties.server.start()
    while outgoing:
        step = parties.server.step
        replies = {client: parties.answer(client, data) for client, data in outgoing.items()}
        assert None not in replies.values()
        stage = step.stage, step.slot == config.update_slot
        sizes[stage].add(tuple(len(data) for data in replies.values()))
        assert list(replies) == list(outgoing)
        outgoing = parties.collect(replies)
    return dict(sizes), parties.server.outcomes[0]


def drawn(config, draw):
    """Devices of a round with whatever loss, weight and update."""
    return {
        client: Device(
            draw(losses),
            draw(weights),
            np.array([draw(numbers) for _ in range(config.update_length)], dtype=np.float32),
        )
        for client in make_devices(config)
    }


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@settings(max_examples=40)
@given(data=st.data())
def test_devices_are_heard_whatever_their_data_are(config, data):
    usual, _ = traffic(config, make_devices(config))
    sizes, outcome = traffic(config, drawn(config, data.draw))
    assert not outcome.drops
    for step, seen in sizes.items():
        assert seen == usual.get(step, seen)


def test_a_device_that_refuses_what_is_not_finite_would_be_noticed(monkeypatch):
    def refuse(grid, loss):
        raise EncodingError(f"{grid} {loss}")

    monkeypatch.setattr(LossGrid, "tick", refuse)
    with pytest.raises(EncodingError):
        traffic(CONFIGS["all"], make_devices(CONFIGS["all"]))
