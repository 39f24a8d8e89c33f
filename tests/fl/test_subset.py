"""A part of a data set: who and what is in it, and that files sorted by class do no harm."""

import csv

import numpy as np
import pytest
from devices_read import by_id
from hypothesis import given
from hypothesis import strategies as st

from deltafl.fl.data.federated import DeviceData, Split, draw_rows, federate
from deltafl.fl.data.npz import load_npz
from deltafl.fl.data.sent140 import load_sent140
from deltafl.fl.data.synthetic import load_synthetic
from deltafl.fl.errors import DataError

NUM_SAMPLES = 40
SORTED = np.repeat([0, 1], NUM_SAMPLES // 2)


def write_sorted_npz(path, num_users=4):
    """Every user's samples in the order of their class; x numbers them."""
    user = np.repeat(np.arange(num_users), NUM_SAMPLES)
    x = np.arange(len(user), dtype=np.float32)[:, None]
    np.savez(path, x=x, y=np.tile(SORTED, num_users), user=user)
    return path


def cut(num_samples, limit, user="a"):
    """What is left of one user's samples, as row numbers."""
    x = np.arange(num_samples, dtype=np.float32)[:, None]
    devices = [DeviceData(name, x, np.arange(num_samples)) for name in (user, "another")]
    return by_id(federate("t", devices, Split(max_samples=limit)))[user].y.tolist()


@given(st.text(), st.integers(0, 200), st.integers(1, 250), st.integers(0, 9))
def test_rows_are_drawn_once_each_in_rising_order(user, count, limit, seed):
    rows = draw_rows(user, count, limit, seed).tolist()
    assert rows == sorted(set(rows))
    assert len(rows) == min(count, limit)
    assert set(rows) <= set(range(count))
    assert rows == draw_rows(user, count, limit, seed).tolist()


@given(st.text(), st.integers(1, 200), st.data())
def test_a_larger_part_of_a_user_contains_a_smaller_one(user, count, data):
    small, large = sorted(data.draw(st.tuples(st.integers(1, count), st.integers(1, count))))
    parts = [set(draw_rows(user, count, n, 0)) for n in (small, large)]
    assert parts[0] <= parts[1]
    assert set(draw_rows(user, count, None, 0)) == set(range(count))


def test_rows_follow_the_user_and_the_seed():
    draws = [
        draw_rows(user, 1000, 10, seed).tolist() for user in ("a", "b", "é") for seed in (0, 1)
    ]
    assert len({tuple(draw) for draw in draws}) == 6


def test_the_draw_is_pinned():
    assert draw_rows("a", 100, 6, 0).tolist() == [6, 23, 39, 45, 68, 73]


def test_samples_are_drawn():
    drawn = cut(100, 10)
    assert len(drawn) == 10
    assert max(drawn) > 50  # no beginning, however long
    assert drawn == draw_rows("a", 100, 10, 0).tolist()
    assert cut(7, 10) == list(range(7))


def test_what_is_taken_whole_has_no_part():
    with pytest.raises(DataError, match=r"synthetic.*: it is taken whole: leave num_users and"):
        load_synthetic(Split(num_users=2), num_devices=6)


def test_npz_gives_the_drawn_samples_of_the_chosen_users(tmp_path):
    path = write_sorted_npz(tmp_path / "sorted.npz")
    whole = by_id(load_npz(path, Split(seed=5)))
    part = load_npz(path, Split(seed=5, num_users=3, max_samples=8))
    assert len(by_id(part)) == 3
    for user, device in by_id(part).items():
        rows = draw_rows(user, NUM_SAMPLES, 8, 5)
        assert np.array_equal(device.x, whole[user].x[rows])
        assert np.array_equal(device.y, whole[user].y[rows])
    assert part.rule.endswith("; 3 of the 4 kept; at most 8 samples of each")
    assert part.dropped == 0


def test_npz_that_is_sorted_by_class_keeps_every_class(tmp_path):
    path = write_sorted_npz(tmp_path / "sorted.npz")
    whole = by_id(load_npz(path, Split()))
    part = by_id(load_npz(path, Split(max_samples=12)))
    assert len(part) == 4
    for user, device in part.items():
        assert set(device.y) == {0, 1}
        assert set(whole[user].y[:12]) == {0}  # the first samples would all be of one class


@pytest.mark.parametrize("features", ["mean", "tokens"])
def test_tweets_that_are_sorted_by_polarity_keep_both_classes(tmp_path, features):
    # as in training.1600000.processed.noemoticon.csv: all sad ones first
    rows = [
        [polarity, "1", "date", "NO_QUERY", f"user{k}", "word"]
        for polarity in ("0", "4")
        for _ in range(NUM_SAMPLES // 2)
        for k in range(4)
    ]
    path = tmp_path / "training.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    (tmp_path / "glove.txt").write_text("word 1 2\n")
    options = {"vectors": tmp_path / "glove.txt", "features": features}
    whole = by_id(load_sent140(path, Split(), **options))
    part = by_id(load_sent140(path, Split(max_samples=12), **options))
    assert len(part) == 4
    for user, device in part.items():
        assert set(device.y) == {0, 1}
        assert set(whole[user].y[:12]) == {0}
