"""Where secrets come from: a function from a number of bytes to that many random bytes.

Every machine takes such a function as an argument. The default is always the operating system's
source. The seeded one exists only so that tests and test vectors can repeat a session; never use it
for anything else.

Spec: §2.8.
"""

import os
from collections.abc import Callable
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

Randomness = Callable[[int], bytes]

system_randomness: Final[Randomness] = os.urandom


class SeededRandomness:
    """A repeatable source for tests and test vectors only: the ChaCha20 keystream of a seed.

    Spec: §2.8.

    Args:
        seed: 32 bytes. Whoever knows it knows every secret drawn from this source.
    """

    def __init__(self, seed: bytes) -> None:
        self._stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()

    def __call__(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        return self._stream.update(bytes(size))
