import gzip
import json
import statistics
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from beside import SHARED
from devices_read import by_id, same
from hypothesis import given
from hypothesis import strategies as st

from deltafl.fl.data import leaf as leaf_module
from deltafl.fl.data import shakespeare
from deltafl.fl.data.federated import (
    DeviceData,
    Split,
    SplitBy,
    choose_users,
    split_samples,
    text_under,
)
from deltafl.fl.data.shakespeare import (
    ALPHABETS,
    load_shakespeare,
    read_plays,
    split_text,
    windowed_device,
)
from deltafl.fl.errors import DataError

MOBY = SHARED / "shakespeare_moby"
LETTERS = ALPHABETS["letters"]

# the layout of the 1994 edition, with other words
EDITION = """\
A catalogue, by William Shakespeare
  NOBODY. This is no play.
  NOBODY. It stands before the second by-line.
  NOBODY. It is not read.
  SOMEBODY. Nor this.
1600

A PLAY, FOR TWO

by William Shakespeare

Dramatis Personae

  ANNE, who speaks
ACT I. SCENE 1.
Enter ANNE and Sir Bob

  ANNE. First line of   Anne,
    second line;
    third.       Exit
  Sir Bob. One.

                 Enter a MESSENGER
    two, still of the knight;
  MESSENGER. Only this,
    and this.
 Exit
  SIR BOB. Three.
THE END



1601

THE COMEDY OF ERRORS




by William Shakespeare

ACT I. SCENE 1
CARL. Begun.
  Indented anyhow
or not,
    it goes on.
<Exeunt
Said by nobody.
ACT II. SCENE 2
Nor this.
DORA. One
two
three.
1609

A POEM

by William Shakespeare

  Words. One thing with a stop after it,
    that looks like a role,
    and is alone.
"""


def raw(texts):
    return {
        "users": list(texts),
        "hierarchies": ["PLAY"] * len(texts),
        "num_samples": [len(text) - 20 for text in texts.values()],
        "user_data": {user: {"raw": text} for user, text in texts.items()},
    }


def leaf(texts, length=20):
    """What LEAF writes: overlapping windows as strings."""
    data = {}
    for user, text in texts.items():
        starts = range(len(text) - length)
        data[user] = {
            "x": [text[start : start + length] for start in starts],
            "y": [text[start + length] for start in starts],
        }
    counts = [len(samples["y"]) for samples in data.values()]
    return {"users": list(texts), "num_samples": counts, "user_data": data}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def words(length, seed=0):
    rng = np.random.default_rng(seed)
    return "".join(rng.choice(list("abc XYZ,.'\n"), length))


def test_the_alphabet_of_the_paper_has_53_characters_and_the_rest_is_space():
    assert len(LETTERS.characters) == len(set(LETTERS.characters)) == 53
    assert LETTERS.encode(" AZaz").tolist() == [0, 1, 26, 27, 52]
    assert LETTERS.encode("\n.5éÿ☃😀\ud800").tolist() == [0] * 8


def test_the_alphabet_of_leaf_has_80_characters_in_its_order():
    alphabet = ALPHABETS["leaf-80"]
    assert len(alphabet.characters) == len(set(alphabet.characters)) == 80
    assert alphabet.encode("\n !}aZ[").tolist() == [0, 1, 2, 79, 53, 50, 51]
    assert alphabet.encode("é~").tolist() == [1, 1]


@given(st.text(max_size=60), st.integers(1, 9), st.sampled_from(sorted(ALPHABETS)))
def test_every_window_and_the_character_after_it(text, length, name):
    codes = ALPHABETS[name].encode(text)
    assert codes.dtype == np.int8
    device = windowed_device("a", codes, length)
    assert device.num_samples == max(0, len(text) - length)
    for row in range(device.num_samples):
        seen = [*device.x[row].tolist(), int(device.y[row])]
        assert seen == ALPHABETS[name].encode(text[row : row + length + 1]).tolist()


def test_windows_are_views_of_one_text():
    text = LETTERS.encode(words(5000))
    device = windowed_device("a", text, 20)
    assert np.shares_memory(device.x, text)
    assert np.array_equal(text_under(device.x), text[:-1])
    assert text_under(device.x[100:200]).shape == (119,)
    assert text_under(np.ascontiguousarray(device.x)) is None
    assert text_under(device.x[::2]) is None


def test_the_roles_of_the_1994_edition(tmp_path):
    path = tmp_path / "100.txt"
    path.write_bytes(EDITION.replace("\n", "\r\n").encode())
    assert read_plays(path) == {
        "A_PLAY__FOR_TWO_ANNE": "First line of Anne, second line; third. Exit ",
        "A_PLAY__FOR_TWO_SIR_BOB": "One. Enter a MESSENGER two, still of the knight; Three. ",
        "THE_COMEDY_OF_ERRORS_CARL": "Begun. Indented anyhow or not, it goes on. ",
        "THE_COMEDY_OF_ERRORS_DORA": "One two three. 1609 A POEM ",
    }
    path.write_text(EDITION)
    data = load_shakespeare(tmp_path, Split())
    assert [*by_id(data)] == [*by_id(load_shakespeare(path, Split()))]
    assert sorted(by_id(data)) == sorted(read_plays(path))
    assert by_id(data)["A_PLAY__FOR_TWO_ANNE"].num_samples == 45 - 20


def test_a_text_that_is_not_the_1994_edition_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "other.txt"
    path.write_text("ANNE.\nFirst line of Anne.\n" * 9)
    with pytest.raises(DataError, match="0 roles found: give the 1994"):
        load_shakespeare(path, Split())
    path.write_text("\n" * 9 + "by William Shakespeare\n" + "\n" * 9 + "by William Shakespeare")
    with pytest.raises(DataError, match=r"line 20: .* without a title"):
        load_shakespeare(path, Split())
    monkeypatch.setattr(shakespeare, "MAX_TEXT_BYTES", 20)
    with pytest.raises(DataError, match="more than the 20 "):
        load_shakespeare(path, Split())
    with pytest.raises(DataError, match="no such file"):
        load_shakespeare(tmp_path / "none.txt", Split())


def test_the_rule_is_strict_and_counts_windows(tmp_path):
    texts = {name: words(20 + n) for name, n in {"a": 100, "b": 101, "c": 102, "d": -5}.items()}
    data = load_shakespeare(write(tmp_path / "r.json", raw(texts)), Split(more_than=100))
    assert {name: device.num_samples for name, device in by_id(data).items()} == {
        "b": 101,
        "c": 102,
    }
    assert (data.dropped, data.num_classes, data.input_shape) == (2, 53, (20,))


def test_packed_texts_in_a_folder_are_read_alike(tmp_path):
    texts = {"a": words(50, 1), "b": words(60, 2)}
    plain = load_shakespeare(write(tmp_path / "r.json", raw(texts)), Split())
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "README.md").write_text("not data")
    (folder / "r.json.gz").write_bytes(gzip.compress(json.dumps(raw(texts)).encode()))
    packed = load_shakespeare(folder, Split())
    assert all(same(by_id(plain)[name], by_id(packed)[name]) for name in texts)


@pytest.mark.parametrize(("alphabet", "length"), [("letters", 20), ("leaf-80", 80)])
def test_windows_of_leaf_give_what_the_text_gives(tmp_path, alphabet, length):
    texts = {"a": words(200, 1), "b": words(120, 2)}
    from_text = load_shakespeare(write(tmp_path / "r.json", raw(texts)), Split(), alphabet=alphabet)
    path = write(tmp_path / "leaf" / "w.json", leaf(texts, length))
    from_windows = load_shakespeare(path.parent, Split(), alphabet=alphabet)
    assert from_windows.input_shape == (length,)
    for name, device in by_id(from_windows).items():
        assert same(device, by_id(from_text)[name])
        assert text_under(device.x) is not None  # one text again, not a table of windows


def test_windows_in_another_order_stay_as_they_are(tmp_path):
    content = leaf({"a": words(60, 1), "b": words(60, 2)})
    for samples in content["user_data"].values():
        samples["x"].reverse()
        samples["y"].reverse()
    path = write(tmp_path / "w.json", content)
    device = load_shakespeare(path, Split()).train[0]
    first = content["user_data"][device.id]["x"][0]
    assert device.x[0].tolist() == LETTERS.encode(first).tolist()
    with pytest.raises(DataError, match="no text in one piece"):
        load_shakespeare(path, Split(by=SplitBy.SAMPLES))


def test_a_split_by_user_of_leaf_holds(tmp_path):
    write(tmp_path / "train" / "t.json", leaf({"a": words(60), "b": words(60)}))
    write(tmp_path / "test" / "t.json", leaf({"c": words(60)}))
    data = load_shakespeare(tmp_path, Split())
    assert [device.id for device in data.train] == ["a", "b"]
    assert [device.id for device in data.test] == ["c"]


def characters_seen(device, text):
    """The places of the text that are in a window or a label; every character is unlike."""
    places = {int(code): place for place, code in enumerate(text)}
    return {places[int(code)] for code in np.append(device.x.ravel(), device.y)}


@given(st.integers(1, 9), st.integers(0, 80), st.fractions(Fraction(1, 99), Fraction(98, 99)))
def test_a_split_by_samples_shows_no_character_twice(length, more, fraction):
    text = np.arange(length + length + 2 + more, dtype=np.int8)
    device = windowed_device("a", text, length)
    train, test = split_text(device, Split(train_fraction=fraction, by=SplitBy.SAMPLES))
    assert train.num_samples >= 1
    assert test.num_samples >= 1
    assert train.num_samples + test.num_samples == device.num_samples - length
    assert characters_seen(train, text).isdisjoint(characters_seen(test, text))


@pytest.mark.parametrize("fraction", [Fraction(1, 99), Fraction(98, 99)])
def test_a_text_with_one_window_too_few_can_not_be_split(fraction):
    split = Split(train_fraction=fraction, by=SplitBy.SAMPLES)
    text = np.arange(20, dtype=np.int8)
    for part in split_text(windowed_device("a", text[:10], 4), split):
        assert part.num_samples == 1
    with pytest.raises(DataError, match="'a' has 5 windows and a split by samples needs 6"):
        split_text(windowed_device("a", text[:9], 4), split)


def test_a_split_at_random_would_show_characters_twice():
    text = np.arange(100, dtype=np.int8)
    train, test = split_samples(windowed_device("a", text, 20), Split())
    assert not characters_seen(train, text).isdisjoint(characters_seen(test, text))


def test_a_split_by_samples_through_the_loader(tmp_path):
    path = write(tmp_path / "r.json", raw({"a": words(80, 1), "b": words(62, 2), "c": words(30)}))
    split = Split(more_than=30, by=SplitBy.SAMPLES)
    data = load_shakespeare(path, split)
    assert [device.id for device in data.train] == [device.id for device in data.test] == ["a", "b"]
    assert [device.num_samples for device in [*data.train, *data.test]] == [20, 11, 20, 11]
    with pytest.raises(DataError, match="'c' has 10 windows and a split by samples needs 22"):
        load_shakespeare(path, Split(by=SplitBy.SAMPLES))


def test_a_subset_is_stated_and_taken_after_the_rule(tmp_path):
    texts = {f"u{k}": words(20 + 10 * k, k) for k in range(1, 31)}
    path = write(tmp_path / "r.json", raw(texts))
    data = load_shakespeare(path, Split(more_than=100, num_users=8, max_samples=50))
    assert len(by_id(data)) == 8
    assert data.dropped == 10
    assert data.rule == (
        "keep devices with more than 100 samples; 8 of the 20 kept; at most 50 samples of each"
    )
    whole = by_id(load_shakespeare(path, Split(more_than=100)))
    for name, device in by_id(data).items():
        assert same(device, DeviceData(name, whole[name].x[:50], whole[name].y[:50]))


def test_a_larger_subset_contains_a_smaller_one():
    counts = {f"u{k}": 10 for k in range(50)}
    chosen = [set(choose_users("t", counts, Split(num_users=n))) for n in (2, 10, 49)]
    assert chosen[0] < chosen[1] < chosen[2]
    other = choose_users("t", counts, Split(seed=1, num_users=10))
    assert set(other) != chosen[1]
    shuffled = dict(sorted(counts.items(), reverse=True))
    assert choose_users("t", shuffled, Split(num_users=10)) == sorted(chosen[1])


@pytest.mark.parametrize(
    ("counts", "wanted", "message"),
    [
        ({"a": 6, "b": 5}, None, r"1 of 2 devices .* more than 5 .*largest device: 6 samples"),
        ({"a": 6, "b": 7}, 3, "2 of 2 devices .* at least 3 are needed"),
        ({}, None, "0 of 0 devices"),
    ],
)
def test_too_few_users_are_refused(counts, wanted, message):
    with pytest.raises(DataError, match=message):
        choose_users("t", counts, Split(more_than=5, num_users=wanted))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Split(num_users=1), "num_users=1 is not at least 2"),
        (lambda: Split(max_samples=0), "max_samples=0 is not at least 1"),
        (lambda: load_shakespeare(Path(), Split(), alphabet="greek"), "'greek' is unknown"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def change(key, value):
    def apply(content):
        content["user_data"]["b"][key] = value

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change("raw", 7), "'b': raw is a int"),
        (change("x", ["short"] * 40), "'b': x of sample 0 has not 20 characters"),
        (change("x", [7] * 40), "'b': x of sample 0 has not 20"),
        (change("y", ["ab"] * 40), "'b': y of sample 0 is not one character"),
        (change("y", ["a"] * 39), "'b': 40 x and 39 y do not pair up"),
        (change("y", "a" * 40), "'b'.* no x and y"),
        (lambda content: content["user_data"].pop("b"), "'b'.* no x and y"),
        (lambda content: content["num_samples"].reverse(), "'a': num_samples says 40"),
        (lambda content: content["users"].append("b"), "3 users but 2 num_samples"),
        (lambda content: content.pop("users"), "not a LEAF file"),
    ],
)
def test_damaged_sources_are_refused_by_file_and_user(tmp_path, damage, message):
    content = leaf({"a": words(65), "b": words(60)})
    load_shakespeare(write(tmp_path / "w.json", content), Split())
    damage(content)
    with pytest.raises(DataError, match=message) as caught:
        load_shakespeare(write(tmp_path / "w.json", content), Split())
    assert "w.json" in str(caught.value)


def test_a_packed_file_can_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(leaf_module, "MAX_JSON_BYTES", 1000)
    path = tmp_path / "w.json.gz"
    path.write_bytes(gzip.compress(b" " * 1001))
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        load_shakespeare(path, Split())
    path.write_bytes(gzip.compress(b"[" * 1000))
    with pytest.raises(DataError, match="not a readable JSON file"):
        load_shakespeare(path, Split())


def test_the_moby_shakespeare_has_the_published_counts():
    if not MOBY.exists():
        pytest.skip("shakespeare_moby does not lie beside the repository")
    data = load_shakespeare(MOBY, Split(more_than=100))
    counts = [device.num_samples for device in by_id(data).values()]
    assert (len(data.train), len(data.test), data.num_classes) == (553, 553, 53)
    assert (min(counts), statistics.median(counts), max(counts)) == (101, 1266.5, 61_269)
    assert sum(counts) == 4_258_856
    assert all(text_under(device.x) is not None for device in data.train)
