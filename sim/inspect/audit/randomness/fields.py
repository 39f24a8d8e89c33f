"""What of a device's message should look random."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from deltafl.secagg import keys, pedersen, shamir
from deltafl.secagg.codec import Records
from deltafl.secagg.messages import AdvertiseKeys, ConsistencySignature, MaskedInput, ShareKeys
from deltafl.sim.inspect.audit.randomness.strings import Rows, as_rows

IDENTITIES: Final = "identities"
PROOFS: Final = "points and numbers of proofs"

_TAG: Final = keys.OVERHEAD - keys.NONCE_SIZE
_PIECE: Final = 32
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
            yield "sealing keys", as_rows([message.sealing_key]), _POINT
            yield "mask keys", as_rows(message.mask_keys), _POINT
            if (own := message.credential) is not None:
                yield IDENTITIES, as_rows([bytes(own.identity)]), _POINT
                yield "signatures of keys", as_rows([bytes(own.signature)]), _SIGNATURE
        case ShareKeys():
            yield "commitments to seeds", as_rows(message.commitments), None
            size = len(next(iter(message.boxes.values()), b""))
            if size > keys.OVERHEAD:
                rows = Records.of(message.boxes, size).rows
                inner = rows[:, keys.NONCE_SIZE : -_TAG]
                yield "nonces of boxes", rows[:, : keys.NONCE_SIZE], None
                yield "contents of boxes", inner.reshape(-1, shamir.SHARE_SIZE), None
                yield "tags of boxes", rows[:, -_TAG:], None
        case MaskedInput():
            if committed := bytes(message.committed):
                point, signature = np.split(as_rows([committed]), [_PIECE], axis=1)
                yield "commitments to answers", point, None
                yield "signatures of commitments", signature, _SIGNATURE
                yield "masked blindings", random_blinding(message.packed), None
            yield PROOFS, np.frombuffer(message.proof, np.uint8).reshape(-1, _PIECE), _POINT
        case ConsistencySignature():
            yield "signatures of lists", as_rows([bytes(message.signature)]), _SIGNATURE


def random_blinding(packed: bytes) -> Rows:
    """The lower 31 bytes of the blinding, masked or summed, that follows a packed vector, as a row.

    A blinding is uniform below the order of the group, 2^252 and a little, so that all bits but the
    highest are random to within 2^-124. So is a sum of some.
    """
    return as_rows([packed[-pedersen.BLINDING_SIZE :]])[:, :_POINT]
