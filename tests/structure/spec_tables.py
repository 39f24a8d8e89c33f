"""The tables of docs/spec.md that are generated: states, diagrams, the policy, section 15.

`spec_tables.py --write` renews them. Each stands between `<!-- NAME:begin -->` and
`<!-- NAME:end -->`.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # run as a script, from wherever it is called

import spec_trace  # noqa: E402

from deltafl.protocol.policy import RoundPolicy  # noqa: E402
from deltafl.protocol.states import (  # noqa: E402
    TRANSITIONS,
    SupplyEarlierUpdate,
    SupplyLoss,
    SupplyUpdate,
)
from deltafl.secagg.policy import DevicePolicy  # noqa: E402
from deltafl.secagg.states import (  # noqa: E402
    CLIENT_TRANSITIONS,
    COLLECTED_AT,
    SERVER_TRANSITIONS,
    Abort,
    Close,
    CloseRound,
    Contribute,
    ContributeWhole,
    EndLastSlot,
    EndSlot,
    ListSlotCall,
    OpenSlotCall,
)
from deltafl.secagg.threat import PROFILES, Profile  # noqa: E402

SPEC: Final = ROOT / "docs" / "spec.md"
CALLS: Final = {
    CloseRound: "close",
    EndSlot: "end slot",
    EndLastSlot: "end last slot",
    OpenSlotCall: "open slot",
    ListSlotCall: "list slot",
    Abort: "abort",
    Contribute: "contribute",
    ContributeWhole: "contribute whole",
    Close: "end",
    SupplyLoss: "supply loss",
    SupplyUpdate: "supply update",
    SupplyEarlierUpdate: "supply earlier update",
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


def diagram(transitions: Mapping, signed: Mapping | None = None) -> str:
    """A machine as a Mermaid diagram; what only one kind of session has says which.

    Events that lead from one state to the same other one share an arrow.
    """
    kinds = {"": transitions} if signed is None else {"unsigned": transitions, "signed": signed}
    arrows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for kind, machine in kinds.items():
        for state, events in machine.items():
            for event, following in events.items():
                arrow = arrows.setdefault((state, following), {})
                arrow.setdefault(named(event), []).append(kind)
    lines = ["stateDiagram-v2", f"[*] --> {next(iter(transitions))}"]
    for state in transitions:
        for (start, following), events in arrows.items():
            if start == state:
                labels = [
                    name if len(of) == len(kinds) else f"{name} ({of[0]})"
                    for name, of in events.items()
                ]
                lines.append(f"{start} --> {following}: {', '.join(labels)}")
        if not any(machine[state] for machine in kinds.values()):
            lines.append(f"{state} --> [*]")
    return "```mermaid\n" + "\n    ".join(lines) + "\n```"


def attributes(documented: type) -> dict[str, str]:
    """What the docstring of a class says of each attribute, in its first sentence."""
    text = inspect.getdoc(documented).partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): ((?:.*\n?)(?:^        .*\n?)*)", text, re.MULTILINE)
    return {name: " ".join(said.split()).partition(". ")[0].rstrip(".") for name, said in found}


def policy(documented: type = DevicePolicy, without: type | None = None) -> str:
    """The fields of a device's policy with their defaults, without those of another one."""
    meanings = attributes(documented)
    inherited = {field.name for field in fields(without)} if without else set()
    rows = []
    for field in fields(documented):
        if field.name in inherited:
            continue
        default = field.default.value if isinstance(field.default, Enum) else field.default
        rows.append([f"`{field.name}`", f"{default}", meanings[field.name]])
    return table(["field", "default", "meaning"], rows)


def profiles() -> str:
    """What follows from each profile of a policy."""
    meanings = attributes(Profile)
    head = ["", *(f"`{adversary}`" for adversary in PROFILES)]
    rows = [
        [meanings[name], *("yes" if getattr(row, name) else "no" for row in PROFILES.values())]
        for name in Profile._fields
    ]
    return table(head, rows)


def generated() -> dict[str, str]:
    """All generated tables and diagrams by name."""
    head = ["state", "event", "next", "next if signed"]
    collects = [[f"`{state}`", stage.name] for state, stage in COLLECTED_AT.items()]
    single = [
        [f"`{state}`", named(event), f"`{following}`"]
        for state, events in TRANSITIONS.items()
        for event, following in events.items()
    ]
    return {
        "diagram:client": diagram(CLIENT_TRANSITIONS[False], CLIENT_TRANSITIONS[True]),
        "diagram:server": diagram(SERVER_TRANSITIONS[False], SERVER_TRANSITIONS[True]),
        "diagram:round": diagram(TRANSITIONS),
        "states:client": table(head, both(CLIENT_TRANSITIONS)),
        "states:server": table(head, both(SERVER_TRANSITIONS))
        + "\n\nA drop is recorded with the step that the server is at:\n\n"
        + table(["state", "step"], collects),
        "states:round": table(["state", "event", "next"], single),
        "profiles": profiles(),
        "policy": policy(),
        "policy:round": policy(RoundPolicy, without=DevicePolicy),
        "trace": spec_trace.table(),
    }


def renewed(text: str) -> str:
    """The specification with its tables and diagrams as they must be.

    Raises:
        ValueError: the markers of one are missing, or there more than once.
    """
    for name, content in generated().items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, count = pattern.subn(lambda _, c=f"{begin}\n{content}\n{end}": c, text)
        if count != 1:
            raise ValueError(f"{begin} … {end} is there {count} times")
    return text


def main() -> int:
    """Print the tables and diagrams, or write them into the specification."""
    parser = argparse.ArgumentParser(description="The state tables and diagrams of docs/spec.md.")
    parser.add_argument("--write", action="store_true", help="renew them in docs/spec.md")
    if parser.parse_args().write:
        SPEC.write_text(renewed(SPEC.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n\n".join(generated().values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
