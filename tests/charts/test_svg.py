"""Charts of pages stay within their frame, whatever the values; methods are told apart."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import SCRIPT

from deltafl.sim.charts import svg
from deltafl.sim.charts.chart import (
    MOST_PAIRS,
    Chart,
    Curve,
    Distribution,
    LineStyle,
    Pairs,
    drawn,
    fits,
)
from deltafl.sim.writing import percent, quantity


def numbers(path):
    found = [float(one) for one in re.findall(r"-?[\d.]+(?:e[-+]?\d+)?", path)]
    return list(zip(found[::2], found[1::2], strict=True))


def is_within(points):
    return all(svg.LEFT <= x <= svg.RIGHT and svg.TOP <= y <= svg.BOTTOM for x, y in points)


def parts(text, name):
    """The elements of a class, each as its attributes, and what it says."""
    root = ElementTree.fromstring(text)  # noqa: S314 - our own
    return [
        {**dict(one.items()), "text": "".join(one.itertext())}
        for one in root.iter()
        if name in (one.get("class") or "").split()
    ]


def texts(text):
    return [one["text"] for one in parts(text, "quiet")]


def places(marks):
    """Where markers are."""
    return [numbers(one["transform"])[0] for one in marks]


VALUES = st.floats() | st.floats(0, 10) | st.just(1e99) | st.none()


@given(st.lists(VALUES, min_size=1, max_size=300), st.booleans(), st.booleans())
def test_lines_and_bands_stay_within_their_frame(values, is_share, from_zero):
    middle = tuple(values)
    top = tuple(None if value is None else value + abs(value) for value in values)
    one = Curve("m", 0, tuple(range(5, 5 + len(values))), middle, middle, top, has_range=True)
    chart = Chart("t", "u", [one], percent if is_share else quantity, from_zero)
    fitting = [value for value in (*middle, *top) if fits(value)]
    assert chart.values == pytest.approx([v for v in (*middle, *middle, *top) if fits(v)])
    assert (drawn(chart) == ()) == (not fitting)
    assert chart.left_out == len(values) - sum(map(fits, middle))
    if not fitting:
        return
    text = svg.line_chart(chart)
    for line in (*parts(text, "series"), *parts(text, "band")):
        assert is_within(numbers(line["d"]))
    assert is_within(places(parts(text, "dot")))
    marks = [one for one in parts(text, "quiet") if one["text"] not in ("round", "u")]
    assert 2 <= sum(one["text-anchor"] == "end" for one in marks) <= 12
    assert 1 <= sum(one["text-anchor"] == "middle" for one in marks) <= 10
    columns = parts(text, "hit")
    width = sum(float(one["width"]) for one in columns)
    assert width == pytest.approx(svg.RIGHT - svg.LEFT, abs=0.1 * len(columns) + 0.1)


def test_a_chart_says_each_value_and_marks_the_last_round():
    one = Curve("m", 0, (0, 64), (0.5, 0.25), (0.4, 0.2), (0.6, 0.3), has_range=True)
    chart = Chart("t", "u", [one], write=percent)
    rows = [row for _, row in chart.rows()]
    assert rows == [("0", "50 % (40 % to 60 %)"), ("64", "25 % (20 % to 30 %)")]
    text = svg.line_chart(chart)
    assert parts(text, "hit")[1]["text"] == "round 64\nm 25 % (20 % to 30 %)"
    assert texts(text)[-4:] == ["0", "20", "40", "64"]
    assert "m: 50 % at round 0, 25 % at round 64" in chart.summary


def test_a_value_between_gaps_has_a_marker():
    values = (1.0, None, 2.0, None) * 50
    one = Curve("m", 0, tuple(range(200)), values, values, values)
    marks = parts(svg.line_chart(Chart("t", "u", [one])), "dot")
    assert len(marks) >= 24


def test_a_long_line_keeps_its_peaks_when_it_is_thinned():
    values = [1.0] * 20_000
    values[12_345] = 9.0
    one = Curve("m", 0, tuple(range(1, 20_001)), *[tuple(values)] * 3)
    (line,) = parts(svg.line_chart(Chart("t", "u", [one])), "series")
    heights = [y for _, y in numbers(line["d"])]
    assert len(heights) < 1_000
    assert min(heights) == pytest.approx(svg.BOTTOM - 0.9 * (svg.BOTTOM - svg.TOP), abs=0.1)


def test_nothing_is_no_chart():
    assert drawn(Chart("t", "u", [])) == ()


def test_names_are_text_in_every_kind_of_chart():
    name = f"{SCRIPT}\u202e"
    one = Curve(name, 0, (1, 2), (1.0, 2.0), (1.0, 2.0), (1.0, 2.0))
    errors = np.array([0.1, 0.2])
    for text in (
        svg.line_chart(Chart(name, name, [one])),
        svg.distribution_chart(Distribution(name, 0, (1,), np.array([[0.5, 0.5]]))),
        svg.pair_chart(Pairs(name, name, errors, errors, np.array([errors] * 2), None, 1, 2)),
    ):
        assert "<script" not in text
        assert "<img" not in text
        assert "\u202e" not in text
        assert "&lt;script&gt;" in text
        ElementTree.fromstring(text)  # noqa: S314 - our own


def test_a_hundred_methods_look_different_in_pairs_of_neighbours_and_the_first_56_all_do():
    swatches = [svg.swatch(number) for number in range(56)]
    lines = [parts(one, "series")[0] for one in swatches]
    assert len({(one["class"], one["stroke-dasharray"]) for one in lines}) == 56
    assert len({svg.dashes(number) for number in range(8)}) == 8  # in grey, and without markers
    assert len({parts(one, "dot")[0]["d"] for one in swatches[:9]}) == 9
    assert len({LineStyle(number).marker for number in range(9)}) == 9


@pytest.mark.slow
@given(st.integers(1, 300), st.integers(1, 20))
def test_cells_of_a_distribution_stay_within_their_frame(rounds, bins):
    shares = np.random.default_rng(rounds).dirichlet(np.ones(bins), rounds)
    text = svg.distribution_chart(Distribution("m", 3, tuple(range(rounds)), shares))
    cells = [
        [float(one[key]) for key in ("x", "y", "width", "height", "fill-opacity")]
        for one in parts(text, "cell")
    ]
    assert is_within([(x, y) for x, y, *_ in cells])
    assert is_within([(x + width - 0.2, y + height - 0.2) for x, y, width, height, _ in cells])
    assert max(one[4] for one in cells) == 1
    across = [one["text"] for one in parts(text, "quiet") if one["text-anchor"] == "middle"]
    assert across[-1] == f"{rounds - 1}"
    assert len(across) <= 10


def pairs_of(size):
    theirs = np.linspace(0, 1, size)
    ours = np.where(np.arange(size) % 3 == 0, theirs, np.where(theirs > 0.5, 0.4, 0.6))
    return Pairs("a", "b", ours, theirs, np.array([ours, theirs]), None, 4, 2)


@pytest.mark.parametrize("size", [1, 7, MOST_PAIRS, MOST_PAIRS + 1, 3000])
def test_every_pair_is_drawn_alone_or_together_with_its_neighbours(size):
    found = pairs_of(size)
    text, together = svg.pair_chart(found), found.together
    drawn_pairs = parts(text, "pair")
    assert len(drawn_pairs) == -(-size // together) <= MOST_PAIRS
    assert found.helped + found.hurt + found.same == size
    assert is_within(places(parts(text, "after")))
    before = [(float(one["cx"]), float(one["cy"])) for one in parts(text, "before")]
    assert is_within(before)
    assert (drawn_pairs[0]["text"].startswith("rank 1:")) == (together == 1)


def test_who_is_helped_lies_lower_and_is_said_to_be():
    found = pairs_of(30)
    text = svg.pair_chart(found)
    signs = {"helped": -1, "hurt": 1, "same": 0}
    marks = zip(
        parts(text, "pair"), parts(text, "before"), places(parts(text, "after")), strict=True
    )
    for pair, before, (_, after) in marks:
        # coordinates grow downwards
        assert np.sign(float(before["cy"]) - after) == signs[pair["class"].split()[1]]
