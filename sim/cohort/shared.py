"""For simulations only: computes results that several devices share only once.

A real device has its own secret key and the other's public key, and cannot use this module. In a
simulation, devices share a process anyway. Both ends of a pair would take the same costly step,
although both secrets are available, and all devices would decode and hash the same announcement.
Sharing these results changes no byte that is sent, and no check.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from nacl.bindings import crypto_scalarmult_base

from deltafl.secagg import keys, prg
from deltafl.secagg.keys import KeyPair
from deltafl.secagg.primitives import AddMasks, Primitives
from deltafl.secagg.randomness import Randomness

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_REMEMBERED: Final = 8  # more than what a device computes of one message
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493  # of the base point (RFC 7748)
_TO_MULTIPLE_OF_8: Final = -pow(_ORDER, -1, 8) % 8


def simulated(add_masks: AddMasks = prg.add_masks) -> Primitives:
    """What the parties of one simulated session compute with; made anew for each session."""
    return Primitives(SharedAgreements().generate, add_masks, SharedResults().apply)


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
