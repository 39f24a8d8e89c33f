"""The table of rules in docs/audit.md, made from the code: `--write` renews it.

It stands between `<!-- rules:begin -->` and `<!-- rules:end -->`.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # run as a script, from wherever it is called

from deltafl.sim.inspect.audit.catalogue import RULES  # noqa: E402

PAGE: Final = ROOT / "docs" / "audit.md"
PLACE: Final = re.compile(r"(<!-- rules:begin -->\n).*?(<!-- rules:end -->)", re.DOTALL)


def table() -> str:
    """Id, severity, what was found, what follows, and the attack, by rule."""
    rows = [["rule", "severity", "found", "consequence", "attack"], ["---"] * 5]
    for rule, texts in RULES.items():
        attack = texts.attack
        severity = texts.severity.name.lower()
        rows.append([f"`{rule}`", severity, texts.title, texts.consequence, attack])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def current(page: str) -> str:
    """The page as it should be."""
    return PLACE.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the page")
    page = PAGE.read_text(encoding="utf-8")
    if parser.parse_args().write:
        PAGE.write_text(current(page), encoding="utf-8")
        return 0
    return int(current(page) != page)


if __name__ == "__main__":
    sys.exit(main())
