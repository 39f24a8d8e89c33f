"""The outcomes of attacks, for people and for programs."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from deltafl.secagg import PeerError
from deltafl.sim.inspect.attacks.attack import (
    Attack,
    Harm,
    Left,
    Loot,
    NotPlayed,
    Outcome,
    Verdict,
    Words,
)

_SHOWN: Final = 5
"""The most words of a vector that are shown."""
_WIDTH: Final = 96


def describe(verdict: Verdict) -> str:
    """One attack and its outcomes, both times."""
    attack = verdict.attack
    lines = [
        f"{attack.name} ({attack.label}, {attack.power})",
        *_wrapped("attacker", attack.deed),
        *_wrapped("is after", attack.gain),
        *_wrapped("defence", f"{attack.defence} (docs/spec.md §{attack.spec})"),
        *_wrapped("scene", attack.scene),
        "",
    ]
    if verdict.undefended is not None:
        lines += ["defence off", *_told(attack, verdict.undefended, defended=False), ""]
    heading = "defence on" if attack.is_prevented else "all defences on"
    lines += [heading, *_told(attack, verdict.defended, defended=True), ""]
    lines += [f"NOT as registered: {surprise}" for surprise in verdict.surprises] or [
        "as registered"
    ]
    return "\n".join(lines)


def summarise(verdicts: Sequence[Verdict]) -> str:
    """A table of attacks, with those that nothing prevents apart, and a line that counts them."""
    prevented = [verdict for verdict in verdicts if verdict.attack.is_prevented]
    exposed = [verdict for verdict in verdicts if not verdict.attack.is_prevented]
    width = max(len(verdict.attack.name) for verdict in verdicts)
    lines = [f"{'attack':<{width}}  no.  who      defence off  defence on"]
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
    return sum(verdict.as_registered for verdict in verdicts)


def listing(attacks: Sequence[Attack]) -> str:
    """The attacks' names, each with what the attacker does and what prevents it."""
    lines = []
    for attack in attacks:
        marked = "" if attack.is_prevented else ": not prevented, by design"
        lines += [f"{attack.name} ({attack.label}, {attack.power}){marked}"]
        lines += _wrapped("", attack.deed) + _wrapped("defence", attack.defence)
    return "\n".join(lines)


def about(attack: Attack) -> dict[str, object]:
    """An attack as JSON values."""
    return {
        "name": attack.name,
        "attack": attack.label,
        "power": str(attack.power),
        "deed": attack.deed,
        "gain": attack.gain,
        "defence": attack.defence,
        "spec": attack.spec,
        "scene": attack.scene,
        "end": {"kind": type(attack.end).__name__.lower(), "is": str(attack.end)},
        "prevented": attack.is_prevented,
    }


def to_json(verdict: Verdict) -> dict[str, object]:
    """An attack and its outcomes as JSON values."""
    undefended = verdict.undefended
    return {
        **about(verdict.attack),
        "undefended": None if undefended is None else _outcome(undefended),
        "defended": _outcome(verdict.defended),
        "as_registered": verdict.as_registered,
        "surprises": list(verdict.surprises),
    }


def _row(verdict: Verdict, width: int) -> str:
    attack = verdict.attack
    off = "–" if verdict.undefended is None else _mark(verdict.undefended)
    on = _mark(verdict.defended)
    if attack.end is Left.BOUNDED and verdict.defended == Harm(done=False):
        on = "bounded"
    flag = "" if verdict.as_registered else "  NOT as registered"
    return f"{attack.name:<{width}}  {attack.label:<4} {attack.power:<8} {off:<12} {on}{flag}"


def _mark(outcome: Outcome) -> str:
    """The outcome in a word or two."""
    match outcome:
        case PeerError():
            return f"refused: {outcome.reason}"
        case NotPlayed():
            return "not played"
        case Loot(refusals=refusals) if refusals:
            return f"refused: {refusals[0].reason}"
        case Loot():
            if outcome.is_complete:
                return "recovered"
            return "noise" if outcome.is_noise else "nothing"
        case Harm(done=True):
            return "harmed"
        case Harm():
            faults = sorted({str(fault) for _, fault in outcome.culprits})
            return f"named: {', '.join(faults)}" if faults else "harmless"


def _told(attack: Attack, outcome: Outcome, *, defended: bool) -> list[str]:
    """The outcome in lines."""
    return [line for pair in _facts(attack, outcome, defended=defended) for line in _wrapped(*pair)]


def _facts(attack: Attack, outcome: Outcome, *, defended: bool) -> Iterator[tuple[str, str]]:
    match outcome:
        case PeerError():
            yield "stopped", f"a device refuses: {outcome}"
        case NotPlayed():
            yield "not played", str(outcome)
        case Harm():
            yield "harm", "done" if outcome.done else "none"
            for client, fault in sorted(outcome.culprits):
                yield "named", f"device {client}, for: {fault}"
            yield "seen", outcome.note
        case Loot(refusals=refusals):
            if refusals:
                yield "stopped", f"{len(refusals)} devices refuse: {refusals[0]}"
            yield "taken", _first(outcome, outcome.taken)
            yield "truth", _first(outcome, outcome.wanted)
            yield "complete", _how_complete(attack, outcome, defended=defended)
            yield "note", outcome.note


def _how_complete(attack: Attack, loot: Loot, *, defended: bool) -> str:
    if loot.is_complete:
        return f"yes, all {loot.num_bits:,} bits"
    if loot.refusals and not loot.taken.any():
        return "no: nothing arrived"
    if attack.end is Left.NOTHING and defended:
        return "no: no such thing is sent"
    like = "like noise" if loot.is_noise else "unlike noise"
    return (
        f"no: {loot.differing_bits:,} ones among {loot.num_bits:,} bits of the difference, {like} "
        f"({loot.num_bits / 2:,.0f} expected, deviation {loot.num_bits**0.5 / 2:,.0f})"
    )


def _first(loot: Loot, words: Words) -> str:
    read = loot.read(words)
    shown = [
        f"{number:.4f}" if isinstance(number, float) else str(number)
        for number in read[:_SHOWN].tolist()
    ]
    return " ".join(shown) + (f" … ({len(words)} numbers)" if len(words) > _SHOWN else "")


def _outcome(outcome: Outcome) -> dict[str, object]:
    match outcome:
        case PeerError():
            return {"kind": "refusal", "reason": str(outcome.reason), "message": str(outcome)}
        case NotPlayed():
            return {"kind": "not played", "message": str(outcome)}
        case Harm():
            named = [
                {"device": int(i), "fault": str(fault)} for i, fault in sorted(outcome.culprits)
            ]
            note = outcome.note
            return {"kind": "harm", "done": outcome.done, "culprits": named, "note": note}
        case Loot():
            return {
                "kind": "loot",
                "complete": outcome.is_complete,
                "noise": outcome.is_noise,
                "bits": outcome.num_bits,
                "differing_bits": outcome.differing_bits,
                "taken": outcome.read(outcome.taken)[:_SHOWN].tolist(),
                "truth": outcome.read(outcome.wanted)[:_SHOWN].tolist(),
                "refusals": [str(refusal) for refusal in outcome.refusals],
                "note": outcome.note,
            }


def _wrapped(name: str, text: str) -> list[str]:
    """A labelled paragraph; nothing if there is no text."""
    indent = f"  {name:<10}"
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))
