"""Draws a Mermaid `sequenceDiagram`: two parties, what they say and do, and what is repeated."""

import re
from dataclasses import dataclass

import svg

_PARTY = re.compile(r"participant (\w+) as (.+)")
_SAID = re.compile(r"(\w+)(<<->>|->>)(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+): (.+)")
_LOOP = re.compile(r"loop (.+)")
_ROW, _TOP, _LEFT, _APART, _SIDE = 40, 58, 120, 400, 190


@dataclass(frozen=True)
class Event:
    """One row: a message, a note at one party, or the begin or end of what is repeated."""

    kind: str
    start: str = ""
    end: str = ""
    said: str = ""


@dataclass(frozen=True)
class Sequence:
    """Parties by their short names, and what happens, in order."""

    parties: dict[str, str]
    events: tuple[Event, ...]


def parse(source: str) -> Sequence:
    """Read a sequence diagram of two parties.

    Raises:
        ValueError: a line is none that this reader knows, or there are not two parties.
    """
    parties, events = {}, []
    for row in map(str.strip, source.splitlines()[1:]):
        if found := _PARTY.fullmatch(row):
            parties[found[1]] = found[2]
        elif found := _SAID.fullmatch(row):
            kind = "both" if found[2] == "<<->>" else "message"
            events.append(Event(kind, found[1], found[3], found[4]))
        elif found := _NOTE.fullmatch(row):
            events.append(Event("note", found[1], said=found[2]))
        elif found := _LOOP.fullmatch(row):
            events.append(Event("loop", said=found[1]))
        elif row == "end":
            events.append(Event("end"))
        else:
            raise ValueError(f"no line of a sequence diagram: {row!r}")
    if len(parties) != 2:
        raise ValueError(f"two parties are drawn, not {len(parties)}")
    return Sequence(parties, tuple(events))


def describe(sequence: Sequence) -> str:
    """What happens, in words."""
    name, words = sequence.parties, []
    for event in sequence.events:
        if event.kind == "message":
            words.append(f"{name[event.start]} to {name[event.end]}: {event.said}.")
        elif event.kind == "both":
            words.append(f"{name[event.start]} and {name[event.end]}: {event.said}.")
        elif event.kind == "note":
            words.append(f"{name[event.start]}: {event.said}.")
        elif event.kind == "loop":
            words.append(f"Repeated, {event.said}:")
        else:
            words.append("End of what is repeated.")
    return " ".join(words)


def draw(name: str, title: str, sequence: Sequence) -> str:
    """The sequence as SVG."""
    columns = dict(zip(sequence.parties, (_LEFT, _LEFT + _APART), strict=True))
    right = _LEFT + _APART
    parts, y, loops = [], float(_TOP), []
    for event in sequence.events:
        y += _ROW
        if event.kind == "loop":
            loops.append((y - 18, event.said))
            parts.append(svg.text(_LEFT + 12, y, event.said, "name"))
            y -= 6
        elif event.kind == "end":
            top, _ = loops.pop()
            y -= 22
            parts.append(svg.region(_LEFT - 108, top, _APART + 216, y - top))
        elif event.kind == "note":
            x = columns[event.start]
            width = len(event.said) * svg.CHARACTER + 20
            middle = max(x, width / 2 + 4)
            parts.append(svg.box(middle - width / 2, y - 17, width, 26))
            parts.append(svg.text(middle, y, event.said, anchor="middle"))
        else:
            start, end = columns[event.start], columns[event.end]
            parts.append(svg.text((start + end) / 2, y - 6, event.said, anchor="middle"))
            parts.append(svg.line([(start, y), (end, y)]))
            parts.append(svg.head(end, y, "right" if end > start else "left"))
            if event.kind == "both":
                parts.append(svg.head(start, y, "left" if end > start else "right"))
    bottom = y + 24
    lives = [svg.line([(x, 44), (x, bottom)], some=True) for x in columns.values()]
    for party, x in columns.items():
        said = sequence.parties[party]
        width = max(110, len(said) * svg.CHARACTER + 24)
        parts.append(svg.box(x - width / 2, 10, width, 34))
        parts.append(svg.text(x, 31, said, "name", "middle"))
    return svg.frame(
        name, (title, describe(sequence)), (right + _SIDE, bottom + 8), [*lives, *parts]
    )
