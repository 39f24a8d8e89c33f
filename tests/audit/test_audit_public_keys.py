"""Keys that honest devices have, and keys that they have not."""

import hashlib

import pytest
from nacl.bindings import crypto_sign_ed25519_pk_to_curve25519, crypto_sign_seed_keypair

from deltafl.secagg import keys
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.public_keys import is_on_curve, of_edwards, of_few_seeds, of_visible

SOURCE = SeededRandomness(b"public keys".ljust(32))


def test_every_real_key_is_on_the_curve_and_half_of_all_strings_are():
    assert all(is_on_curve(keys.generate(SOURCE).public) for _ in range(50))
    assert 60 < sum(is_on_curve(SOURCE(32)) for _ in range(200)) < 140


def test_a_signing_key_as_a_key_for_agreements():
    for _ in range(5):
        public, _ = crypto_sign_seed_keypair(SOURCE(32))
        assert of_edwards(public) == crypto_sign_ed25519_pk_to_curve25519(public)
    assert of_edwards((1).to_bytes(32, "little")) == bytes(32)


@pytest.mark.parametrize(
    "secret",
    [(7).to_bytes(32, "little"), (255).to_bytes(32, "big"), hashlib.sha256(b"\x2a").digest()],
)
def test_secrets_of_a_byte_are_known(secret):
    assert keys.key_pair(secret).public in of_few_seeds()


def test_secrets_that_are_visible_are_known():
    known = of_visible([b"a tag"])
    for secret in (b"a tag".ljust(32, b"\0"), hashlib.sha256(b"a tag").digest()):
        assert keys.key_pair(secret).public in known
    assert keys.generate(SOURCE).public not in known
    assert keys.generate(SOURCE).public not in of_few_seeds()
