"""Writes the table of attacks in docs/threat-model.md from the register.

`python tests/attacks/table.py` prints it; with `--write` it renews the page.
"""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from attack import ATTACKS, Attack, Left

from secagg import Fault, Refusal

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "threat-model.md"
BEGIN, END = "<!-- attacks:begin -->\n", "<!-- attacks:end -->\n"
COLUMNS = ("No.", "the attacker …", "who", "defence off: it gets", "defence", "defence on")


def registered() -> list[Attack]:
    """All attacks, in the order of the table."""
    for path in sorted(HERE.glob("test_*.py")):
        importlib.import_module(path.stem)
    return sorted(ATTACKS, key=lambda attack: (attack.number, attack.module, attack.line))


def render(attacks: Iterable[Attack]) -> str:
    """The table as Markdown."""
    rows = [COLUMNS, ["---"] * len(COLUMNS)]
    for attack in attacks:
        row = (str(attack.number), attack.name, attack.power, attack.gain)
        rows.append((*row, f"{attack.defence} (§{attack.spec})", _told(attack.end)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def inserted(page: str, table: str) -> str:
    """A page with the table between its markers.

    Raises:
        ValueError: the page has not each marker once, in this order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in before + after:
        raise ValueError(f"not each of {BEGIN!r} and {END!r} once, in this order")
    return before + begin + table + end + after


def _told(end: Refusal | Fault | Left) -> str:
    match end:
        case Refusal():
            return f"the device ends its session: *{end}*"
        case Fault():
            return f"the server names the attacker: *{end}*; the others go on"
        case _:
            return end.value


if __name__ == "__main__":
    # What pytest finds by itself.
    sys.path += [str(HERE.parent / folder) for folder in ("secagg", "protocol")]
    rendered = render(registered())
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(inserted(PAGE.read_text(encoding="utf-8"), rendered), encoding="utf-8")
    else:
        sys.stdout.write(rendered)
