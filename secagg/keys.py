"""X-Wing key pairs, boxes sealed to them by HPKE (RFC 9180), and HKDF-SHA256 (RFC 5869).

X-Wing joins ML-KEM-768 (FIPS 203) and X25519 (RFC 7748): what was recorded stays closed unless both
are broken. Whoever has a public key can seal a box to it, so a box says nothing about its sender;
what two devices derive from each other's boxes does (see `deltafl.secagg.links`).

Spec: §2.2, §2.3, §2.5.
"""

import hmac
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import shake_256
from typing import Final, NewType

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from deltafl.secagg.randomness import Randomness

PublicKey = NewType("PublicKey", bytes)

SECRET_SIZE: Final = 32
_KEM_SIZE: Final = 1184
KEY_SIZE: Final = _KEM_SIZE + 32
OVERHEAD: Final = 1120 + 16
"""By how much a box is longer than what is in it: what is encapsulated, and the tag."""
_KEM_SEED: Final = 64
_SUITE: Final = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


@dataclass(frozen=True, slots=True)
class Recipient:
    """An X-Wing key pair: what boxes are sealed to.

    Attributes:
        public: 1,216 bytes: the ML-KEM-768 key, then the X25519 key.
    """

    public: PublicKey
    _private: MLKEM768X25519PrivateKey = field(repr=False, compare=False)

    def open(self, box: bytes, info: bytes) -> bytes | None:
        """What is in a box that was sealed to this key under `info`; None if it does not open."""
        try:
            return _SUITE.decrypt(box, self._private, info=info)
        except (InvalidTag, ValueError):
            return None


def recipient(secret: bytes) -> Recipient:
    """The key pair of a 32-byte secret, expanded as X-Wing does. Spec: §2.3."""
    expanded = shake_256(secret).digest(_KEM_SEED + 32)
    kem = MLKEM768PrivateKey.from_seed_bytes(expanded[:_KEM_SEED])
    curve = X25519PrivateKey.from_private_bytes(expanded[_KEM_SEED:])
    public = kem.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw()
    return Recipient(PublicKey(public), MLKEM768X25519PrivateKey(kem, curve))


def generate(randomness: Randomness) -> Recipient:
    """Draw a key pair; takes 32 bytes of randomness."""
    return recipient(randomness(SECRET_SIZE))


def is_key(public: bytes) -> bool:
    """Whether a box can be sealed to a public key, of any size. Spec: §2.3."""
    try:
        _SUITE.encrypt(b"", _loaded(public))
    except ValueError:  # coefficients that are not reduced, or an X25519 key of low order
        return False
    return len(public) == KEY_SIZE


def seal(content: bytes, public: PublicKey, info: bytes) -> bytes:
    """A box for the owner of a key; `OVERHEAD` bytes longer than its content.

    The encapsulation's randomness is the operating system's: the library takes no other.

    Args:
        content: Any bytes.
        public: A key that `is_key` accepts.
        info: What the box is bound to.
    """
    return _SUITE.encrypt(content, _loaded(public), info=info)


@lru_cache(maxsize=1 << 10)
def _loaded(public: bytes) -> MLKEM768X25519PublicKey:
    kem = MLKEM768PublicKey.from_public_bytes(public[:_KEM_SIZE])
    curve = X25519PublicKey.from_public_bytes(public[_KEM_SIZE:])
    return MLKEM768X25519PublicKey(kem, curve)


def derive(material: bytes, *, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256: a 32-byte key from key material, bound to `salt` and `info`. Spec: §2.2."""
    return expand(extract(material, salt=salt), info)


def extract(material: bytes, *, salt: bytes) -> bytes:
    """The first half of HKDF-SHA256: a secret of 32 bytes, from which keys are expanded.

    Spec: §2.2.
    """
    return hmac.digest(salt, material, "sha256")


def expand(secret: bytes, info: bytes) -> bytes:
    """The second half of HKDF-SHA256: a key of 32 bytes, one block. Spec: §2.2."""
    return hmac.digest(secret, info + b"\x01", "sha256")
