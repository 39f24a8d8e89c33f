"""For simulations only: computes results that several devices share only once.

A real device has its own secret key and the other's public key, and cannot use this module. In a
simulation, devices share a process anyway. Both ends of a pair would derive the same link and make
the same masks, a box would be opened whose content is known, and all devices would decode and hash
the same announcement. Sharing these results changes no check, and no byte that is sent but what
the operating system draws for a box in any case.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar, TypeVarTuple, cast

import numpy as np

from deltafl.secagg import keys, links, prg
from deltafl.secagg.keys import PublicKey, Recipient
from deltafl.secagg.masks import PairSecret, subtracts
from deltafl.secagg.openings import examine
from deltafl.secagg.primitives import (
    AddMasks,
    AddPairwise,
    Primitives,
    add_pairwise,
    pairwise_with,
)
from deltafl.secagg.ring import Vector

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

_KEPT_BYTES: Final = 1 << 28
_OVERHEAD: Final = 256  # bytes of a dictionary's entry and of its keys
_REMEMBERED: Final = 8  # more than what a device computes of one message


def simulated(
    add_masks: AddMasks = prg.add_masks,
    share_up_to: int = prg.MAX_BYTES,
) -> Primitives:
    """What the parties of one simulated session compute with; made anew for each session.

    Args:
        add_masks: What adds masks to vectors.
        share_up_to: Bytes of the longest vector whose masks are made once for both ends. Several
            threads make longer ones faster than shared ones could be added.
    """
    add_pairwise = SharedMasks(pairwise_with(add_masks), share_up_to).add_pairwise
    boxes = SharedBoxes()
    return Primitives(
        keys.generate,
        boxes.seal,
        boxes.open,
        add_masks,
        add_pairwise,
        SharedResults().apply,
        lru_cache(maxsize=1)(examine),  # sums that a server proves to many devices
    )


class SharedResults:
    """What pure functions gave for their last arguments.

    Why it is the same. A result is kept with the very function and the very arguments, which live
    as long as it does. Only these objects bring it back: equal data is computed anew. A link is
    kept with all that it is derived from, which both ends have as equal values, and once the second
    has asked for it, it is forgotten. Ends that were shown different things derive it each.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], tuple[object, ...]] = {}
        self._links: dict[tuple[object, ...], object] = {}

    def apply(
        self,
        function: Callable[[*_Arguments], _Result],
        /,
        *arguments: *_Arguments,
    ) -> _Result:
        """What the function gives for the arguments, of which none ever changes."""
        if cast(object, function) is links.link:
            link = self._links.pop(arguments, None)
            if link is None:
                link = self._links[arguments] = function(*arguments)
            return cast(_Result, link)
        key = (id(function), *map(id, arguments))
        if (kept := self._kept.get(key)) is not None:
            return cast(_Result, kept[-1])
        result = function(*arguments)
        if len(self._kept) == _REMEMBERED:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = function, *arguments, result
        return result


@dataclass(slots=True)
class _Waiting:
    """Masks that other devices have made for one that has not masked its vector yet.

    Attributes:
        total: Their sum, with the signs that this device gives them.
        made: What they came from: secret and info.
    """

    total: Vector
    made: set[tuple[bytes, bytes]] = field(default_factory=set)


class SharedMasks:
    """Pairwise masks of devices in one process, made once and added with both signs.

    Why it is the same. A mask is a function of its `PairSecret` but for the peer's position. The
    two ends of a pair have equal ones, so a mask that one end has made is the other's, with the
    other sign. What devices were shown enters the `PairSecret`, so those that were shown different
    things share nothing.

    Long masks are added to a sum for the other end as they are made; short ones are kept. Either
    takes a bounded amount of memory, beyond which both ends make their masks. What is never asked
    for goes with the object, which is one session's.

    Args:
        add_pairwise: What masks vectors that are longer than those that are shared.
        share_up_to: Bytes of the longest vector whose masks are shared.
    """

    def __init__(
        self, add_pairwise: AddPairwise = add_pairwise, share_up_to: int = prg.MAX_BYTES
    ) -> None:
        self._alone = add_pairwise
        self._share_up_to = share_up_to
        self._short: dict[tuple[bytes, bytes], bytes] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._slot = b""
        self._served: set[int] = set()

    def add_pairwise(self, total: Vector, position: int, pairs: Sequence[PairSecret]) -> None:
        """`primitives.add_pairwise`."""
        if total.nbytes <= prg.SHORT_BYTES:
            self._add_short(total, position, pairs)
        elif total.nbytes > self._share_up_to:
            self._alone(total, position, pairs)
        else:
            self._add_long(total, position, pairs)

    def _add_short(self, total: Vector, position: int, pairs: Sequence[PairSecret]) -> None:
        added, subtracted = list[bytes](), list[bytes]()
        room = _KEPT_BYTES // (total.nbytes + _OVERHEAD)
        for pair in pairs:
            made_from = pair[1:]
            mask = self._short.pop(made_from, None)
            if mask is None:
                mask = prg.stretch(pair.key(), total.nbytes)
                if len(self._short) < room:
                    self._short[made_from] = mask
            (subtracted if subtracts(position, pair.peer) else added).append(mask)
        for operation, masks in ((np.add, added), (np.subtract, subtracted)):
            if masks:
                words = np.frombuffer(b"".join(masks), dtype=f"<u{total.itemsize}")
                summed = words.reshape(len(masks), -1).sum(axis=0, dtype=total.dtype)
                operation(total, summed, out=total)

    def _add_long(self, total: Vector, position: int, pairs: Sequence[PairSecret]) -> None:
        if not pairs:
            return
        slot = pairs[0].info
        if slot != self._slot:
            self._slot, self._waiting, self._served = slot, {}, set()
        self._served.add(position)
        waiting = self._waiting.pop(position, None)
        if waiting is not None and waiting.made <= {(pair.secret, pair.info) for pair in pairs}:
            np.add(total, waiting.total, out=total)
            pairs = [pair for pair in pairs if (pair.secret, pair.info) not in waiting.made]
        prg.add_both_signs(
            total,
            [
                (pair.key(), subtracts(position, pair.peer), self._sum_for(total, pair))
                for pair in pairs
            ],
        )

    def _sum_for(self, total: Vector, pair: PairSecret) -> Vector | None:
        """The sum to which the mask of a pair is added for the peer; None if it is not waiting."""
        if pair.peer in self._served:
            return None
        waiting = self._waiting.get(pair.peer)
        if waiting is None:
            if (len(self._waiting) + 1) * total.nbytes > _KEPT_BYTES:
                return None
            waiting = self._waiting[pair.peer] = _Waiting(np.zeros_like(total))
        waiting.made.add((pair.secret, pair.info))
        return waiting.total


class SharedBoxes:
    """Boxes of devices in one process, which need not be opened to know what is in them.

    Why it is the same. A box that was sealed here opens to its content, for the owner of the key
    and under what it was bound to: ML-KEM-768 fails once in 2^164 boxes, and nothing else of X-Wing
    or the cipher does. Any other box, key or binding is tried as always. What was sealed and never
    asked for goes with the object.
    """

    def __init__(self) -> None:
        self._sealed: dict[bytes, tuple[PublicKey, bytes, bytes]] = {}

    def seal(self, content: bytes, public: PublicKey, info: bytes) -> bytes:
        """`keys.seal`."""
        box = keys.seal(content, public, info)
        self._sealed[box] = public, info, content
        return box

    def open(self, own: Recipient, box: bytes, info: bytes) -> bytes | None:
        """`Recipient.open`."""
        public, bound_to, content = self._sealed.pop(box, (b"", b"", b""))
        if (public, bound_to) == (own.public, info):
            return content
        return own.open(box, info)
