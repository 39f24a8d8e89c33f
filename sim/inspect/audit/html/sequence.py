"""Sequence diagrams of a round: devices to the left, the server to the right, time downwards.

A round is cut into scenes: the set-up, and one for each slot. Scenes are cut into diagrams that fit
on a page of paper. Lengths are in units of the diagrams' own coordinates.
"""

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deltafl.sim.inspect.audit.report import TimelineStep
from deltafl.sim.writing import count, size

WIDTH: Final = 900
DEVICES_AT: Final = 60
SERVER_AT: Final = 470
KNOWN_AT: Final = 556
"""Where the column with what the server then knew begins."""

LINE: Final = 16
_MARGIN: Final = 12
_ROW: Final = 50
_LABEL_LETTERS: Final = 50
_KNOWN_LETTERS: Final = 50
_KNOWN_LINES: Final = 4
_ROWS_PER_DIAGRAM: Final = 14


@dataclass(frozen=True, slots=True)
class Arrow:
    """One step, drawn.

    Attributes:
        y: Distance of the arrow from the diagram's top.
        sent: Whether it points from the server to the devices.
        label: What was sent, cut to fit.
        note: Number of devices at the other end, and size.
        known: What the server then knew, in lines.
    """

    y: int
    sent: bool
    label: str
    note: str
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagram:
    """Some steps that follow one another.

    Attributes:
        height: Its height; its width is `WIDTH`.
        arrows: The steps, from top to bottom.
    """

    height: int
    arrows: tuple[Arrow, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """The set-up, or a slot.

    Attributes:
        slot: The slot; None for steps outside any.
        diagrams: Its steps.
    """

    slot: int | None
    diagrams: tuple[Diagram, ...]


@dataclass(frozen=True, slots=True)
class Act:
    """Consecutive scenes that consist of the same messages.

    Attributes:
        first: The first scene.
        between: Scenes that the reader may want to skip.
        last: The last scene; None if it is the first.
    """

    first: Scene
    between: tuple[Scene, ...]
    last: Scene | None


def acts(steps: Sequence[TimelineStep]) -> tuple[Act, ...]:
    """Draw the steps of a round, slot by slot."""
    scenes = [(slot, list(members)) for slot, members in itertools.groupby(steps, _slot)]
    drawn = [[_scene(*scene) for scene in alike] for _, alike in itertools.groupby(scenes, _shape)]
    return tuple(
        Act(first, tuple(others[:-1]), others[-1] if others else None) for first, *others in drawn
    )


def _slot(step: TimelineStep) -> int | None:
    return step.slot


def _shape(scene: tuple[int | None, list[TimelineStep]]) -> tuple[object, ...]:
    slot, steps = scene
    return (slot is None, *((step.label, step.sent) for step in steps))


def _scene(slot: int | None, steps: Sequence[TimelineStep]) -> Scene:
    pages = range(0, len(steps), _ROWS_PER_DIAGRAM)
    return Scene(slot, tuple(_diagram(steps[at : at + _ROWS_PER_DIAGRAM]) for at in pages))


def _diagram(steps: Sequence[TimelineStep]) -> Diagram:
    arrows = []
    top = _MARGIN
    for step in steps:
        known = _lines(step.revealed)
        whole = len(step.label) <= _LABEL_LETTERS
        label = step.label if whole else step.label[: _LABEL_LETTERS - 1] + "…"
        note = f"{count(step.devices, 'device')}, {size(step.size)}"
        arrows.append(Arrow(top + LINE + 6, step.sent, label, note, known))
        top += max(_ROW, LINE * len(known) + 14)
    return Diagram(top, tuple(arrows))


def _lines(text: str) -> tuple[str, ...]:
    return tuple(textwrap.wrap(text, _KNOWN_LETTERS, max_lines=_KNOWN_LINES, placeholder=" …"))
