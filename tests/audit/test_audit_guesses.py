"""Secrets that an attacker tries, and the points that follow from them."""

import hashlib
import random
from types import SimpleNamespace

import numpy as np
import pytest
from nacl.bindings import crypto_scalarmult_base

from deltafl.secagg import pedersen
from deltafl.secagg.identity import identity
from deltafl.secagg.messages import AdvertiseKeys, Credential
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.randomness import guesses

SOURCE = SeededRandomness(b"guesses".ljust(32))
MESSAGE = b"what is signed"


def number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def signature(nonce: int) -> bytes:
    """One by a number; the other half is anything."""
    return guesses.times_base((nonce % pedersen.ORDER).to_bytes(32, "little")) + SOURCE(32)


def is_known(data: bytes) -> bool:
    """Whether what somebody sees is that of a number that is tried."""
    return data[: guesses.HEAD] in guesses.shown_by_bytes()


def test_secrets_of_a_value():
    found = dict(guesses.of_value(b"\1\2"))
    for secret in (
        b"\1\2" + bytes(30),
        bytes(30) + b"\1\2",
        b"\1\2" * 16,
        b"\2\1" + bytes(30),
        b"\xfe\xfd" + b"\xff" * 30,
        b"\2\2" + bytes(30),
        hashlib.sha256(b"\1\2").digest(),
        hashlib.sha512(b"\1\2").digest()[:32],
        hashlib.md5(b"\1\2", usedforsecurity=False).digest().ljust(32, b"\0"),
    ):
        assert secret in found
    assert found.popitem() == (hashlib.sha512(b"\1\2").digest(), "all of sha512 of ")
    assert all(len(secret) == 32 for secret in found)
    sizes = {len(guesses.of_value(value)) for value in (b"\0", bytes(4), b"long" * 20, SOURCE(32))}
    assert len(sizes) == 1
    top = b"\xff" * 32
    assert bytes(32) in dict(guesses.of_value(top))
    assert top in dict(guesses.of_value(bytes(32)))


SMALL = 300
SMALL_SEEDS = {
    "sha256 2 LE": hashlib.sha256(SMALL.to_bytes(2, "little")).digest(),
    "sha256 4 BE": hashlib.sha256(SMALL.to_bytes(4, "big")).digest(),
    "sha256 8 LE": hashlib.sha256(SMALL.to_bytes(8, "little")).digest(),
    "sha256 decimal": hashlib.sha256(b"300").digest(),
    "default_rng": np.random.default_rng(SMALL).bytes(32),
    "RandomState": np.random.RandomState(SMALL).bytes(32),
    "random.Random": random.Random(SMALL).randbytes(32),  # noqa: S311 - what is looked for
}


@pytest.fixture
def few(monkeypatch):
    """Fewer seeds: all of them take a second."""
    fewer = {how: (1 << 9, expand) for how, (_, expand) in guesses._SEEDED.items()}
    monkeypatch.setattr(guesses, "_SEEDED", fewer)
    guesses._table.cache_clear()
    yield
    guesses._table.cache_clear()


@pytest.mark.parametrize("secret", SMALL_SEEDS.values(), ids=SMALL_SEEDS)
def test_what_is_made_of_a_small_seed_is_found(secret, few):
    others = [SOURCE(32) for _ in range(5)]
    ((found, how),) = guesses.of_small_seeds([*others, secret]).items()
    assert found == secret
    assert how.endswith(f" of {SMALL}")


def test_other_secrets_are_not_found(few):
    secret = SMALL_SEEDS["default_rng"]
    changed = secret[:31] + bytes([secret[31] ^ 1])  # eight bytes in common are not enough
    large = np.random.default_rng(1 << 9).bytes(32)
    assert guesses.of_small_seeds([changed, large, SOURCE(32)]) == {}
    assert guesses.of_small_seeds([]) == {}


@pytest.mark.slow
def test_all_small_seeds_are_tried():
    last = hashlib.sha256(b"\xff\xff").digest()
    assert guesses.of_small_seeds([last])


@pytest.mark.parametrize(
    "secret",
    [
        (7).to_bytes(32, "little"),
        (255).to_bytes(32, "big"),
        bytes([9]) * 32,
        hashlib.sha256(b"\x2a").digest(),
        np.random.default_rng(5).bytes(32),
    ],
)
def test_secrets_of_a_byte_and_their_points_are_known(secret):
    assert is_known(secret)
    assert is_known(crypto_scalarmult_base(secret))
    assert is_known(bytes(identity(secret).public))
    assert is_known(signature(number(secret)))
    assert is_known(signature(number(hashlib.sha512(secret).digest())))
    assert is_known(guesses.drawn_from(secret)[3])


@pytest.mark.parametrize("made", [hashlib.sha256, hashlib.sha512])
@pytest.mark.parametrize("before", [b"", b"public key".ljust(32)])
def test_numbers_that_follow_from_what_is_signed(made, before):
    said = before + MESSAGE
    known = [one for secret, _ in guesses.of_value(said) for one in guesses.shown_by(secret)]
    assert signature(number(made(said).digest()))[:32] in known
    assert identity(SOURCE(32)).sign(MESSAGE)[:32] not in known


LAST = guesses.SMALL - 1


@pytest.mark.parametrize("gap", [0, 1, -1, LAST, -LAST, LAST + 1])
def test_numbers_that_are_close_to_one_another(gap):
    start = number(SOURCE(64))
    between = pedersen.minus(signature(start)[:32], signature(start + gap)[:32])
    assert is_known(between) is (abs(gap) <= LAST)


def session_of(credential):
    """A session of one device, 17, that has advertised keys."""
    message = AdvertiseKeys(b"m" * 40 + b"s" * 32, credential)
    params = SimpleNamespace(tag=b"t", digest=b"d", context=b"c", graph_seed=b"g")
    return SimpleNamespace(
        params=params, session_id=b"i", advertised=lambda: iter([(17, message, None)])
    )


def test_what_is_visible_of_a_device():
    own = Credential(b"I" * 32, b"S" * 64)
    known = guesses.visible(session_of(own))[17]
    assert known[:5] == (b"t", b"d", b"c", b"g", b"i")
    assert {(17).to_bytes(4, "little"), (17).to_bytes(8, "big"), b"17"} <= set(known[5:10])
    assert known[10:] == (b"m" * 40 + b"s" * 32, b"s" * 32, b"I" * 32)


def test_numbers_that_a_proof_draws():
    seed = SOURCE(32)
    drawn = SeededRandomness(seed)
    expected = [number(seed), *(pedersen.draw_blinding(drawn) for _ in range(3))]
    assert [number(one) for one in guesses.drawn_from(seed)] == expected


def test_sums_of_blindings_that_follow_from_ids():
    ids = [one.to_bytes(4, "little") for one in (3, 10, 17)]
    known = guesses.sums_of_blindings([(b"the same", one) for one in ids])
    digests = [hashlib.sha256(one).digest() for one in ids]
    same = hashlib.sha256(b"the same").digest()
    for order in ("little", "big"):
        total = sum(int.from_bytes(one, order) for one in digests)
        assert total % pedersen.ORDER in known
        assert 3 * int.from_bytes(same, order) % pedersen.ORDER in known
    assert sum(map(int.from_bytes, digests[:2])) % pedersen.ORDER not in known
    assert sum(pedersen.draw_blinding(SOURCE) for _ in ids) % pedersen.ORDER not in known
    assert 3 * 5 in known  # one small number for all
    assert 3 * number(hashlib.sha256(b"\5").digest()) % pedersen.ORDER in known
    assert 3 * 300 not in known
