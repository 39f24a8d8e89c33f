"""What is random of blindings and of their sums, and sums that can be guessed."""

import hashlib

import numpy as np

from deltafl.secagg import pedersen
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.blindings import guessable_sums, random_limbs

SOURCE = SeededRandomness(b"blindings".ljust(32))


def limbs(*blindings: int) -> np.ndarray:
    return np.sum([pedersen.split_blinding(one) for one in blindings], axis=0).astype(np.uint32)


def test_the_lower_limbs_modulo_their_size():
    rows = random_limbs(limbs(0x1_0002_0003))
    assert rows.tobytes() == bytes([3, 0, 2, 0, 1, 0]) + bytes(24)
    assert random_limbs(limbs(0xFFFF, 2)).tobytes()[:4] == bytes([1, 0, 0, 0])


def test_half_of_all_bits_of_a_random_sum_are_ones():
    drawn = [pedersen.draw_blinding(SOURCE) for _ in range(200)]
    rows = np.concatenate([random_limbs(limbs(one, 1, 2)) for one in drawn])
    assert rows.shape == (200, 30)
    assert abs(np.bitwise_count(rows).mean() - 4) < 0.1


def test_sums_of_what_follows_from_ids():
    ids = [one.to_bytes(4, "little") for one in (3, 10, 17)]
    known = guessable_sums([ids], 3)
    digests = [hashlib.sha256(one).digest() for one in ids]
    for order in ("little", "big"):
        total = sum(int.from_bytes(one, order) for one in digests)
        assert total % pedersen.ORDER in known
    assert sum(map(int.from_bytes, digests[:2])) % pedersen.ORDER not in known
    assert sum(pedersen.draw_blinding(SOURCE) for _ in ids) % pedersen.ORDER not in known


def test_one_small_number_for_all():
    known = guessable_sums([], 3)
    assert 3 * 5 in known
    assert 3 * int.from_bytes(hashlib.sha256(b"\5").digest(), "little") % pedersen.ORDER in known
    assert 3 * 256 not in known
