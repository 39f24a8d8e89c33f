"""`deltafl doctor`: is everything here that is needed, and what of it would be used?"""

import argparse
import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Final

from deltafl.sim.doctor.findings import Finding, State
from deltafl.sim.flags import add_json
from deltafl.sim.visible import visible

_DESCRIPTION = """\
Check the installation, and say what this machine has and what of it would be
used: software, cores, memory, a GPU. At the end a few simulated devices sum
vectors under real masks. It takes seconds, changes nothing, and asks nobody
over the network.
"""

_EPILOG = """\
absent: not there, and only needed for what the line names. warning: it works, but
slower, or not everywhere. Put the output of `deltafl doctor --json` into a report
of a fault.
exit codes: 0 everything needed works, 1 something does not.
"""

_LOOKS: Final = {
    "software": [("software", "software", "software")],
    "machine": [
        ("machine", "machine", "machine"),
        ("libraries", "machine", "libraries"),
        ("GPU", "machine", "gpu"),
    ],
    "the quickstart would use": [("trial", "trial", "used")],
    "trial": [("trial", "trial", "secure_sum")],
}
"""By group, what is looked at, and the module and the function that look."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_json(parser)


def main(options: argparse.Namespace) -> int:
    """Look and report; the exit code."""
    groups = examine()
    if options.json:
        print(json.dumps(as_json(groups), indent=2, ensure_ascii=False))
    else:
        print(visible(as_text(groups, shutil.get_terminal_size().columns)))
    return 0 if works([one for findings in groups.values() for one in findings]) else 1


def examine() -> dict[str, list[Finding]]:
    """All findings by group; what cannot be looked at is a finding too."""
    return {group: [one for row in rows for one in _found(*row)] for group, rows in _LOOKS.items()}


def _found(topic: str, module: str, look: str) -> list[Finding]:
    try:  # imported here, because what it needs may be missing
        return list(getattr(import_module(f"deltafl.sim.doctor.{module}"), look)())
    except ModuleNotFoundError as error:
        return [Finding(topic, State.FAILED, f"{error.name} is missing", "pip install '.[sim]'")]
    except Exception as error:  # noqa: BLE001 (whatever is broken is what is looked for)
        text = f"{type(error).__name__}: {error}"
        return [Finding(topic, State.FAILED, text, "reinstall with: pip install '.[sim]'")]


def works(findings: Sequence[Finding]) -> bool:
    """Whether everything needed works."""
    return all(one.state is not State.FAILED for one in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """The findings in a sentence."""
    failed = sum(one.state is State.FAILED for one in findings)
    warnings = sum(one.state is State.WARNING for one in findings)
    noted = f"{warnings} warning{'' if warnings == 1 else 's'}" if warnings else "no warnings"
    if failed:
        return f"{failed} thing{'' if failed == 1 else 's'} that must work failed; {noted}."
    return f"Everything needed works; {noted}."


def as_text(groups: dict[str, list[Finding]], width: int) -> str:
    """The findings as a table for a terminal of some width, with the mends below each line."""
    topic = max(len(one.topic) for findings in groups.values() for one in findings)
    indent = " " * (2 + 9 + topic + 2)
    lines = []
    for name, findings in groups.items():
        lines.append(name)
        for one in findings:
            begin = f"  {one.state:<9}{one.topic:<{topic}}  "
            texts = [one.text] if not one.mend else [one.text, f"→ {one.mend}"]
            for text in texts:
                lines += textwrap.wrap(
                    text,
                    max(width, len(indent) + 20),
                    initial_indent=begin,
                    subsequent_indent=indent,
                    break_on_hyphens=False,
                    break_long_words=False,
                )
                begin = indent
        lines.append("")
    return "\n".join([*lines, verdict([one for each in groups.values() for one in each])])


def as_json(groups: dict[str, list[Finding]]) -> dict[str, object]:
    """The same for programs."""
    everything = [one for findings in groups.values() for one in findings]
    return {
        "works": works(everything),
        "verdict": verdict(everything),
        "groups": {name: [asdict(one) for one in findings] for name, findings in groups.items()},
    }
