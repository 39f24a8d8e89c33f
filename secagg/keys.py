"""X25519 key pairs and agreement (RFC 7748), HKDF-SHA256 (RFC 5869), and boxes for shares.

Boxes are sealed with XChaCha20-Poly1305, under one key per direction. The key is bound to the
session, the direction and both public keys. The box also authenticates session, sender and
recipient, so it does not open in any other session or for another pair.

Spec: §2.2, §2.3, §2.5.
"""

import hmac
from dataclasses import dataclass, field
from typing import Final, NewType

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
)
from nacl.exceptions import CryptoError

from deltafl.secagg import labels
from deltafl.secagg.errors import PeerError, Refusal
from deltafl.secagg.labels import Label
from deltafl.secagg.randomness import Randomness

PublicKey = NewType("PublicKey", bytes)

KEY_SIZE: Final = 32
NONCE_SIZE: Final = 24
_TAG_SIZE: Final = 16
OVERHEAD: Final = NONCE_SIZE + _TAG_SIZE
"""By how much a box is longer than what is in it."""

_PRIME: Final = 2**255 - 19
_TOP: Final = 0x7F  # a key with a smaller last byte is already a number below the prime
# u-coordinates of the points whose order divides 8 on the curve and its twist. Everybody knows the
# result of an agreement with one. RFC 7748 section 6.1, RFC 7748 errata, cr.yp.to/ecdh.html.
_LOW_ORDER: Final = frozenset(
    {
        0,
        1,
        _PRIME - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)
_LOW_ORDER_KEYS: Final = frozenset(number.to_bytes(KEY_SIZE, "little") for number in _LOW_ORDER)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An X25519 key pair.

    Attributes:
        secret: 32 bytes; never printed.
        public: 32 bytes.
    """

    secret: bytes = field(repr=False)
    public: PublicKey
    _private: X25519PrivateKey = field(repr=False, compare=False)

    def agree(self, public: bytes) -> bytes:
        """The shared X25519 secret, 32 bytes; key material for `extract`, not a key.

        Callers refuse keys of low order (`is_low_order`) on arrival. This is a second check.

        Raises:
            PeerError: the secret is all zeros, so anybody could compute it (RFC 7748, section 6.1).
        """
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise PeerError(Refusal.BAD_KEY, "an agreement whose result is all zeros") from None


def generate(randomness: Randomness) -> KeyPair:
    """Draw a key pair; takes 32 bytes of randomness."""
    return key_pair(randomness(KEY_SIZE))


def key_pair(secret: bytes) -> KeyPair:
    """The key pair of a 32-byte secret."""
    private = X25519PrivateKey.from_private_bytes(secret)
    return KeyPair(secret, PublicKey(private.public_key().public_bytes_raw()), private)


def coordinate(public: bytes) -> int:
    """The u-coordinate that a 32-byte public key encodes; several encodings may share one.

    Spec: §2.3.
    """
    return (int.from_bytes(public, "little") & ((1 << 255) - 1)) % _PRIME


def canonical(public: bytes) -> bytes:
    """The canonical encoding, below the prime, of a 32-byte public key. Spec: §2.3."""
    if public[-1] < _TOP:
        return public
    return coordinate(public).to_bytes(KEY_SIZE, "little")


def is_low_order(public: bytes) -> bool:
    """Whether a 32-byte public key, canonical or not, would make every agreement the same.

    Spec: §2.3.

    >>> is_low_order(bytes(32)), is_low_order((9).to_bytes(32, "little"))
    (True, False)
    """
    return canonical(public) in _LOW_ORDER_KEYS


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


class SealedChannel:
    """Seals boxes for one neighbour, and opens boxes from it, in one session.

    Args:
        secret: What both ends expand keys from; 32 bytes (see `deltafl.secagg.masks.Link`).
        own: The device's sealing key.
        peer: The neighbour's.
        own_position: The device's position.
        peer_position: The neighbour's.
    """

    __slots__ = ("_inward", "_inward_label", "_outward", "_outward_label")

    def __init__(
        self, secret: bytes, own: bytes, peer: bytes, own_position: int, peer_position: int
    ) -> None:
        self._outward_label = labels.pack(Label.SEALING, own_position, peer_position, own, peer)
        self._inward_label = labels.pack(Label.SEALING, peer_position, own_position, peer, own)
        self._outward = expand(secret, self._outward_label)
        self._inward = expand(secret, self._inward_label)

    def seal(self, plaintext: bytes, randomness: Randomness) -> bytes:
        """A box for the neighbour: nonce, ciphertext, tag; 40 bytes longer than the plaintext."""
        nonce = randomness(NONCE_SIZE)
        return nonce + crypto_aead_xchacha20poly1305_ietf_encrypt(
            plaintext, self._outward_label, nonce, self._outward
        )

    def open(self, box: bytes) -> bytes | None:
        """The plaintext of the neighbour's box; None if the box is not authentic."""
        if len(box) < OVERHEAD:
            return None
        nonce, sealed = box[:NONCE_SIZE], box[NONCE_SIZE:]
        try:
            return crypto_aead_xchacha20poly1305_ietf_decrypt(
                sealed, self._inward_label, nonce, self._inward
            )
        except CryptoError:
            return None
