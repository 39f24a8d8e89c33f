"""What a device weighs in a search."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from round_parties import make_config

from deltafl.protocol.device import DeviceRound
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.weighting import Weighting

weights = st.integers(0, 2**53)


@given(weights)
def test_a_power_of_two_is_rounded_down_to(weight):
    rounded = Weighting.POWERS_OF_TWO.of(weight)
    assert rounded & (rounded - 1) == 0
    assert rounded <= weight < 2 * rounded or rounded == weight == 0


@given(weights, weights)
def test_no_rule_turns_two_weights_around_or_makes_something_of_nothing(one, other):
    for rule in Weighting:
        assert rule.of(min(one, other)) <= rule.of(max(one, other))
        assert (rule.of(one) == 0) == (one == 0)
        assert rule.of(one) <= one


def test_the_search_is_answered_by_the_rounded_weight_and_the_update_by_the_devices_own():
    for weighting, expected in (("samples", 300), ("powers-of-two", 256), ("equal", 1)):
        config = make_config(weighting=Weighting(weighting), method="bracketed")
        device = DeviceRound.measured(config, 1.5, 300)
        answer = config.search_layout.decode(device.answer(Query("bracketed", (2000,))))
        assert answer["weight"] == answer["weight_below"] == expected
        update = config.update_layout.decode(device.contribution(np.ones(4, dtype=np.float32)))
        assert update["weight"] == 300
