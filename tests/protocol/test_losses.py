import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.losses import LossGrid


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.floats(-100, 100), st.integers(0, 20), st.integers(1, 64))
def test_a_tick_is_the_nearest_point_of_the_grid(loss, resolution_bits, bound):
    grid = LossGrid(resolution_bits, bound)
    tick, clipped = grid.tick(loss)
    exact = Fraction(loss) * 2**resolution_bits
    assert 0 <= tick <= grid.max_tick
    assert tick == min(max(round(exact), 0), grid.max_tick)
    assert clipped == (not 0 <= round(exact) <= grid.max_tick)
    assert Fraction(grid.value(tick)) == Fraction(tick, 2**resolution_bits)


@pytest.mark.parametrize("loss", [1e308, -1e308])
def test_huge_losses_are_clipped(loss):
    grid = LossGrid()
    assert grid.tick(loss) == (grid.max_tick if loss > 0 else 0, True)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_count_as_the_bound(loss):
    grid = LossGrid()
    assert grid.tick(loss) == (grid.max_tick, True)


def test_a_pivot_lies_half_a_tick_below_its_tick():
    grid = LossGrid(resolution_bits=16)
    pivot = 70_000
    position = grid.value(Fraction(2 * pivot - 1, 2))
    assert grid.value(pivot - 1) < position < grid.value(pivot)
    assert grid.value(pivot) - position == 2.0**-17


@pytest.mark.parametrize(
    ("resolution_bits", "bound", "message"),
    [(-1, 32, "resolution_bits=-1"), (16, 0, "bound=0"), (48, 16, "needs 53 bits")],
)
def test_grids_that_cannot_be_are_refused(resolution_bits, bound, message):
    with pytest.raises(ConfigurationError, match=message):
        LossGrid(resolution_bits, bound)
