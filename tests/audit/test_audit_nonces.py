"""Nonces of signatures that somebody can compute, and those that nobody can."""

import hashlib

import pytest
from nacl.bindings import crypto_scalarmult_ed25519_base_noclamp

from deltafl.secagg import pedersen
from deltafl.secagg.identity import identity
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.nonces import SMALL_BITS, guessed, related
from deltafl.sim.inspect.audit.statements import Signed

SOURCE = SeededRandomness(b"nonces".ljust(32))
OWN = identity(SOURCE(32))
MESSAGE = b"what is signed"


def signed(nonce: int, message: bytes | None = MESSAGE) -> Signed:
    """A signature with a nonce; the other half is anything."""
    number = (nonce % pedersen.ORDER).to_bytes(32, "little")
    point = crypto_scalarmult_ed25519_base_noclamp(number)
    return Signed(3, "it", bytes(OWN.public), message, point + SOURCE(32), Evidence())


def number(data: bytes) -> int:
    return int.from_bytes(data, "little")


@pytest.mark.parametrize(
    "nonce",
    [
        1,
        (1 << SMALL_BITS) - 1,
        number(hashlib.sha256(b"\x07").digest()),
        number(bytes([7]) * 32),
        number(hashlib.sha512(hashlib.sha256(b"\x07").digest()).digest()),
        number(hashlib.sha512(b"visible").digest()),
        number(hashlib.sha256(b"visible").digest()),
        number(hashlib.sha512(MESSAGE).digest()),
        number(hashlib.sha256(MESSAGE).digest()),
        number(hashlib.sha512(bytes(OWN.public) + MESSAGE).digest()),
    ],
)
def test_nonces_that_are_tried(nonce):
    assert guessed(signed(nonce), [b"visible"])


def test_nonces_that_are_not_found():
    assert guessed(signed(1 << SMALL_BITS), [b"visible"]) is None
    assert guessed(signed(number(SOURCE(64))), [b"visible"]) is None
    assert guessed(signed(number(hashlib.sha512(MESSAGE).digest()), None), []) is None
    real = Signed(3, "it", bytes(OWN.public), MESSAGE, OWN.sign(MESSAGE), Evidence())
    assert guessed(real, [b"visible", MESSAGE]) is None


@pytest.mark.parametrize("gap", [0, 1, -1, (1 << SMALL_BITS) - 1, 1 - (1 << SMALL_BITS)])
def test_nonces_that_are_close_to_one_another(gap):
    start = number(SOURCE(64))
    one, other = signed(start), signed(start + gap)
    assert [found for found, _ in related([signed(1), one, other])] == [other]


def test_nonces_that_are_far_apart():
    start = number(SOURCE(64))
    assert not list(related([signed(start), signed(start + (1 << SMALL_BITS))]))
    assert not list(related([signed(start), signed(number(SOURCE(64)))]))


def test_one_signature_twice_and_no_signature():
    one = signed(number(SOURCE(64)))
    assert not list(related([one, one]))
    broken = Signed(3, "it", bytes(OWN.public), MESSAGE, b"\2" * 64, Evidence())
    assert not list(related([one, broken, one]))
    assert guessed(broken, []) is None
