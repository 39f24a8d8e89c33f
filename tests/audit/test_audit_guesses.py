"""Secrets that an attacker tries."""

import hashlib

from nacl.bindings import crypto_scalarmult_base

from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit import guesses

SOURCE = SeededRandomness(b"guesses".ljust(32))


def test_the_bits_that_x25519_uses_give_the_same_key():
    for _ in range(5):
        secret = SOURCE(32)
        used = guesses.clamped(secret)
        assert crypto_scalarmult_base(used) == crypto_scalarmult_base(secret)
        assert used[0] % 8 == 0
        assert used[31] >> 6 == 1
        assert guesses.clamped(used) == used


def test_secrets_of_a_value():
    found = dict(guesses.of_value(b"\1\2"))
    for secret in (
        b"\1\2" + bytes(30),
        bytes(30) + b"\1\2",
        b"\1\2" * 16,
        hashlib.sha256(b"\1\2").digest(),
        hashlib.sha512(b"\1\2").digest()[:32],
        hashlib.sha512(b"\1\2").digest()[32:],
    ):
        assert secret in found
    assert all(len(secret) == 32 for secret in found)
    sizes = {len(guesses.of_value(value)) for value in (b"\0", bytes(4), b"long" * 20, SOURCE(32))}
    assert sizes == {len(found)}


def test_functions_of_a_secret():
    secret = (5).to_bytes(32, "little")
    found = {how: other for other, how in guesses.functions_of(secret)}
    assert found["+1, little-endian"] == (6).to_bytes(32, "little")
    assert found["-1, big-endian"][-1] == 0xFF
    assert found["the complement"] == b"\xfa" + b"\xff" * 31
    assert found["the bytes backwards"] == bytes(31) + b"\5"
    assert found["the bits backwards"] == bytes(31) + b"\xa0"
    assert found["the halves exchanged"] == bytes(16) + b"\5" + bytes(15)
    assert found["SHA-256"] == hashlib.sha256(secret).digest()
    assert len(set(found.values())) == len(found)


def test_the_numbers_go_round():
    top = b"\xff" * 32
    assert bytes(32) in dict(guesses.functions_of(top))
    assert top in dict(guesses.functions_of(bytes(32)))
