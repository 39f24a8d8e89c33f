"""What an attack is: a function that plays it, what it says of itself, and what it can come to.

The attacker sees and sends bytes; what its own devices know, it knows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from deltafl.secagg import Fault, PeerError, Refusal

Words = npt.NDArray[np.uint32] | npt.NDArray[np.uint64] | npt.NDArray[np.bool_]

_FEWEST_BITS = 1000
"""With fewer, noise and a vector that is half known look too much alike."""
_DEVIATIONS = 5


class Power(StrEnum):
    """Who attacks: it sees and says what that party does, and with it any device of its own."""

    SERVER = "server"
    PEER = "peer"
    NETWORK = "network"


class Left(StrEnum):
    """What an attacker is left with who is not caught."""

    NOISE = "noise: the masks stay on"
    NOTHING = "nothing: no such thing is sent"
    HARMLESS = "nothing: the sum is exact"
    EXPOSED = "all of it: not prevented, by design"


End = Refusal | Fault | Left
"""How an attack ends under all defences: a device refuses, the server names the attacker, or
neither, and this is what is left."""


@dataclass(frozen=True, eq=False)
class Loot:
    """What an attacker has in the end, and what it was after.

    Attributes:
        taken: Words of a ring of `ring_bits`, or booleans (`ring_bits` = 1).
        wanted: The same, of one shape.
        ring_bits: Of both.
        refusals: Of the devices that refused to go on, while others did.
        note: What else a reader should know, a sentence; or "".
        read: The words as people read them; the words themselves where not given.
    """

    taken: Words
    wanted: Words
    ring_bits: int = 32
    refusals: tuple[PeerError, ...] = ()
    note: str = ""
    read: Callable[[Words], npt.NDArray[np.generic]] = field(default=np.asarray, repr=False)

    @property
    def is_complete(self) -> bool:
        """Whether the attacker has all that it was after, to the bit."""
        return np.array_equal(self.taken, self.wanted)

    @property
    def num_bits(self) -> int:
        """Bits that the attacker was after."""
        return len(self.wanted) * self.ring_bits

    @property
    def differing_bits(self) -> int:
        """How many ones the difference of the two has, in the ring."""
        words = self.taken.astype(np.uint64) - self.wanted.astype(np.uint64)
        words &= np.uint64(2**self.ring_bits - 1)
        return int(np.bitwise_count(words).sum())

    @property
    def is_noise(self) -> bool:
        """Whether as many bits of the difference are ones as for uniform words, to 5 deviations."""
        deviation = self.num_bits**0.5 / 2
        excess = abs(self.differing_bits - self.num_bits / 2)
        return self.num_bits >= _FEWEST_BITS and excess < _DEVIATIONS * deviation


@dataclass(frozen=True)
class Harm:
    """Whether an attacker who is after no secret did its harm, and whom the server named for it.

    Attributes:
        done: Whether it did.
        culprits: Devices that the server dropped, and for which fault.
        note: What was seen, a sentence.
    """

    done: bool
    culprits: frozenset[tuple[int, Fault]] = frozenset()
    note: str = field(default="", compare=False)


class NotPlayed(Exception):
    """The attack could not be played as it is meant: what it rests on does not hold."""


def presuppose(holds: bool, fact: str) -> None:
    """See to it that an attack fails, where it fails, for the reason that it is about.

    Raises:
        NotPlayed: the fact does not hold.
    """
    if not holds:
        raise NotPlayed(f"it is not so that {fact}")


Play = Callable[[bool], Loot | Harm]
"""Plays the attack with its defence off (False) or on (True)."""


@dataclass(frozen=True, eq=False)
class Attack:
    """One attack.

    Attributes:
        name: Stable, in kebab-case.
        number: Of the kind of attack, in the numbering of docs/audit.md; several may share it.
        deed: What the attacker does, a sentence without its subject.
        power: Who it is.
        gain: What it is after, and gets when the defence is off.
        defence: What stands in its way.
        spec: The section of docs/spec.md that asks for it.
        end: How it ends when the defence is on.
        saying: What the refusal must mention, where many things are refused for one reason.
        culprit: The device that the server must name, where `end` is a fault.
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
        """How it is played, some sentences: what the function says of itself."""
        return " ".join((self.play.__doc__ or "").split())

    @property
    def is_prevented(self) -> bool:
        """Whether anything stands in its way."""
        return self.end is not Left.EXPOSED


def attack(
    name: str,
    number: int,
    deed: str,
    *,
    power: Power,
    gain: str,
    defence: str,
    spec: str,
    end: End,
    saying: str = "",
    culprit: int | None = None,
) -> Callable[[Play], Attack]:
    """Make an attack of the function that plays it; the arguments are as for `Attack`."""

    def made(play: Play) -> Attack:
        return Attack(name, number, deed, power, gain, defence, spec, end, saying, culprit, play)

    return made
