from hashlib import sha512

import pytest
from edwards import BASE_Y, LOW_ORDER, NEUTRAL, ORDER, add, affine, decoded, encoded, times
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import outside

from deltafl.secagg import identity, labels
from deltafl.secagg.errors import UsageError
from deltafl.secagg.labels import Label
from deltafl.secagg.randomness import SeededRandomness

# RFC 8032 section 7.1: seed, public key, message, signature.
RFC_8032 = {
    "TEST 1": (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    "TEST 2": (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    "TEST 3": (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    "TEST 1024": (
        "f5e5767cf153319517630f226876b86c8160cc583bc013744c6bf255f5cc0ee5",
        "278117fc144c72340f67d0f2316e8386ceffbf2b2428c9c51fef7c597f1d426e",
        "08b8b2b733424243760fe426a4b54908632110a66c2f6591eabd3345e3e4eb98fa6e264bf09efe12ee50f8f5"
        "4e9f77b1e355f6c50544e23fb1433ddf73be84d879de7c0046dc4996d9e773f4bc9efe5738829adb26c81b37"
        "c93a1b270b20329d658675fc6ea534e0810a4432826bf58c941efb65d57a338bbd2e26640f89ffbc1a858efc"
        "b8550ee3a5e1998bd177e93a7363c344fe6b199ee5d02e82d522c4feba15452f80288a821a579116ec6dad2b"
        "3b310da903401aa62100ab5d1a36553e06203b33890cc9b832f79ef80560ccb9a39ce767967ed628c6ad573c"
        "b116dbefefd75499da96bd68a8a97b928a8bbc103b6621fcde2beca1231d206be6cd9ec7aff6f6c94fcd7204"
        "ed3455c68c83f4a41da4af2b74ef5c53f1d8ac70bdcb7ed185ce81bd84359d44254d95629e9855a94a7c1958"
        "d1f8ada5d0532ed8a5aa3fb2d17ba70eb6248e594e1a2297acbbb39d502f1a8c6eb6f1ce22b3de1a1f40cc24"
        "554119a831a9aad6079cad88425de6bde1a9187ebb6092cf67bf2b13fd65f27088d78b7e883c8759d2c4f5c6"
        "5adb7553878ad575f9fad878e80a0c9ba63bcbcc2732e69485bbc9c90bfbd62481d9089beccf80cfe2df16a2"
        "cf65bd92dd597b0707e0917af48bbb75fed413d238f5555a7a569d80c3414a8d0859dc65a46128bab27af87a"
        "71314f318c782b23ebfe808b82b0ce26401d2e22f04d83d1255dc51addd3b75a2b1ae0784504df543af8969b"
        "e3ea7082ff7fc9888c144da2af58429ec96031dbcad3dad9af0dcbaaaf268cb8fcffead94f3c7ca495e056a9"
        "b47acdb751fb73e666c6c655ade8297297d07ad1ba5e43f1bca32301651339e22904cc8c42f58c30c04aafdb"
        "038dda0847dd988dcda6f3bfd15c4b4c4525004aa06eeff8ca61783aacec57fb3d1f92b0fe2fd1a85f672451"
        "7b65e614ad6808d6f6ee34dff7310fdc82aebfd904b01e1dc54b2927094b2db68d6f903b68401adebf5a7e08"
        "d78ff4ef5d63653a65040cf9bfd4aca7984a74d37145986780fc0b16ac451649de6188a7dbdf191f64b5fc5e"
        "2ab47b57f7f7276cd419c17a3ca8e1b939ae49e488acba6b965610b5480109c8b17b80e1b7b750dfc7598d5d"
        "5011fd2dcc5600a32ef5b52a1ecc820e308aa342721aac0943bf6686b64b2579376504ccc493d97e6aed3fb0"
        "f9cd71a43dd497f01f17c0e2cb3797aa2a2f256656168e6c496afc5fb93246f6b1116398a346f1a641f3b041"
        "e989f7914f90cc2c7fff357876e506b50d334ba77c225bc307ba537152f3f1610e4eafe595f6d9d90d11faa9"
        "33a15ef1369546868a7f3a45a96768d40fd9d03412c091c6315cf4fde7cb68606937380db2eaaa707b4c4185"
        "c32eddcdd306705e4dc1ffc872eeee475a64dfac86aba41c0618983f8741c5ef68d3a101e8a3b8cac60c905c"
        "15fc910840b94c00a0b9d0",
        "0aab4c900501b3e24d7cdf4663326a3a87df5e4843b2cbdb67cbf6e460fec350"
        "aa5371b1508f9f4528ecea23c436d94b5e8fcd4f681e30a6ac00a9704a188a03",
    ),
    "TEST SHA(abc)": (
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
        "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
        "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
}


ALICE, BOB = (identity.identity(bytes([i]) * 32) for i in (1, 2))
MESSAGE = b"what was agreed"


def challenge(public, message, nonce_point):
    digest = sha512(nonce_point + public + message).digest()
    return int.from_bytes(digest, "little") % ORDER


def equation_holds(public, message, signature):
    """[S]B = R + [h]A and nothing else: what a verifier without refusals would accept."""
    scalar = int.from_bytes(signature[32:], "little")
    masked = times(challenge(public, message, signature[:32]), decoded(public))
    nonce_point = decoded(signature[:32])
    expected = affine(add((*nonce_point, 1), (*masked, 1)))
    return times(scalar, decoded(encoded(BASE_Y))) == expected


def scalar_of(signer):
    """The secret scalar: its product with the base point is the public key."""
    digest = sha512(signer._secret[:32]).digest()
    clamped = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | 1 << 254
    return (clamped % ORDER).to_bytes(32, "little")


@pytest.mark.parametrize("name", RFC_8032)
def test_signatures_of_rfc_8032_section_7_1(name):
    seed, public, message, signature = (bytes.fromhex(part) for part in RFC_8032[name])
    signer = identity.identity(seed)
    assert signer.public == public
    assert signer.sign(message) == signature
    assert identity.verify(public, message, signature)
    assert not identity.verify(public, message + b"\0", signature)


def test_ed25519_against_wycheproof():
    results = {"valid": 0, "invalid": 0}
    for case in outside("ed25519.json"):
        public, message, signature = (bytes.fromhex(case[part]) for part in ("pk", "msg", "sig"))
        expected = case["result"] == "valid"
        assert identity.verify(public, message, signature) == expected, case["tcId"]
        results[case["result"]] += 1
    assert min(results.values()) > 50


@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=100))
@settings(max_examples=30)
def test_what_was_signed_verifies_for_this_key_and_message_only(seed, message):
    signer = identity.identity(seed)
    signature = signer.sign(message)
    assert len(signature) == identity.SIGNATURE_SIZE
    assert signature == signer.sign(message)
    assert identity.verify(signer.public, message, signature)
    assert not identity.verify(signer.public, message + b"\0", signature)
    assert not identity.verify(ALICE.public, message, signature)


def test_any_flipped_bit_of_key_message_or_signature_is_noticed():
    parts = (ALICE.public, MESSAGE, ALICE.sign(MESSAGE))
    for index, part in enumerate(parts):
        for position in range(8 * len(part)):
            wrong = bytearray(part)
            wrong[position // 8] ^= 1 << (position % 8)
            changed = (*parts[:index], bytes(wrong), *parts[index + 1 :])
            assert not identity.verify(*changed), (index, position)


@pytest.mark.parametrize("size", [0, 1, 31, 33, 64])
def test_keys_of_another_size_verify_nothing(size):
    public = (ALICE.public * 2)[:size]
    assert not identity.verify(public, MESSAGE, ALICE.sign(MESSAGE))


@pytest.mark.parametrize("size", [0, 1, 32, 63, 65, 128])
def test_signatures_of_another_size_verify_nothing(size):
    signature = (ALICE.sign(MESSAGE) * 2)[:size]
    assert not identity.verify(ALICE.public, MESSAGE, signature)
    # Nor may bytes wander between signature and message.
    assert not identity.verify(
        ALICE.public, ALICE.sign(MESSAGE)[63:] + MESSAGE, ALICE.sign(MESSAGE)[:63]
    )


def test_the_low_order_encodings_are_all_of_them():
    points = {decoded(public) for public in LOW_ORDER}
    assert len(points) == 8
    assert len(set(LOW_ORDER)) == 14
    assert all(times(8, point) == NEUTRAL for point in points)
    assert times(8, decoded(ALICE.public)) != NEUTRAL


@pytest.mark.parametrize("public", LOW_ORDER, ids=bytes.hex)
def test_low_order_keys_canonical_or_not_verify_nothing(public):
    """Nobody owns such a key: with R = [S]B, one signature fits every eighth message at least."""
    signature = ALICE.public + scalar_of(ALICE)
    messages = (bytes([i]) for i in range(100))
    forged = [m for m in messages if challenge(public, m, ALICE.public) % 8 == 0]
    assert equation_holds(public, forged[0], signature)
    assert not any(identity.verify(public, message, signature) for message in forged)


def test_a_low_order_nonce_point_does_not_verify():
    neutral = encoded(1)
    h = challenge(ALICE.public, MESSAGE, neutral)
    scalar = h * int.from_bytes(scalar_of(ALICE), "little") % ORDER
    signature = neutral + scalar.to_bytes(32, "little")
    assert equation_holds(ALICE.public, MESSAGE, signature)
    assert not identity.verify(ALICE.public, MESSAGE, signature)


def test_a_second_signature_made_from_the_first_does_not_verify():
    signature = ALICE.sign(MESSAGE)
    larger = (int.from_bytes(signature[32:], "little") + ORDER).to_bytes(32, "little")
    assert equation_holds(ALICE.public, MESSAGE, signature[:32] + larger)
    assert identity.verify(ALICE.public, MESSAGE, signature)
    assert not identity.verify(ALICE.public, MESSAGE, signature[:32] + larger)


def test_an_identity_takes_32_bytes_of_the_randomness_and_hides_them():
    signer = identity.generate(lambda size: bytes([7]) * size)
    assert signer == identity.identity(bytes([7]) * 32)
    assert signer.public != identity.generate(SeededRandomness(bytes(32))).public
    assert repr(signer) == f"Identity(public={signer.public!r})"
    assert len(signer.public) == identity.IDENTITY_SIZE


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_seeds_and_keys_of_another_size_are_refused(size):
    with pytest.raises(UsageError, match=f"32 bytes, not {size}"):
        identity.identity(bytes(size))
    with pytest.raises(UsageError, match=f"32 bytes, not {size}"):
        identity.fingerprint(bytes(size))


def test_fingerprints_are_a_labelled_hash_in_groups_of_four_digits():
    shown = identity.fingerprint(ALICE.public)
    groups = shown.split(" ")
    assert [len(group) for group in groups] == [4] * 8
    expected = labels.digest(Label.IDENTITY_FINGERPRINT, ALICE.public)[:16]
    assert bytes.fromhex("".join(groups)) == expected
    assert shown != identity.fingerprint(BOB.public)
