"""Secrets that can be guessed: what careless software makes of a value, or of another secret.

Everything here is what an attacker would try first. A secret that follows from a value in another
way is not found.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal

SIZE: Final = 32
"""Bytes of a secret."""

_SPACE: Final = 1 << (8 * SIZE)
ORDERS: Final[tuple[Literal["little", "big"], ...]] = ("little", "big")
_FLIP_BITS: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))

DIGESTS: Final[Mapping[str, Callable[[bytes], bytes]]] = MappingProxyType(
    {
        "SHA-256": lambda data: hashlib.sha256(data).digest(),
        "SHA-512, first half": lambda data: hashlib.sha512(data).digest()[:SIZE],
        "SHA-512, second half": lambda data: hashlib.sha512(data).digest()[SIZE:],
        "SHA3-256": lambda data: hashlib.sha3_256(data).digest(),
        "BLAKE2b-256": lambda data: hashlib.blake2b(data, digest_size=SIZE).digest(),
        "BLAKE2s": lambda data: hashlib.blake2s(data).digest(),
    }
)
"""Digests of 32 bytes, by name."""


def clamped(secret: bytes) -> bytes:
    """The bits of a secret that X25519 and Ed25519 use of it (RFC 7748, section 5).

    Args:
        secret: 32 bytes.
    """
    number = int.from_bytes(secret, "little")
    return (number & (1 << 254) - 8 | 1 << 254).to_bytes(SIZE, "little")


def of_value(value: bytes) -> list[tuple[bytes, str]]:
    """Secrets that are a value, padded or repeated, or a digest of it, and how.

    Args:
        value: Bytes that somebody can see; at least one.

    Returns:
        Secrets of 32 bytes, always as many, in the same order; some may be the same.
    """
    short = value[:SIZE]
    return [
        (short.ljust(SIZE, b"\0"), value.hex()),
        (short.rjust(SIZE, b"\0"), f"{value.hex()}, after zeros"),
        ((value * SIZE)[:SIZE], f"{value.hex()}, repeated"),
        *((digest(value), f"{name} of {value.hex()}") for name, digest in DIGESTS.items()),
    ]


def functions_of(secret: bytes) -> Iterator[tuple[bytes, str]]:
    """Other secrets that whoever knows one would try, and which.

    Args:
        secret: 32 bytes.
    """
    yield bytes(byte ^ 0xFF for byte in secret), "the complement"
    yield secret[::-1], "the bytes backwards"
    yield bytes(byte ^ 0xFF for byte in secret[::-1]), "the complement, backwards"
    yield secret[::-1].translate(_FLIP_BITS), "the bits backwards"
    yield secret[SIZE // 2 :] + secret[: SIZE // 2], "the halves exchanged"
    yield clamped(secret), "the bits that X25519 uses"
    for order in ORDERS:
        number = int.from_bytes(secret, order)
        for step in (-1, 1):
            yield ((number + step) % _SPACE).to_bytes(SIZE, order), f"{step:+d}, {order}-endian"
    for name, digest in DIGESTS.items():
        yield digest(secret), name
