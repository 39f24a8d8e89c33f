import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg import prg
from deltafl.secagg.randomness import SeededRandomness

# RFC 8439, appendix A.1: key, block counter, keystream block; all with a nonce of zero.
RFC_8439_A1 = {
    "vector #1": (
        bytes(32),
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "vector #2": (
        bytes(32),
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    "vector #3": (
        bytes(31) + b"\x01",
        1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    "vector #4": (
        b"\x00\xff" + bytes(30),
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
}
# RFC 8439: key, nonce, first block counter, plaintext, ciphertext.
RFC_8439_NONCES = {
    "section 2.3.2": (
        bytes(range(32)),
        "000000090000004a00000000",
        1,
        bytes(64),
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    "section 2.4.2": (
        bytes(range(32)),
        "000000000000004a00000000",
        1,
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        b"future, sunscreen would be it.",
        "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0b"
        "f91b65c5524733ab8f593dabcd62b3571639d624e65152ab8f530c359f0861d8"
        "07ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab7793736"
        "5af90bbf74a35be6b40b8eedf2785e42874d",
    ),
    "appendix A.1 vector #5": (
        bytes(32),
        "000000000000000000000002",
        0,
        bytes(64),
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
    "appendix A.2 vector #2": (
        bytes(31) + b"\x01",
        "000000000000000000000002",
        1,
        b"Any submission to the IETF intended by the Contributor for publication as all or part of "
        b"an IETF Internet-Draft or RFC and any statement made within the context of an IETF "
        b'activity is considered an "IETF Contribution". Such statements include oral statements '
        b"in IETF sessions, as well as written and electronic communications made at any time or "
        b"place, which are addressed to",
        "a3fbf07df3fa2fde4f376ca23e82737041605d9f4f4f57bd8cff2c1d4b7955ec"
        "2a97948bd3722915c8f3d337f7d370050e9e96d647b7c39f56e031ca5eb6250d"
        "4042e02785ececfa4b4bb5e8ead0440e20b6e8db09d881a7c6132f420e527950"
        "42bdfa7773d8a9051447b3291ce1411c680465552aa6c405b7764d5e87bea85a"
        "d00f8449ed8f72d0d662ab052691ca66424bc86d2df80ea41f43abf937d3259d"
        "c4b2d0dfb48a6c9139ddd7f76966e928e635553ba76c5c879d7b35d49eb2e62b"
        "0871cdac638939e25e8a1e0ef9d5280fa8ca328b351c3c765989cbcf3daa8b6c"
        "cc3aaf9f3979c92b3720fc88dc95ed84a1be059c6499b9fda236e7e818b04b0b"
        "c39c1e876b193bfe5569753f88128cc08aaa9b63d1a16f80ef2554d7189c411f"
        "5869ca52c5b83fa36ff216b9c1d30062bebcfd2dc5bce0911934fda79a86f6e6"
        "98ced759c3ff9b6477338f3da4f9cd8514ea9982ccafb341b2384dd902f3d1ab"
        "7ac61dd29c6f21ba5b862f3730e37cfdc4fd806c22f221",
    ),
    "appendix A.2 vector #3": (
        bytes.fromhex("1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0"),
        "000000000000000000000002",
        42,
        b"'Twas brillig, and the slithy toves\nDid gyre and gimble in the wabe:\n"
        b"All mimsy were the borogoves,\nAnd the mome raths outgrabe.",
        "62e6347f95ed87a45ffae7426f27a1df5fb69110044c0d73118effa95b01e5cf"
        "166d3df2d721caf9b21e5fb14c616871fd84c54f9d65b283196c7fe4f60553eb"
        "f39c6402c42234e32a356b3e764312a61a5532055716ead6962568f87d3f3f77"
        "04c6a8d1bcd1bf4d50d6154b6da731b187b58dfd728afa36757a797ac188d1",
    ),
}
CHUNK = prg._CHUNK_BYTES
SEED = bytes(range(32))


@pytest.mark.parametrize("name", RFC_8439_A1)
def test_keystream_of_rfc_8439_appendix_a_1(name):
    key, counter, block = RFC_8439_A1[name]
    assert prg.keystream(key, 64 * (counter + 1))[64 * counter :].hex() == block


@pytest.mark.parametrize("name", RFC_8439_NONCES)
def test_cipher_under_the_keystream_of_rfc_8439(name):
    """The same primitive where the nonce, which is zero in a mask, is not."""
    key, nonce, counter, plaintext, ciphertext = RFC_8439_NONCES[name]
    initial = counter.to_bytes(4, "little") + bytes.fromhex(nonce)
    stream = Cipher(algorithms.ChaCha20(key, initial), mode=None).encryptor()
    assert stream.update(plaintext).hex() == ciphertext
    assert prg.keystream(key, 64 * counter + len(plaintext))[64 * counter :].hex() != ciphertext


def test_keystream_of_a_longer_request_starts_with_the_shorter():
    assert prg.keystream(SEED, 1000)[:77] == prg.keystream(SEED, 77)
    assert prg.keystream(SEED, 0) == b""


def test_seeded_randomness_is_the_keystream_in_pieces():
    source = SeededRandomness(SEED)
    assert source(5) + source(0) + source(100) == prg.keystream(SEED, 105)


@given(
    dtype=st.sampled_from([np.uint32, np.uint64]),
    length=st.integers(0, 200),
    seed=st.binary(min_size=32, max_size=32),
    negative=st.booleans(),
)
def test_fast_and_plain_agree(dtype, length, seed, negative):
    start = np.arange(length, dtype=dtype) * dtype(2654435761)
    fast, plain = start.copy(), start.copy()
    prg.add_mask(fast, seed, negative=negative)
    prg.add_mask_plain(plain, seed, negative=negative)
    assert fast.tolist() == plain.tolist()


@pytest.mark.parametrize("word", [4, 8])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("chunks", [1, 3])
def test_fast_agrees_around_chunk_borders(word, offset, chunks):
    length = chunks * CHUNK // word + offset
    little = np.frombuffer(prg.keystream(SEED, length * word), dtype=f"<u{word}")
    total = np.full(length, 2 ** (8 * word) - 3, dtype=f"u{word}")
    start = total.copy()
    prg.add_mask(total, SEED)
    assert np.array_equal(total, start + little)
    prg.add_mask(total, SEED, negative=True)
    assert np.array_equal(total, start)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_different_seeds_do_not_cancel(dtype):
    total = np.zeros(64, dtype=dtype)
    prg.add_mask(total, SEED)
    prg.add_mask(total, bytes(32), negative=True)
    assert np.count_nonzero(total) == 64


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("length", [1, 3, 128, 129, 256, 257, 20_000])
def test_many_masks_at_once_are_the_same_as_one_by_one(length, dtype):
    seeds = [bytes([i]) * 32 for i in range(5)]
    together = np.full(length, 7, dtype=dtype)
    one_by_one = together.copy()
    prg.add_masks(together, seeds[:3], seeds[3:])
    for index, seed in enumerate(seeds):
        prg.add_mask(one_by_one, seed, negative=index >= 3)
    assert together.tolist() == one_by_one.tolist()
    prg.add_masks(together, seeds[3:], seeds[:3])
    assert together.tolist() == [7] * length
    prg.add_masks(together, [], [])
    assert together.tolist() == [7] * length


def test_no_mask_is_forgotten_however_many_there_are():
    seeds = [number.to_bytes(32, "big") for number in range(1500)]
    total = np.zeros(300, dtype=np.uint32)  # long enough to be worked on by chunks
    prg.add_masks(total, seeds[:100], seeds[100:])
    expected = np.zeros(300, dtype=np.uint32)
    for index, seed in enumerate(seeds):
        mask = np.frombuffer(prg.keystream(seed, 1200), dtype="<u4")
        expected += mask if index < 100 else -mask
    assert total.tolist() == expected.tolist()


def plain_both_signs(total, masks):
    """The slow twin of `add_both_signs`: two masks for each, one word at a time."""
    for seed, negative, other in masks:
        prg.add_mask_plain(total, seed, negative=negative)
        if other is not None:
            prg.add_mask_plain(other, seed, negative=not negative)


@pytest.mark.slow
@given(
    word=st.sampled_from([4, 8]),
    length=st.integers(9, 80),
    seed=st.binary(min_size=32, max_size=32),
    kinds=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=6),
)
def test_both_signs_are_those_of_the_plain_twin(word, length, seed, kinds):
    """Masks may go to one other vector, to several, or to none."""
    dtype = np.dtype(f"u{word}")

    def vectors():
        source = SeededRandomness(seed)
        return [np.frombuffer(source(length * word), dtype=dtype).copy() for _ in range(4)]

    def masks(others):
        source = SeededRandomness(seed[::-1])
        return [(source(32), negative, [*others, None][which]) for negative, which in kinds]

    (total, *others), (expected, *plain) = vectors(), vectors()
    prg.add_both_signs(total, masks(others))
    plain_both_signs(expected, masks(plain))
    assert np.array_equal(total, expected)
    for one, other in zip(others, plain, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_both_signs_agree_around_chunk_borders(dtype, offset):
    length = prg._CHUNK_BYTES // np.dtype(dtype).itemsize * 2 + offset
    total, other, expected = (np.zeros(length, dtype=dtype) for _ in range(3))
    seeds = [bytes([i]) * 32 for i in range(3)]
    prg.add_both_signs(total, [(seed, seed == seeds[1], other) for seed in seeds])
    prg.add_masks(expected, [seeds[0], seeds[2]], [seeds[1]])
    assert np.array_equal(total, expected)
    assert np.array_equal(other, dtype(0) - expected)


def test_both_signs_of_more_masks_than_are_made_at_once(monkeypatch):
    monkeypatch.setattr(prg, "_AT_ONCE", 2)
    total, other, expected = (np.zeros(40, dtype=np.uint32) for _ in range(3))
    seeds = [bytes([i]) * 32 for i in range(5)]
    prg.add_both_signs(total, [(seed, False, other) for seed in seeds])
    prg.add_masks(expected, seeds, [])
    assert np.array_equal(total, expected)
    assert np.array_equal(other, np.uint32(0) - expected)


@pytest.mark.parametrize("size", [0, 1, 31, 32])
def test_a_short_mask_is_its_seed(size):
    seed = bytes(range(32))
    assert prg.stretch(seed, size) == seed[:size]
    assert prg.stretch(seed, 33) == prg.keystream(seed, 33)
    assert prg.stretch(seed, 33)[:32] != seed
