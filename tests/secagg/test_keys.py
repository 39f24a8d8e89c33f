"""X-Wing key pairs and boxes that are sealed to them; HKDF against published vectors."""

import hmac
from hashlib import shake_256

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import outside

from deltafl.secagg import keys

P = 2**255 - 19
LOW_ORDER = (
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    P - 1,
    # Two of them again, not canonical and still below 2^255.
    P,
    P + 1,
)
SECRET = bytes(range(32))
OWN, OTHER = (keys.recipient(bytes([i]) * 32) for i in (1, 2))


@pytest.mark.parametrize(
    ("material", "salt", "info", "secret", "output"),
    [
        (
            bytes([0x0B] * 22),
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5",
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(0x50)),
            bytes(range(0x60, 0xB0)),
            bytes(range(0xB0, 0x100)),
            "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244",
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
            "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
            "cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
        (
            bytes([0x0B] * 22),
            b"",
            b"",
            "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
    ids=["A.1", "A.2", "A.3"],
)
def test_derivations_of_rfc_5869_appendix_a(material, salt, info, secret, output):
    # A shorter output is the beginning of a longer one (section 2.3), and a key has 32 bytes.
    assert keys.derive(material, salt=salt, info=info).hex() == output[:64]
    extracted = keys.extract(material, salt=salt)
    assert extracted.hex() == secret
    assert keys.expand(extracted, info).hex() == output[:64]


@given(
    material=st.binary(min_size=1, max_size=80),
    salt=st.binary(max_size=80),
    info=st.binary(max_size=200),
)
@settings(max_examples=60)
def test_both_halves_of_hkdf_are_those_of_a_twin(material, salt, info):
    derived = keys.derive(material, salt=salt, info=info)
    assert derived == HKDF(SHA256(), 32, salt, info).derive(material)
    extracted = keys.extract(material, salt=salt)
    assert extracted == hmac.HMAC(salt or bytes(32), material, "sha256").digest()
    assert (
        derived == keys.expand(extracted, info) == HKDFExpand(SHA256(), 32, info).derive(extracted)
    )


def test_whatever_goes_into_a_key_changes_it():
    secret = keys.extract(b"material", salt=b"salt")
    assert secret != keys.extract(b"materiaL", salt=b"salt")
    assert secret != keys.extract(b"material", salt=b"salT")
    assert keys.expand(secret, b"") != secret
    assert keys.expand(secret, b"a") != keys.expand(secret, b"b")
    assert keys.expand(secret, b"") != keys.expand(secret, b"\x01")


def test_a_key_pair_takes_32_bytes_of_the_randomness_and_hides_them():
    asked = []
    pair = keys.generate(lambda size: asked.append(size) or SECRET[:size])
    assert asked == [32]
    assert pair == keys.recipient(SECRET)
    assert pair != OWN
    assert len(pair.public) == keys.KEY_SIZE == 1216
    for secret in (SECRET, *halves(SECRET)):
        assert secret.hex() not in repr(pair)
        assert repr(secret) not in repr(pair)


def halves(secret):
    """The secrets of both parts of a key pair, as X-Wing expands them."""
    expanded = shake_256(secret).digest(96)
    return expanded[:64], expanded[64:]


def test_the_first_published_key_of_x_wing():
    """The seed and the first bytes of the public key of the draft's first test vector.

    draft-connolly-cfrg-xwing-kem, appendix C.
    """
    seed = bytes.fromhex("7f9c2ba4e88f827d616045507605853ed73b8093f6efbc88eb1a6eacfa66ef26")
    begins = "e2236b35a8c24b39b10aa1323a96a919a2ced88400633a7b07131713fc14b2b5"
    assert keys.recipient(seed).public.hex().startswith(begins)


@given(secret=st.binary(min_size=32, max_size=32))
@settings(max_examples=10)
def test_a_key_is_that_of_ml_kem_and_then_that_of_x25519(secret):
    kem, curve = halves(secret)
    lattice = MLKEM768PrivateKey.from_seed_bytes(kem).public_key().public_bytes_raw()
    point = X25519PrivateKey.from_private_bytes(curve).public_key().public_bytes_raw()
    assert keys.recipient(secret).public == lattice + point
    assert keys.is_key(lattice + point)


@given(content=st.binary(max_size=300), info=st.binary(max_size=80))
@settings(max_examples=20)
def test_a_box_opens_to_what_was_sealed(content, info):
    box = keys.seal(content, OWN.public, info)
    assert len(box) == len(content) + keys.OVERHEAD == len(content) + 1136
    assert OWN.open(box, info) == content


def test_two_boxes_of_one_content_are_not_alike():
    first, second = (keys.seal(b"content", OWN.public, b"info") for _ in range(2))
    assert first != second
    assert OWN.open(first, b"info") == OWN.open(second, b"info")


def test_a_box_opens_under_its_own_key_and_info_only():
    box = keys.seal(b"content", OWN.public, b"info")
    assert OWN.open(box, b"info") == b"content"
    assert OTHER.open(box, b"info") is None
    for info in (b"", b"infO", b"info\0"):
        assert OWN.open(box, info) is None


@pytest.mark.parametrize("place", [0, 1000, 1087, 1088, 1119, 1120, 1126, 1127, -1])
def test_a_box_that_was_changed_does_not_open(place):
    """In what is encapsulated to the lattice, or to the curve, in the content, or in the tag."""
    box = bytearray(keys.seal(b"content", OWN.public, b""))
    box[place] ^= 1
    assert OWN.open(bytes(box), b"") is None


@pytest.mark.parametrize("size", [0, 1, 1087, 1119, 1120, 1135])
def test_what_is_too_short_for_a_box_does_not_open(size):
    box = keys.seal(b"", OWN.public, b"")
    assert OWN.open(box[:size], b"") is None
    assert OWN.open(bytes(size), b"") is None
    assert OWN.open(box, b"") == b""


@pytest.mark.parametrize("coordinate", LOW_ORDER)
@pytest.mark.parametrize("high_bit", [0, 1 << 255])
def test_a_key_whose_curve_point_has_low_order_is_none(coordinate, high_bit):
    point = (coordinate | high_bit).to_bytes(32, "little")
    assert not keys.is_key(OWN.public[:-32] + point)
    assert keys.is_key(OWN.public)


@pytest.mark.parametrize("place", [0, 700, 1149])
def test_a_key_whose_coefficients_are_not_reduced_is_none(place):
    """Two coefficients of 12 bits lie in three bytes; q = 3329 is the least that is too large."""
    for value, good in ((3328, True), (3329, False), (4095, False)):
        public = bytearray(OWN.public)
        first = place // 3 * 3
        public[first], public[first + 1] = value & 0xFF, value >> 8
        assert keys.is_key(bytes(public)) == good


@given(
    public=st.one_of(
        st.binary(max_size=1300),
        st.sampled_from([OWN.public[:size] for size in (0, 32, 1184, 1215)] + [OWN.public + b"\0"]),
    )
)
def test_keys_of_another_size_are_none(public):
    assert not keys.is_key(public) or len(public) == keys.KEY_SIZE


def test_hkdf_against_wycheproof():
    compared = 0
    for case in outside("hkdf_sha256.json"):
        derived = keys.derive(
            bytes.fromhex(case["ikm"]),
            salt=bytes.fromhex(case["salt"]),
            info=bytes.fromhex(case["info"]),
        )
        size = min(case["size"], len(derived))
        assert derived[:size].hex() == case["okm"][: 2 * size], case["tcId"]
        compared += 1
    assert compared > 50
