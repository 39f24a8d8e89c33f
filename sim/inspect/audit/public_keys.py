"""Public keys that honest devices never have: not on the curve, or of a secret that can be guessed.

A public key is a multiple of the base point of Curve25519, so the curve's equation has a solution
for it. Of other 32 bytes, half have none: they are points of the twist, or bytes that are no key.
"""

import functools
import hashlib
from collections.abc import Iterable
from typing import Final

from deltafl.secagg import keys
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


@functools.cache
def of_few_seeds() -> dict[bytes, str]:
    """Public keys of secrets that careless software makes of eight bits, and how."""
    return {keys.key_pair(secret).public: how for secret, how in few_seeds(_FEW_BITS)}


def of_visible(values: Iterable[bytes]) -> dict[bytes, str]:
    """Public keys of secrets that are visible values, padded, or their SHA-256 digests."""
    known: dict[bytes, str] = {}
    for value in values:
        padded = value[: keys.KEY_SIZE].ljust(keys.KEY_SIZE, b"\0")
        known[keys.key_pair(padded).public] = f"{value.hex()}, which everybody can see"
        digest = hashlib.sha256(value).digest()
        known[keys.key_pair(digest).public] = f"the SHA-256 digest of {value.hex()}"
    return known
