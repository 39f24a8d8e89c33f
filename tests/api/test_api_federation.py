"""Data of one's own: what comes out by device, and what is said of data that cannot be used."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image

from deltafl import Federation
from deltafl.fl.errors import DataError
from deltafl.sim.data.dataset import dataset_digest
from deltafl.sim.errors import ConfigError

USERS = ["ann", "bob", "cy", "dee"]


def table(**changes):
    """Three samples of each of four users."""
    rng = np.random.default_rng(1)
    columns = {
        "who": np.repeat(USERS, 3),
        "height": rng.normal(size=12),
        "weight": rng.integers(40, 90, 12),
        "answer": np.tile(["no", "yes", "maybe"], 4),
    }
    return pd.DataFrame(columns | changes)


def sides(federation):
    data = federation.dataset
    return {one.id: one for one in (*data.train, *data.test)}


def test_a_row_of_a_dataframe_is_a_sample_of_its_user():
    source = table()
    shuffled = source.sample(frac=1, random_state=3)
    federation = Federation.from_pandas(shuffled, user="who", label="answer")
    assert federation.classes == ("maybe", "no", "yes")
    assert federation.dataset.num_classes == 3
    assert sorted(sides(federation)) == USERS
    for name, device in sides(federation).items():
        own = shuffled[shuffled["who"] == name]
        wanted = own[["height", "weight"]].to_numpy(np.float32)
        assert device.x.tobytes() == wanted.tobytes()
        assert [federation.classes[label] for label in device.y] == own["answer"].tolist()


def test_features_may_be_chosen():
    federation = Federation.from_pandas(table(), user="who", label="answer", features=["weight"])
    assert federation.dataset.input_shape == (1,)


def test_all_ways_lead_to_the_same_data():
    source = table()
    x, y = source[["height", "weight"]].to_numpy(np.float32), source["answer"].to_numpy()
    users = source["who"].to_numpy()
    by_user = {name: (x[users == name], y[users == name]) for name in reversed(USERS)}
    made = [
        Federation.from_pandas(source, user="who", label="answer"),
        Federation.from_arrays(x, y, users),
        Federation.from_devices(by_user),
        Federation.from_function(USERS, by_user.__getitem__),
    ]
    assert len({dataset_digest(one.dataset) for one in made}) == 1


@pytest.mark.parametrize("who", [["a", 1] * 6, [2**70] * 12, pd.arrays.SparseArray([1, 2] * 6)])
def test_a_column_of_several_or_other_types_is_refused(who):
    with pytest.raises(DataError, match="give a column values of one type"):
        Federation.from_pandas(table(who=who), user="who", label="answer")


def test_labels_that_are_numbers_stay_as_they_are():
    federation = Federation.from_pandas(table(answer=[0, 2] * 6), user="who", label="answer")
    assert federation.classes == ()
    assert federation.dataset.num_classes == 3


def test_users_may_be_numbers_and_images_stay_bytes():
    x = np.zeros((8, 4, 4), np.uint8)
    federation = Federation.from_arrays(x, [0, 1] * 4, [5, 5, 7, 7, 9, 9, 11, 11])
    assert sorted(sides(federation)) == ["11", "5", "7", "9"]
    assert federation.dataset.train[0].x.dtype == np.uint8


def test_the_share_that_is_tested_on_and_what_is_divided():
    source = table()
    quarter = Federation.from_pandas(source, user="who", label="answer", test=0.25)
    assert (len(quarter.dataset.train), len(quarter.dataset.test)) == (3, 1)
    samples = Federation.from_pandas(
        source, user="who", label="answer", split="samples", test=0.4
    ).dataset
    assert [one.id for one in samples.train] == [one.id for one in samples.test] == USERS
    other = Federation.from_pandas(source, user="who", label="answer", seed=2)
    first = Federation.from_pandas(source, user="who", label="answer")
    assert [d.id for d in other.dataset.test] != [d.id for d in first.dataset.test]


def test_what_the_command_line_reads_can_be_loaded():
    federation = Federation.load("digits", num_devices=20)
    assert repr(federation) == (
        "<Federation digits: 10 training and 10 test devices, inputs of shape (8, 8), 10 classes>"
    )


def test_settings_that_are_none_are_refused():
    with pytest.raises(ConfigError, match=r"num_devises.*did you mean"):
        Federation.load("digits", num_devises=20)


@pytest.mark.parametrize(
    ("source", "named", "complaint"),
    [
        (table(), {"user": "who", "label": "x"}, "no column 'x': there are who, height"),
        (table(height=["a"] * 12), {}, "column 'height' has .*, not numbers: encode it"),
        (table(height=[np.nan] + [1.0] * 11), {}, "'height' has nothing in row 1 of the sam"),
        (table(who=["ann"] * 12), {}, "1 of 1 devices are left"),
        (table(answer=[0.5] * 12), {}, "user 'ann'.*label"),
        (
            table(height=[np.inf] + [1.0] * 11),
            {},
            "'height' has inf in row 1 of the samples, which is not",
        ),
        (table(height=[1e300] + [1.0] * 11), {}, r"'height' has 1e\+300 in row 1 of"),
        (table().iloc[:0], {}, "no rows under the names"),
        (pd.concat([table(), table()[["height"]]], axis=1), {}, "several columns are called 'hei"),
        (table(), {"features": ["height", "answer"]}, "'answer' is named twice: .*of their own"),
        (table(), {"user": "answer"}, "'answer' is named twice"),
        (table(answer="yes"), {}, "all labels are 'yes': give samples of at least two classes"),
        ({"who": USERS}, {}, "a dict is no DataFrame: give a pandas.DataFrame"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(source, named, complaint):
    with pytest.raises(DataError, match=complaint):
        Federation.from_pandas(source, **({"user": "who", "label": "answer"} | named))


@pytest.mark.parametrize(
    ("x", "y", "user", "complaint"),
    [
        ([[1.0]], [0, 1], ["a"], "1 inputs, 2 labels and 1 users"),
        ([[1.0]], [[0]], ["a"], "one label and one user for each sample"),
        (1.0, [0], ["a"], "one label and one user"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(x, y, user, complaint):
    with pytest.raises(DataError, match=complaint):
        Federation.from_arrays(x, y, user)


def test_ragged_inputs_are_refused():
    with pytest.raises(DataError, match="user 'a': x is no array"):
        Federation.from_devices({"a": ([[1.0], [1.0, 2.0]], [0, 1]), "b": ([[1.0]], [0])})


@pytest.mark.parametrize(
    "options", [{"split": "rows"}, {"targets": "number"}, {"test": 0.0}, {"test": 1.5}]
)
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"must be|not in"):
        Federation.from_pandas(table(), user="who", label="answer", **options)


def test_files_lead_to_the_same_data(tmp_path):
    source = table()
    source.to_csv(tmp_path / "people.csv", index=False)
    source.to_parquet(tmp_path / "people.parquet")
    columns = {"user": "who", "label": "answer"}
    made = [
        Federation.from_pandas(source, **columns),
        Federation.from_csv(tmp_path / "people.csv", **columns),
        Federation.from_parquet(tmp_path / "people.parquet", **columns),
    ]
    assert len({dataset_digest(one.dataset) for one in made}) == 1
    assert {one.classes for one in made} == {("maybe", "no", "yes")}
    assert made[1].dataset.name == "people"


def test_numbers_may_be_predicted(tmp_path):
    source = table(answer=np.arange(12) / 7)
    numbers = Federation.from_pandas(source, user="who", label="answer", targets="numbers")
    assert numbers.has_numbers
    assert "targets are numbers" in repr(numbers)
    assert numbers.dataset.train[0].y.dtype == np.float32
    several = Federation.from_pandas(
        source, user="who", label=["answer", "height"], targets="numbers"
    )
    assert several.dataset.input_shape == (1,)
    assert several.dataset.train[0].y.shape == (3, 2)
    source.to_csv(tmp_path / "t.csv", index=False)
    read = Federation.from_csv(
        tmp_path / "t.csv", user="who", label=["answer", "height"], targets="numbers"
    )
    assert np.allclose(read.dataset.train[0].y, several.dataset.train[0].y)
    table().to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match="labels such as maybe, no, yes are no numbers"):
        Federation.from_csv(tmp_path / "t.csv", user="who", label="answer", targets="numbers")


@pytest.mark.parametrize(
    ("targets", "options", "complaint"),
    [
        ([0.5] * 12, {}, r"the label 0\.5, which is no class: .*targets='numbers'"),
        ([np.inf] * 12, {"targets": "numbers"}, "sample 0 has the target inf"),
        (["a"] * 12, {"targets": "numbers"}, "are no numbers"),
    ],
)
def test_targets_that_are_none_are_refused(targets, options, complaint):
    x, users = np.zeros((12, 2)), np.repeat(USERS, 3)
    with pytest.raises(DataError, match=complaint):
        Federation.from_arrays(x, targets, users, **options)


def test_targets_of_unequal_shapes_are_refused():
    x = np.zeros((2, 3))
    with pytest.raises(DataError, match=r"targets of user 'b' have shape \(2,\) and those of"):
        Federation.from_devices(
            {"a": (x, np.zeros((2, 1))), "b": (x, np.zeros((2, 2)))}, targets="numbers"
        )


def test_images_lie_in_folders(tmp_path):
    for number, name in enumerate(["ann/cat", "ann/dog", "bob/dog"]):
        (tmp_path / name).mkdir(parents=True)
        image = np.full((4, 4), number, np.uint8)
        Image.fromarray(image).save(tmp_path / name / "1.png")
    federation = Federation.from_folder(tmp_path, size=(2, 3))
    assert federation.classes == ("cat", "dog")
    assert federation.dataset.input_shape == (1, 2, 3)
    assert sides(federation)["bob"].y.tolist() == [1]


class Loaded:
    """What `from_hub` uses of a `datasets.Dataset`."""

    def __init__(self, rows):
        self.rows = rows

    def with_format(self, name):
        assert name == "arrow"
        return self

    def iter(self, size):
        for start in range(0, self.rows.num_rows, size):
            yield self.rows.slice(start, size)


def test_a_data_set_of_the_hub_is_read_from_the_object():
    rows = pa.table({"w": ["a", "b"] * 3, "x": [[0.5, 1.0]] * 6, "y": [0, 1] * 3})
    columns = {"user": "w", "label": "y", "inputs": "x"}
    one = Federation.from_hub(Loaded(rows), **columns)
    assert sides(one)["a"].x.tolist() == [[0.5, 1.0]] * 3
    split = {"train": Loaded(rows.slice(0, 2)), "test": Loaded(rows.slice(2))}
    both = Federation.from_hub(split, **columns)
    assert dataset_digest(both.dataset) == dataset_digest(one.dataset)
    with pytest.raises(DataError, match="no column 'z'"):
        Federation.from_hub(Loaded(rows), user="w", label="z", inputs="x")
    with pytest.raises(DataError, match="dataset of type str: must be a Dataset"):
        Federation.from_hub("flwrlabs/femnist", **columns)


def test_a_notebook_shows_escaped_text():
    federation = Federation.from_pandas(table(), user="who", label="answer", name="<b>")
    assert "&lt;b&gt;: 2 training and 2 test" in federation._repr_html_()


X, Y, WHO = np.arange(24.0).reshape(12, 2), [0, 1] * 6, np.repeat(USERS, 3)


@pytest.mark.parametrize(
    ("x", "y", "user", "complaint"),
    [
        (np.ma.masked_array(X, X == 3), Y, WHO, "x is a masked array"),
        (X, np.ma.masked_array(Y, [1, 0] * 6), WHO, "y is a masked array"),
        (torch.tensor(X, requires_grad=True), Y, WHO, "x is no array: .*requires grad"),
        (X + 1j, Y, WHO, "x of dtype complex128 is not numeric"),
        (X, Y, np.where(WHO == "ann", None, WHO), "sample 0 has the user None"),
        (X, Y, np.repeat([1.0, np.nan, 2.0], 4), "sample 4 has the user nan"),
        (X, Y, np.repeat([1, "1.0", 2], 4), "users '1' and '1.0' are one"),
        (X, np.array([None, "a"] * 6), WHO, "user 'ann': sample 0 has the label None"),
        (X, np.array(["a", np.nan] * 6, object), WHO, "user 'ann': sample 1 has the label nan"),
        (X, ["\u00e9", "e\u0301"] * 6, WHO, "classes .* are one, written in two ways"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(x, y, user, complaint):
    with pytest.raises(DataError, match=complaint):
        Federation.from_arrays(x, y, user)


def test_objects_that_are_numbers_are_numbers():
    users = np.array([1.0, 2.0, 3.0]).repeat(4)
    federation = Federation.from_arrays(X.astype(object), np.array([2, 10] * 6, object), users)
    assert federation.classes == ()
    assert sorted(sides(federation)) == ["1", "2", "3"]
    assert sides(federation)["1"].y.tolist() == [2, 10, 2, 10]
    mixed = Federation.from_arrays(X, Y, np.array([1, "1", 2.0, "b"] * 3, object))
    assert sorted(sides(mixed)) == ["1", "2", "b"]


def test_devices_that_are_no_pairs_are_refused():
    for devices, complaint in (
        ([(X, Y)], "devices of type list: give a dictionary"),
        ({"ann": X, "bob": X}, "user 'ann': a ndarray is not inputs and labels"),
        ({"ann": (X, Y, Y), "bob": (X, Y)}, "user 'ann': a tuple is not inputs and labels"),
        ({"ann": (X, Y), "bob": (X.astype(np.uint8), Y)}, "user 'bob' are uint8"),
    ):
        with pytest.raises(DataError, match=complaint):
            Federation.from_devices(devices)
    with pytest.raises(DataError, match="user 'a': a NoneType is not inputs and labels"):
        Federation.from_function("ab", lambda _: None)


def test_arguments_are_refused_by_the_names_they_have_here(tmp_path):
    devices = {"ann": (X, Y), "bob": (X, Y)}
    for wrong in ({"test": 1.5}, {"test": "x"}, {"test": 0}, {"seed": None}, {"split": "x"}):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))}="):
            Federation.from_devices(devices, **wrong)
    with pytest.raises(ValueError, match=r"^targets='numbers': labels here are classes"):
        Federation.from_folder(tmp_path, targets="numbers")


def test_a_text_is_one_column_and_a_list_of_one_too(tmp_path):
    source = table().rename(columns={"height": "ab"}).assign(a=1.0, b=2.0)
    for features in ("ab", ["ab"]):
        made = Federation.from_pandas(source, user="who", label=["answer"], features=features)
        assert made.dataset.input_shape == (1,)
    source.to_csv(tmp_path / "t.csv", index=False)
    read = Federation.from_csv(tmp_path / "t.csv", user="who", label=["answer"], features="ab")
    assert dataset_digest(read.dataset) == dataset_digest(made.dataset)
    numbered = Federation.from_pandas(source.set_axis(range(6), axis=1), user=0, label=3)
    assert numbered.dataset.input_shape == (4,)
    with pytest.raises(DataError, match=r"labels in 2 columns are numbers .*targets='numbers'"):
        Federation.from_csv(tmp_path / "t.csv", user="who", label=["a", "b"])
