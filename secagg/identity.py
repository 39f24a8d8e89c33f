"""Ed25519 identities (RFC 8032): who signed a message.

An identity outlives sessions. A directory lists its public key, and people compare it. Its secret
key is used only to sign.

Spec: §2.6, §6.1.
"""

from dataclasses import dataclass, field
from typing import Final, NewType

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import BadSignatureError

from deltafl.secagg import labels
from deltafl.secagg.errors import UsageError
from deltafl.secagg.labels import Label
from deltafl.secagg.randomness import Randomness

IdentityKey = NewType("IdentityKey", bytes)

SEED_SIZE: Final = 32
IDENTITY_SIZE: Final = 32
SIGNATURE_SIZE: Final = 64
_GROUP: Final = 4  # hex digits
# To impersonate a given device, a forger must match its fingerprint: 2^128 tries.
_FINGERPRINT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """A device's or the server's long-term key pair.

    Attributes:
        public: 32 bytes, for everybody.
    """

    public: IdentityKey
    # Seed and public key, in libsodium's format.
    _secret: bytes = field(repr=False, compare=False)

    def sign(self, message: bytes) -> bytes:
        """The signature of a message, 64 bytes; the same every time."""
        return crypto_sign(message, self._secret)[:SIGNATURE_SIZE]


def generate(randomness: Randomness) -> Identity:
    """Draw an identity; takes 32 bytes of randomness."""
    return identity(randomness(SEED_SIZE))


def identity(seed: bytes) -> Identity:
    """The identity of a secret seed.

    Args:
        seed: 32 bytes; whoever knows them can sign.

    Raises:
        UsageError: the seed is not 32 bytes long.
    """
    if len(seed) != SEED_SIZE:
        raise UsageError(f"an identity's seed has {SEED_SIZE} bytes, not {len(seed)}")
    public, secret = crypto_sign_seed_keypair(seed)
    return Identity(IdentityKey(public), secret)


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key signed the message; never raises.

    False for any key or signature that does not single out one signer and one signature: a public
    key of small order or not canonical, S not below the group order, R of small order.

    Spec: §2.6.

    Args:
        public: The key, from any source; any size but 32 bytes gives False.
        message: What should have been signed.
        signature: Any size but 64 bytes gives False.
    """
    # The Python binding passes both to C without checking their sizes.
    if len(public) != IDENTITY_SIZE or len(signature) != SIGNATURE_SIZE:
        return False
    try:
        crypto_sign_open(signature + message, public)
    except BadSignatureError:
        return False
    return True


def fingerprint(public: bytes) -> str:
    """A short form of a public key for people to compare: 128 bits as eight groups of hex digits.

    Spec: §6.1.

    >>> fingerprint(bytes(32))
    '5d14 b6a9 4fbe a567 0fb8 163b f2f4 8879'

    Args:
        public: 32 bytes.

    Raises:
        UsageError: the key is not 32 bytes long.
    """
    if len(public) != IDENTITY_SIZE:
        raise UsageError(f"an identity's public key has {IDENTITY_SIZE} bytes, not {len(public)}")
    return grouped(labels.digest(Label.IDENTITY_FINGERPRINT, public)[:_FINGERPRINT_BYTES])


def grouped(digest: bytes) -> str:
    """A digest as groups of four hex digits, for people to read aloud.

    >>> grouped(bytes([1, 35, 69, 103]))
    '0123 4567'
    """
    digits = digest.hex()
    return " ".join(digits[i : i + _GROUP] for i in range(0, len(digits), _GROUP))
