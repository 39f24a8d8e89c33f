import csv
import json

import numpy as np
import pytest
from beside import SHARED
from devices_read import by_id
from hypothesis import given
from hypothesis import strategies as st

from deltafl.fl.data.federated import Split, draw_rows
from deltafl.fl.data.glove import load_glove, tokenise
from deltafl.fl.data.sent140 import TOKENS, load_sent140
from deltafl.fl.errors import DataError

SUBSET = SHARED / "glove50_subset"
VECTORS = {"good": [1, 2], "day": [3, -4], "!": [0.5, 0], "bad": [-1, 0], "don't": [7, 7]}


def tweet(user, text, polarity="4"):
    return [polarity, "1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text]


def write_csv(path, rows):
    with path.open("w", encoding="latin-1", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return path


def write_glove(path, vectors=VECTORS):
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in vectors.items()]
    path.write_bytes("".join(lines).encode())
    return path


@pytest.fixture
def glove(tmp_path):
    return write_glove(tmp_path / "glove.txt")


def load(path, glove, **options):
    return by_id(load_sent140(path, Split(), vectors=glove, **options))


ROWS = [
    tweet("ann", "good day"),
    tweet("bob", "good unknown day", "0"),
    tweet("ann", "Good day!", "0"),
    tweet("ann", "@#%&", "2"),
    tweet("bob", ""),
]


def test_a_tweet_is_the_mean_of_its_words_and_unknown_words_count_as_zero(tmp_path, glove):
    devices = load(write_csv(tmp_path / "t.csv", ROWS), glove)
    assert devices["ann"].x.dtype == np.float32
    assert devices["ann"].x.tolist() == pytest.approx(
        np.array([[2, -1], [3.5 / 3, -4 / 3], [0, 0]])  # "Good" is not "good"
    )
    assert devices["bob"].x.tolist() == pytest.approx(np.array([[4 / 3, -2 / 3], [0, 0]]))


def test_only_polarity_4_is_happy(tmp_path, glove):
    devices = load(write_csv(tmp_path / "t.csv", ROWS), glove)
    assert devices["ann"].y.tolist() == [1, 0, 0]
    assert devices["bob"].y.tolist() == [0, 1]


def test_lower_case_is_a_choice(tmp_path, glove):
    devices = load(write_csv(tmp_path / "t.csv", ROWS), glove, lower_case=True)
    assert devices["ann"].x[1].tolist() == pytest.approx([1.5, -2 / 3])


def test_tokens_are_the_first_20_words_padded_on_the_right(tmp_path, glove):
    rows = [*ROWS, tweet("ann", "bad " * 30), tweet("ann", "good day, don't")]
    data = load_sent140(
        write_csv(tmp_path / "t.csv", rows), Split(), vectors=glove, features="tokens"
    )
    ann = by_id(data)["ann"]
    none = len(VECTORS)
    assert ann.x.dtype == np.int32
    assert data.input_shape == (TOKENS,)
    assert ann.x[1].tolist() == [none, 1, 2] + [none] * 17
    assert ann.x[2].tolist() == [none] * 20
    assert ann.x[3].tolist() == [3] * 20
    assert ann.x[4].tolist() == [0, 1, none, 4] + [none] * 16
    assert data.embedding.shape == (none + 1, 2)
    assert data.embedding[none].tolist() == [0, 0]
    assert data.embedding[1].tolist() == [3, -4]
    assert load_sent140(tmp_path / "t.csv", Split(), vectors=glove).embedding is None


def test_words_and_marks():
    assert tokenise("Don't go!? It's 5;ok...") == [
        "Don't", "go", "!", "?", "It's", "5", ";", "ok", ".", ".", "."
    ]  # fmt: skip
    assert tokenise("@you http://x.y #tag :)") == ["you", "http", "x", ".", "y", "tag"]
    assert tokenise(" @#%&-\n") == []


@pytest.mark.slow
@given(st.text())
def test_no_word_is_empty_or_holds_a_space(text):
    assert all(token and not any(map(str.isspace, token)) for token in tokenise(text))


def test_accounts_with_more_than_50_tweets_stay(tmp_path, glove):
    rows = [tweet(user, "day") for user, n in {"a": 50, "b": 51, "c": 52}.items() for _ in range(n)]
    data = load_sent140(write_csv(tmp_path / "t.csv", rows), Split(50), vectors=glove)
    assert sorted(by_id(data)) == ["b", "c"]
    assert (data.dropped, data.num_classes) == (1, 2)


def test_both_files_are_put_together_and_latin_1_is_read(tmp_path, glove):
    folder = tmp_path / "raw"
    folder.mkdir()
    write_csv(folder / "training.csv", [tweet("jos\xe9", "caf\xe9 good"), tweet("b", "day")])
    write_csv(folder / "testdata.csv", [tweet("jos\xe9", "bad", "0")])
    devices = load(folder, glove)
    assert devices["jos\xe9"].y.tolist() == [1, 0]  # the training file first, as in LEAF
    assert devices["jos\xe9"].x.tolist() == [[0.5, 1], [-1, 0]]


def test_a_subset_of_accounts_and_tweets(tmp_path, glove):
    texts = ["good", "day", "bad", "!", "good day", "bad day", "good !", "bad !", "day !"]
    path = write_csv(tmp_path / "t.csv", [tweet(f"u{k}", text) for text in texts for k in range(9)])
    data = load_sent140(path, Split(8, num_users=3, max_samples=4), vectors=glove)
    whole = by_id(load_sent140(path, Split(8), vectors=glove))
    assert len(by_id(data)) == 3
    assert "3 of the 9 kept; at most 4 samples of each" in data.rule
    for user, device in by_id(data).items():
        rows = draw_rows(user, 9, 4, 0)
        assert len(rows) == 4
        assert device.x.tolist() == whole[user].x[rows].tolist()


def test_the_json_of_leaf_gives_the_same(tmp_path, glove):
    user_data = {}
    for polarity, number, date, query, user, text in ROWS:
        samples = user_data.setdefault(user, {"x": [], "y": []})
        samples["x"].append([number, date, query, user, text, "training"])
        samples["y"].append(int(polarity == "4"))
    content = {"users": ["ann", "bob"], "num_samples": [3, 2], "user_data": user_data}
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf" / "all_data.json").write_text(json.dumps(content))
    write_csv(tmp_path / "t.csv", ROWS)
    for features in ("mean", "tokens"):
        plain = load(tmp_path / "t.csv", glove, features=features)
        from_leaf = load(tmp_path / "leaf", glove, features=features)
        for user, device in plain.items():
            assert np.array_equal(device.x, from_leaf[user].x)
            assert np.array_equal(device.y, from_leaf[user].y)
    content["user_data"]["bob"]["y"][1] = "4"
    (tmp_path / "leaf" / "all_data.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"'bob': sample 1 has the label '4'"):
        load(tmp_path / "leaf", glove)
    content["user_data"]["bob"]["x"][0] = "just text"
    (tmp_path / "leaf" / "all_data.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="'bob': sample 0 is no tweet"):
        load(tmp_path / "leaf", glove)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'"4","1","Mon","NO_QUERY","ann"', "Row #3: Expected 6 columns, got 5"),
        (b'"4","1","Mon","NO_QUERY","ann","text","more"', "Row #3: Expected 6 columns, got 7"),
        (
            b'"5","1","Mon","NO_QUERY","ann","text"',
            "row 3 has polarity = '5'.*not 0, 2 or 4",
        ),
        (
            b'"4","1","Mon","NO_QUERY","","text"',
            "row 3 has user = ''",
        ),
        (b"4,1,Mon,NO_QUERY,ann," + b"x," * 40_000, r"Row #3: Expected 6 columns, got \d{5}"),
    ],
)
def test_damaged_lines_are_refused_by_file_and_number(tmp_path, glove, line, message):
    path = write_csv(tmp_path / "t.csv", ROWS[:2])
    load(path, glove)
    path.write_bytes(path.read_bytes() + line + b"\r\n")
    with pytest.raises(DataError, match=message) as caught:
        load(path, glove)
    assert "t.csv" in str(caught.value)


def test_a_file_that_was_cut_short_is_refused(tmp_path, glove):
    path = write_csv(tmp_path / "t.csv", ROWS[:3])
    whole = path.read_bytes()
    path.write_bytes(whole.rstrip())  # without a line end it is still whole
    assert len(load(path, glove)) == 2
    path.write_bytes(whole.rstrip()[:-3])
    with pytest.raises(DataError, match="cut short in the last line"):
        load(path, glove)


def test_a_source_that_is_none_is_refused(tmp_path, glove):
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "none.csv", glove)
    with pytest.raises(DataError, match="no such folder"):
        load(tmp_path / "none", glove)
    with pytest.raises(ValueError, match="'median' is not a valid Features"):
        load(write_csv(tmp_path / "t.csv", ROWS), glove, features="median")


def test_word_vectors_from_text_and_archive_are_the_same(tmp_path, glove):
    np.savez(tmp_path / "g.npz", words=[*VECTORS], vectors=np.array([*VECTORS.values()]))
    text, archive = load_glove(glove), load_glove(tmp_path / "g.npz")
    assert text.rows == archive.rows == {word: row for row, word in enumerate(VECTORS)}
    assert text.table.dtype == np.float32
    assert np.array_equal(text.table, archive.table)
    assert text.indices("bad Bad") == [3, text.unknown] == [3, 5]


def test_words_may_hold_the_line_separators_of_unicode(tmp_path):
    odd = {"a\u2028b": [1], "\x85": [2], "\u3000": [3], "c": [4]}
    assert [*load_glove(write_glove(tmp_path / "g.txt", odd)).rows] == [*odd]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no word with numbers after it"),
        (b"a 1 2\nb 1\n", "Row #2: Expected 3 columns, got 2"),
        (b"a 1 2\nb 1 2 3\n", "Row #2: Expected 3 columns, got 4"),
        (b"a\n", "no word with numbers after it"),
        (b"a 1 2\nb 1 x\n", "Row #2: .*invalid value 'x'"),
        (b"a 1 2\n\xff 1 2\n", "Row #2: .*invalid UTF8"),
        (b"a 1 2\na 3 4\n", "'a' appears twice"),
        (b"a 1 2\nb nan 2\n", "the vector of 'b' is not finite"),
        (b"a 1 2\nb 1e99 2\n", "the vector of 'b' is not finite"),
    ],
)
def test_damaged_word_vectors_are_refused(tmp_path, content, message):
    path = tmp_path / "g.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_glove(path)
    assert "g.txt" in str(caught.value)


@pytest.mark.parametrize(
    "arrays",
    [
        {"words": np.array(["a"])},
        {"words": np.array(["a", "b"]), "vectors": np.zeros((1, 2))},
        {"words": np.array(["a"]), "vectors": np.zeros(1)},
        {"words": np.array(["a"]), "vectors": np.zeros((1, 0))},
        {"words": np.array([1]), "vectors": np.zeros((1, 2))},
        {"words": np.array(["a"], object), "vectors": np.zeros((1, 2))},
    ],
)
def test_archives_that_hold_no_word_vectors_are_refused(tmp_path, arrays):
    np.savez(tmp_path / "g.npz", **arrays)
    with pytest.raises(DataError, match=r"g\.npz"):
        load_glove(tmp_path / "g.npz")


def test_word_vectors_that_are_missing_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no such file: give the file glove\.6B"):
        load_glove(tmp_path / "none.txt")


def test_the_published_first_row():
    path = SUBSET / "glove50_subset.npz"
    if not path.exists():
        pytest.skip("glove50_subset does not lie beside the repository")
    vectors = load_glove(path)
    assert vectors.table.shape == (8454, 50)
    first = vectors.table[vectors.rows["the"]]
    assert first[:4].tolist() == pytest.approx([0.418, 0.24968, -0.41242, 0.1217])
    assert not vectors.table[vectors.unknown].any()
