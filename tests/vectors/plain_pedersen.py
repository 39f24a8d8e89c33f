"""Pedersen commitments as the specification has them, in Python integers."""

import struct
from functools import cache
from hashlib import sha256

import plain_ed25519 as ed

ORDER = ed.ORDER
LIMBS = 16
_LABEL = b"deltafl/secagg/v4/commitment generator"


def hashed(index, attempt):
    """The bytes that an attempt at a generator is read from."""
    packed = b"".join(
        struct.pack("<I", len(part)) + part
        for part in (_LABEL, struct.pack("<Q", index), struct.pack("<Q", attempt))
    )
    return sha256(packed).digest()


@cache
def generator(index):
    """A generator, and the number of the attempt that gave it."""
    attempt = 0
    while True:
        point = ed.decode(hashed(index, attempt))
        if point is not None:
            cleared = ed.times(8, point)
            if cleared != ed.NEUTRAL:
                return cleared, attempt
        attempt += 1


def commit(values, blinding):
    total = ed.times(blinding % ORDER, ed.BASE)
    for index, value in enumerate(values):
        if value % ORDER:
            total = ed.add(total, ed.times(value % ORDER, generator(index)[0]))
    return ed.encode(total)


def added(commitments):
    """The sum of commitments, encoded; None where one is no canonical point."""
    total = ed.NEUTRAL
    for commitment in commitments:
        point = ed.decode(commitment) if len(commitment) == 32 else None
        if point is None:
            return None
        total = ed.add(total, point)
    return ed.encode(total)


def limbs_of(blinding):
    return [blinding >> (16 * i) & 0xFFFF for i in range(LIMBS)]


def joined(limbs):
    """The blinding, from sums of limbs."""
    return sum(limb << (16 * i) for i, limb in enumerate(limbs)) % ORDER
