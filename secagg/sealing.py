"""Sealed boxes for shares: X25519, HKDF-SHA256 and XChaCha20-Poly1305, one key per direction.

The key is bound to the session, the direction and both public keys. The box also authenticates
session, sender and recipient, so it does not open in any other session or for another pair.

Spec: §2.5.
"""

from typing import Final

from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
)
from nacl.exceptions import CryptoError

from deltafl.secagg import keys, labels
from deltafl.secagg.randomness import Randomness

NONCE_SIZE: Final = 24
_TAG_SIZE: Final = 16
OVERHEAD: Final = NONCE_SIZE + _TAG_SIZE


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
        self._outward_label = labels.pack(labels.SEALING, own_position, peer_position, own, peer)
        self._inward_label = labels.pack(labels.SEALING, peer_position, own_position, peer, own)
        self._outward = keys.expand(secret, self._outward_label)
        self._inward = keys.expand(secret, self._inward_label)

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
