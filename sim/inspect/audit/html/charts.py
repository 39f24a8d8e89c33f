"""Line charts over rounds, as coordinates that the template draws.

They do not use matplotlib. This way, the page's style sheet colours them for light, dark and paper,
and their texts are escaped like all others. Lengths are in units of the charts' own coordinates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deltafl.sim.inspect.audit.html.axes import (
    Axis,
    Point,
    Tick,
    decades,
    path_of,
    pieces_of,
    steps,
    ticks_of_rounds,
)
from deltafl.sim.inspect.audit.html.writing import quantity

WIDTH: Final = 300
HEIGHT: Final = 202
LEFT: Final = 46
RIGHT: Final = 292
TOP: Final = 28
BOTTOM: Final = 160

_MOST_DOTS: Final = 60
_HUGE: Final = 1e12
"""Larger values cannot be measurements. They are left out, so that all arithmetic stays finite."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series.

    Attributes:
        label: What it is.
        path: The line, in the syntax of SVG's path element, with gaps where values are missing.
        dots: Its points, if they are few enough to be told apart.
    """

    label: str
    path: str
    dots: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.

    Attributes:
        title: What it shows.
        unit: The unit of its vertical axis.
        x_ticks: Marks of the horizontal axis, which counts rounds.
        y_ticks: Marks of the vertical axis.
        lines: Its series.
        left_out: Number of values that were not drawn: missing, infinite, or not above zero on
            a logarithmic axis.
        summary: What it shows in words.
        differs: Whether its values are not all the same; otherwise one number says as much.
    """

    title: str
    unit: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    left_out: int
    summary: str
    differs: bool


def chart(
    title: str,
    unit: str,
    rounds: Sequence[int],
    series: Mapping[str, Sequence[float | None]],
    *,
    logarithmic: bool = False,
) -> Chart | None:
    """Draw series over rounds; None if there is no value to draw.

    Args:
        title: What it shows.
        unit: The unit of the values.
        rounds: One for each value, ascending.
        series: Values by label, each as long as `rounds`.
        logarithmic: Whether the vertical axis is logarithmic; otherwise it includes zero.
    """
    drawable = {
        label: [value if _has_place(value, logarithmic) else None for value in values]
        for label, values in series.items()
    }
    present = [value for values in drawable.values() for value in values if value is not None]
    if not present:
        return None
    x_axis = Axis(rounds[0], rounds[-1], LEFT, RIGHT)
    y_ticks = decades(present) if logarithmic else steps(min(0.0, *present), max(present))
    y_axis = Axis(y_ticks[0][0], y_ticks[-1][0], BOTTOM, TOP)
    lines = []
    for label, values in drawable.items():
        pieces = [
            [(x_axis(round_), y_axis(_height(value, logarithmic))) for round_, value in piece]
            for piece in pieces_of(rounds, values)
        ]
        lines.append(_line(label, pieces))
    return Chart(
        title,
        unit,
        tuple(Tick(x_axis(at), text) for at, text in ticks_of_rounds(rounds[0], rounds[-1])),
        tuple(Tick(y_axis(at), text) for at, text in y_ticks),
        tuple(lines),
        sum(len(rounds) for _ in drawable) - len(present),
        "; ".join(_summary(label, values, unit) for label, values in drawable.items()),
        len(set(present)) > 1,
    )


def _has_place(value: float | None, logarithmic: bool) -> bool:
    if value is None or not abs(value) < _HUGE:
        return False
    return value > 0 or not logarithmic


def _height(value: float, logarithmic: bool) -> float:
    return math.log10(value) if logarithmic else value


def _line(label: str, pieces: Sequence[Sequence[Point]]) -> Line:
    points = tuple(point for piece in pieces for point in piece)
    alone = tuple(piece[0] for piece in pieces if len(piece) == 1)
    return Line(
        label,
        " ".join(path_of(piece, RIGHT - LEFT) for piece in pieces),
        points if len(points) <= _MOST_DOTS else alone[:_MOST_DOTS],
    )


def _summary(label: str, values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return f"{label}: no values"
    return f"{label}: from {quantity(min(known))} to {quantity(max(known))} {unit}"
