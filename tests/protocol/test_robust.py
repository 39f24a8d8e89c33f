"""How much a device counts by its distance from a centre, and what centres there are."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from deltafl.protocol.robust import FACTOR_BITS, LEAST_FACTOR, Centre, factor

WHOLE = 2**FACTOR_BITS
numbers = st.floats(-4, 4, width=32)
vectors = arrays(np.float32, 5, elements=numbers)
smoothings = st.floats(1e-6, 1e3)
dyadic = arrays(np.int64, 5, elements=st.integers(-(2**10), 2**10)).map(
    lambda whole: (whole / 2**8).astype(np.float32)
)


@given(vectors, vectors, smoothings)
def test_it_is_the_share_of_the_smoothing_in_the_distance_within_its_limits(update, centre, nu):
    """The exact distance lies within 2^-40 of the one of float64, which may move a half by one."""
    squared = sum(
        (Fraction(float(u)) - Fraction(float(v))) ** 2 for u, v in zip(update, centre, strict=True)
    )
    exact = WHOLE * nu / max(nu, math.sqrt(squared))
    found = factor(update, centre, nu)
    assert type(found) is int
    assert abs(found - min(max(exact, LEAST_FACTOR), WHOLE)) <= 0.5 + 1e-9
    assert LEAST_FACTOR <= found <= WHOLE


@given(vectors, vectors, vectors, smoothings)
def test_who_is_farther_away_counts_no_more(one, other, centre, nu):
    near, far = sorted(
        (one, other), key=lambda update: float(np.sum((update.astype(float) - centre) ** 2))
    )
    assert factor(far, centre, nu) <= factor(near, centre, nu)


@given(dyadic, dyadic, dyadic, smoothings)
def test_it_depends_on_the_difference_alone(update, centre, shift, nu):
    assert factor(update + shift, centre + shift, nu) == factor(update, centre, nu)


@given(vectors, vectors, st.integers(-20, 20))
def test_it_has_no_unit(update, centre, power):
    scale = np.float32(2.0**power)
    assume(np.all((np.abs(update) > 1e-20) | (update == 0)))
    assume(np.all((np.abs(centre) > 1e-20) | (centre == 0)))
    assert factor(scale * update, scale * centre, 2.0**power) == factor(update, centre, 1.0)


@pytest.mark.parametrize("nu", [5e-324, 1e-300, 1.0, 1e300, 1.7e308])
@pytest.mark.parametrize("far", [0.0, 1.0, 3e38, 1e300])
def test_extremes_do_not_overflow(nu, far):
    """Distances up to 2·10^300·√2, whose squares are beyond a float64."""
    update = np.array([far, far])
    found = factor(update, -update, nu)
    assert LEAST_FACTOR <= found <= WHOLE
    assert found == (WHOLE if 2 * math.sqrt(2) * far <= nu and far < 1e150 else found)


def test_nobody_vanishes_and_nobody_counts_more_than_in_full():
    zeros = np.zeros(3, dtype=np.float32)
    assert factor(zeros, zeros, 1e-3) == WHOLE
    assert factor(zeros + 1, zeros, 1e-9) == LEAST_FACTOR == 1


@given(arrays(np.float64, 4, elements=st.floats(-5, 5)), st.floats(1e-30, 4))
def test_a_centre_is_a_mean_that_devices_accept(mean, clip):
    centre = Centre.of(mean, clip)
    assert centre.size == 4 * len(mean)
    assert centre.canonical() == centre.numbers
    vector = centre.vector()
    assert vector.dtype == np.float32
    assert np.all(np.abs(vector.astype(float)) <= clip)
    inside = np.abs(mean) < clip * (1 - 2**-22)
    assert np.array_equal(vector[inside], mean[inside].astype(np.float32))


@pytest.mark.parametrize("clip", [0.1, 4.0, 1e300])
def test_the_largest_centre_is_as_near_to_the_clip_as_its_numbers_allow(clip):
    """float32(0.1) is above 0.1, and 1e300 above every float32."""
    (largest,) = Centre.of(np.array([1e308]), clip).vector()
    assert float(largest) <= clip
    with np.errstate(over="ignore"):
        assert float(np.nextafter(largest, np.float32(np.inf))) > min(clip, 3.5e38)


def test_centres_are_compared_by_their_bytes():
    assert Centre(bytes(4)) == Centre.of(np.zeros(1), 1.0)
    assert Centre(bytes(4)) != Centre.of(np.array([-0.0]), 1.0)
    with pytest.raises(ValueError, match="multiple of element size"):
        Centre(b"abc").vector()
