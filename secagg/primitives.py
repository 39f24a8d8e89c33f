"""Replaceable functions for the costly work of a party: boxes, masks, decoding and hashing.

A device or server takes these as an argument. A replacement must produce exactly the same bytes. It
may only be faster, because it uses other hardware or what a simulation knows about all devices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, TypeVarTuple

from deltafl.secagg import keys, prg
from deltafl.secagg.errors import Refusal
from deltafl.secagg.keys import PublicKey, Recipient
from deltafl.secagg.masks import PairSecret, subtracts
from deltafl.secagg.openings import Opening, examine
from deltafl.secagg.randomness import Randomness
from deltafl.secagg.ring import Vector

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")


class Apply(Protocol):
    """Applies a pure function, or returns a result that it remembers."""

    def __call__(
        self,
        function: Callable[[*_Arguments], _Result],
        /,
        *arguments: *_Arguments,
    ) -> _Result:
        """The function's result for the arguments, of which none may be modified.

        Raises:
            Exception: whatever the function raises.
        """


def apply(function: Callable[[*_Arguments], _Result], /, *arguments: *_Arguments) -> _Result:
    """`function(*arguments)`."""
    return function(*arguments)


Open = Callable[[Recipient, bytes, bytes], bytes | None]
"""`Recipient.open` or an equivalent: what is in a box, under what it is bound to."""

Seal = Callable[[bytes, PublicKey, bytes], bytes]
"""`keys.seal` or an equivalent: a box of a content for a key, and what it is bound to."""


AddMasks = Callable[[Vector, Sequence[bytes], Sequence[bytes]], None]
"""`prg.add_masks` or an equivalent: adds the masks of some seeds and subtracts those of others."""

AddPairwise = Callable[[Vector, int, Sequence[PairSecret]], None]
"""Adds to a vector the masks that the device at a position shares with some peers, or subtracts
them, as `subtracts` says."""


def pairwise_with(add_masks: AddMasks) -> AddPairwise:
    """`AddPairwise` for one device alone."""

    def add_pairwise(total: Vector, position: int, pairs: Sequence[PairSecret]) -> None:
        added, subtracted = list[bytes](), list[bytes]()
        for pair in pairs:
            (subtracted if subtracts(position, pair.peer) else added).append(pair.key())
        add_masks(total, added, subtracted)

    return add_pairwise


add_pairwise: Final[AddPairwise] = pairwise_with(prg.add_masks)
"""`AddPairwise` of a device alone, in one thread."""


@dataclass(frozen=True, slots=True)
class Primitives:
    """How a party draws key pairs, seals and opens boxes, masks vectors, and reads messages.

    Attributes:
        generate: `keys.generate`, or a function that gives the same pairs.
        seal: `keys.seal`, or an equivalent.
        open: `Recipient.open`, or a function that knows what was sealed.
        add_masks: `prg.add_masks`, or an equivalent.
        add_pairwise: `add_pairwise`, or an equivalent.
        apply: How the party decodes what many devices receive, and derives what two have.
        examine: `openings.examine`, or a function that remembers what it found.
    """

    generate: Callable[[Randomness], Recipient] = keys.generate
    seal: Seal = keys.seal
    open: Open = Recipient.open
    add_masks: AddMasks = prg.add_masks
    add_pairwise: AddPairwise = add_pairwise
    apply: Apply = apply
    examine: Callable[[Opening], tuple[Refusal, str] | None] = examine


PLAIN: Final = Primitives()
"""The default primitives of every party."""
