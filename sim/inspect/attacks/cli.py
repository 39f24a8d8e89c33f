"""`deltafl attack`: the attacks on the whole system, played live, for people and for programs."""

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from deltafl.fl.nearest import meant
from deltafl.sim.flags import add_json
from deltafl.sim.inspect.attacks.attack import Attack, Loot, NotPlayed, Outcome, Verdict, judged
from deltafl.sim.inspect.attacks.catalogue import ATTACKS

_LIST: Final = "list"
_ALL: Final = "all"
_SHOWN: Final = 5
"""The most words of a vector that are shown."""
_WIDTH: Final = 96
_TOLD: Final = ("deed", "gain", "defence", "spec", "scene")
"""Attributes of an attack that are told."""

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
        print(_json(list(map(_about, ATTACKS))) if options.json else _listing())
        return 0
    chosen = [attack for attack in ATTACKS if target in (attack.name, _ALL)]
    if not chosen:
        near = meant(target, [*(attack.name for attack in ATTACKS), _LIST, _ALL])
        hint = "(`deltafl attack list` names them all)"
        print(f"deltafl: no attack is called {target!r}{near} {hint}", file=sys.stderr)
        return 2
    verdicts = [judged(attack) for attack in chosen]
    if options.json:
        told = [_as_json(verdict) for verdict in verdicts]
        print(_json(told if target == _ALL else told[0]))
    else:
        print(_summary(verdicts) if target == _ALL else _described(verdicts[0]))
    return 1 if any(verdict.surprises for verdict in verdicts) else 0


# --- for people ---------------------------------------------------------------------------------


def _listing() -> str:
    """The attacks' names, each with what the attacker does and what prevents it."""
    lines = []
    for attack in ATTACKS:
        marked = "" if attack.is_prevented else ": not prevented, by design"
        lines += [_heading(attack) + marked, *_wrapped("deed", attack.deed)]
        lines += _wrapped("defence", attack.defence)
    return "\n".join(lines)


def _described(verdict: Verdict) -> str:
    """One attack and its outcomes, both times."""
    attack = verdict.attack
    lines = [_heading(attack), *_told({name: getattr(attack, name) for name in _TOLD}), ""]
    if verdict.undefended is not None:
        lines += ["defence off", *_told(_outcome(verdict.undefended)), ""]
    heading = "defence on" if attack.is_prevented else "all defences on"
    lines += [heading, *_told(_outcome(verdict.defended)), ""]
    wrong = [f"NOT as registered: {surprise}" for surprise in verdict.surprises]
    return "\n".join(lines + (wrong or ["as registered"]))


def _summary(verdicts: Sequence[Verdict]) -> str:
    """A table of attacks, with those that nothing prevents apart, and a line that counts them."""
    prevented = [verdict for verdict in verdicts if verdict.attack.is_prevented]
    exposed = [verdict for verdict in verdicts if not verdict.attack.is_prevented]
    width = max(len(verdict.attack.name) for verdict in verdicts)
    lines = [f"{'attack':<{width}}  no.  who      end"]
    lines += [_row(verdict, width) for verdict in prevented]
    if exposed:
        lines += ["", "not prevented, by design (docs/limitations.md):"]
        lines += [_row(verdict, width) for verdict in exposed]
    lines += [
        "",
        f"{_right(prevented)} of {len(prevented)} attacks succeed without their defence and are "
        f"stopped with it;",
        f"{_right(exposed)} of {len(exposed)} known limitations are as documented.",
    ]
    for verdict in verdicts:
        lines += [f"NOT as registered: {verdict.attack.name}: {s}" for s in verdict.surprises]
    return "\n".join(lines)


def _right(verdicts: Sequence[Verdict]) -> int:
    return sum(not verdict.surprises for verdict in verdicts)


def _heading(attack: Attack) -> str:
    return f"{attack.name} ({attack.label}, {attack.power})"


def _row(verdict: Verdict, width: int) -> str:
    attack = verdict.attack
    flag = "NOT as registered: " if verdict.surprises else ""
    return f"{attack.name:<{width}}  {attack.label:<4} {attack.power:<8} {flag}{attack.end}"


def _told(facts: Mapping[str, object]) -> list[str]:
    """What is known by name, in lines."""
    return [line for name, value in facts.items() for line in _wrapped(name, _text(value))]


def _text(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return " ".join(map(_text, value))
        case float():
            return f"{value:.4f}"
        case _:
            return str(value)


def _wrapped(name: str, text: str) -> list[str]:
    """A labelled paragraph; nothing if there is no text."""
    indent = f"  {name.replace('_', ' '):<15}"
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))


# --- for programs -------------------------------------------------------------------------------


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _about(attack: Attack) -> dict[str, object]:
    """An attack as JSON values."""
    return {
        **{name: getattr(attack, name) for name in ("name", "power", *_TOLD)},
        "attack": attack.label,
        "end": {"kind": type(attack.end).__name__.lower(), "is": str(attack.end)},
        "prevented": attack.is_prevented,
    }


def _as_json(verdict: Verdict) -> dict[str, object]:
    """An attack and its outcomes as JSON values."""
    undefended = verdict.undefended
    return {
        **_about(verdict.attack),
        "undefended": None if undefended is None else _outcome(undefended),
        "defended": _outcome(verdict.defended),
        "as_registered": not verdict.surprises,
        "surprises": list(verdict.surprises),
    }


def _outcome(outcome: Outcome) -> dict[str, object]:
    match outcome:
        case NotPlayed():
            return {"kind": "not played", "message": str(outcome)}
        case Loot():
            return {
                "kind": "loot",
                "refusals": [str(refusal) for refusal in outcome.refusals],
                "culprits": [f"device {one}: {fault}" for one, fault in sorted(outcome.culprits)],
                "taken": outcome.read(outcome.taken)[:_SHOWN].tolist(),
                "truth": outcome.read(outcome.wanted)[:_SHOWN].tolist(),
                "complete": outcome.is_complete,
                "noise": outcome.is_noise,
                "bits": outcome.num_bits,
                "differing_bits": outcome.differing_bits,
                "note": outcome.note,
            }
