import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import outside

from deltafl.secagg import PeerError, Refusal, keys
from deltafl.secagg.randomness import SeededRandomness

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


def encoded(coordinate):
    return coordinate.to_bytes(32, "little")


@pytest.mark.parametrize(
    ("scalar", "coordinate", "product"),
    [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_products_of_rfc_7748_section_5_2(scalar, coordinate, product):
    pair = keys.key_pair(bytes.fromhex(scalar))
    assert pair.agree(bytes.fromhex(coordinate)).hex() == product


@pytest.mark.parametrize(
    ("times", "result"),
    [
        (1, "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"),
        (1000, "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"),
    ],
)
def test_iterated_products_of_rfc_7748_section_5_2(times, result):
    scalar = coordinate = encoded(9)
    for _ in range(times):
        scalar, coordinate = keys.key_pair(scalar).agree(coordinate), scalar
    assert scalar.hex() == result


def test_agreement_of_rfc_7748_section_6_1():
    alice = keys.key_pair(
        bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    )
    bob = keys.key_pair(
        bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    )
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert alice.agree(bob.public).hex() == bob.agree(alice.public).hex() == shared


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


def test_key_pair_takes_32_bytes_of_the_randomness_and_hides_them():
    pair = keys.generate(lambda size: bytes([7]) * size)
    assert pair == keys.key_pair(bytes([7]) * 32)
    assert pair.secret.hex() not in repr(pair)
    assert repr(pair.secret) not in repr(pair)


@pytest.mark.parametrize("coordinate", LOW_ORDER)
@pytest.mark.parametrize("high_bit", [0, 1 << 255])
def test_low_order_points_are_recognised(coordinate, high_bit):
    public = encoded(coordinate | high_bit)
    assert keys.is_low_order(public)
    # What they would do: the agreement is all zeros, which is noticed a second time.
    pair = keys.key_pair(bytes(range(32)))
    with pytest.raises(PeerError, match="all zeros") as refused:
        pair.agree(public)
    assert refused.value.reason is Refusal.BAD_KEY
    with pytest.raises(ValueError, match="shared key"):
        pair._private.exchange(X25519PublicKey.from_public_bytes(public))


@given(
    number=st.one_of(
        st.integers(0, 2**256 - 1),
        st.integers(P - 40, 2**255 + 40),
        st.integers(2**256 - 60, 2**256 - 1),
    )
)
def test_keys_have_one_canonical_encoding_for_each_coordinate(number):
    public = encoded(number)
    assert keys.canonical(public) == encoded(number % 2**255 % P)
    assert int.from_bytes(keys.canonical(public), "little") == keys.coordinate(public)


@given(secret=st.binary(min_size=32, max_size=32))
@settings(max_examples=30)
def test_honest_keys_are_not_of_low_order(secret):
    assert not keys.is_low_order(keys.key_pair(secret).public)


def test_x25519_against_wycheproof():
    refused = agreed = 0
    for case in outside("x25519.json"):
        public, shared = bytes.fromhex(case["public"]), bytes.fromhex(case["shared"])
        low_order = keys.is_low_order(public)
        assert low_order == (shared == bytes(32)), case["tcId"]
        assert low_order == ("ZeroSharedSecret" in case["flags"]), case["tcId"]
        refused += low_order
        if not low_order:
            pair = keys.key_pair(bytes.fromhex(case["private"]))
            assert pair.agree(public) == shared, case["tcId"]
            agreed += 1
    assert refused == 31
    assert agreed > 100


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


def test_encodings_of_one_coordinate_are_one_key():
    public = keys.generate(SeededRandomness(b"k" * 32)).public
    high_bit = public[:31] + bytes([public[31] | 0x80])
    assert keys.coordinate(high_bit) == keys.coordinate(public)
    assert keys.coordinate((2**255 - 19 + 3).to_bytes(32, "little")) == 3
