"""Keys that honest devices have, and keys that they have not."""

from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_seed_keypair,
)

from deltafl.secagg import keys
from deltafl.secagg.identity import identity
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.public_keys import (
    is_in_group,
    is_multiple_of_base,
    of_edwards,
)

SOURCE = SeededRandomness(b"public keys".ljust(32))


def test_a_signing_key_as_a_key_for_agreements():
    for _ in range(5):
        public, _ = crypto_sign_seed_keypair(SOURCE(32))
        assert of_edwards(public) == crypto_sign_ed25519_pk_to_curve25519(public)
    assert of_edwards((1).to_bytes(32, "little")) == bytes(32)


SMALL_ORDER = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")


def test_keys_and_identities_are_multiples_of_the_base_point():
    for _ in range(20):
        assert is_multiple_of_base(keys.generate(SOURCE).public[-32:])
        assert is_in_group(bytes(identity(SOURCE(32)).public))


def test_points_with_a_part_of_small_order():
    moved = bytes(identity(SOURCE(32)).public)
    for _ in range(7):
        moved = crypto_core_ed25519_add(moved, SMALL_ORDER)
        assert not is_in_group(moved)
        assert not is_multiple_of_base(of_edwards(moved))
    assert is_in_group(crypto_core_ed25519_add(moved, SMALL_ORDER))


def test_other_encodings_of_keys():
    public = keys.generate(SOURCE).public[-32:]
    assert not is_multiple_of_base(public[:-1] + bytes([public[-1] | 0x80]))
    for number in (0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 19 + 9):
        assert not is_multiple_of_base(number.to_bytes(32, "little"))
    assert is_multiple_of_base((9).to_bytes(32, "little"))
