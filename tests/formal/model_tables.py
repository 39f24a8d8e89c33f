"""The tables of transitions that a model of docs/formal is written in, and those of the code."""

import re
from collections.abc import Mapping
from typing import Final

from spin_models import MODELS

from deltafl.secagg.states import CLIENT_TRANSITIONS, SERVER_TRANSITIONS

_LINE: Final = re.compile(r"\b(MOVE|SERVER)\(([^()]*)\)")

Move = tuple[str, str, str]


def moves_of(file: str, *, machine: str) -> set[Move]:
    """State, event and next state of each move in the text of a model.

    Args:
        file: The model.
        machine: MOVE for devices, SERVER for the server.
    """
    text = re.sub(r"^#define.*$", "", (MODELS / file).read_text(encoding="utf-8"), flags=re.M)
    # moves that are written in an inline, for the states that it is called with
    for inline in ("give_up", "end_slot"):
        for state in re.findall(rf"\b{inline}\(([A-Z]+)\)", text):
            (body,) = re.findall(rf"inline {inline}\(from\)\n\{{(.*?)^\}}", text, re.M | re.S)
            text += body.replace("(from,", f"({state},")
    found = set()
    for kind, inside in _LINE.findall(text):
        *_, start, event, end = (part.strip() for part in inside.split(","))
        if kind == machine and start != "from":
            found.add((start, event, end))
    return found


def moves_of_code(transitions: Mapping) -> set[Move]:
    """The same of one of the code's tables."""
    return {
        (state.name, event.__name__, following.name)
        for state, events in transitions.items()
        for event, following in events.items()
    }


TABLES: Final = {"MOVE": CLIENT_TRANSITIONS, "SERVER": SERVER_TRANSITIONS}
"""The code's tables by the word that a model uses."""
