"""What an attack is, how it is played without and with its defence, and what may come of it.

The attacker sees and sends bytes. It knows everything that its own devices know.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from deltafl.secagg import Fault, PeerError, Refusal

Words = npt.NDArray[np.uint32] | npt.NDArray[np.uint64] | npt.NDArray[np.bool_]

_FEWEST_BITS = 1000
"""With fewer bits, noise looks too much like a vector that is half known."""
_DEVIATIONS = 5


class Power(StrEnum):
    """The attacking party: the attacker sees and sends what it does, and controls own devices."""

    SERVER = "server"
    PEER = "peer"
    NETWORK = "network"


class Left(StrEnum):
    """What an attacker that is not caught is left with."""

    NOISE = "noise: the masks stay on"
    NOTHING = "nothing: no such thing is sent"
    HARMLESS = "nothing: the sum is exact"
    BOUNDED = "no more than its bound"
    EXPOSED = "all of it: not prevented, by design"


End = Refusal | Fault | Left
"""How an attack ends under all defences: a device refuses, the server names the attacker or, if
neither happens, what the attacker is left with."""


@dataclass(frozen=True, eq=False)
class Loot:
    """What an attacker got, and what it was after.

    Attributes:
        taken: Words of a ring of `ring_bits`, or booleans (`ring_bits` = 1).
        wanted: The same, of one shape.
        ring_bits: The ring of both.
        refusals: From the devices that refused to go on, while others did.
        note: What else a reader should know, in a sentence; or "".
        read: Turns the words into numbers that people can read; by default, it changes nothing.
    """

    taken: Words
    wanted: Words
    ring_bits: int = 32
    refusals: tuple[PeerError, ...] = ()
    note: str = ""
    read: Callable[[Words], npt.NDArray[np.generic]] = field(default=np.asarray, repr=False)

    @property
    def is_complete(self) -> bool:
        """Whether the attacker got everything that it was after, to the bit."""
        return np.array_equal(self.taken, self.wanted)

    @property
    def num_bits(self) -> int:
        """Bits that the attacker was after."""
        return len(self.wanted) * self.ring_bits

    @property
    def differing_bits(self) -> int:
        """How many bits of the difference of the two, in the ring, are ones."""
        words = self.taken.astype(np.uint64) - self.wanted.astype(np.uint64)
        words &= np.uint64(2**self.ring_bits - 1)
        return int(np.bitwise_count(words).sum())

    @property
    def is_noise(self) -> bool:
        """Whether the number of ones in the difference fits uniform words, to 5 deviations."""
        deviation = self.num_bits**0.5 / 2
        excess = abs(self.differing_bits - self.num_bits / 2)
        return self.num_bits >= _FEWEST_BITS and excess < _DEVIATIONS * deviation


@dataclass(frozen=True)
class Harm:
    """Whether an attacker that is not after a secret did harm, and whom the server blamed.

    Attributes:
        done: Whether it did harm.
        culprits: Devices that the server dropped, and for which fault.
        note: What was seen, in a sentence.
    """

    done: bool
    culprits: frozenset[tuple[int, Fault]] = frozenset()
    note: str = field(default="", compare=False)


class NotPlayed(Exception):
    """The attack could not be played as intended, because what it assumes does not hold."""


def presuppose(holds: bool, fact: str) -> None:
    """Make sure that if an attack fails, it fails for the intended reason.

    Raises:
        NotPlayed: the fact does not hold.
    """
    if not holds:
        raise NotPlayed(f"this does not hold: {fact}")


Play = Callable[[bool], Loot | Harm]
"""Plays the attack with its defence off (False) or on (True)."""


@dataclass(frozen=True, eq=False)
class Attack:
    """One attack.

    Attributes:
        name: Stable, in kebab-case.
        number: The kind of attack, as numbered in docs/audit.md; several attacks may share it.
        deed: What the attacker does, a sentence without its subject.
        power: Who the attacker is.
        gain: What the attacker is after, and gets when the defence is off.
        defence: What prevents the attack.
        spec: The section of docs/spec.md that requires the defence.
        end: How the attack ends when the defence is on.
        saying: What the refusal must mention, if many things are refused for the same reason.
        culprit: The device that the server must name, if `end` is a fault.
        play: Plays it.
    """

    name: str
    number: int
    deed: str
    power: Power
    gain: str
    defence: str
    spec: str
    end: End
    saying: str
    culprit: int | None
    play: Play = field(repr=False)

    @property
    def label(self) -> str:
        """Its number as in docs/audit.md, such as "A8"."""
        return f"A{self.number}"

    @property
    def scene(self) -> str:
        """How it is played, in a few sentences: the docstring of its function."""
        return " ".join((self.play.__doc__ or "").split())

    @property
    def is_prevented(self) -> bool:
        """Whether anything prevents it."""
        return self.end is not Left.EXPOSED


def attack(
    number: int,
    deed: str,
    *,
    gain: str,
    defence: str,
    spec: str,
    end: End = Left.EXPOSED,
    power: Power = Power.SERVER,
    saying: str = "",
    culprit: int | None = None,
) -> Callable[[Play], Attack]:
    """Turn the function that plays an attack into an `Attack`, whose attributes these are.

    The function's name is that of the attack. One that nothing prevents is played with every
    defence on.
    """

    def made(play: Play) -> Attack:
        name = play.__name__.replace("_", "-")
        return Attack(name, number, deed, power, gain, defence, spec, end, saying, culprit, play)

    return made


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
        case Left.NOISE, Loot(refusals=refusals):
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
