"""The state tables of docs/spec.md, generated from the code: `spec_tables.py --write` renews them.

Each table stands between `<!-- states:NAME:begin -->` and `<!-- states:NAME:end -->`.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # run as a script, from wherever it is called

from deltafl.protocol.quantile.search import Query  # noqa: E402
from deltafl.protocol.selection import Threshold  # noqa: E402
from deltafl.protocol.states import (  # noqa: E402
    TRANSITIONS,
    SupplyEarlierUpdate,
    SupplyLoss,
    SupplyUpdate,
)
from deltafl.secagg.states import (  # noqa: E402
    CLIENT_TRANSITIONS,
    COLLECTED_AT,
    SERVER_TRANSITIONS,
    CloseRound,
    Contribute,
    OpenSlotCall,
)

SPEC: Final = ROOT / "docs" / "spec.md"
CALLS: Final = {
    CloseRound: "close",
    OpenSlotCall: "open slot",
    Contribute: "contribute",
    SupplyLoss: "the caller supplies the loss",
    SupplyUpdate: "the caller supplies the update, or the device its zeros",
    SupplyEarlierUpdate: "the same, at a level that is not the last",
    Query: "Query",
    Threshold: "Threshold",
}
"""What events that are not messages are called; a message goes by its own name."""


def named(event: type) -> str:
    """An event as the tables call it."""
    return CALLS.get(event, event.__name__)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def both(transitions: Mapping) -> list[list[str]]:
    """Rows of state, event, and the next state in sessions without and with signatures."""
    rows = []
    for state in transitions[False]:
        events = list({**transitions[False][state], **transitions[True][state]})
        for event in events or [None]:
            following = [transitions[signed][state].get(event) for signed in (False, True)]
            name = "–" if event is None else named(event)
            rows.append([f"`{state}`", name, *(f"`{s}`" if s else "–" for s in following)])
    return rows


def tables() -> dict[str, str]:
    """All generated tables by name."""
    head = ["state", "event", "next", "next if signed"]
    collects = [[f"`{state}`", stage.name] for state, stage in COLLECTED_AT.items()]
    single = [
        [f"`{state}`", named(event), f"`{following}`"]
        for state, events in TRANSITIONS.items()
        for event, following in events.items()
    ]
    return {
        "client": table(head, both(CLIENT_TRANSITIONS)),
        "server": table(head, both(SERVER_TRANSITIONS))
        + "\n\nThe step that the server is at, which its drops are recorded with:\n\n"
        + table(["state", "step"], collects),
        "round": table(["state", "event", "next"], single),
    }


def renewed(text: str) -> str:
    """The specification with its tables as they must be.

    Raises:
        ValueError: a table's markers are missing, or there more than once.
    """
    for name, content in tables().items():
        begin, end = f"<!-- states:{name}:begin -->", f"<!-- states:{name}:end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, count = pattern.subn(lambda _, c=f"{begin}\n{content}\n{end}": c, text)
        if count != 1:
            raise ValueError(f"{begin} … {end} is there {count} times")
    return text


def main() -> int:
    """Print the tables, or write them into the specification."""
    parser = argparse.ArgumentParser(description="The state tables of docs/spec.md.")
    parser.add_argument("--write", action="store_true", help="renew them in docs/spec.md")
    if parser.parse_args().write:
        SPEC.write_text(renewed(SPEC.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n\n".join(tables().values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
