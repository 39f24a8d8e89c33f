"""What of a device's message should look random."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from deltafl.secagg import keys, pedersen, shamir
from deltafl.secagg.codec import Records
from deltafl.secagg.links import HALF_SIZE, TAG_SIZE
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencySignature,
    MaskedInput,
    ShareKeys,
    ShareReceipt,
)
from deltafl.secagg.params import DIGEST_SIZE
from deltafl.sim.inspect.audit.randomness.strings import Rows, as_rows

IDENTITIES: Final = "identities"
PROOFS: Final = "points and numbers of proofs"

_PIECE: Final = 32
_TAG: Final = 16  # of a box
_ENCAPSULATED: Final = keys.OVERHEAD - _TAG
_COEFFICIENTS: Final = 512  # that are tested, of the 768 of an ML-KEM key
_MODULUS: Final = 3329
_POINT: Final = 31  # bytes of a point or number of which every bit is random
_SIGNATURE: Final = 63  # of a point and a number


def random_strings(message: object) -> Iterator[tuple[str, Rows, int | None]]:
    """What of a device's message should look random.

    Yields:
        What the strings are, plural; the strings, shape (n, size); and how many bytes of each are
        random, if not all are.
    """
    match message:
        case AdvertiseKeys():
            yield "coefficients of ML-KEM keys", _coefficients(message.key[: -2 * _PIECE]), None
            yield "seeds of ML-KEM keys", as_rows([message.key[-2 * _PIECE : -_PIECE]]), None
            yield "X25519 keys", as_rows([message.key[-_PIECE:]]), _POINT
            yield IDENTITIES, as_rows([bytes(message.credential.identity)]), _POINT
            signature = as_rows([bytes(message.credential.signature)])
            yield "signatures of keys", signature, _SIGNATURE
        case ShareKeys():
            yield "commitments to secrets", as_rows(message.commitments), None
            if size := len(next(iter(message.boxes.values()), b"")):
                # What ML-KEM encapsulates is rounded, and not quite uniform.
                rows = Records.of(message.boxes, size).rows
                yield (
                    "X25519 keys of boxes",
                    rows[:, _ENCAPSULATED - _PIECE : _ENCAPSULATED],
                    _POINT,
                )
                start = _ENCAPSULATED + HALF_SIZE
                yield "halves in boxes", rows[:, _ENCAPSULATED:start], None
                shares = rows[:, start:-_TAG].reshape(-1, shamir.SHARE_SIZE)
                yield "shares in boxes", shares, None
                yield "tags of boxes", rows[:, -_TAG:], None
        case ShareReceipt():
            if size := len(next(iter(message.links.values()), b"")):
                # Digests of keys are the same at both ends.
                rows = Records.of(message.links, size).rows
                yield "tags of links", rows[:, :TAG_SIZE], None
                slots = rows[:, TAG_SIZE:].reshape(-1, TAG_SIZE + DIGEST_SIZE)
                yield "deposited keys", slots[:, TAG_SIZE:], None
        case MaskedInput():
            if committed := bytes(message.committed):
                point, signature = np.split(as_rows([committed]), [_PIECE], axis=1)
                yield "commitments to answers", point, None
                yield "signatures of commitments", signature, _SIGNATURE
                yield "masked blindings", random_blinding(message.packed), None
            yield PROOFS, np.frombuffer(message.proof, np.uint8).reshape(-1, _PIECE), _POINT
        case ConsistencySignature():
            yield "signatures of lists", as_rows([bytes(message.signature)]), _SIGNATURE


def _coefficients(packed: bytes) -> Rows:
    """The low bytes of some coefficients of an ML-KEM key, which are random.

    A coefficient is uniform below 3329 = 13·256 + 1, up to what ML-KEM rests on. So its low byte is
    uniform if it is not 3328. Where too few are left, there are zeros.

    Args:
        packed: 768 numbers of 12 bits.
    """
    low, middle, high = np.frombuffer(packed, np.uint8).astype(np.uint16).reshape(-1, 3).T
    every = np.stack([low | (middle & 15) << 8, middle >> 4 | high << 4], axis=1).reshape(-1)
    kept = every[every < _MODULUS - 1][:_COEFFICIENTS].astype(np.uint8)
    return np.pad(kept, (0, _COEFFICIENTS - len(kept)))[None]


def random_blinding(packed: bytes) -> Rows:
    """The lower 31 bytes of the blinding, masked or summed, that follows a packed vector, as a row.

    A blinding is uniform below the order of the group, 2^252 and a little, so that all bits but the
    highest are random to within 2^-124. So is a sum of some.
    """
    return as_rows([packed[-pedersen.BLINDING_SIZE :]])[:, :_POINT]
