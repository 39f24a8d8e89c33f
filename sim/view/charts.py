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
from deltafl.sim.view.series import Curve, Pairs, Spread
from deltafl.sim.view.wire import Steps

WIDTH: Final = 400
HEIGHT: Final = 236
LEFT: Final = 50
RIGHT: Final = 390
TOP: Final = 26
BOTTOM: Final = 192

MOST_DOTS: Final = 150
"""Pairs that are drawn one by one; of more devices, neighbours are drawn together."""

Write = Callable[[float | None], str]
"""How a value is written."""

_MOST_MARKERS: Final = 24
_MOST_COLUMNS: Final = 80
_MOST_OF_A_BAND: Final = 250  # points of each side
_LINE_WIDTH: Final = 2
_HUGE: Final = 1e12  # larger values cannot be measurements
_BINS_SHOWN: Final = 4  # marks on the axis of a distribution

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
    kept = [rounds[at] for at in _thinned(len(rounds))]
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


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of a distribution: how many devices have about this error at a round."""

    x: float
    y: float
    width: float
    height: float
    opacity: float
    text: str


@dataclass(frozen=True, slots=True)
class Heat:
    """How a distribution over devices moves, by round.

    Attributes:
        look: of its method.
        x_ticks: marks of the horizontal axis, which counts rounds.
        y_ticks: marks of the vertical axis, the test error.
        cells: the darker, the more devices.
        summary: what it shows, in words.
    """

    look: Look
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    cells: tuple[Cell, ...]
    summary: str


def heat(spread: Spread) -> Heat:
    """Draw how a distribution moves."""
    kept = _thinned(len(spread.rounds))
    rounds, shares = [spread.rounds[at] for at in kept], spread.shares[kept]
    x_axis = Axis(0, len(rounds), LEFT, RIGHT)
    bins = shares.shape[1]
    y_axis = Axis(0, bins, BOTTOM, TOP)
    most = float(shares.max())
    cells = [
        Cell(
            x_axis(column),
            y_axis(row + 1),
            round(x_axis(column + 1) - x_axis(column), 1),
            round(y_axis(row) - y_axis(row + 1), 1),
            round(float(shares[column, row]) / most, 3),
            f"round {number(rounds[column])}: {percent(float(shares[column, row]))} of the devices "
            f"have an error of {percent(row / bins)} to {percent((row + 1) / bins)}",
        )
        for column, row in itertools.product(range(len(rounds)), range(bins))
        if shares[column, row] > 0
    ]
    every = -(-len(rounds) // 8)
    shown = [at for at in range(0, len(rounds), every) if at == 0 or at + every <= len(rounds)]
    shown = sorted({*shown[:-1], len(rounds) - 1} if len(shown) > 1 else {*shown, len(rounds) - 1})
    middle = [0.5 * (x_axis(at) + x_axis(at + 1)) for at in shown]
    return Heat(
        look_of(spread.label, spread.number),
        tuple(Tick(x, number(rounds[at])) for x, at in zip(middle, shown, strict=True)),
        tuple(
            Tick(y_axis(at * bins / _BINS_SHOWN), percent(at / _BINS_SHOWN))
            for at in range(_BINS_SHOWN + 1)
        ),
        tuple(cells),
        f"{spread.label}: test errors of the devices from round {number(rounds[0])} to "
        f"{number(rounds[-1])}",
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """A device, or neighbours, under two methods."""

    x: float
    theirs: float
    ours: float
    style: str
    text: str


@dataclass(frozen=True, slots=True)
class PairChart:
    """Who is helped and who is hurt by a method, against another.

    Attributes:
        look: of the method.
        baseline: how the other is drawn.
        y_ticks: marks of the vertical axis, the test error.
        pairs: from left to right, the devices that the baseline serves best first.
        helped: how many devices have a lower error.
        hurt: how many have a higher one.
        same: how many have the same.
        worst: the mean change of the tenth that the baseline serves worst, as a share.
        together: of how many devices one pair is the mean.
        round: of which round the models are.
        seeds: over how many seeds errors are averaged.
        summary: what it shows, in words.
    """

    look: Look
    baseline: Look
    y_ticks: tuple[Tick, ...]
    pairs: tuple[Pair, ...]
    helped: int
    hurt: int
    same: int
    worst: float
    together: int
    round: int
    seeds: int
    summary: str


def pair_chart(found: Pairs, number_: int, baseline: int) -> PairChart:
    """Draw pairs.

    Args:
        found: what to draw.
        number_: of the method on its page.
        baseline: of the baseline.
    """
    size = len(found.devices)
    together = -(-size // MOST_DOTS)
    groups = [range(at, min(at + together, size)) for at in range(0, size, together)]
    x_axis = Axis(-0.5, len(groups) - 0.5, LEFT, RIGHT)
    marks = steps(0.0, max(float(found.ours.max()), float(found.theirs.max())))
    y_axis = Axis(marks[0][0], marks[-1][0], BOTTOM, TOP)
    drawn = []
    for place, group in enumerate(groups):
        ours, theirs = float(found.ours[group].mean()), float(found.theirs[group].mean())
        name = found.devices[group[0]] if together == 1 else f"{len(group)} devices"
        change = "helped" if ours < theirs else "hurt" if ours > theirs else "same"
        drawn.append(
            Pair(
                x_axis(place),
                y_axis(theirs),
                y_axis(ours),
                change,
                f"{name}: {percent(theirs)} under {found.baseline}, {percent(ours)} under "
                f"{found.method}",
            )
        )
    tenth = max(1, size // 10)
    worst = float((found.ours - found.theirs)[-tenth:].mean())
    same = size - found.helped - found.hurt
    return PairChart(
        look_of(found.method, number_),
        look_of(found.baseline, baseline),
        tuple(Tick(y_axis(at), percent(at)) for at, _ in marks),
        tuple(drawn),
        found.helped,
        found.hurt,
        same,
        worst,
        together,
        found.round,
        found.seeds,
        f"Of {size} devices, {found.method} helps {found.helped}, hurts {found.hurt} and leaves "
        f"{same} as they are, against {found.baseline}",
    )


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
    return [pivots[at] for at in _thinned(len(pivots))]


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
        few = _thinned(len(curve.rounds), _MOST_OF_A_BAND)
        sides = zip(place(curve.low, few), place(curve.high, few), strict=True)
        bands = tuple(
            path_of([*low, *reversed(high)], width) + "Z" for low, high in sides if len(low) > 1
        )
    points = [point for piece in mean for point in piece]
    dots = tuple(points[at] for at in _thinned(len(points), _MOST_MARKERS))
    path = " ".join(path_of(piece, width) for piece in mean)
    return Line(look_of(curve.label, curve.number), path, bands, dots)


def _thinned(size: int, most: int = _MOST_COLUMNS) -> list[int]:
    """Indices spread evenly over a sequence, the first and the last among them."""
    return sorted({round(at) for at in np.linspace(0, size - 1, min(size, most)).tolist()})


def _columns(
    at: Sequence[float], head: Sequence[str], table: Sequence[Sequence[str]]
) -> tuple[Column, ...]:
    """Strips around the places of rows, each with what its row says."""
    kept = _thinned(len(at))
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
