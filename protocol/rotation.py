"""A public random rotation that spreads what an update says evenly over its numbers.

The update is padded with zeros to a power of two, its signs are flipped by public coins, and the
Walsh–Hadamard transform is applied, scaled so that lengths stay the same. Afterwards no number is
much larger than the others, except with a probability that is known, so that a narrow range holds
them all. Any seed gives a rotation: privacy does not depend on who chose it.

Source: Suresh, Yu, Kumar, McMahan 2017, "Distributed Mean Estimation with Limited Communication".

Spec: §12.16.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from deltafl.secagg.prg import keystream

Floats = npt.NDArray[np.float64]


def padded(length: int) -> int:
    """The smallest power of two that is at least `length` ≥ 1."""
    return 1 << (length - 1).bit_length()


def rotate(values: npt.NDArray[np.float32] | Floats, seed: bytes) -> Floats:
    """Rotate a vector.

    Args:
        values: Of shape (length,).
        seed: 32 public bytes.

    Returns:
        float64 of shape (padded(length),), of the same L2 norm up to rounding.
    """
    size = padded(len(values))
    whole = np.zeros(size)
    whole[: len(values)] = values
    whole *= _signs(seed, size)
    return _hadamard(whole)


def unrotate(rotated: Floats, seed: bytes, length: int) -> Floats:
    """Invert `rotate`: the first `length` numbers; float64 of shape (length,)."""
    return (_hadamard(rotated) * _signs(seed, rotated.size))[:length]


@lru_cache(maxsize=4)
def _signs(seed: bytes, size: int) -> Floats:
    """±1 by the bits of the seed's keystream, the lowest bit of a byte first; 0 is +1."""
    packed = np.frombuffer(keystream(seed, -(-size // 8)), dtype=np.uint8)
    bits = np.unpackbits(packed, count=size, bitorder="little")
    signs = 1.0 - 2.0 * bits.astype(np.float64)
    signs.setflags(write=False)
    return signs


def _hadamard(values: Floats) -> Floats:
    """The orthonormal Walsh–Hadamard transform, its own inverse, in natural order."""
    size, width, work = values.size, 1, values
    while width < size:
        pairs = work.reshape(-1, 2, width)
        work = np.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), axis=1)
        width *= 2
    return work.reshape(size) / math.sqrt(size)
