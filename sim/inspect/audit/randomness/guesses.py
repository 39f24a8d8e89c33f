"""Secrets that can be guessed: what careless software makes of a number, a value, another secret.

A mask is as good as its seed, and a good generator hides a bad seed from every test of its output.
So the secrets themselves are looked for, and the points that follow from them: an X25519 key, an
Ed25519 identity, and the point r·B of a signature, from whose number r anybody computes the secret
key of the identity. Everything here is what an attacker would try first. A secret that follows from
a value in another way is not found.
"""

import functools
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_sub,
    crypto_scalarmult_base,
    crypto_scalarmult_ed25519_base_noclamp,
)
from nacl.exceptions import RuntimeError as SodiumError

from deltafl.secagg import pedersen
from deltafl.secagg.identity import identity
from deltafl.secagg.messages import AdvertiseKeys
from deltafl.secagg.randomness import SeededRandomness

SIZE: Final = 32
"""Bytes of a secret."""

SMALL_BITS: Final = 12
"""Numbers of signatures, and differences of two of them, below 2 to this power are known."""

DIGESTS: Final = ("sha256", "sha512", "sha3_256", "blake2b", "blake2s", "md5", "sha1")
"""Digests that are tried, by their names in hashlib; of longer ones the first 32 bytes."""

Guess = tuple[bytes, str]
"""A secret of 32 bytes, and how it is made."""

_LEGACY: Final = np.random.RandomState(0)
_ORDERS: Final[tuple[Literal["little", "big"], ...]] = ("little", "big")
_PREFIX: Final = 8  # bytes by which the table of small seeds is searched
_SIGN: Final = 0x80
_ZERO: Final = (1).to_bytes(SIZE, "little")  # the encoding of the neutral point


def _digest_of(size: int, order: Literal["little", "big"]) -> Callable[[int], bytes]:
    return lambda number: hashlib.sha256(number.to_bytes(size, order)).digest()


def _legacy(number: int) -> bytes:
    """`numpy.random.RandomState(number).bytes(32)`, made faster."""
    _LEGACY.seed(number)
    return _LEGACY.bytes(SIZE)


_SEEDED: Final[Mapping[str, tuple[int, Callable[[int], bytes]]]] = {
    **{
        f"SHA-256 of {size} {order}-endian bytes": (1 << 16, _digest_of(size, order))
        for size in (2, 4, 8)
        for order in _ORDERS
    },
    "SHA-256 of the decimal digits": (1 << 16, lambda n: hashlib.sha256(b"%d" % n).digest()),
    "numpy's default_rng": (
        1 << 14,
        lambda n: np.random.PCG64(n).random_raw(4).astype("<u8").tobytes(),
    ),
    "numpy's RandomState": (1 << 14, _legacy),
    "Python's random.Random": (1 << 14, lambda n: random.Random(n).randbytes(SIZE)),  # noqa: S311
}
"""Ways to make 32 bytes of a small number, and how many numbers are tried."""


def of_value(value: bytes) -> list[Guess]:
    """Secrets that whoever knows a value, or another secret, would try.

    Args:
        value: At least one byte.

    Returns:
        Always as many, in the same order; some may be the same.
    """
    short = value[:SIZE].ljust(SIZE, b"\0")
    found = [
        (short, ""),
        (value[:SIZE].rjust(SIZE, b"\0"), "zeros before "),
        ((value * SIZE)[:SIZE], "again and again, "),
        (value[:SIZE][::-1].ljust(SIZE, b"\0"), "backwards, "),
        (bytes(byte ^ 0xFF for byte in short), "the complement of "),
    ]
    for order in _ORDERS:
        for step in (-1, 1):
            number = (int.from_bytes(short, order) + step) % (1 << 8 * SIZE)
            found.append((number.to_bytes(SIZE, order), f"{step:+d} and "))
    for name in DIGESTS:
        digest = hashlib.new(name, value, usedforsecurity=False).digest()
        found.append((digest[:SIZE].ljust(SIZE, b"\0"), f"{name} of "))
    return found


@functools.cache
def of_bytes() -> dict[bytes, str]:
    """What is made of a number of eight bits, and how."""
    found: dict[bytes, str] = {}
    for number in range(256):
        found |= {secret: f"{how}{number}" for secret, how in of_value(bytes([number]))}
        found |= {expand(number): f"{how} of {number}" for how, (_, expand) in _SEEDED.items()}
    return found


def of_small_seeds(secrets: Sequence[bytes]) -> dict[bytes, str]:
    """Which of some secrets of 32 bytes are made of a small seed, and how."""
    found: dict[bytes, str] = {}
    wanted = np.array([int.from_bytes(one[:_PREFIX], "little") for one in secrets], np.uint64)
    for how, table in _tables().items():
        for place in np.flatnonzero(np.isin(wanted, table)).tolist():
            for seed in np.flatnonzero(table == wanted[place]).tolist():
                if _SEEDED[how][1](seed) == secrets[place]:
                    found[secrets[place]] = f"{how} of {seed}"
    return found


@functools.cache
def _tables() -> dict[str, npt.NDArray[np.uint64]]:
    """The first eight bytes of what is made of every small seed; takes a second, once."""
    return {
        how: np.frombuffer(b"".join([expand(seed)[:_PREFIX] for seed in range(seeds)]), "<u8")
        for how, (seeds, expand) in _SEEDED.items()
    }


def visible_of(device: int, message: AdvertiseKeys | None) -> tuple[bytes, ...]:
    """What everybody can see of a device: its number and keys; always as much, in one order."""
    numbers = [device.to_bytes(size, order) for size in (4, 8) for order in _ORDERS]
    own = None if message is None else message.credential
    sealing = b"?" if message is None else message.sealing_key
    return (*numbers, str(device).encode(), sealing, b"?" if own is None else bytes(own.identity))


def public_keys(secret: bytes) -> tuple[bytes, bytes]:
    """The X25519 key and the Ed25519 key of a secret."""
    return crypto_scalarmult_base(secret), bytes(identity(secret).public)


@functools.lru_cache(maxsize=1 << 16)  # the numbers of devices are the same in all rounds
def points(secret: bytes) -> tuple[bytes, ...]:
    """The public keys of a secret, and the points of signatures whose number it gives."""
    digest = hashlib.sha512(secret).digest()
    return *public_keys(secret), times_base(secret), times_base(digest)


@functools.cache
def points_of_bytes() -> dict[bytes, str]:
    """Points that follow from a number of eight bits, and small multiples of the base point."""
    found = {point: how for secret, how in of_bytes().items() for point in points(secret)}
    return found | {point: f"the number {n}" for point, n in _small().items()}


def number_of(public: bytes, statement: bytes, signature: bytes) -> str | None:
    """How the number of a signature follows from what is signed; None if it does not."""
    for name in ("sha512", "sha256"):
        for before in (b"", public):
            if times_base(hashlib.new(name, before + statement).digest()) == signature[:SIZE]:
                return f"{name} of {'public key and ' if before else ''}message"
    return None


def gap(one: bytes, other: bytes) -> int | None:
    """By which small number the numbers of two signatures differ; None if by no small one."""
    try:
        between = crypto_core_ed25519_sub(other[:SIZE], one[:SIZE])
    except SodiumError:  # one is not on the curve
        return None
    return _small().get(between, _small().get(between[:-1] + bytes([between[-1] ^ _SIGN])))


@functools.cache
def _small() -> dict[bytes, int]:
    """Small multiples of the base point."""
    known, point = {_ZERO: 0}, _ZERO
    for number in range(1, 1 << SMALL_BITS):
        point = crypto_core_ed25519_add(point, pedersen.BASE)
        known[point] = number
    return known


def times_base(scalar: bytes) -> bytes:
    """The multiple of Ed25519's base point; `scalar` is little-endian, of any size."""
    number = int.from_bytes(scalar, "little") % pedersen.ORDER
    if not number:
        return _ZERO
    return crypto_scalarmult_ed25519_base_noclamp(number.to_bytes(SIZE, "little"))


def numbers_drawn(secret: bytes) -> Iterator[bytes]:
    """The first numbers that a proof draws from a stream with this seed, 32 bytes each."""
    drawn = SeededRandomness(secret)
    for _ in range(3):
        yield pedersen.draw_blinding(drawn).to_bytes(SIZE, "little")


def sums_of_blindings(by_device: Iterable[Sequence[bytes]], count: int) -> dict[int, str]:
    """Sums of the blindings of some devices that follow from what everybody can see, and how.

    Args:
        by_device: By kind of value, that of each device in the sum.
        count: Devices in the sum.
    """
    known = {count * int.from_bytes(one, "little"): how for one, how in of_bytes().items()}
    for values in by_device:
        for alike in zip(*map(of_value, values), strict=True):
            for order in _ORDERS:
                total = sum(int.from_bytes(secret, order) for secret, _ in alike)
                known[total] = f"{alike[0][1]}{values[0].hex()}, and the like"
    return {total % pedersen.ORDER: how for total, how in known.items()}
