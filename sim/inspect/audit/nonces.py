"""Nonces of signatures that can be guessed: a point R = r·B whose r somebody can compute.

Whoever knows the nonce r of one Ed25519 signature computes the secret scalar of the identity from
it, and signs for its device from then on. The same holds for two signatures whose nonces differ by
a known number. Honest nonces are digests that begin with a secret (RFC 8032, section 5.1.6).
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
)
from nacl.exceptions import RuntimeError as SodiumError

from deltafl.secagg import pedersen
from deltafl.sim.inspect.audit import guesses
from deltafl.sim.inspect.audit.statements import Signed
from deltafl.sim.inspect.audit.weak_seeds import few_seeds

SMALL_BITS: Final = 12
"""Nonces, and differences of nonces, below 2 to this power are known."""

_FEW_BITS: Final = 8
_POINT: Final = 32
_SIGN: Final = 0x80
_ZERO: Final = (1).to_bytes(_POINT, "little")  # the encoding of the neutral point


def guessed(signed: Signed, visible: Iterable[bytes]) -> str | None:
    """What the nonce of a signature is; None if it is none that is tried.

    Args:
        signed: The signature.
        visible: Values that everybody can see.
    """
    point = signed.signature[:_POINT]
    known = _small().get(point)
    if known is not None:
        return f"the number {known}"
    if (how := _few().get(point)) is not None:
        return how
    for value in visible:
        if (how := _of_value(value).get(point)) is not None:
            return how
    if signed.statement is not None:
        for digest, how in _of_statement(signed.identity, signed.statement):
            if _times_base(digest) == point:
                return how
    return None


def related(signed: Iterable[Signed]) -> Iterator[tuple[Signed, str]]:
    """Signatures whose nonce is that of the device's signature before, give or take a small number.

    Args:
        signed: One device's signatures, in their order.
    """
    for one, other in pairwise(signed):
        if one.signature == other.signature:  # of one message, which was sent again
            continue
        try:
            gap = crypto_core_ed25519_sub(other.signature[:_POINT], one.signature[:_POINT])
        except SodiumError:  # not on the curve: no valid signature
            continue
        known = _small().get(gap)
        if known is None:
            known = _small().get(gap[:-1] + bytes([gap[-1] ^ _SIGN]))
        if known is not None:
            yield other, f"that of the signature of {one.what}, give or take {known}"


@functools.cache
def _small() -> dict[bytes, int]:
    """Small multiples of the base point."""
    base = crypto_scalarmult_ed25519_base_noclamp((1).to_bytes(_POINT, "little"))
    known, point = {_ZERO: 0}, _ZERO
    for number in range(1, 1 << SMALL_BITS):
        point = crypto_core_ed25519_add(point, base)
        known[point] = number
    return known


@functools.cache
def _few() -> dict[bytes, str]:
    """Points of nonces that careless software makes of eight bits, and how."""
    found = {}
    for secret, how in few_seeds(_FEW_BITS):
        found[_times_base(secret)] = how
        found[_times_base(hashlib.sha512(secret).digest())] = f"SHA-512 of {how}"
    return found


@functools.lru_cache(maxsize=1 << 13)  # the ids of devices are the same in all rounds
def _of_value(value: bytes) -> dict[bytes, str]:
    whole = hashlib.sha512(value).digest()
    secrets = {**dict(guesses.of_value(value)), whole: f"SHA-512 of {value.hex()}"}
    return {_times_base(s): f"{how}, which everybody can see" for s, how in secrets.items()}


def _of_statement(identity: bytes, statement: bytes) -> Iterator[tuple[bytes, str]]:
    yield hashlib.sha512(statement).digest(), "SHA-512 of the message"
    yield hashlib.sha256(statement).digest(), "SHA-256 of the message"
    yield hashlib.sha512(identity + statement).digest(), "SHA-512 of public key and message"


def _times_base(scalar: bytes) -> bytes:
    """The multiple of the base point; `scalar` is little-endian, of any size."""
    number = int.from_bytes(scalar, "little") % pedersen.ORDER
    if not number:
        return _ZERO
    return crypto_scalarmult_ed25519_base_noclamp(number.to_bytes(_POINT, "little"))
