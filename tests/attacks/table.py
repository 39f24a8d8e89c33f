"""Writes the tables of docs/threat-model.md from the catalogue of `deltafl.sim.inspect.attacks`.

`python tests/attacks/table.py` prints them; with `--write` it renews the page.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from deltafl.secagg import Fault, Refusal
from deltafl.sim.inspect.attacks.attack import Attack, Left
from deltafl.sim.inspect.attacks.catalogue import ATTACKS

PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"
PREVENTED, EXPOSED = "attacks", "exposures"
COLUMNS = {
    PREVENTED: (
        "No.",
        "the attacker …",
        "who",
        "defence off: it gets",
        "defence",
        "defence on",
        "`deltafl attack`",
    ),
    EXPOSED: ("No.", "the attacker …", "who", "it gets", "what helps", "`deltafl attack`"),
}


def markers(name: str) -> tuple[str, str]:
    """Between which lines of the page a table stands."""
    return f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"


def tables(attacks: Sequence[Attack] = ATTACKS) -> dict[str, str]:
    """Both tables as Markdown, by name."""
    return {
        name: _render(
            COLUMNS[name], (_row(a) for a in attacks if a.is_prevented == (name == PREVENTED))
        )
        for name in COLUMNS
    }


def inserted(page: str, name: str, table: str) -> str:
    """A page with a table between its markers.

    Raises:
        ValueError: the page has not each marker once, in this order.
    """
    first, last = markers(name)
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end) or first in rest or last in before + after:
        raise ValueError(f"not each of {first!r} and {last!r} once, in this order")
    return before + begin + table + end + after


def renewed(page: str, rendered: dict[str, str]) -> str:
    """A page with all tables in their places."""
    for name, table in rendered.items():
        page = inserted(page, name, table)
    return page


def _render(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(attack: Attack) -> list[str]:
    row = [str(attack.number), attack.deed, attack.power, attack.gain]
    row.append(f"{attack.defence} (§{attack.spec})")
    if attack.is_prevented:
        row.append(_told(attack.end))
    return [*row, f"`{attack.name}`"]


def _told(end: Refusal | Fault | Left) -> str:
    match end:
        case Refusal():
            return f"the device ends its session: *{end}*"
        case Fault():
            return f"the server names the attacker: *{end}*"
        case _:
            return end.value


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(renewed(page, tables()), encoding="utf-8")
    else:
        sys.stdout.write("\n".join(tables().values()))
