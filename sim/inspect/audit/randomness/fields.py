"""What of a device's message should look random."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from deltafl.secagg import keys, pedersen, shamir
from deltafl.secagg.codec import Records
from deltafl.secagg.messages import AdvertiseKeys, ConsistencySignature, MaskedInput, ShareKeys
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.randomness.strings import Rows, as_rows

POINT: Final = 31
"""Bytes of a point or number of which every bit is random."""

SIGNATURE: Final = 63
"""Bytes of a signature, a point and a number, of which every bit is random."""

_TAG: Final = keys.OVERHEAD - keys.NONCE_SIZE
_PIECE: Final = 32
_WHOLE_LIMBS: Final = pedersen.BLINDING_LIMBS - 1  # the highest has fewer random bits


def random_strings(message: object) -> Iterator[tuple[str, Rows]]:
    """What of a device's message should look random: names, plural, and strings of one size.

    They have shape (n, size), n ≥ 1. Proofs are left out; see `pieces`.
    """
    match message:
        case AdvertiseKeys():
            yield "sealing keys", as_rows([message.sealing_key], POINT)
            yield "mask keys", as_rows(message.mask_keys, POINT)
            if (own := message.credential) is not None:
                yield "identities", as_rows([bytes(own.identity)], POINT)
                yield "signatures of keys", as_rows([bytes(own.signature)], SIGNATURE)
        case ShareKeys():
            yield "commitments to seeds", as_rows(message.commitments)
            size = len(next(iter(message.boxes.values()), b""))
            if size > keys.OVERHEAD:
                rows = Records.of(message.boxes, size).rows
                inner = rows[:, keys.NONCE_SIZE : -_TAG]
                yield "nonces of boxes", rows[:, : keys.NONCE_SIZE]
                yield "contents of boxes", inner.reshape(-1, shamir.SHARE_SIZE)
                yield "tags of boxes", rows[:, -_TAG:]
        case MaskedInput():
            if committed := bytes(message.committed):
                yield "commitments to answers", as_rows([committed[: pedersen.COMMITMENT_SIZE]])
                signature = committed[pedersen.COMMITMENT_SIZE :]
                yield "signatures of commitments", as_rows([signature], SIGNATURE)
        case ConsistencySignature():
            yield "signatures of lists", as_rows([bytes(message.signature)], SIGNATURE)


def pieces(proof: bytes) -> list[bytes]:
    """The points and numbers of a proof, 32 bytes each."""
    return [proof[start : start + _PIECE] for start in range(0, len(proof), _PIECE)]


def random_limbs(limbs: Vector) -> Rows:
    """The lower limbs of a blinding, or of a sum of some, as one string of 30 bytes.

    A blinding is uniform below the order of the group, 2^252 and a little, so that all bits but the
    highest are random to within 2^-124. The server learns the sum of the blindings of a slot, limb
    by limb. Where one of them is random, each limb of the sum is, modulo 2^16.

    Args:
        limbs: Words of a ring of 16 bits or more, the lowest limb first, shape (16,).
    """
    low = np.asarray(limbs[:_WHOLE_LIMBS], dtype=np.uint64) & np.uint64((1 << 16) - 1)
    return np.ascontiguousarray(low.astype("<u2")).view(np.uint8).reshape(1, -1)
