"""Charts stay within their frame, whatever the values; methods are told apart."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.sim.view import charts, device_charts
from deltafl.sim.view.series import Curve, Pairs, Spread
from deltafl.sim.view.wire import Steps


def numbers(path):
    found = [float(one) for one in re.findall(r"-?[\d.]+(?:e[-+]?\d+)?", path)]
    return list(zip(found[::2], found[1::2], strict=True))


def is_within(points):
    return all(
        charts.LEFT <= x <= charts.RIGHT and charts.TOP <= y <= charts.BOTTOM for x, y in points
    )


VALUES = st.floats(allow_nan=False) | st.floats(0, 10) | st.just(1e99)


@given(st.lists(VALUES, min_size=1, max_size=300), st.booleans(), st.booleans())
def test_lines_and_bands_stay_within_their_frame(values, is_share, from_zero):
    middle, top = tuple(values), tuple(value + abs(value) for value in values)
    one = Curve("m", 0, tuple(range(5, 5 + len(values))), middle, middle, top, has_range=True)
    drawn = charts.line_chart("t", "u", [one], is_share=is_share, from_zero=from_zero)
    if drawn is None:
        assert not any(abs(value) < 1e12 for value in (*middle, *top))
        return
    (line,) = drawn.lines
    assert is_within(numbers(line.path))
    assert is_within(line.dots)
    for band in line.bands:
        assert is_within(numbers(band))
    assert 2 <= len(drawn.y_ticks) <= 12
    assert 1 <= len(drawn.x_ticks) <= 10
    assert sum(column.width for column in drawn.columns) == pytest.approx(
        charts.RIGHT - charts.LEFT, abs=0.1 * len(drawn.columns) + 0.1
    )


def test_a_chart_says_each_value_and_marks_the_last_round():
    one = Curve("m", 0, (0, 64), (0.5, 0.25), (0.4, 0.2), (0.6, 0.3), has_range=True)
    drawn = charts.line_chart("t", "u", [one], is_share=True)
    assert drawn.rows == (("0", "50 % (40 % to 60 %)"), ("64", "25 % (20 % to 30 %)"))
    assert drawn.columns[1].text == "round 64\nm 25 % (20 % to 30 %)"
    assert [tick.text for tick in drawn.x_ticks] == ["0", "20", "40", "64"]
    assert "m: 50 % at round 0, 25 % at round 64" in drawn.summary


def test_nothing_is_no_chart():
    assert charts.line_chart("t", "u", []) is None


def test_a_hundred_methods_look_different_in_pairs_of_neighbours_and_the_first_56_all_do():
    looks = [charts.look_of("m", number) for number in range(56)]
    assert len({(one.style, one.dashes) for one in looks}) == 56
    assert len({one.dashes for one in looks[:8]}) == 8  # in grey, and without markers
    assert len({one.marker for one in looks[:9]}) == 9


@given(st.integers(1, 300), st.integers(1, 20))
def test_cells_of_a_distribution_stay_within_their_frame(rounds, bins):
    shares = np.random.default_rng(rounds).dirichlet(np.ones(bins), rounds)
    drawn = device_charts.heat(Spread("m", 3, tuple(range(rounds)), shares))
    assert is_within([(one.x, one.y) for one in drawn.cells])
    assert is_within([(one.x + one.width - 0.2, one.y + one.height - 0.2) for one in drawn.cells])
    assert max(one.opacity for one in drawn.cells) == 1
    assert drawn.x_ticks[-1].text == f"{rounds - 1}"
    assert len(drawn.x_ticks) <= 10


def pairs_of(size):
    theirs = np.linspace(0, 1, size)
    ours = np.where(np.arange(size) % 3 == 0, theirs, np.where(theirs > 0.5, 0.4, 0.6))
    return Pairs("a", "b", tuple(f"d{n}" for n in range(size)), ours, theirs, 4, 2)


@pytest.mark.parametrize("size", [1, 7, device_charts.MOST_DOTS, device_charts.MOST_DOTS + 1, 3000])
def test_every_pair_is_drawn_alone_or_together_with_its_neighbours(size):
    found = pairs_of(size)
    drawn = device_charts.pair_chart(found, 0, 1)
    assert len(drawn.pairs) == -(-size // drawn.together) <= device_charts.MOST_DOTS
    assert drawn.helped + drawn.hurt + drawn.same == size
    assert is_within([(one.x, y) for one in drawn.pairs for y in (one.ours, one.theirs)])
    assert (drawn.pairs[0].text.startswith("d0:")) == (drawn.together == 1)


def test_who_is_helped_lies_lower_and_is_said_to_be():
    drawn = device_charts.pair_chart(pairs_of(30), 0, 1)
    styles = {"helped": -1, "hurt": 1, "same": 0}
    for one in drawn.pairs:
        # coordinates grow downwards
        assert np.sign(one.theirs - one.ours) == styles[one.style]
    assert drawn.worst < 0


def test_a_search_is_drawn_question_by_question():
    drawn = charts.search_chart(Steps(3, ((1.0,), (2.0, 3.0), (2.5,))))
    assert "round 3" in drawn.title
    (line,) = drawn.lines
    assert len(line.dots) == 4
    assert is_within(line.dots)
    assert drawn.rows[1] == ("2", "2 losses from 2.0000 to 3.0000")
