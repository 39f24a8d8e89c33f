import hashlib
import random

import numpy as np
import pytest
from ideal import by_test, caught, super_uniform

from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.weak_seeds import examine_secrets, weak_seeds

SEED_BITS = 9  # the whole table takes seconds
SEED = 300

SMALL_SEEDS = {
    "sha256 2 LE": hashlib.sha256(SEED.to_bytes(2, "little")).digest(),
    "sha256 4 BE": hashlib.sha256(SEED.to_bytes(4, "big")).digest(),
    "sha256 8 LE": hashlib.sha256(SEED.to_bytes(8, "little")).digest(),
    "sha256 decimal": hashlib.sha256(b"300").digest(),
    "default_rng": np.random.default_rng(SEED).bytes(32),
    "RandomState": np.random.RandomState(SEED).bytes(32),
    "random.Random": random.Random(SEED).randbytes(32),  # noqa: S311 - what is looked for
}


def ideal_secrets(count, seed=1):
    draw = SeededRandomness(seed.to_bytes(32, "big"))
    return [draw(32) for _ in range(count)]


def examined(secrets):
    return by_test(examine_secrets(secrets, SEED_BITS))


def injected(*secrets, among=20):
    """Secrets among ideal ones, from position 5 on."""
    ideal = ideal_secrets(among)
    return ideal[:5] + list(secrets) + ideal[5:]


def test_ideal_secrets_are_suspected_no_more_often_than_allowed():
    results = [examined(ideal_secrets(20, seed)) for seed in range(300)]
    for name in results[0]:
        assert super_uniform([named[name].value for named in results]), name


def test_many_ideal_secrets_pass():
    named = examined(ideal_secrets(1000))
    assert "values of bytes of secrets" in named
    assert min(result.value for result in named.values()) > 1e-3


@pytest.mark.parametrize("secret", SMALL_SEEDS.values(), ids=SMALL_SEEDS)
def test_an_expanded_small_seed_is_caught(secret):
    named = examined(injected(secret))
    result = named["secrets from small seeds"]
    assert caught(named) == {"secrets from small seeds"}
    assert result.at == (5,)
    assert result.detail.endswith(f" of {SEED}")


def test_a_seed_beyond_those_tried_is_not_caught():
    large = np.random.default_rng(1 << SEED_BITS).bytes(32)
    assert caught(examined(injected(large))) == set()


def test_eight_bytes_in_common_with_a_small_seed_are_not_enough():
    secret = SMALL_SEEDS["default_rng"]
    assert weak_seeds(SEED_BITS).find([secret[:31] + bytes([secret[31] ^ 1])]) == ()


def test_the_table_is_made_once():
    assert weak_seeds(SEED_BITS) is weak_seeds(SEED_BITS)


@pytest.mark.parametrize("order", ["little", "big"])
def test_a_number_padded_with_zeros_is_caught(order):
    named = examined(injected((54_321).to_bytes(32, order)))
    assert caught(named) == {"small secrets"}
    assert named["small secrets"].at == (5,)
    assert "16 of 256 bits" in named["small secrets"].detail


@pytest.mark.parametrize("period", [1, 2, 4, 8, 16])
def test_repeated_bytes_are_caught(period):
    block = ideal_secrets(1, seed=7)[0][:period]
    named = examined(injected(block * (32 // period)))
    assert caught(named) == {"repeating secrets"}
    assert named["repeating secrets"].at == (5,)
    assert f"first {period} bytes" in named["repeating secrets"].detail


def test_half_a_repetition_is_none():
    secret = ideal_secrets(1, seed=7)[0]
    assert caught(examined(injected(secret[:15] + secret[:15] + secret[:2]))) == set()


def test_equal_secrets_are_caught():
    secret = ideal_secrets(1, seed=8)[0]
    named = examined(injected(secret, secret))
    assert caught(named) == {"equal or consecutive secrets"}
    assert named["equal or consecutive secrets"].at == (5, 6)
    assert named["equal or consecutive secrets"].detail.endswith("are equal")


@pytest.mark.parametrize("order", ["little", "big"])
def test_a_counter_is_caught_wherever_it_started(order):
    start = int.from_bytes(ideal_secrets(1, seed=9)[0], order)
    named = examined(injected(start.to_bytes(32, order), (start + 3).to_bytes(32, order)))
    assert caught(named) == {"equal or consecutive secrets"}
    assert named["equal or consecutive secrets"].at == (5, 6)
    assert "3 apart" in named["equal or consecutive secrets"].detail


def test_an_unfair_bit_is_caught():
    secrets = [bytes([s[0] | 0x10]) + s[1:] for s in ideal_secrets(100)]
    named = examined(secrets)
    assert caught(named) == {"ones by bit of secrets"}
    assert "bit 4 of byte 0" in named["ones by bit of secrets"].detail


def test_secrets_of_text_are_caught():
    secrets = [s[:16].hex().encode() for s in ideal_secrets(200)]
    assert caught(examined(secrets)) >= {
        "ones in all bits of secrets",
        "ones by bit of secrets",
        "values of bytes of secrets",
    }


def test_one_secret_is_enough_to_look_at_and_none_is_not():
    assert caught(examined([bytes(32)])) >= {"small secrets", "repeating secrets"}
    assert caught(examined(ideal_secrets(1))) == set()
    assert examine_secrets([], SEED_BITS) == ()
