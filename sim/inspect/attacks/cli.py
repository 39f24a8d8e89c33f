"""`deltafl attack`: the attacks on the whole system, played live."""

import argparse
import json
import sys
from typing import Final

from deltafl.fl.nearest import alike
from deltafl.sim.flags import add_json
from deltafl.sim.inspect.attacks import report
from deltafl.sim.inspect.attacks.attack import judged
from deltafl.sim.inspect.attacks.catalogue import ATTACKS

_LIST: Final = "list"
_ALL: Final = "all"

_DESCRIPTION: Final = """\
Attack the system, live, with the powers of a server, a peer or the network.

Each attack is played twice against real sessions and rounds between simulated devices: with its
defence off, where it has to succeed, and with it on, where it has to end as the register says.
Some succeed with every defence on (docs/limitations.md): they are played once, and marked.
"""

_EXAMPLES: Final = """\
examples:
  deltafl attack list                   every attack, and what stands in its way
  deltafl attack model-inconsistency    one: what was recovered, next to the truth
  deltafl attack all                    all of them, in a few seconds, as a table
  deltafl attack all --json             the same for programs

A<n> is the number of the kind of attack, as in docs/audit.md; docs/threat-model.md has the table.
exit codes: 0 all as registered, 1 something is not, 2 no such attack.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "target",
        nargs="?",
        default=_LIST,
        metavar="list|NAME|all",
        help="what to do: list the attacks (the default), play one, or play all",
    )
    add_json(parser)


def main(options: argparse.Namespace) -> int:
    """List or play attacks and print what came of it; the exit code."""
    target = options.target
    if target == _LIST:
        print(_json(list(map(report.about, ATTACKS))) if options.json else report.listing(ATTACKS))
        return 0
    chosen = [attack for attack in ATTACKS if target in (attack.name, _ALL)]
    if not chosen:
        print(f"deltafl: {_unknown(target)}", file=sys.stderr)
        return 2
    verdicts = [judged(attack) for attack in chosen]
    if options.json:
        played = [report.to_json(verdict) for verdict in verdicts]
        print(_json(played if target == _ALL else played[0]))
    else:
        describe = report.summarise if target == _ALL else lambda v: report.describe(v[0])
        print(describe(verdicts))
    return 0 if all(verdict.as_registered for verdict in verdicts) else 1


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _unknown(name: str) -> str:
    near = _nearest(name)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"no attack is called {name!r}{meant} (`deltafl attack list` names them all)"


def _nearest(name: str) -> list[str]:
    """Names like this one, or else names with a word like it."""
    names = [attack.name for attack in ATTACKS]
    if near := alike(name, [*names, _LIST, _ALL], most=3):
        return near
    return [known for known in names if alike(name, known.split("-"))][:3]
