"""What a device answers to a centre, and which centres it refuses."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from round_parties import make_config

from deltafl.protocol.device import DeviceRound
from deltafl.protocol.kept_update import check_centre
from deltafl.protocol.robust import Centre, factor
from deltafl.secagg import PeerError, Refusal

CLIP, BITS, WEIGHT, NU = 4.0, 12, 321, 0.75
CONFIG = make_config(passes=3, smoothing=NU, max_queries=0)
DEVICE = DeviceRound.measured(CONFIG, 1.5, WEIGHT)
updates = arrays(np.float32, 4, elements=st.floats(-6, 6, width=32))
centres = arrays(np.float64, 4, elements=st.floats(-4, 4)).map(lambda mean: Centre.of(mean, CLIP))


def decoded(vector):
    sums = CONFIG.pass_layout.decode(vector)
    return {name: values.tolist() for name, values in sums.items()}


@given(updates, centres)
def test_the_answer_is_the_clipped_update_times_weight_and_factor(update, centre):
    """Its numerators are those of n·b·Δ in multiples of 2^-BITS, rounded: to half of one."""
    clipped = np.clip(update.astype(np.float64), -CLIP, CLIP)
    counted = WEIGHT * factor(clipped, centre.vector(), NU)
    sums = decoded(DEVICE.kept(update).answer(centre))
    assert sums["weight"] == [counted]
    exact = counted * clipped * 2**BITS
    assert np.all(np.abs(np.array(sums["update"]) - exact) <= 0.5)
    assert sums.keys() == {"update", "weight"}


@given(updates)
def test_what_is_kept_is_what_was_summed(update):
    sums = CONFIG.update_layout.decode(DEVICE.contribution(update))
    kept = DEVICE.kept(update)
    assert kept.weight == sums["weight"][0]
    assert np.array_equal(
        np.rint(kept.weight * kept.numbers.astype(float) * 2**BITS), sums["update"]
    )


@given(centres)
def test_who_did_not_pass_adds_nothing(centre):
    assert not DEVICE.kept(None).answer(centre).any()


@given(centres)
def test_an_update_that_is_not_finite_counts_as_zeros_of_full_weight(centre):
    """As in the first pass."""
    spoiled = np.array([1, np.nan, 0, 0], dtype=np.float32)
    zeros = np.zeros(4, dtype=np.float32)
    answers = [DEVICE.kept(update).answer(centre).tobytes() for update in (spoiled, zeros)]
    assert answers[0] == answers[1]


def test_who_did_not_pass_computes_a_distance_all_the_same(monkeypatch):
    asked = []

    def noted(update, centre, smoothing):
        asked.append((update.shape, centre.shape, smoothing))
        return factor(update, centre, smoothing)

    monkeypatch.setattr("deltafl.protocol.kept_update.factor", noted)
    for update in (None, np.ones(4, dtype=np.float32)):
        DEVICE.kept(update).answer(Centre(bytes(16)))
    assert asked == [((4,), (4,), NU)] * 2


def accepted(numbers: bytes, slot=1, config=CONFIG):
    check_centre(config, Centre(numbers), slot)


def test_honest_centres_are_accepted():
    for value in (0.0, CLIP, -CLIP, 5e-324):
        for slot in (1, 2):
            accepted(struct.pack("<4f", 0, value, 0, 0), slot)


@pytest.mark.parametrize(
    ("numbers", "slot", "reason", "named"),
    [
        (bytes(16), 0, Refusal.OUT_OF_ORDER, "slot 0"),
        (bytes(16), 3, Refusal.OUT_OF_ORDER, "slot 3"),
        (bytes(12), 1, Refusal.MALFORMED, "12 bytes"),
        (bytes(20), 1, Refusal.MALFORMED, "20 bytes"),
        (bytes(17), 1, Refusal.MALFORMED, "17 bytes"),
        (b"", 1, Refusal.MALFORMED, "0 bytes"),
        (struct.pack("<4f", 0, 0, 0, np.nan), 1, Refusal.MALFORMED, "nan"),
        (struct.pack("<4f", np.inf, 0, 0, 0), 1, Refusal.MALFORMED, "inf"),
        (struct.pack("<4f", 0, 0, -np.inf, 0), 1, Refusal.MALFORMED, "inf"),
        (struct.pack("<4f", 0, 4.0000005, 0, 0), 1, Refusal.MALFORMED, "beyond update_clip"),
        (struct.pack("<4f", 0, 0, 0, -5), 1, Refusal.MALFORMED, "beyond update_clip"),
    ],
)
def test_a_centre_of_no_honest_server_is_refused(numbers, slot, reason, named):
    with pytest.raises(PeerError, match=named) as refused:
        accepted(numbers, slot)
    assert refused.value.reason is reason


def test_with_one_pass_no_centre_is_accepted():
    alone = replace(CONFIG, update=replace(CONFIG.update, passes=1))
    for slot in range(4):
        with pytest.raises(PeerError) as refused:
            accepted(bytes(16), slot, alone)
        assert refused.value.reason is Refusal.OUT_OF_ORDER


def test_the_callers_array_may_be_used_again():
    own = np.full(4, 0.25, dtype=np.float32)
    kept = DEVICE.kept(own)
    own[:] = np.nan
    assert kept.numbers.tolist() == [0.25] * 4
    assert "0.25" not in repr(kept)
    assert str(WEIGHT) not in repr(kept)
