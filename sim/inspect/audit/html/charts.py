"""Line charts over rounds, as coordinates that the template draws.

They do not use matplotlib. This way, the page's style sheet colours them for light, dark and paper,
and their texts are escaped like all others. Lengths are in units of the charts' own coordinates.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deltafl.sim.inspect.audit.html.writing import number, power_of_ten, quantity

WIDTH: Final = 300
HEIGHT: Final = 202
LEFT: Final = 46
RIGHT: Final = 292
TOP: Final = 28
BOTTOM: Final = 160

_MOST_TICKS: Final = 5
_MOST_DOTS: Final = 60
_COLUMNS: Final = 300
_HUGE: Final = 1e12
"""Larger values cannot be measurements. They are left out, so that all arithmetic stays finite."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis, at a coordinate."""

    at: float
    text: str


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
    """

    title: str
    unit: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    left_out: int
    summary: str


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
    x_axis = _Axis(rounds[0], rounds[-1], LEFT, RIGHT)
    y_ticks = _decades(present) if logarithmic else _steps(min(0.0, *present), max(present))
    y_axis = _Axis(y_ticks[0][0], y_ticks[-1][0], BOTTOM, TOP)
    lines = []
    for label, values in drawable.items():
        pieces = [
            [(x_axis(round_), y_axis(_height(value, logarithmic))) for round_, value in piece]
            for piece in _pieces(rounds, values)
        ]
        lines.append(_line(label, pieces))
    return Chart(
        title,
        unit,
        tuple(Tick(x_axis(at), text) for at, text in _round_ticks(rounds[0], rounds[-1])),
        tuple(Tick(y_axis(at), text) for at, text in y_ticks),
        tuple(lines),
        sum(len(rounds) for _ in drawable) - len(present),
        "; ".join(_summary(label, values, unit) for label, values in drawable.items()),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """The linear map of [low, high] onto [start, end]; of a single value to the middle."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.low == self.high:
            return (self.start + self.end) / 2
        part = (value - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 1)


def _has_place(value: float | None, logarithmic: bool) -> bool:
    if value is None or not abs(value) < _HUGE:
        return False
    return value > 0 or not logarithmic


def _height(value: float, logarithmic: bool) -> float:
    return math.log10(value) if logarithmic else value


def _decades(values: Iterable[float]) -> list[tuple[float, str]]:
    """Powers of ten around all values, by their exponents; at least two."""
    exponents = [math.log10(value) for value in values]
    low, high = math.floor(min(exponents)), math.ceil(max(exponents))
    step = max(1, math.ceil((high - low) / _MOST_TICKS))
    intervals = max(1, math.ceil((high - low) / step))
    return [(low + step * i, power_of_ten(low + step * i)) for i in range(intervals + 1)]


def _steps(low: float, high: float) -> list[tuple[float, str]]:
    """Multiples of 1, 2 or 5 times a power of ten around an interval; at least two."""
    width = (high - low) / _MOST_TICKS or 1.0
    decade = 10.0 ** math.floor(math.log10(width))
    step = next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= width)
    first = math.floor(low / step)
    last = max(first + 1, math.ceil(high / step))
    return [(step * i, quantity(step * i)) for i in range(first, last + 1)]


def _round_ticks(first: int, last: int) -> list[tuple[int, str]]:
    steps = (factor * 10**decade for decade in itertools.count() for factor in (1, 2, 5))
    step = next(step for step in steps if last - first <= step * (_MOST_TICKS + 1))
    return [(at, number(at)) for at in range(first, last + 1) if at == first or at % step == 0]


def _pieces(rounds: Sequence[int], values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The longest runs of values without a gap."""
    pieces: list[list[tuple[int, float]]] = [[]]
    for round_, value in zip(rounds, values, strict=True):
        if value is not None:
            pieces[-1].append((round_, value))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _line(label: str, pieces: Sequence[Sequence[Point]]) -> Line:
    points = tuple(point for piece in pieces for point in piece)
    alone = tuple(piece[0] for piece in pieces if len(piece) == 1)
    return Line(
        label,
        " ".join("M" + "L".join(f"{x:g} {y:g}" for x, y in _thin(piece)) for piece in pieces),
        points if len(points) <= _MOST_DOTS else alone[:_MOST_DOTS],
    )


def _thin(points: Sequence[Point]) -> Sequence[Point]:
    """A line that looks the same, with only the lowest and highest point of each narrow column."""
    if len(points) <= 2 * _COLUMNS:
        return points
    columns: dict[int, list[Point]] = {}
    for point in points:
        columns.setdefault(int(point[0] * _COLUMNS / (RIGHT - LEFT)), []).append(point)
    thin = []
    for column in columns.values():
        lowest = max(column, key=lambda point: point[1])
        highest = min(column, key=lambda point: point[1])
        thin += sorted({lowest, highest})
    return thin


def _summary(label: str, values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return f"{label}: no values"
    return f"{label}: from {quantity(min(known))} to {quantity(max(known))} {unit}"
