"""Charts as coordinates that templates draw as SVG; lengths are in units of the charts' own.

The axes are those of the audit's page. Colours come from the style sheet, so that a chart suits
light, dark and paper; dashes and markers are those of the figures (`deltafl.sim.run.strokes`).
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from deltafl.sim.inspect.audit.html.axes import (
    Axis,
    Point,
    Tick,
    path_of,
    pieces_of,
    steps,
    ticks_of_rounds,
)
from deltafl.sim.inspect.audit.html.writing import number, quantity
from deltafl.sim.run.strokes import COLOURS, Stroke
from deltafl.sim.view.series import Curve
from deltafl.sim.view.wire import Steps

WIDTH: Final = 400
HEIGHT: Final = 236
LEFT: Final = 50
RIGHT: Final = 390
TOP: Final = 26
BOTTOM: Final = 192

Write = Callable[[float | None], str]
"""How a value is written."""

_MOST_MARKERS: Final = 24
_MOST_COLUMNS: Final = 80
_MOST_OF_A_BAND: Final = 250  # points of each side
_LINE_WIDTH: Final = 2
_HUGE: Final = 1e12  # larger values cannot be measurements

_MARKERS: Final = {
    "o": "M-3 0A3 3 0 1 0 3 0A3 3 0 1 0 -3 0Z",
    "s": "M-2.7 -2.7H2.7V2.7H-2.7Z",
    "^": "M0 -3.4L3.2 2.6H-3.2Z",
    "D": "M0 -3.7L3.7 0L0 3.7L-3.7 0Z",
    "v": "M0 3.4L3.2 -2.6H-3.2Z",
    "P": "M-1.2 -3.4H1.2V-1.2H3.4V1.2H1.2V3.4H-1.2V1.2H-3.4V-1.2H-1.2Z",
    "X": "M-3.2 -2L-2 -3.2L0 -1.2L2 -3.2L3.2 -2L1.2 0L3.2 2L2 3.2L0 1.2L-2 3.2L-3.2 2L-1.2 0Z",
    "<": "M-3.4 0L2.6 -3.2V3.2Z",
    ">": "M3.4 0L-2.6 -3.2V3.2Z",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn.

    Attributes:
        label: what it is called.
        style: the class of the style sheet that has its colour.
        dashes: the pattern of its line, as SVG's stroke-dasharray; "none" for a solid one.
        marker: the path of its marker, around the origin.
    """

    label: str
    style: str
    dashes: str
    marker: str


def look_of(label: str, number_: int) -> Look:
    """How the method with this number on its page is drawn."""
    stroke = Stroke(number_)
    dashes = " ".join(f"{_LINE_WIDTH * one:g}" for one in stroke.dashes) or "none"
    return Look(label, f"s{number_ % len(COLOURS)}", dashes, _MARKERS[stroke.marker])


@dataclass(frozen=True, slots=True)
class Line:
    """One series with the range of its seeds.

    Attributes:
        look: how it is drawn.
        path: the line, in the syntax of SVG's path element.
        bands: outlines of the range over seeds; empty with one seed.
        dots: where markers are.
    """

    look: Look
    path: str
    bands: tuple[str, ...]
    dots: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A vertical strip that a pointer may rest on.

    Attributes:
        x: its left edge.
        width: its width.
        text: what is there, line by line.
    """

    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over rounds.

    Attributes:
        title: what it shows.
        unit: of the vertical axis.
        across: what the horizontal axis counts.
        x_ticks: marks of the horizontal axis.
        y_ticks: marks of the vertical axis.
        lines: the series.
        columns: strips that say the values under the pointer.
        summary: what it shows, in words.
        head: the head of its table.
        rows: the rows of its table: a round, and a text for each series.
    """

    title: str
    unit: str
    across: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    columns: tuple[Column, ...]
    summary: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def line_chart(
    title: str,
    unit: str,
    curves: Sequence[Curve],
    *,
    is_share: bool = False,
    from_zero: bool = True,
) -> Chart | None:
    """Draw curves over rounds; None if there is nothing to draw.

    Args:
        title: what they show.
        unit: of the values.
        curves: the series.
        is_share: whether values are shares, which are written in percent.
        from_zero: whether the vertical axis includes zero.
    """
    ends = [
        value
        for one in curves
        for value in (*one.low, *one.high)
        if value is not None and abs(value) < _HUGE
    ]
    if not ends:
        return None
    first, last = min(one.rounds[0] for one in curves), max(one.rounds[-1] for one in curves)
    least = min(0.0, *ends) if from_zero else min(ends)
    marks = steps(least, max(ends))
    x_axis = Axis(first, last, LEFT, RIGHT)
    y_axis = Axis(marks[0][0], marks[-1][0], BOTTOM, TOP)
    write = percent if is_share else quantity
    rounds = sorted({at for one in curves for at in one.rounds})
    kept = [rounds[at] for at in thinned(len(rounds))]
    places = [{at: place for place, at in enumerate(one.rounds)} for one in curves]
    table = [
        (
            number(at),
            *(_told(one, known.get(at), write) for one, known in zip(curves, places, strict=True)),
        )
        for at in kept
    ]
    head = ("round", *(one.label for one in curves))
    return Chart(
        title,
        unit,
        "round",
        tuple(Tick(x_axis(at), text) for at, text in ticks_of_rounds(first, last)),
        tuple(Tick(y_axis(at), percent(at) if is_share else text) for at, text in marks),
        tuple(_line(one, x_axis, y_axis) for one in curves),
        _columns([x_axis(at) for at in kept], head, table),
        "; ".join(_summary(one, write) for one in curves),
        head,
        tuple(table),
    )


def percent(value: float | None) -> str:
    """A share in percent.

    >>> percent(0.125), percent(1.0), percent(None)
    ('12.5 %', '100 %', '—')
    """
    return quantity(None) if value is None else f"{100 * value:.1f}".removesuffix(".0") + " %"


def search_chart(search: Steps) -> Chart:
    """Draw the questions of one search: at which losses each asks, question by question."""
    first, last = 1, len(search.pivots)
    losses = [pivot for pivots in search.pivots for pivot in pivots]
    marks = steps(min(losses), max(losses))
    x_axis = Axis(first, last, LEFT, RIGHT)
    y_axis = Axis(marks[0][0], marks[-1][0], BOTTOM, TOP)
    dots = tuple(
        (x_axis(at), y_axis(pivot))
        for at, pivots in enumerate(search.pivots, first)
        for pivot in _thin_pivots(pivots)
    )
    middle = [pivots[len(pivots) // 2] for pivots in search.pivots]
    line = path_of(
        [(x_axis(at), y_axis(one)) for at, one in enumerate(middle, first)], RIGHT - LEFT
    )
    table = [(number(at), _asked(pivots)) for at, pivots in enumerate(search.pivots, first)]
    head = ("question", "is the loss below, in nats")
    return Chart(
        f"The search of round {number(search.round)}, question by question",
        "nats",
        "question",
        tuple(Tick(x_axis(at), text) for at, text in ticks_of_rounds(first, last)),
        tuple(Tick(y_axis(at), text) for at, text in marks),
        (Line(look_of("asked", 0), line, (), dots),),
        _columns([x_axis(at) for at in range(first, last + 1)], head, table),
        f"{last} questions, from {_asked(search.pivots[0])} to {_asked(search.pivots[-1])} nats",
        head,
        tuple(table),
    )


def _asked(pivots: Sequence[float]) -> str:
    if len(pivots) == 1:
        return f"{pivots[0]:.4f}"
    return f"{len(pivots)} losses from {pivots[0]:.4f} to {pivots[-1]:.4f}"


def _thin_pivots(pivots: Sequence[float]) -> Sequence[float]:
    return [pivots[at] for at in thinned(len(pivots))]


def _line(curve: Curve, x_axis: Axis, y_axis: Axis) -> Line:
    fits = [
        all(value is not None and abs(value) < _HUGE for value in values)
        for values in zip(curve.low, curve.mean, curve.high, strict=True)
    ]

    def place(values: Sequence[float | None], at: Sequence[int]) -> list[list[Point]]:
        known = [values[one] if fits[one] else None for one in at]
        return [
            [(x_axis(x), y_axis(value)) for x, value in piece]
            for piece in pieces_of([curve.rounds[one] for one in at], known)
        ]

    width = RIGHT - LEFT
    mean = place(curve.mean, range(len(curve.rounds)))
    bands: tuple[str, ...] = ()
    if curve.has_range:
        few = thinned(len(curve.rounds), _MOST_OF_A_BAND)
        sides = zip(place(curve.low, few), place(curve.high, few), strict=True)
        bands = tuple(
            path_of([*low, *reversed(high)], width) + "Z" for low, high in sides if len(low) > 1
        )
    points = [point for piece in mean for point in piece]
    dots = tuple(points[at] for at in thinned(len(points), _MOST_MARKERS))
    path = " ".join(path_of(piece, width) for piece in mean)
    return Line(look_of(curve.label, curve.number), path, bands, dots)


def thinned(size: int, most: int = _MOST_COLUMNS) -> list[int]:
    """Indices spread evenly over a sequence, the first and the last among them."""
    return sorted({round(at) for at in np.linspace(0, size - 1, min(size, most)).tolist()})


def _columns(
    at: Sequence[float], head: Sequence[str], table: Sequence[Sequence[str]]
) -> tuple[Column, ...]:
    """Strips around the places of rows, each with what its row says."""
    kept = thinned(len(at))
    places = [at[one] for one in kept]
    edges = [LEFT, *((a + b) / 2 for a, b in itertools.pairwise(places)), RIGHT]
    return tuple(
        Column(
            round(left, 1),
            round(right - left, 1),
            "\n".join(f"{name} {text}" for name, text in zip(head, table[row], strict=True)),
        )
        for row, (left, right) in zip(kept, itertools.pairwise(edges), strict=True)
    )


def _told(one: Curve, place: int | None, write: Write) -> str:
    """What a curve says of a round: its mean, and the range where there are several seeds."""
    if place is None:
        return quantity(None)
    text = write(one.mean[place])
    if one.has_range:
        text += f" ({write(one.low[place])} to {write(one.high[place])})"
    return text


def _summary(one: Curve, write: Write) -> str:
    return (
        f"{one.label}: {write(one.mean[0])} at round {number(one.rounds[0])}, "
        f"{write(one.mean[-1])} at round {number(one.rounds[-1])}"
    )
