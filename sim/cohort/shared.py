"""For simulations only: computes results that several devices share only once.

A real device has its own secret key and the other's public key, and cannot use this module. In a
simulation, devices share a process anyway. Both ends of a pair would take the same costly step,
although both secrets are available, and all devices would decode and hash the same announcement.
Sharing these results changes no byte that is sent, and no check.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar, cast

import numpy as np
from nacl.bindings import crypto_scalarmult_base

from deltafl.secagg import keys, prg
from deltafl.secagg.keys import KeyPair
from deltafl.secagg.masks import PairSecret, subtracts
from deltafl.secagg.openings import examine
from deltafl.secagg.primitives import (
    AddMasks,
    AddPairwise,
    Primitives,
    add_pairwise,
    pairwise_with,
)
from deltafl.secagg.randomness import Randomness
from deltafl.secagg.ring import Vector

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_KEPT_BYTES: Final = 1 << 28
_OVERHEAD: Final = 256  # bytes of a dictionary's entry and of its keys
_REMEMBERED: Final = 8  # more than what a device computes of one message
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493  # of the base point (RFC 7748)
_TO_MULTIPLE_OF_8: Final = -pow(_ORDER, -1, 8) % 8


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
    return Primitives(
        SharedAgreements().generate,
        add_masks,
        add_pairwise,
        SharedResults().apply,
        lru_cache(maxsize=1)(examine),  # sums that a server proves to many devices
    )


class SharedResults:
    """What pure functions gave for their last arguments.

    Why it is the same. A result is kept with the very function and the very argument, which live
    as long as it does. Only these two objects bring it back: an equal argument is computed anew.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[object, object, object]] = {}

    def apply(self, function: Callable[[_Argument], _Result], argument: _Argument, /) -> _Result:
        """What the function gives for the argument, of which neither ever changes."""
        key = id(function), id(argument)
        if (kept := self._kept.get(key)) is not None:
            return cast(_Result, kept[2])
        result = function(argument)
        if len(self._kept) == _REMEMBERED:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = function, argument, result
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
        slot = pairs[0].info[: -2 * keys.KEY_SIZE]
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


class SharedAgreements:
    """Key pairs of devices in one process, which compute an agreement once for both ends.

    Why it is the same. Let a and b be the secrets of two pairs that were drawn here, and 9 the base
    point. With A = X25519(a, 9) and B = X25519(b, 9), X25519(a, B) = X25519(b, A) (RFC 7748,
    section 6.1). What the first end gets is kept under (A, B), in this order, and only a pair with
    the public key B that asks for A takes it. Both are a·b times the base point, which a table of
    its multiples gives in half the time.

    A public key that was not drawn here, be it another encoding of one that was, is agreed with as
    always. So devices to which a server shows different keys get what they would have got.

    An agreement is forgotten once both ends have asked. What a device that vanishes leaves behind
    goes with the object, which is one session's; so do all secrets, which it holds till then.
    """

    def __init__(self) -> None:
        self._scalars: dict[bytes, int] = {}
        self._waiting: dict[tuple[bytes, bytes], bytes] = {}

    def generate(self, randomness: Randomness) -> KeyPair:
        """Draw a key pair, the one that `keys.generate` draws from the same randomness."""
        drawn = keys.generate(randomness)
        self._scalars[drawn.public] = _scalar(drawn.secret)
        return _SharedKeyPair(drawn.secret, drawn.public, drawn._private, self)

    def agree(self, own: KeyPair, public: bytes) -> bytes:
        """`KeyPair.agree` of a pair that was drawn here."""
        scalar = self._scalars.get(public)
        if scalar is None:
            return KeyPair.agree(own, public)
        shared = self._waiting.pop((public, own.public), None)
        if shared is None:
            secret = _secret_of(self._scalars[own.public] * scalar)
            shared = crypto_scalarmult_base(secret) if secret else KeyPair.agree(own, public)
            self._waiting[own.public, public] = shared
        return shared


@dataclass(frozen=True, slots=True)
class _SharedKeyPair(KeyPair):
    _agreements: SharedAgreements = field(repr=False, compare=False)

    def agree(self, public: bytes) -> bytes:
        """The shared X25519 secret; see `KeyPair.agree`."""
        return self._agreements.agree(self, public)


def _scalar(secret: bytes) -> int:
    """The scalar that X25519 makes of a secret: a multiple of 8 in [2^254, 2^255).

    RFC 7748, section 5.
    """
    return int.from_bytes(secret, "little") & ((1 << 255) - 8) | 1 << 254


def _secret_of(number: int) -> bytes | None:
    """A secret whose public key is that of ±number, as a multiple of the base point.

    X25519 knows no signs, and takes scalars of the form of `_scalar` only. Below 8 times the order,
    which is 2^255 and a little, one multiple of 8 is the number modulo the order and one its
    negative. The larger of the two is such a scalar, but for fewer than one number in 2^126, which
    have no secret (None).
    """
    residue = number % _ORDER
    multiple = residue + residue * _TO_MULTIPLE_OF_8 % 8 * _ORDER
    scalar = max(multiple, 8 * _ORDER - multiple)
    return None if scalar >> 255 else scalar.to_bytes(keys.KEY_SIZE, "little")
