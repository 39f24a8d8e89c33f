"""What an attack is, how it is played without and with its defence, and what may come of it.

The attacker sees and sends bytes. It knows everything that its own devices know.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from deltafl.secagg import ClientId, Fault, PeerError, Refusal

Words = npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]

LIAR: Final = ClientId(3)
"""The device that lies where a device does: of a round's, the one with the smallest loss."""

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


Culprit = tuple[int, Fault]
"""A device that the server dropped, and for which fault."""

End = Refusal | Fault | Left
"""How an attack ends under all defences: a device refuses, the server names the attacker or, if
neither happens, what the attacker is left with."""


@dataclass(frozen=True, eq=False)
class Loot:
    """What an attacker got, and what it was after.

    Attributes:
        taken: Words of a ring, not reduced, or booleans; none where every device refused.
        wanted: The same, of one shape.
        ring_bits: The ring of both; 1 for booleans.
        refusals: From the devices that refused to go on.
        culprits: Devices that the server dropped, and for which fault.
        note: What else a reader should know, in a sentence; or "".
        unit: What a word of one stands for, where words stand for numbers with a sign; or 0.
    """

    taken: Words
    wanted: Words
    ring_bits: int = 32
    refusals: tuple[PeerError, ...] = ()
    culprits: frozenset[Culprit] = frozenset()
    note: str = ""
    unit: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the attacker got everything that it was after, to the bit."""
        return self.num_bits > 0 and not self.differing_bits

    @property
    def is_nothing(self) -> bool:
        """Whether the attacker got zeros for something else."""
        return bool(self.wanted.any()) and not self.taken.any()

    @property
    def num_bits(self) -> int:
        """Bits that the attacker was after."""
        return len(self.wanted) * self.ring_bits

    @property
    def differing_bits(self) -> int:
        """How many bits of the difference of the two, in the ring, are ones."""
        words = self.taken.astype(np.uint64) - self.wanted.astype(np.uint64)
        return int(np.bitwise_count(self._reduced(words)).sum())

    @property
    def is_noise(self) -> bool:
        """Whether the number of ones in the difference fits uniform words, to 5 deviations."""
        deviation = self.num_bits**0.5 / 2
        excess = abs(self.differing_bits - self.num_bits / 2)
        return self.num_bits >= _FEWEST_BITS and excess < _DEVIATIONS * deviation

    def read(self, words: Words) -> npt.NDArray[np.generic]:
        """Words as numbers that people can read."""
        reduced = self._reduced(words.astype(np.uint64))
        return signed(reduced, self.ring_bits) * self.unit if self.unit else reduced

    def _reduced(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return words & np.uint64(2**self.ring_bits - 1)


def signed(words: Words, ring_bits: int) -> npt.NDArray[np.int64]:
    """Words of a ring as numbers with a sign."""
    shift = 64 - ring_bits
    return words.astype(np.uint64).view(np.int64) << shift >> shift


def harm(done: bool, note: str = "", culprits: frozenset[Culprit] = frozenset()) -> Loot:
    """The loot of an attacker that is after no secret: whether it did harm."""
    return Loot(np.array([done]), np.array([True]), 1, culprits=culprits, note=note)


def refused(refusal: PeerError) -> Loot:
    """The loot of an attacker that a refusal has stopped at once."""
    nothing = np.zeros(0, bool)
    return Loot(nothing, nothing, refusals=(refusal,))


class NotPlayed(Exception):
    """The attack could not be played as intended, because what it assumes does not hold."""


def presuppose(holds: bool, fact: str) -> None:
    """Make sure that if an attack fails, it fails for the intended reason.

    Raises:
        NotPlayed: the fact does not hold.
    """
    if not holds:
        raise NotPlayed(f"this does not hold: {fact}")


Play = Callable[[bool], Loot]
"""Plays the attack with its defence off (False) or on (True)."""


class Told(NamedTuple):
    """A function that plays an attack, and what is told of that; see `Attack`."""

    play: Play
    deed: str
    gain: str
    defence: str


def told(deed: str, *, gain: str, defence: str) -> Callable[[Play], Told]:
    """The decorator of a function that says what it plays; `Attack` is to be above it."""
    return lambda play: Told(play, deed, gain, defence)


@dataclass(frozen=True, eq=False)
class Attack:
    """One attack: the decorator of the function that plays it.

    One that nothing prevents is played with every defence on.

    Attributes:
        number: The kind of attack, as numbered in docs/audit.md; several attacks may share it.
        spec: The section of docs/spec.md that requires the defence.
        end: How the attack ends when the defence is on; if a fault, the server names `LIAR`.
        power: Who the attacker is.
        saying: What the refusal must mention, if many things are refused for the same reason.
        deed: What the attacker does, a sentence without its subject.
        gain: What the attacker is after, and gets when the defence is off.
        defence: What prevents the attack.
        play: Plays it.
        name: The function's name, in kebab-case.
        scene: How it is played, in a few sentences: the function's docstring.
    """

    number: int
    spec: str
    end: End = Left.EXPOSED
    _: KW_ONLY
    power: Power = Power.SERVER
    saying: str = ""
    deed: str = ""
    gain: str = ""
    defence: str = ""
    play: Play = field(default=lambda _: harm(False), repr=False)
    name: str = ""
    scene: str = ""

    def __call__(self, told: Told) -> "Attack":
        """The attack that a function plays."""
        name, scene = told.play.__name__.replace("_", "-"), told.play.__doc__ or ""
        return replace(self, **told._asdict(), name=name, scene=" ".join(scene.split()))

    @property
    def label(self) -> str:
        """Its number as in docs/audit.md, such as "A8"."""
        return f"A{self.number}"

    @property
    def is_prevented(self) -> bool:
        """Whether anything prevents it."""
        return self.end is not Left.EXPOSED


Outcome = Loot | NotPlayed
"""The result of an attack, or why it could not be played."""


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
    except PeerError as refusal:
        return refused(refusal)
    except NotPlayed as why:
        return why


def surprise(attack: Attack, outcome: Outcome, *, defended: bool) -> str:
    """What is not as the register says, in a sentence; empty if everything is.

    Without its defence, an attack must succeed completely and unnoticed. Otherwise, its failure
    with the defence would show nothing.
    """
    told = _as_prevented(attack, outcome) if defended else _as_successful(outcome)
    return told and f"defence {'on' if defended else 'off'}: {told}"


def _as_successful(outcome: Outcome) -> str:
    if isinstance(outcome, NotPlayed):
        return str(outcome)
    told = "" if outcome.is_complete else "the attacker did not get what it was after"
    return _noticed(outcome) or told


def _as_prevented(attack: Attack, outcome: Outcome) -> str:
    if isinstance(outcome, NotPlayed) or not attack.is_prevented:
        return _as_successful(outcome)
    noise = "" if outcome.is_noise else "what the attacker has is not noise"
    match attack.end:
        case Refusal() as reason:
            if {refusal.reason for refusal in outcome.refusals} != {reason}:
                return f"nobody refused, or not for {reason!s} alone"
            if not all(attack.saying in str(refusal) for refusal in outcome.refusals):
                return f"the refusal does not mention {attack.saying!r}: {outcome.refusals[0]}"
            return noise if outcome.num_bits else ""
        case Fault() as fault:
            is_named = outcome.is_nothing and outcome.culprits == {(LIAR, fault)}
            return "" if is_named else "harm was done, or another device was named"
        case Left.NOISE:
            return _noticed(outcome) or noise
        case _:
            told = "" if outcome.is_nothing else "something was taken, or there was nothing to take"
            return _noticed(outcome) or told


def _noticed(loot: Loot) -> str:
    if loot.refusals:
        return f"a device refused: {loot.refusals[0]}"
    return "somebody was named" if loot.culprits else ""
