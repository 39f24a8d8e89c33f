"""What a party computes with where the time goes: key pairs, and the masks of a vector.

A device or server takes these as an argument. Whatever is put in their place has to give the very
same bytes: it may only be quicker, on other hardware or by what a simulation knows of all devices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from secagg import keys, prg
from secagg.keys import KeyPair
from secagg.randomness import Randomness
from secagg.ring import Vector

AddMasks = Callable[[Vector, Sequence[bytes], Sequence[bytes]], None]
"""`prg.add_masks`, or what gives the same: adds the masks of some seeds, subtracts others'."""


@dataclass(frozen=True, slots=True)
class Primitives:
    """How a party draws its key pairs, and puts masks on a vector or takes them off.

    Attributes:
        generate: `keys.generate`, or what gives pairs that agree as its pairs do.
        add_masks: `prg.add_masks`, or what gives the same.
    """

    generate: Callable[[Randomness], KeyPair] = keys.generate
    add_masks: AddMasks = prg.add_masks


PLAIN: Final = Primitives()
"""What a party computes with unless it is given something else."""
