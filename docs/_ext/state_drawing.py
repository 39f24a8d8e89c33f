"""Draws a Mermaid `stateDiagram-v2`: states below each other, in the order in which they appear.

What leads from a state to the next one below is an arrow between them. What stays in a state is
named in its box. Everything else leaves a box at its right and joins the line to where it leads:
each such state has one. Dashed is what only one kind of session has, whose label says which.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import svg

_ARROW = re.compile(r"(\S+) --> (\S+?)(?:: (.+))?")
_BOX, _STUB, _LANE, _LEFT, _TOP = 210, 22, 24, 14, 30
_BETWEEN = 34


@dataclass(frozen=True)
class Arrow:
    """What leads from a state to one: `label` lists the events."""

    start: str
    end: str
    label: str

    @property
    def some(self) -> bool:
        """Whether only one kind of session has it."""
        return all(event.endswith(")") for event in self.label.split(", "))


@dataclass(frozen=True)
class Machine:
    """States in the order in which they are drawn; those of `ends` have no way out."""

    states: tuple[str, ...]
    first: str
    ends: tuple[str, ...]
    arrows: tuple[Arrow, ...]


def parse(source: str) -> Machine:
    """Read a state diagram.

    Raises:
        ValueError: a line is none that this reader knows.
    """
    first, ends, arrows = "", [], []
    for row in source.splitlines()[1:]:
        found = _ARROW.fullmatch(row.strip())
        if not found:
            raise ValueError(f"no line of a state diagram: {row!r}")
        start, end, label = found.groups("")
        if start == "[*]":
            first = end
        elif end == "[*]":
            ends.append(start)
        else:
            arrows.append(Arrow(start, end, label))
    states = dict.fromkeys([first, *(arrow.start for arrow in arrows), *ends])
    return Machine(tuple(states), first, tuple(ends), tuple(arrows))


def describe(machine: Machine) -> str:
    """The machine in words."""
    moves = "; ".join(f"{a.start} to {a.end}: {a.label}" for a in machine.arrows)
    return f"It begins in {machine.first} and ends in {', '.join(machine.ends)}. {moves}."


def draw(name: str, title: str, machine: Machine) -> str:
    """The machine as SVG."""
    below = set(pairwise(machine.states))
    bent = [a for a in machine.arrows if a.start != a.end and (a.start, a.end) not in below]
    rows = _rows(machine, bent)
    joined = [state for state in machine.states if any(a.end == state for a in bent)]
    longest = max((len(a.label) for a in bent), default=0) * svg.CHARACTER
    first_lane = _LEFT + _BOX + longest + 24
    lanes = {state: first_lane + n * _LANE for n, state in enumerate(joined)}
    parts = [
        svg.dot(_LEFT + _BOX / 2, 8, 5),
        svg.line([(_LEFT + _BOX / 2, 8), (_LEFT + _BOX / 2, _TOP)]),
    ]
    parts.append(svg.head(_LEFT + _BOX / 2, _TOP, "down"))
    for state in machine.states:
        parts += _state(machine, state, rows[state])
    for arrow in machine.arrows:
        if (arrow.start, arrow.end) in below:
            parts += _down(arrow, rows)
    for state in joined:
        into = [a for a in bent if a.end == state]
        parts += _bus(into, lanes[state], rows, bent)
    bottom = max(y + height for y, height in rows.values())
    size = (first_lane + len(joined) * _LANE, bottom + 12)
    return svg.frame(name, (title, describe(machine)), size, parts)


def _rows(machine: Machine, bent: Sequence[Arrow]) -> dict[str, tuple[float, float]]:
    """Where each box begins, and its height: room for what leaves it, and for what arrives."""
    rows, y = {}, float(_TOP)
    for state in machine.states:
        leaving = sum(a.start == state for a in bent)
        arriving = any(a.end == state for a in bent)
        staying = any(a.start == a.end == state for a in machine.arrows)
        height = max(32 + 18 * staying, _STUB * (leaving + arriving) + 10)
        rows[state] = (y, height)
        y += height + _BETWEEN
    return rows


def _state(machine: Machine, state: str, row: tuple[float, float]) -> list[str]:
    y, height = row
    middle = _LEFT + _BOX / 2
    stays = [a.label for a in machine.arrows if a.start == a.end == state]
    baseline = y + height / 2 + (4 if not stays else -4)
    parts = [svg.box(_LEFT, y, _BOX, height, double=state in machine.ends)]
    parts.append(svg.text(middle, baseline, state, "name", "middle"))
    return parts + [svg.text(middle, baseline + 18, f"↻ {said}", "", "middle") for said in stays]


def _down(arrow: Arrow, rows: dict[str, tuple[float, float]]) -> list[str]:
    middle = _LEFT + _BOX / 2
    y, height = rows[arrow.start]
    end = rows[arrow.end][0]
    return [
        svg.line([(middle, y + height), (middle, end)], some=arrow.some),
        svg.head(middle, end, "down"),
        svg.text(middle + 10, (y + height + end) / 2 + 4, arrow.label),
    ]


def _bus(
    into: Sequence[Arrow], lane: float, rows: dict[str, tuple[float, float]], bent: Sequence[Arrow]
) -> list[str]:
    """All arrows into one state: each runs to its line, and the line to the state."""
    edge = _LEFT + _BOX
    arrival = rows[into[0].end][0] + 14
    heights, parts = [arrival], []
    for arrow in into:
        top, _ = rows[arrow.start]
        leaving = [a for a in bent if a.start == arrow.start]
        arriving = any(a.end == arrow.start for a in bent)
        y = top + 16 + _STUB * (leaving.index(arrow) + arriving)
        heights.append(y)
        parts += [
            svg.line([(edge, y), (lane, y)], some=arrow.some),
            svg.text(edge + 8, y - 4, arrow.label),
            svg.dot(lane, y),
        ]
    parts.append(svg.line([(lane, min(heights)), (lane, max(heights))]))
    parts.append(svg.line([(lane, arrival), (edge, arrival)]))
    return [*parts, svg.head(edge, arrival, "left")]
