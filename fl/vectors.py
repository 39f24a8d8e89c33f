"""A model as one flat float32 vector, the only form in which models leave a device.

`deltafl.fl.parameters` makes one of a module, and loads it again.
"""

import hashlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float32]
"""A model or a model difference, shape [num_parameters]."""


def vector_sha256(vector: Vector) -> bytes:
    """Hash a vector: SHA-256 of its float32 values as little-endian bytes, on every machine alike.

    Returns:
        32 bytes.

    >>> vector_sha256(np.zeros(2, dtype=np.float32)) == hashlib.sha256(bytes(8)).digest()
    True
    """
    return hashlib.sha256(vector.astype("<f4", copy=False).tobytes()).digest()
