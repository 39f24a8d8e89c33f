"""Axes of charts that a template draws as SVG: where a value lies, marks, and lines with gaps."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from deltafl.sim.inspect.audit.html.writing import number, power_of_ten, quantity
from deltafl.sim.run.ticks import round_ticks

_MOST_TICKS: Final = 5
_COLUMNS: Final = 300

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis, at a coordinate."""

    at: float
    text: str


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


def decades(values: Iterable[float]) -> list[tuple[float, str]]:
    """Powers of ten around all values, by their exponents; at least two."""
    exponents = [math.log10(value) for value in values]
    low, high = math.floor(min(exponents)), math.ceil(max(exponents))
    step = max(1, math.ceil((high - low) / _MOST_TICKS))
    intervals = max(1, math.ceil((high - low) / step))
    return [(low + step * i, power_of_ten(low + step * i)) for i in range(intervals + 1)]


def steps(low: float, high: float) -> list[tuple[float, str]]:
    """Multiples of 1, 2 or 5 times a power of ten around an interval; at least two."""
    width = (high - low) / _MOST_TICKS or 1.0
    decade = 10.0 ** math.floor(math.log10(width))
    step = next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= width)
    first = math.floor(low / step)
    last = max(first + 1, math.ceil(high / step))
    return [(step * i, quantity(step * i)) for i in range(first, last + 1)]


def ticks_of_rounds(first: int, last: int) -> list[tuple[int, str]]:
    """Marks of an axis that counts rounds; the first and the last are among them."""
    return [(at, number(at)) for at in round_ticks(first, last)]


def pieces_of(
    rounds: Sequence[int], values: Sequence[float | None]
) -> list[list[tuple[int, float]]]:
    """The longest runs of values without a gap."""
    pieces: list[list[tuple[int, float]]] = [[]]
    for round_, value in zip(rounds, values, strict=True):
        if value is not None:
            pieces[-1].append((round_, value))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def path_of(points: Sequence[Point], width: float) -> str:
    """A line in the syntax of SVG's path element.

    Args:
        points: what it goes through, from left to right.
        width: of the chart; a line of very many points is thinned without a visible change.
    """
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in _thin(points, width))


def _thin(points: Sequence[Point], width: float) -> Sequence[Point]:
    """A line that looks the same, with only the lowest and highest point of each narrow column."""
    if len(points) <= 2 * _COLUMNS:
        return points
    columns: dict[int, list[Point]] = {}
    for point in points:
        columns.setdefault(int(point[0] * _COLUMNS / width), []).append(point)
    thin = []
    for column in columns.values():
        lowest = max(column, key=lambda point: point[1])
        highest = min(column, key=lambda point: point[1])
        thin += sorted({lowest, highest})
    return thin
