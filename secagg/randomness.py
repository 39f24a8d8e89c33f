"""Where secrets come from: a function from a number of bytes to that many random bytes.

Every machine takes such a function as an argument. The default is always the operating system's
source. The seeded one exists so that tests and test vectors can repeat a session. Beyond that, only
`hedged` uses it.

Spec: §2.8.
"""

import os
from collections.abc import Callable
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from deltafl.secagg import labels

Randomness = Callable[[int], bytes]

system_randomness: Final[Randomness] = os.urandom


class SeededRandomness:
    """A repeatable source, not for callers but for tests: the ChaCha20 keystream of a seed.

    Spec: §2.8.

    Args:
        seed: 32 bytes. Whoever knows it knows every secret drawn from this source.
    """

    def __init__(self, seed: bytes) -> None:
        self._stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()

    def __call__(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        return self._stream.update(bytes(size))


def hedged(randomness: Randomness, label: bytes, *parts: bytes | int) -> Randomness:
    """A source for one use, as good as another one, and good enough where that repeats itself.

    What it gives follows from 32 bytes of the other source and from the parts. A source repeats
    itself, for one, if a virtual machine is resumed twice. As long as the parts are secret and not
    the same both times, what is drawn is still not the same, and not known.

    Spec: §2.8.

    Args:
        randomness: The other source.
        label: What the source is for.
        parts: What it is to depend on: the secrets, and all that is done with them.
    """
    return SeededRandomness(labels.digest(label, randomness(32), *parts))
