"""Domain separation: every hash and key derivation starts with its own label.

A label contains the protocol's name and version, so that a value derived for one use or version is
never valid for another. Variable parts are length-prefixed, which makes the concatenation
injective.

Spec: §1.5, §1.6.
"""

import struct
from enum import Enum, unique
from hashlib import sha256
from typing import Final

VERSION: Final = 4
_PREFIX: Final = b"deltafl/secagg/v%d/" % VERSION


@unique
class Label(bytes, Enum):
    """What a digest or a key is for."""

    PARAMETERS = _PREFIX + b"session parameters"
    SESSION = _PREFIX + b"session id"
    BOX = _PREFIX + b"box of shares"
    LINK = _PREFIX + b"link"
    LINK_TAG = _PREFIX + b"link tag"
    LINK_TAGS = _PREFIX + b"link tags digest"
    LINK_KEY = _PREFIX + b"link key"
    KEY_DIGEST = _PREFIX + b"link key digest"
    DEPOSIT = _PREFIX + b"deposited key"
    SEED_COMMITMENT = _PREFIX + b"self-mask seed commitment"
    RECOVERY_COMMITMENT = _PREFIX + b"recovery key commitment"
    SELF_MASK = _PREFIX + b"self mask"
    PAIRWISE_MASK = _PREFIX + b"pairwise mask"
    WHOLE_MASK = _PREFIX + b"pairwise mask of a whole slot"
    ADVERTISEMENT = _PREFIX + b"key advertisement"
    SURVIVORS = _PREFIX + b"survivors of a slot"
    COMMITTED = _PREFIX + b"committed vector"
    PROOF = _PREFIX + b"proof of one of several cases"
    PROOF_NUMBERS = _PREFIX + b"numbers drawn for a proof"
    GRAPH = _PREFIX + b"graph permutation"
    IDENTITY_FINGERPRINT = _PREFIX + b"identity fingerprint"
    DIRECTORY_FINGERPRINT = _PREFIX + b"directory fingerprint"
    GENERATOR = _PREFIX + b"commitment generator"


_LENGTH: Final = struct.Struct("<I")
_NUMBER: Final = struct.Struct("<IQ")


def pack(*parts: bytes | int) -> bytes:
    """Join parts injectively: each is preceded by its length; integers become 8 bytes.

    Spec: §1.4.

    >>> pack(b"ab", 1).hex()
    '020000006162080000000100000000000000'

    Args:
        parts: Byte strings shorter than 2^32, and integers in [0, 2^64).
    """
    return b"".join(
        [
            _NUMBER.pack(8, part) if isinstance(part, int) else _LENGTH.pack(len(part)) + part
            for part in parts
        ]
    )


def digest(label: bytes, *parts: bytes | int) -> bytes:
    """SHA-256 of the label and the parts, packed; 32 bytes. Spec: §1.4, §2.1."""
    return sha256(pack(label, *parts)).digest()
