"""Public keys that honest devices never have: no multiples of the base point, or guessable.

A public key is a multiple of the base point of Curve25519, so the curve's equation has a solution
for it. Of other 32 bytes, half have none: they are points of the twist, or bytes that are no key.
Of the points that are on the curve, one in eight is a multiple of the base point. To any of these,
a device can add one of seven points of small order, and agreements go on as before: three bits that
everybody can read. So are the bits of an encoding that readers ignore.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Final

from nacl.bindings import crypto_core_ed25519_is_valid_point, crypto_scalarmult_base

from deltafl.secagg import keys
from deltafl.secagg.identity import identity
from deltafl.sim.inspect.audit import guesses
from deltafl.sim.inspect.audit.weak_seeds import few_seeds

_PRIME: Final = 2**255 - 19
_A: Final = 486662
_FEW_BITS: Final = 8


def is_on_curve(public: bytes) -> bool:
    """Whether v² = u³ + 486662·u² + u has a solution v, modulo 2^255 − 19 (RFC 7748, section 4.1).

    Args:
        public: 32 bytes that encode u.
    """
    u = keys.coordinate(public)
    square = u * (u * (u + _A) + 1) % _PRIME
    return square == 0 or pow(square, (_PRIME - 1) // 2, _PRIME) == 1


def of_edwards(identity: bytes) -> bytes:
    """The X25519 key of the same secret scalar as an Ed25519 key: u = (1 + y) / (1 − y).

    Args:
        identity: 32 bytes: y and the sign of x.
    """
    y = keys.coordinate(identity)
    u = (1 + y) * pow(1 - y, -1, _PRIME) % _PRIME if y != 1 else 0
    return u.to_bytes(keys.KEY_SIZE, "little")


def is_in_group(point: bytes) -> bool:
    """Whether these are the canonical encoding of a multiple of Ed25519's base point, but zero.

    Args:
        point: 32 bytes: y and the sign of x.
    """
    return bool(crypto_core_ed25519_is_valid_point(point))


def is_multiple_of_base(public: bytes) -> bool:
    """Whether these are the canonical encoding of a multiple of Curve25519's base point, but zero.

    Args:
        public: 32 bytes that encode u.
    """
    u = keys.coordinate(public)
    if u.to_bytes(keys.KEY_SIZE, "little") != public or u == _PRIME - 1:
        return False
    y = (u - 1) * pow(u + 1, -1, _PRIME) % _PRIME  # the inverse of `of_edwards`
    return is_in_group(y.to_bytes(keys.KEY_SIZE, "little"))


@functools.cache
def of_few_seeds() -> dict[bytes, str]:
    """Public keys and identities of secrets that careless software makes of eight bits, and how."""
    return dict(_publics(few_seeds(_FEW_BITS)))


def of_visible(values: Iterable[bytes]) -> dict[bytes, str]:
    """Public keys and identities of secrets that follow from visible values, and how."""
    known: dict[bytes, str] = {}
    for value in values:
        known.update(_of_value(value))
    return known


def of_secret(secret: bytes) -> dict[bytes, str]:
    """Public keys and identities of simple functions of a secret, but not its own, and which."""
    return dict(_publics(guesses.functions_of(secret)))


@functools.lru_cache(maxsize=1 << 13)  # the ids of devices are the same in all rounds
def _of_value(value: bytes) -> tuple[tuple[bytes, str], ...]:
    found = dict(guesses.of_value(value)).items()
    return tuple(_publics((secret, f"{how}, which everybody can see") for secret, how in found))


def _publics(secrets: Iterable[tuple[bytes, str]]) -> Iterator[tuple[bytes, str]]:
    """The X25519 key and the Ed25519 key of every secret.

    An Ed25519 key whose secret scalar is a guess by itself is found as an X25519 key: `of_edwards`.
    """
    for secret, how in secrets:
        yield crypto_scalarmult_base(secret), how
        yield bytes(identity(secret).public), how
