"""How surely a sum can be read: the figures of docs/limitations.md, over ten sets of data each."""

from functools import partial

import numpy as np
import pytest

from deltafl.sim.inspect.attacks import sums, tails
from deltafl.sim.inspect.attacks.attack import NotPlayed
from deltafl.sim.inspect.attacks.sums import learnt

SEEDS = range(10)


def is_complete(attack, seed):
    try:
        return attack.play(True, seed).is_complete
    except NotPlayed:
        return False


def plays_that_succeed(attack):
    return sum(map(partial(is_complete, attack), SEEDS))


@pytest.mark.slow
def test_the_only_sample_of_a_label_is_read_whatever_it_is():
    assert plays_that_succeed(sums.only_owner_of_a_label) == 10


@pytest.mark.slow
def test_members_are_told_apart_from_others():
    assert plays_that_succeed(sums.members_of_the_cohort) == 10


@pytest.mark.slow
def test_counts_give_most_tails_away():
    assert plays_that_succeed(tails.tails_from_counts) == 7


def test_most_pictures_are_alone_in_their_bin():
    assert "9 of the cohort's 15" in sums.one_sample_in_each_bin.play(True).note


# --- where it cannot be read ---------------------------------------------------------------------


@pytest.mark.slow
def test_with_fewer_weights_than_samples_members_are_not_told_apart(monkeypatch):
    monkeypatch.setattr(sums, "_NUMBERS", 2)
    assert plays_that_succeed(sums.members_of_the_cohort) == 0


@pytest.mark.slow
def test_rarer_counts_tell_less(monkeypatch):
    monkeypatch.setattr(tails, "_PERIOD", 12)
    assert plays_that_succeed(tails.tails_from_counts) < 4


def test_devices_train_what_they_are_told_to():
    x = np.arange(5, dtype=np.float32).repeat(4).reshape(5, 2, 2)
    found = learnt("linear", x, np.zeros((5, 2), np.int64), num_classes=2, rate=0.125)
    # half of the probability is missing at the label: n_k·γ·x/2
    assert found.update.tolist() == [0.125 * 10, 0.125 * 10, -0.125 * 10, -0.125 * 10]
    assert (found.weight, found.count) == (10, 5)
    assert np.array_equal(np.sum(found.own, axis=0, dtype=np.uint32), found.words)
