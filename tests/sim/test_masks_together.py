"""The masks of a cohort made together: each device gets its own, however few fit at once."""

import numpy as np
import pytest

from deltafl.secagg import prg, ring
from deltafl.secagg.masks import PairSecret
from deltafl.secagg.primitives import Expected, pairwise_with
from deltafl.sim.cohort.shared import MasksTogether

LENGTH = 50
WAYS = pytest.mark.parametrize("ring_bits", [20, 40])


def pairs_of(position, others=4):
    return [
        PairSecret(peer, bytes([min(position, peer), max(position, peer)]) * 16, b"slot")
        for peer in range(others)
        if peer != position
    ]


def expected_of(position, ring_bits=40, length=LENGTH):
    return Expected(length, ring_bits, position, bytes([position]) * 32, pairs_of(position))


class Sums:
    """Makes the masks of many vectors, and notes of how many."""

    def __init__(self):
        self.rows = []

    def __call__(self, length, ring_bits, masks):
        self.rows.append(len(masks))
        sums = np.stack([ring.zeros(length, ring_bits) for _ in masks])
        for row, seeds in zip(sums, masks, strict=True):
            prg.add_masks(row, *seeds)
        return sums


def together(sums, **changes):
    settings = {"longer_than": 100} | changes
    return MasksTogether(sums, prg.add_masks, pairwise_with(prg.add_masks), **settings)


def masked(masks, expected, pairs=None):
    """What a device does to its vector."""
    total = ring.zeros(expected.length, expected.ring_bits)
    masks.add_masks(total, [expected.self_key], [])
    masks.add_pairwise(total, expected.position, expected.pairs if pairs is None else pairs)
    return total.tolist()


def plain(expected):
    total = ring.zeros(expected.length, expected.ring_bits)
    prg.add_masks(total, [expected.self_key], [])
    pairwise_with(prg.add_masks)(total, expected.position, expected.pairs)
    return total.tolist()


@WAYS
@pytest.mark.parametrize(("room", "rows"), [(9, [4]), (2, [2, 2]), (0, [1] * 4)])
def test_every_device_gets_its_masks_however_few_are_made_at_once(ring_bits, room, rows):
    sums = Sums()
    masks = together(sums, room=room * ring.zeros(LENGTH, ring_bits).nbytes)
    everybody = [expected_of(position, ring_bits) for position in range(4)]
    for expected in everybody:
        masks.foresee(expected)
    for expected in everybody[::-1]:
        assert masked(masks, expected) == plain(expected)
    assert sums.rows == rows
    assert [masks._expected, masks._ready, masks._owed] == [{}, {}, {}]


def test_short_vectors_and_those_nobody_told_of_get_theirs_as_always():
    sums = Sums()
    masks = together(sums)
    short, untold = expected_of(0, length=3), expected_of(1)
    masks.foresee(short)
    for expected in (short, untold):
        assert masked(masks, expected) == plain(expected)
    assert sums.rows == []


def test_vectors_of_other_lengths_and_rings_are_made_apart():
    sums = Sums()
    masks = together(sums)
    several = [expected_of(0), expected_of(1, length=60), expected_of(2, 20), expected_of(3)]
    for expected in several:
        masks.foresee(expected)
    for expected in several:
        assert masked(masks, expected) == plain(expected)
    assert sums.rows == [2, 1, 1]


def test_who_is_told_of_other_keys_than_it_is_asked_for_makes_those_it_is_asked_for():
    sums = Sums()
    masks = together(sums)
    told, asked = expected_of(1), expected_of(1)._replace(self_key=bytes(32))
    masks.foresee(told)
    assert masked(masks, asked) == plain(asked)
    assert sums.rows == []


def test_other_pairs_than_those_that_were_told_of_are_a_bug():
    masks = together(Sums())
    expected = expected_of(0)
    masks.foresee(expected)
    with pytest.raises(RuntimeError, match="other pairs"):
        masked(masks, expected, pairs_of(1))


def test_several_masks_at_once_are_the_servers():
    masks, expected = together(Sums()), expected_of(0)
    masks.foresee(expected)
    total, other = ring.zeros(LENGTH, 40), ring.zeros(LENGTH, 40)
    for add in (masks.add_masks, prg.add_masks):
        add(total if add is not prg.add_masks else other, [], [expected.self_key])
    assert total.tolist() == other.tolist()
    assert masks._expected
