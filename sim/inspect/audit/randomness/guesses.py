"""Secrets that can be guessed: what careless software makes of a number, a value, another secret.

A mask is as good as its seed, and a good generator hides a bad seed from every test of its output.
So the secrets themselves are looked for, and the points that follow from them: the X25519 half of a
key, an Ed25519 identity, and the point r·B of a signature, from whose number r anybody computes the
secret key of the identity. Everything here is what an attacker would try first. A secret that
follows from a value in another way is not found.
"""

import functools
import hashlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from nacl.bindings import crypto_scalarmult_base

from deltafl.secagg import pedersen, signing
from deltafl.secagg.identity import identity
from deltafl.secagg.params import ClientId
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.session_log import Session

SIZE: Final = 32
"""Bytes of a secret."""

SMALL: Final = 1 << 12
"""Numbers of signatures, and differences of two of them, below this one are known."""

DIGESTS: Final = ("sha256", "sha512", "sha3_256", "blake2b", "blake2s", "md5", "sha1")
"""Digests that are tried, by their names in hashlib; of longer ones the first 32 bytes."""

HEAD: Final = 16
"""Bytes of a string that are compared with those that a guess leads to."""

Guess = tuple[bytes, str]
"""A secret, and how it is made."""

_LEGACY: Final = np.random.RandomState(0)
_ORDERS: Final[tuple[Literal["little", "big"], ...]] = ("little", "big")
_PREFIX: Final = 8  # bytes by which the table of small seeds is searched


def _digest_of(size: int, order: Literal["little", "big"]) -> Callable[[int], bytes]:
    return lambda number: hashlib.sha256(number.to_bytes(size, order)).digest()


def _legacy(number: int) -> bytes:
    """`numpy.random.RandomState(number).bytes(32)`, made faster."""
    _LEGACY.seed(number)
    return _LEGACY.bytes(SIZE)


_SEEDED: Final[Mapping[str, tuple[int, Callable[[int], bytes]]]] = {
    **{
        f"SHA-256 of {size} {order}-endian bytes": (1 << 16, _digest_of(size, order))
        for size, order in product((2, 4, 8), _ORDERS)
    },
    "SHA-256 of the decimal digits": (1 << 16, lambda n: hashlib.sha256(b"%d" % n).digest()),
    "numpy's default_rng": (1 << 14, lambda n: np.random.PCG64(n).random_raw(4).tobytes()),
    "numpy's RandomState": (1 << 14, _legacy),
    "Python's random.Random": (1 << 14, lambda n: random.Random(n).randbytes(SIZE)),  # noqa: S311
}
"""Ways to make 32 bytes of a small number, and how many numbers are tried."""


def of_value(value: bytes) -> list[Guess]:
    """Secrets that whoever knows a value, or another secret, would try.

    Args:
        value: At least one byte.

    Returns:
        Always as many, in the same order; some may be the same. The last one has 64 bytes.
    """
    short = value[:SIZE].ljust(SIZE, b"\0")
    found = [
        (short, ""),
        (value[:SIZE].rjust(SIZE, b"\0"), "zeros before "),
        ((value * SIZE)[:SIZE], "again and again, "),
        (value[:SIZE][::-1].ljust(SIZE, b"\0"), "backwards, "),
        (bytes(byte ^ 0xFF for byte in short), "the complement of "),
    ]
    for order, step in product(_ORDERS, (-1, 1)):
        number = (int.from_bytes(short, order) + step) % (1 << 8 * SIZE)
        found.append((number.to_bytes(SIZE, order), f"{step:+d} and "))
    for name in DIGESTS:
        digest = hashlib.new(name, value, usedforsecurity=False).digest()
        found.append((digest[:SIZE].ljust(SIZE, b"\0"), f"{name} of "))
    return [*found, (hashlib.sha512(value).digest(), "all of sha512 of ")]


@functools.cache
def of_bytes() -> list[Guess]:
    """Secrets that are made of a number of eight bits."""
    found = []
    for number in range(256):
        found += [(secret, f"{how}{number}") for secret, how in of_value(bytes([number]))]
        found += [(expand(number), f"{how} of {number}") for how, (_, expand) in _SEEDED.items()]
    return found


@functools.cache
def shown_by_bytes() -> dict[bytes, str]:
    """The beginnings of what shows of these, and of small multiples of the base point.

    A point and its negative differ in the last byte only.
    """
    found = {shown[:HEAD]: how for secret, how in of_bytes() for shown in shown_by(secret)}
    multiple = pedersen.times(0, pedersen.BASE)
    for number in range(SMALL):
        found[multiple[:HEAD]] = f"the number {number}"
        multiple = pedersen.plus(multiple, pedersen.BASE)
    return found


@functools.lru_cache(maxsize=1 << 16)  # the numbers of devices are the same in all rounds
def shown_by(secret: bytes) -> tuple[bytes, ...]:
    """What `drawn_from` a secret shows, and the public keys and points of signatures it gives."""
    seed = secret[:SIZE]
    return (
        *drawn_from(secret),
        crypto_scalarmult_base(seed),
        crypto_scalarmult_base(hashlib.shake_256(seed).digest(3 * SIZE)[-SIZE:]),
        bytes(identity(seed).public),
        times_base(secret),
        times_base(hashlib.sha512(seed).digest()),
    )


def drawn_from(secret: bytes) -> list[bytes]:
    """A secret of at least 32 bytes, and the first numbers that a proof draws by this seed."""
    drawn = SeededRandomness(secret[:SIZE])
    return [secret, *(pedersen.draw_blinding(drawn).to_bytes(SIZE, "little") for _ in range(3))]


def times_base(scalar: bytes) -> bytes:
    """The multiple of Ed25519's base point; `scalar` is little-endian, of any size."""
    return pedersen.times(int.from_bytes(scalar, "little"), pedersen.BASE)


def of_small_seeds(secrets: Collection[bytes]) -> dict[bytes, str]:
    """Which of some secrets of 32 bytes are made of a small seed, and how."""
    wanted = np.frombuffer(b"".join([one[:_PREFIX] for one in secrets]), "<u8")
    found = {
        expand(seed): f"{how} of {seed}"
        for how, (_, expand) in _SEEDED.items()
        for seed in np.flatnonzero(np.isin(_table(how), wanted)).tolist()
    }
    return {secret: how for secret, how in found.items() if secret in secrets}


@functools.cache
def _table(how: str) -> npt.NDArray[np.uint64]:
    """The first eight bytes of what is made of every small seed; a tenth of a second, once."""
    seeds, expand = _SEEDED[how]
    return np.frombuffer(b"".join([expand(seed)[:_PREFIX] for seed in range(seeds)]), "<u8")


def visible(session: Session) -> dict[int, tuple[bytes, ...]]:
    """What everybody can see of each device: always as much, in one order.

    Five values are the same for all. Five say its number. Then come its key, the X25519 half of
    it, and its identity.
    """
    params, found = session.params, {}
    common = params.tag, params.digest, params.context, params.graph_seed, session.session_id
    for device, message, _ in session.advertised():
        numbers = [device.to_bytes(size, order) for size in (4, 8) for order in _ORDERS]
        own = message.key, message.key[-SIZE:], bytes(message.credential.identity)
        found[device] = *common, *numbers, str(device).encode(), *own
    return found


def signed(session: Session) -> Iterator[bytes]:
    """What devices sign of their keys, by itself and after their identities."""
    for device, message, _ in session.advertised():
        said = signing.advertisement(session.params, ClientId(device), message.key)
        yield from (said, bytes(message.credential.identity) + said)


def sums_of_blindings(values: Sequence[Sequence[bytes]]) -> dict[int, str]:
    """Sums of the blindings of some devices that follow from what everybody can see, and how.

    Args:
        values: What can be seen of each device in the sum.
    """
    known = {len(values) * int.from_bytes(one, "little"): how for one, how in of_bytes()}
    for alike in zip(*values, strict=False):
        for guesses, order in product(zip(*map(of_value, alike), strict=True), _ORDERS):
            total = sum(int.from_bytes(secret, order) for secret, _ in guesses)
            known[total] = f"{guesses[0][1]}{alike[0].hex()}, and the like"
    return {total % pedersen.ORDER: how for total, how in known.items()}
