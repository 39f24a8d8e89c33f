"""What a device contributes to the update, beside a twin that takes one number after the other."""

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.search import SearchParams
from deltafl.secagg.errors import EncodingError

CLIP = 0.1  # no number of 32 bits: the nearest one is above
WEIGHT = 7
BITS = 12

numbers = st.one_of(
    st.floats(-0.25, 0.25, width=32),
    st.sampled_from([np.float32(s * b) for s in (-1, 1) for b in (CLIP, 3e38, 1e-45)]),
    st.sampled_from([np.nextafter(np.float32(CLIP), np.float32(e)) for e in (0, 1)]),
)


def device(length):
    config = RoundConfig(
        round_index=0,
        cohort_size=8,
        theta=Fraction(1, 2),
        method="mm",
        search=SearchParams(max_queries=12, grid=LossGrid(resolution_bits=8, bound=8)),
        update=UpdateParams(clip=CLIP, resolution_bits=BITS, max_weight=512),
        update_length=length,
    )
    return DeviceRound.measured(config, 1.5, WEIGHT)


def plain(values):
    """The numerators of the weighted update, and how many numbers were clipped."""
    clipped = [max(-CLIP, min(float(value), CLIP)) for value in values]
    numerators = [round(Fraction(WEIGHT * value) * 2**BITS) for value in clipped]
    return numerators, sum(c != float(v) for c, v in zip(clipped, values, strict=True))


def decoded(own, values):
    layout = own.config.update_layout
    words = own.contribution(np.array(values, dtype=np.float32))
    assert words.dtype == (np.uint32 if layout.ring_bits <= 32 else np.uint64)
    return {name: sums.tolist() for name, sums in layout.decode(words).items()}


@pytest.mark.slow
@given(values=st.lists(numbers, min_size=1, max_size=6))
@example(values=[np.float32(CLIP), 0.0])
@settings(max_examples=150)
def test_the_contribution_is_the_plain_one(values):
    own = device(len(values))
    numerators, num_clipped = plain(values)
    sums = decoded(own, values)
    assert sums["update"] == numerators
    assert sums["clipped"] == [num_clipped]


def test_a_number_a_hair_beyond_the_clip_is_counted_and_one_within_is_not():
    within = np.nextafter(np.float32(CLIP), np.float32(0))
    assert float(within) < CLIP < float(np.float32(CLIP))
    own = device(2)
    for value, count in ((within, 0), (-within, 0), (np.float32(CLIP), 1), (-np.float32(CLIP), 1)):
        assert decoded(own, [0.0, value])["clipped"] == [count]


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(3))
def test_an_update_with_what_is_not_a_number_counts_as_zeros_all_of_them_clipped(strange, place):
    values = [0.05, 3e38, -0.05]
    values[place] = strange
    own = device(3)
    sums = decoded(own, values)
    assert sums["update"] == [0, 0, 0]
    assert sums["clipped"] == [3]
    zeros = decoded(own, [0.0, 0.0, 0.0])
    assert {name: sums[name] for name in sums if name != "clipped"} == {
        name: zeros[name] for name in zeros if name != "clipped"
    }


@pytest.mark.parametrize("shape", [(0,), (2,), (4,), (1, 3)])
def test_another_shape_is_refused(shape):
    with pytest.raises(EncodingError, match="shape"):
        device(3).contribution(np.zeros(shape, dtype=np.float32))
    with pytest.raises(EncodingError, match="shape"):
        device(3).contribution(np.full(shape, math.nan, dtype=np.float32))


def test_a_weight_is_refused_by_name_however_many_digits_it_has():
    config = device(4).config
    for weight in (-(10**5000), -1, 1.5, "3", None):
        with pytest.raises(EncodingError, match="is not a whole number, at least 0"):
            DeviceRound.measured(config, 1.0, weight)


def peak_of(work):
    """The most memory that some work holds at once, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_device_that_does_not_pass_needs_the_memory_of_one_that_does():
    """Where memory is short, both fail, so that the server does not learn who passed."""
    length = 100_000
    one, update = device(length), np.full(length, CLIP / 2, dtype=np.float32)
    one.contribution(update)  # at first, NumPy loads a part of itself
    passing, failing = (peak_of(lambda own=own: one.contribution(own)) for own in (update, None))
    made_for_it = update.nbytes  # the update itself, which the caller has
    assert abs(failing - made_for_it - passing) < 0.01 * passing
    assert not one.contribution(None).any()
