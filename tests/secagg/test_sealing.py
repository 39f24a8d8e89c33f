import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
)
from vectors import outside

from deltafl.secagg import keys, labels
from deltafl.secagg.labels import Label
from deltafl.secagg.masks import Link
from deltafl.secagg.randomness import SeededRandomness

ALICE, BOB, EVE = (keys.key_pair(bytes([i]) * 32) for i in (1, 2, 3))
SESSION, OTHER_SESSION = bytes(32), bytes(31) + b"\1"
PLAINTEXT = b"shares of many secrets"


def randomness():
    return SeededRandomness(bytes(32))


def channel(own, peer, own_id, peer_id, session=SESSION):
    link = Link.between(own, peer_id, peer.public, session)
    return keys.SealedChannel(link.secret, own.public, peer.public, own_id, peer_id)


def sealed():
    return channel(ALICE, BOB, 4, 9).seal(PLAINTEXT, randomness())


def test_the_key_is_one_of_two_that_come_from_the_agreement():
    """The label names the direction, and both ends by position and key."""
    label = labels.pack(Label.SEALING, 4, 9, ALICE.public, BOB.public)
    key = keys.derive(ALICE.agree(BOB.public), salt=SESSION, info=label)
    box = sealed()
    opened = crypto_aead_xchacha20poly1305_ietf_decrypt(box[24:], label, box[:24], key)
    assert opened == PLAINTEXT


def test_opens_for_the_recipient():
    assert channel(BOB, ALICE, 9, 4).open(sealed()) == PLAINTEXT


def test_box_is_as_long_as_it_says_and_hides_the_plaintext():
    box = sealed()
    assert len(box) == len(PLAINTEXT) + keys.OVERHEAD
    assert PLAINTEXT not in box


@given(plaintext=st.binary(max_size=200), seed=st.binary(min_size=32, max_size=32))
@settings(max_examples=30)
def test_round_trip_in_both_directions(plaintext, seed):
    source = SeededRandomness(seed)
    for own, peer in ((channel(ALICE, BOB, 4, 9), channel(BOB, ALICE, 9, 4)),) * 2:
        assert peer.open(own.seal(plaintext, source)) == plaintext
        assert own.open(peer.seal(plaintext, source)) == plaintext


@pytest.mark.parametrize(
    "opener",
    [
        channel(ALICE, BOB, 4, 9),  # the sender itself: the other direction
        channel(ALICE, BOB, 9, 4),
        channel(BOB, ALICE, 4, 9),
        channel(BOB, ALICE, 9, 4, OTHER_SESSION),
        channel(BOB, ALICE, 9, 5),
        channel(BOB, ALICE, 8, 4),
        channel(BOB, EVE, 9, 4),
        channel(EVE, ALICE, 9, 4),
        channel(EVE, BOB, 9, 4),
    ],
)
def test_opens_for_no_other_pair_direction_or_session(opener):
    assert opener.open(sealed()) is None


def test_any_flipped_bit_closes_it():
    box, recipient = sealed(), channel(BOB, ALICE, 9, 4)
    for position in range(8 * len(box)):
        wrong = bytearray(box)
        wrong[position // 8] ^= 1 << (position % 8)
        assert recipient.open(bytes(wrong)) is None


@pytest.mark.parametrize("size", [0, 1, 23, 24, 25, 39, 40])
def test_truncated_boxes_do_not_open(size):
    assert channel(BOB, ALICE, 9, 4).open(sealed()[:size]) is None
    assert channel(BOB, ALICE, 9, 4).open(sealed() + bytes(size + 1)) is None


def test_each_box_has_its_own_nonce():
    source = randomness()
    sender = channel(ALICE, BOB, 4, 9)
    assert sender.seal(PLAINTEXT, source) != sender.seal(PLAINTEXT, source)


def test_aead_against_wycheproof():
    opened = refused = 0
    for case in outside("xchacha20_poly1305.json"):
        key, nonce, label, message, ciphertext, tag = (
            bytes.fromhex(case[name]) for name in ("key", "iv", "aad", "msg", "ct", "tag")
        )
        sender, recipient = channel(ALICE, BOB, 4, 9), channel(BOB, ALICE, 9, 4)
        sender._outward, sender._outward_label = key, label
        recipient._inward, recipient._inward_label = key, label
        if case["result"] == "valid":
            assert sender.seal(message, lambda _, drawn=nonce: drawn) == nonce + ciphertext + tag
            assert recipient.open(nonce + ciphertext + tag) == message, case["tcId"]
            opened += 1
        else:
            assert recipient.open(nonce + ciphertext + tag) is None, case["tcId"]
            refused += 1
    assert opened > 100
    assert refused == 69
