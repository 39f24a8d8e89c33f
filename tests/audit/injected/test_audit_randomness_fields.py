"""What of messages should look random: all bytes of it that are, and no others."""

import numpy as np
import pytest
from every_leak import LEAKS
from staged_runs import ActiveStage, ProvedStage, Said, played

from deltafl.secagg import pedersen
from deltafl.secagg.messages import MaskedInput
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.checks import fields
from deltafl.sim.inspect.audit.randomness.fields import PROOFS, random_blinding, random_strings
from deltafl.sim.inspect.audit.seen import Decoder
from deltafl.sim.record.transcript import Message

SOURCE = SeededRandomness(b"blindings".ljust(32))


def strings_of(stage):
    """What of a run's first round should look random: rows by name."""
    decoder, found = Decoder(), {}
    for number, entry in enumerate(played(stage).entries, start=1):
        if isinstance(entry, Said) and entry.round == 1:
            data = entry.data
            seen = decoder.decode(
                Message(number, 1, entry.sent, entry.peer, len(data), b"", data, trip=0)
            )
            for name, rows, size in random_strings(seen.content.message):
                assert not entry.sent
                found.setdefault(name, []).append(rows[:, :size])
    return {name: np.concatenate(rows) for name, rows in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("stage", [ActiveStage, ProvedStage])
def test_half_of_all_bits_are_ones(stage):
    found = strings_of(stage)
    expected = {"coefficients of ML-KEM keys", "X25519 keys of boxes", "deposited keys"}
    assert {"X25519 keys", "identities", "tags of links", *expected} <= set(found)
    for name, rows in found.items():
        trials = 8 * rows.size
        ones = int(np.bitwise_count(rows).sum())
        assert abs(ones - trials / 2) <= 5 * (trials / 4) ** 0.5, name


def rows_of(blinding: int) -> np.ndarray:
    return random_blinding(b"a vector" + (blinding % pedersen.ORDER).to_bytes(32, "little"))


def test_all_bytes_of_a_blinding_but_the_highest():
    assert rows_of(0x1_0002_0003).tobytes() == bytes([3, 0, 2, 0, 1]) + bytes(26)
    assert rows_of(2**252 - 1).tobytes() == b"\xff" * 31


def test_half_of_all_bits_of_a_random_sum_are_ones():
    drawn = [pedersen.draw_blinding(SOURCE) for _ in range(200)]
    rows = np.concatenate([rows_of(one + 3) for one in drawn])
    assert rows.shape == (200, 31)
    assert abs(np.bitwise_count(rows).mean() - 4) < 0.1


def test_a_proof_is_points_and_numbers_of_32_bytes():
    proof = SOURCE(96)
    named = {name: rows for name, rows, _ in random_strings(MaskedInput(0, b"", b"", proof))}
    assert named[PROOFS].shape == (3, 32)
    assert named[PROOFS].tobytes() == proof
    assert set(named) == {PROOFS}


@pytest.mark.slow
def test_the_degree_of_polynomials_that_are_not_computed_whole_is_checked(monkeypatch, tmp_path):
    monkeypatch.setattr(fields, "MAX_NUMBERS", 0)
    (leak,) = [one for one in LEAKS if one.name == "two_shares_that_are_enough"]
    found = [one.detail for one in leak.audit(tmp_path).findings if one.rule == "shares.reveal"]
    assert any("many bytes are zero" in detail for detail in found)


def test_a_masked_blinding_is_tested():
    packed = b"a vector" + bytes(range(32))
    [rows] = [
        rows
        for name, rows, _ in random_strings(MaskedInput(0, packed, bytes(96)))
        if name == "masked blindings"
    ]
    assert rows.tobytes() == bytes(range(31))
    names = [name for name, *_ in random_strings(MaskedInput(0, packed))]
    assert "masked blindings" not in names
