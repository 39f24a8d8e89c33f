"""Blindings of commitments: what must look random of one, and of a sum of some.

A blinding is uniform below the order of the group, 2^252 and a little, so that all bits but the
highest are random to within 2^-124. The server learns the sum of the blindings of a slot, limb by
limb. Where one of them is random, each limb of the sum is, modulo 2^16.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from deltafl.secagg import pedersen
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit import guesses
from deltafl.sim.inspect.audit.field_tests import Rows
from deltafl.sim.inspect.audit.weak_seeds import few_seeds

_WHOLE_LIMBS: Final = pedersen.BLINDING_LIMBS - 1  # the highest has fewer random bits

_FEW_BITS: Final = 8


def random_limbs(limbs: Vector) -> Rows:
    """The lower limbs of a blinding, or of a sum of some, as one string of 30 bytes.

    Args:
        limbs: Words of a ring of 16 bits or more, the lowest limb first, shape (16,).
    """
    low = np.asarray(limbs[:_WHOLE_LIMBS], dtype=np.uint64) & np.uint64((1 << 16) - 1)
    return np.ascontiguousarray(low.astype("<u2")).view(np.uint8).reshape(1, -1)


def guessable_sums(visible: Iterable[Sequence[bytes]], count: int) -> dict[int, str]:
    """Sums of blindings that follow from what everybody can see, and what the first of them is.

    Args:
        visible: By kind of value, that of each device in the sum.
        count: Devices in the sum.
    """
    known: dict[int, str] = {}
    for secret, how in few_seeds(_FEW_BITS):
        known[int.from_bytes(secret, "little") * count % pedersen.ORDER] = how
    for values in visible:
        for alike in zip(*(guesses.of_value(value) for value in values), strict=True):
            how = f"{alike[0][1]}, which everybody can see"
            for order in guesses.ORDERS:
                total = sum(int.from_bytes(secret, order) for secret, _ in alike)
                known[total % pedersen.ORDER] = how
    return known
