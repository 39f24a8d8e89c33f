"""What a party computes with where the time goes: key pairs, masks, what it reads and hashes.

A device or server takes these as an argument. Whatever is put in their place has to give the very
same bytes: it may only be quicker, on other hardware or by what a simulation knows of all devices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from deltafl.secagg import keys, prg
from deltafl.secagg.keys import KeyPair
from deltafl.secagg.randomness import Randomness
from deltafl.secagg.ring import Vector

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


class Apply(Protocol):
    """Applies a pure function, or remembers what it has given."""

    def __call__(self, function: Callable[[_Argument], _Result], argument: _Argument, /) -> _Result:
        """What the function gives for the argument; neither that nor the argument ever changes.

        Raises:
            Exception: what the function raises.
        """


def apply(function: Callable[[_Argument], _Result], argument: _Argument, /) -> _Result:
    """`function(argument)`."""
    return function(argument)


AddMasks = Callable[[Vector, Sequence[bytes], Sequence[bytes]], None]
"""`prg.add_masks`, or what gives the same: adds the masks of some seeds, subtracts others'."""


@dataclass(frozen=True, slots=True)
class Primitives:
    """How a party draws its key pairs, masks vectors or unmasks them, and reads what it is sent.

    Attributes:
        generate: `keys.generate`, or what gives pairs that agree as its pairs do.
        add_masks: `prg.add_masks`, or what gives the same.
        apply: How it decodes and hashes what many devices are sent.
    """

    generate: Callable[[Randomness], KeyPair] = keys.generate
    add_masks: AddMasks = prg.add_masks
    apply: Apply = apply


PLAIN: Final = Primitives()
"""What a party computes with unless it is given something else."""
