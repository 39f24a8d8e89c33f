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
        own: The device's sealing key pair.
        peer: The neighbour's sealing public key, not of low order.
        own_id: The device's id.
        peer_id: The neighbour's id.
        session_id: 32 bytes.
    """

    __slots__ = ("_inward", "_inward_label", "_outward", "_outward_label")

    def __init__(
        self, own: keys.KeyPair, peer: bytes, own_id: int, peer_id: int, session_id: bytes
    ) -> None:
        shared = own.agree(peer)
        self._outward_label = labels.pack(labels.SEALING, own_id, peer_id, own.public, peer)
        self._inward_label = labels.pack(labels.SEALING, peer_id, own_id, peer, own.public)
        self._outward = keys.derive(shared, salt=session_id, info=self._outward_label)
        self._inward = keys.derive(shared, salt=session_id, info=self._inward_label)

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
