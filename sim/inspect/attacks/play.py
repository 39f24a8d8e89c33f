"""Plays an attack without and with its defence, and compares the outcomes with the register."""

from dataclasses import dataclass

from deltafl.secagg import Fault, PeerError, Refusal
from deltafl.sim.inspect.attacks.attack import Attack, Harm, Left, Loot, NotPlayed

Outcome = Loot | Harm | PeerError | NotPlayed
"""The result of an attack, the refusal that ended it at once, or why it could not be played."""


@dataclass(frozen=True)
class Verdict:
    """An attack, played.

    Attributes:
        attack: Which.
        undefended: What it came to without its defence; None where there is none to take away.
        defended: What it came to with every defence on.
        surprises: In what either differs from the register; empty if all is as it says.
    """

    attack: Attack
    undefended: Outcome | None
    defended: Outcome
    surprises: tuple[str, ...]

    @property
    def as_registered(self) -> bool:
        """Whether the attack ended as the register says, both times."""
        return not self.surprises


def judged(attack: Attack) -> Verdict:
    """Play an attack both ways, or once if nothing prevents it."""
    undefended = played(attack, defended=False) if attack.is_prevented else None
    defended = played(attack, defended=True)
    surprises = [surprise(attack, defended, defended=True)]
    if undefended is not None:
        surprises.append(surprise(attack, undefended, defended=False))
    return Verdict(attack, undefended, defended, tuple(filter(None, surprises)))


def played(attack: Attack, *, defended: bool) -> Outcome:
    """Play an attack once."""
    try:
        return attack.play(defended)
    except (PeerError, NotPlayed) as ended:
        return ended


def surprise(attack: Attack, outcome: Outcome, *, defended: bool) -> str:
    """What is not as the register says, in a sentence; empty if everything is.

    Without its defence, an attack must succeed completely and unnoticed. Otherwise, its failure
    with the defence would show nothing.
    """
    told = _as_prevented(attack, outcome) if defended else _as_successful(outcome)
    return told and f"defence {'on' if defended else 'off'}: {told}"


def _as_successful(outcome: Outcome) -> str:
    match outcome:
        case PeerError():
            return f"a device refused: {outcome}"
        case Loot(refusals=refusals) if refusals:
            return f"a device refused: {refusals[0]}"
        case Loot():
            return "" if outcome.is_complete else "the attacker did not get what it was after"
        case Harm():
            return "" if outcome == Harm(done=True) else "no harm was done, or somebody was named"
        case NotPlayed():
            return str(outcome)


def _as_prevented(attack: Attack, outcome: Outcome) -> str:
    match attack.end, outcome:
        case _, NotPlayed():
            return str(outcome)
        case Left.EXPOSED, _:
            return _as_successful(outcome)
        case Refusal() as reason, PeerError():
            if outcome.reason is not reason:
                return f"refused for another reason than {reason!s}: {outcome}"
            said = attack.saying in str(outcome)
            return "" if said else f"the refusal does not mention {attack.saying!r}: {outcome}"
        case Refusal() as reason, Loot(refusals=refusals):
            if {refusal.reason for refusal in refusals} != {reason}:
                return f"nobody refused, or not for {reason!s} alone"
            return _as_noise(outcome)
        case Fault() as fault, Harm():
            is_named = not outcome.done and outcome.culprits == {(attack.culprit, fault)}
            return "" if is_named else "harm was done, or another device was named"
        case ((Left.NOISE | Left.ADDED), Loot(refusals=refusals)):
            return f"a device refused: {refusals[0]}" if refusals else _as_noise(outcome)
        case Left.NOTHING, Loot():
            is_nothing = outcome.wanted.any() and not outcome.taken.any()
            return "" if is_nothing else "something was told, or there was nothing to tell"
        case ((Left.HARMLESS | Left.BOUNDED), Harm()):
            return "" if outcome == Harm(done=False) else "harm was done, or somebody was named"
        case _:
            return f"the attack did not end as registered: {attack.end!s}"


def _as_noise(loot: Loot) -> str:
    return "" if loot.is_noise else "what the attacker has is not noise"
