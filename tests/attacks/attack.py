"""The register of attacks: each is one function, played twice, and one row of the table.

An attack is played with its defence off, where it must get what it is after, and with the defence
on, where it must end as the register says. The attacker sees and sends bytes; what its own devices
know, it knows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps

import numpy as np
import pytest

from secagg import Fault, PeerError, Refusal

OFF, ON = "off", "on"


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


@dataclass(frozen=True, eq=False)
class Loot:
    """What an attacker has in the end, and what it was after.

    Attributes:
        taken: Words of a ring of `ring_bits`, or booleans (`ring_bits` = 1).
        wanted: The same, of one shape.
        ring_bits: Of both.
        refusals: Of the devices that refused to go on, while others did.
    """

    taken: np.ndarray
    wanted: np.ndarray
    ring_bits: int = 32
    refusals: tuple[PeerError, ...] = ()

    @property
    def is_complete(self) -> bool:
        return np.array_equal(self.taken, self.wanted)

    @property
    def is_noise(self) -> bool:
        """Whether as many bits of the difference are ones as for uniform words, to 5 deviations."""
        words = self.taken.astype(np.uint64) - self.wanted.astype(np.uint64)
        words &= np.uint64(2**self.ring_bits - 1)
        bits = len(words) * self.ring_bits
        return bits >= 1000 and abs(int(np.bitwise_count(words).sum()) - bits / 2) < 2.5 * bits**0.5


@dataclass(frozen=True)
class Harm:
    """Whether an attacker who is after no secret did its harm, and whom the server named for it."""

    done: bool
    culprits: frozenset[tuple[int, Fault]] = frozenset()


@dataclass(frozen=True)
class Attack:
    """A row of the table.

    Attributes:
        number: Of the kind of attack; several may share it.
        name: What the attacker does.
        power: Who it is.
        gain: What it gets when the defence is off.
        defence: What stands in its way.
        spec: The section of docs/spec.md that asks for it.
        end: How it ends when the defence is on.
        module: Where the function is that plays it.
        line: Its place there.
        test: The test that was made of it.
    """

    number: int
    name: str
    power: Power
    gain: str
    defence: str
    spec: str
    end: Refusal | Fault | Left
    module: str
    line: int
    test: Callable[..., None]


ATTACKS: list[Attack] = []

_Play = Callable[..., Loot | Harm]


def attack(
    number: int,
    name: str,
    *,
    power: Power,
    gain: str,
    defence: str,
    spec: str,
    end: Refusal | Fault | Left,
    saying: str = "",
    culprit: int | None = None,
) -> Callable[[_Play], Callable[..., None]]:
    """Register an attack, and make of the function that plays it a test with two runs.

    Args:
        number: As for `Attack`.
        name: As for `Attack`.
        power: As for `Attack`.
        gain: As for `Attack`.
        defence: As for `Attack`.
        spec: As for `Attack`.
        end: As for `Attack`: the refusal that a device raises, the fault that the server names, or
            what is left.
        saying: What the refusal must mention, where many things are refused for one reason.
        culprit: The device that the server must name, where `end` is a fault.
    """

    def register(play: _Play) -> Callable[..., None]:
        @pytest.mark.parametrize("defended", [False, True], ids=[OFF, ON])
        @wraps(play)
        def test(*args, defended, **kwargs):
            try:
                outcome = play(*args, defended=defended, **kwargs)
            except PeerError as refusal:
                outcome = refusal
            check_outcome(defended, end, outcome, saying=saying, culprit=culprit)

        place = play.__module__, play.__code__.co_firstlineno
        ATTACKS.append(Attack(number, name, power, gain, defence, spec, end, *place, test))
        return test

    return register


def check_outcome(
    defended: bool,
    end: Refusal | Fault | Left,
    outcome: Loot | Harm | PeerError,
    *,
    saying: str = "",
    culprit: int | None = None,
) -> None:
    """Hold what an attack came to, or the refusal that ended it at once, to the register."""
    refusals = outcome.refusals if isinstance(outcome, Loot) else ()
    if not defended:
        # The negative control: this really is an attack, and nobody is named for it.
        assert not refusals
        assert outcome.is_complete if isinstance(outcome, Loot) else outcome == Harm(done=True)
        return
    match end, outcome:
        case Refusal(), PeerError():
            assert outcome.reason is end
            assert saying in str(outcome)
        case Refusal(), Loot():
            assert {refusal.reason for refusal in refusals} == {end}
            assert outcome.is_noise
        case Fault(), Harm():
            assert outcome == Harm(False, frozenset({(culprit, end)}))
        case Left.NOISE, Loot():
            assert not refusals
            assert outcome.is_noise
        case Left.NOTHING, Loot():
            assert outcome.wanted.any()
            assert not outcome.taken.any()
        case _:
            assert (end, outcome) == (Left.HARMLESS, Harm(done=False))
