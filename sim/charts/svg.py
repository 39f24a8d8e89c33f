"""Charts as SVG for pages: coloured by the page's style sheet, in light, in dark and on paper.

Texts are of others: what is put into a piece of SVG is escaped, and what is invisible is spelt out.
Lengths are in units of the charts' own. It is well-formed XML as well as HTML.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from markupsafe import Markup

from deltafl.sim.charts.chart import (
    COLOURS,
    Chart,
    Curve,
    Distribution,
    LineStyle,
    Pairs,
    fits,
    round_ticks,
    thinned,
)
from deltafl.sim.visible import visible
from deltafl.sim.writing import number, percent, quantity

WIDTH: Final = 400
HEIGHT: Final = 236
LEFT: Final = 50
RIGHT: Final = 390
TOP: Final = 26
BOTTOM: Final = 192

_MOST_TICKS: Final = 5
_MOST_MARKERS: Final = 24
_MOST_POINTS: Final = 600  # of a line
_MOST_OF_A_BAND: Final = 250  # points of each side
_LINE_WIDTH: Final = 2
_LETTERS: Final = 24  # that fit below an axis

_DISC: Final = "M-3 0A3 3 0 1 0 3 0A3 3 0 1 0 -3 0Z"
_TRIANGLE: Final = "M0 -3.4L3.2 2.6H-3.2Z"
_MARKERS: Final = {
    "o": _DISC,
    "s": "M-2.7 -2.7H2.7V2.7H-2.7Z",
    "^": _TRIANGLE,
    "D": "M0 -3.7L3.7 0L0 3.7L-3.7 0Z",
    "v": "M0 3.4L3.2 -2.6H-3.2Z",
    "P": "M-1.2 -3.4H1.2V-1.2H3.4V1.2H1.2V3.4H-1.2V1.2H-3.4V-1.2H-1.2Z",
    "X": "M-3.2 -2L-2 -3.2L0 -1.2L2 -3.2L3.2 -2L1.2 0L3.2 2L2 3.2L0 1.2L-2 3.2L-3.2 2L-1.2 0Z",
    "<": "M-3.4 0L2.6 -3.2V3.2Z",
    ">": "M3.4 0L-2.6 -3.2V3.2Z",
}

Point = tuple[float, float]
Mark = tuple[float, str]
"""A value on an axis, and what is written there."""


class Svg(Markup):
    """A piece of SVG; `format` and `join` escape what they put in."""

    @classmethod
    def escape(cls, s: object, /) -> "Svg":
        """The text of something; markup stays as it is."""
        return super().escape(s if hasattr(s, "__html__") else visible(str(s)))


@dataclass(frozen=True, slots=True)
class Axis:
    """The linear map of [low, high] onto [start, end]; of a single value to the middle."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The coordinate of a value, to a tenth."""
        if self.low == self.high:
            return (self.start + self.end) / 2
        part = (value - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 1)


def line_chart(chart: Chart) -> Svg:
    """Draw curves; there must be a value to draw."""
    first, last = chart.span
    low, high = min(chart.values), max(chart.values)
    marks = _steps(min(0.0, low) if chart.from_zero else low, high)
    if chart.write is percent:
        marks = [(at, percent(at)) for at, _ in marks]
    x_axis = Axis(first, last, LEFT, RIGHT)
    y_axis = Axis(marks[0][0], marks[-1][0], BOTTOM, TOP)
    lines = [_line(one, x_axis, y_axis) for one in chart.curves]
    return _frame(
        f"{chart.title}. {chart.summary}.",
        _y_marks(marks, y_axis, chart.unit),
        _x_marks([(at, number(at)) for at in round_ticks(first, last)], x_axis),
        *(bands for bands, _ in lines),
        *(line for _, line in lines),
        *_columns(chart, x_axis),
    )


def distribution_chart(one: Distribution) -> Svg:
    """Draw how a distribution moves: each column is a round; the stronger, the more devices."""
    kept = thinned(len(one.rounds))
    rounds, shares = [one.rounds[at] for at in kept], one.shares[kept]
    bins, most = shares.shape[1], float(shares.max())
    x_axis, y_axis = Axis(0, len(rounds), LEFT, RIGHT), Axis(0, bins, BOTTOM, TOP)
    named = thinned(len(rounds), 8)
    cell = Svg(
        '<rect class="cell s{}" x="{}" y="{}" width="{:.1f}" height="{:.1f}" '
        'fill-opacity="{:.3f}"><title>{}</title></rect>'
    )
    cells = (
        cell.format(
            one.number % len(COLOURS),
            x_axis(column),
            y_axis(row + 1),
            x_axis(column + 1) - x_axis(column),
            y_axis(row) - y_axis(row + 1),
            share / most,
            f"round {number(rounds[column])}: {percent(share)} of the devices have an error of "
            f"{percent(row / bins)} to {percent((row + 1) / bins)}",
        )
        for column, of_round in enumerate(shares.tolist())
        for row, share in enumerate(of_round)
        if share > 0
    )
    return _frame(
        f"{one.summary}.",
        _y_marks([(bins * at / 4, percent(at / 4)) for at in range(5)], y_axis, "test error"),
        _x_marks([(at + 0.5, number(rounds[at])) for at in named], x_axis),
        *cells,
    )


def pair_chart(found: Pairs) -> Svg:
    """Draw pairs from left to right, by rank."""
    marks = _steps(0.0, float(found.ranked.max()))
    drawn = found.drawn
    x_axis = Axis(-0.5, len(drawn) - 0.5, LEFT, RIGHT)
    y_axis = Axis(marks[0][0], marks[-1][0], BOTTOM, TOP)
    baseline = found.baseline
    short = baseline if len(baseline) <= _LETTERS else baseline[: _LETTERS - 1] + "…"
    return _frame(
        f"{found.summary}.",
        _y_marks([(at, percent(at)) for at, _ in marks], y_axis, "test error"),
        _text(LEFT, BOTTOM + 18, f"served best by {short}, in other seeds", "start"),
        _text(RIGHT, BOTTOM + 34, "served worst", "end"),
        *(_pair(found, *one, x_axis(place), y_axis) for place, one in enumerate(drawn)),
    )


def swatch(at: int) -> Svg:
    """How the line of this number looks, as a piece of a legend."""
    drawn = Svg(
        '<svg class="swatch" aria-hidden="true" viewBox="0 0 40 12"><line class="series s{0}" '
        'stroke-dasharray="{1}" x1="1" y1="6" x2="39" y2="6"/>'
        '<path class="dot s{0}" transform="translate(20 6)" d="{2}"/></svg>'
    )
    return drawn.format(at % len(COLOURS), dashes(at), _MARKERS[LineStyle(at).marker])


def dashes(at: int) -> str:
    """The pattern of the line of this number, as SVG's stroke-dasharray."""
    return " ".join(f"{_LINE_WIDTH * one:g}" for one in LineStyle(at).dashes) or "none"


def path_of(points: Sequence[Point]) -> str:
    """A line in the syntax of SVG's path element.

    A line of very many points is thinned without a visible change: of each narrow column, the
    lowest and the highest point stay.
    """
    if len(points) > _MOST_POINTS:
        columns = itertools.groupby(points, lambda one: int(_MOST_POINTS / 2 * one[0] / WIDTH))
        ends = ([min(of, key=_y), max(of, key=_y)] for of in (list(of) for _, of in columns))
        points = [point for pair in ends for point in sorted(set(pair))]
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _y(point: Point) -> float:
    return point[1]


def _frame(summary: str, *parts: Svg) -> Svg:
    """A chart of these parts, with what it shows in words."""
    return Svg(
        '<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}">\n{}\n</svg>'
    ).format(summary, WIDTH, HEIGHT, Svg("\n").join(parts))


def _text(x: float, y: float, text: str, anchor: str) -> Svg:
    return Svg('<text class="quiet" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        x, y, anchor, text
    )


def _y_marks(marks: Sequence[Mark], axis: Axis, unit: str) -> Svg:
    """The vertical axis, and its lines across the chart."""
    line = Svg('<line class="{0}" x1="{1}" y1="{3}" x2="{2}" y2="{3}"/>')
    parts = [_text(4, 14, unit, "start")]
    for at, text in marks:
        parts += [
            line.format("grid", LEFT, RIGHT, axis(at)),
            _text(LEFT - 7, axis(at) + 4, text, "end"),
        ]
    return Svg("").join([*parts, line.format("axis", LEFT, RIGHT, BOTTOM)])


def _x_marks(marks: Iterable[Mark], axis: Axis) -> Svg:
    """The horizontal axis, of rounds."""
    line = Svg('<line class="axis" x1="{0}" y1="{1}" x2="{0}" y2="{2}"/>')
    parts = [_text(RIGHT, HEIGHT - 6, "round", "end")]
    for at, text in marks:
        x = axis(at)
        parts += [line.format(x, BOTTOM, BOTTOM + 4), _text(x, BOTTOM + 18, text, "middle")]
    return Svg("").join(parts)


def _line(curve: Curve, x_axis: Axis, y_axis: Axis) -> tuple[Svg, Svg]:
    """The band of a curve, and its line with markers; both with gaps where values have no place."""
    known = [all(map(fits, of)) for of in zip(curve.low, curve.mean, curve.high, strict=True)]

    def pieces(values: Sequence[float | None], at: Iterable[int]) -> list[list[Point]]:
        return [
            [(x_axis(curve.rounds[one]), y_axis(cast("float", values[one]))) for one in piece]
            for is_known, piece in itertools.groupby(at, known.__getitem__)
            if is_known
        ]

    style = f"s{curve.number % len(COLOURS)}"
    bands = []
    if curve.has_range:
        few = thinned(len(curve.rounds), _MOST_OF_A_BAND)
        for low, high in zip(pieces(curve.low, few), pieces(curve.high, few), strict=True):
            if len(low) > 1:
                outline = path_of([*low, *reversed(high)])
                bands.append(Svg('<path class="band {}" d="{}Z"/>').format(style, outline))
    mean = pieces(curve.mean, range(len(curve.rounds)))
    points = [point for piece in mean for point in piece]
    marked = [points[at] for at in thinned(len(points), _MOST_MARKERS)]
    alone = [piece[0] for piece in mean if len(piece) == 1][:_MOST_MARKERS]
    line = Svg('<path class="series {}" stroke-dasharray="{}" d="{}"/>').format(
        style, dashes(curve.number), " ".join(map(path_of, mean))
    )
    marker = Svg('<path class="dot {}" transform="translate({} {})" d="{}"/>')
    shape = _MARKERS[LineStyle(curve.number).marker]
    markers = (marker.format(style, *at, shape) for at in dict.fromkeys([*marked, *alone]))
    return Svg("").join(bands), Svg("").join([line, *markers])


def _columns(chart: Chart, axis: Axis) -> Iterable[Svg]:
    """Strips that a pointer may rest on, around the rounds of its table; each says its row."""
    rows = chart.rows()
    places = [axis(at) for at, _ in rows]
    edges = [LEFT, *((a + b) / 2 for a, b in itertools.pairwise(places)), RIGHT]
    strip = Svg(
        '<rect class="hit" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>'
    )
    for (_, row), (left, right) in zip(rows, itertools.pairwise(edges), strict=True):
        told = "\n".join(f"{name} {text}" for name, text in zip(chart.head, row, strict=True))
        yield strip.format(left, TOP, right - left, BOTTOM - TOP, told)


def _pair(found: Pairs, name: str, ours: float, theirs: float, x: float, axis: Axis) -> Svg:
    """A device, or some neighbours: what they had under the baseline, and what they have."""
    change = "helped" if ours < theirs else "hurt" if ours > theirs else "same"
    return Svg(
        '<g class="pair {}"><title>{}</title><line x1="{x}" y1="{theirs}" x2="{x}" y2="{ours}"/>'
        '<circle class="before" cx="{x}" cy="{theirs}" r="2.4"/>'
        '<path class="after" transform="translate({x} {ours})" d="{shape}"/></g>'
    ).format(
        change,
        f"{name}: {percent(theirs)} under {found.baseline}, {percent(ours)} under {found.method}",
        x=x,
        theirs=axis(theirs),
        ours=axis(ours),
        shape=_TRIANGLE if change == "hurt" else _DISC,
    )


def _steps(low: float, high: float) -> list[Mark]:
    """Multiples of 1, 2 or 5 times a power of ten around an interval; at least two."""
    width = (high - low) / _MOST_TICKS or 1.0
    decade = 10.0 ** math.floor(math.log10(width))
    step = next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= width)
    first = math.floor(low / step)
    last = max(first + 1, math.ceil(high / step))
    return [(step * i, quantity(step * i)) for i in range(first, last + 1)]
