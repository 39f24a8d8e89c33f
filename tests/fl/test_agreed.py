"""Labels are numbered by the classes that are said, and inputs scaled by the constants."""

from fractions import Fraction

import numpy as np
import pytest

from deltafl.fl.data.agreed import Agreed
from deltafl.fl.data.federated import DeviceData, Split, SplitBy, federate
from deltafl.fl.data.load import DatasetSpec, load_dataset
from deltafl.fl.errors import DataError

ALONE = Split(alone=True)
TABLE = {"label_column": "answer"}


def written(folder, text, name="mine.csv"):
    path = folder / name
    path.write_text(text)
    return str(path)


def read(source, split=ALONE, options=TABLE, **other):
    return load_dataset(DatasetSpec(source, split, options=options, **other))


def test_a_class_that_is_missing_moves_no_other(tmp_path):
    """By its own file alone, a device would take the first class that it has for 0."""
    own = read(written(tmp_path, "a,answer\n1,yes\n2,maybe\n"))
    assert own.classes == ("maybe", "yes")
    assert own.train[0].y.tolist() == [1, 0]
    said = Agreed(("yes", "no", "maybe")).of(own)
    assert said.train[0].y.tolist() == [0, 2]
    assert said.num_classes == 3
    assert said.classes == ("yes", "no", "maybe")


def test_numbers_are_found_among_classes_by_what_they_are_called(tmp_path):
    own = read(written(tmp_path, "a,answer\n1,10\n2,30\n"))
    assert Agreed(("30", "20", "10")).of(own).train[0].y.tolist() == [2, 0]


def test_a_label_that_is_none_of_the_classes_is_named(tmp_path):
    own = read(written(tmp_path, "a,answer\n1,yes\n2,maybe\n"))
    with pytest.raises(DataError, match="a label is 'maybe', and the classes are no, yes"):
        Agreed(("no", "yes")).of(own)
    rows = "".join(f"1,x{number:02}\n" for number in range(12))
    own = read(written(tmp_path, f"a,answer\n1,yes\n{rows}"))
    shown = ", ".join(f"'x{number:02}'" for number in range(10))
    with pytest.raises(DataError, match=f"labels are {shown} and 2 more, and the classes are no"):
        Agreed(("no", "yes")).of(own)


def test_columns_are_found_in_any_order_and_others_are_no_matter(tmp_path):
    named = {"label_column": "answer", "feature_columns": ("a", "b")}
    one = read(written(tmp_path, "note,b,answer,a\nx,2,0,1\n"), options=named)
    assert one.train[0].x.tolist() == [[1.0, 2.0]]
    with pytest.raises(DataError, match="no column 'b'"):
        read(written(tmp_path, "a,answer\n1,0\n"), options=named)
    with pytest.raises(DataError, match="'b' has 'x' in row 1"):
        read(written(tmp_path, "a,b,answer\n1,x,0\n"), options=named)


def test_inputs_are_scaled_by_what_is_said():
    devices = [DeviceData("a", np.array([[3, 8], [5, 2]]), np.array([0, 1]))]
    data = federate("own", devices, ALONE)
    scaled = Agreed(means=(1, 2), scales=(2, 3)).of(data)
    assert scaled.train[0].x.tolist() == [[1.0, 2.0], [2.0, 0.0]]
    assert scaled.scale.of(np.array([3, 8])).tolist() == [1.0, 2.0]
    assert Agreed(means=(1, 2)).of(data).train[0].x.tolist() == [[2.0, 6.0], [4.0, 0.0]]
    with pytest.raises(DataError, match=r"data.scales has 3 numbers, and inputs .* have 2"):
        Agreed(scales=(1, 1, 1)).of(data)
    with pytest.raises(DataError, match="a scaled input is no finite"):
        Agreed(scales=(1e-300, 1)).of(data)


def test_another_shape_is_refused():
    data = federate("own", [DeviceData("a", np.zeros((2, 3)), np.array([0, 1]))], ALONE)
    assert Agreed(shape=(3,)).of(data) is data
    with pytest.raises(DataError, match=r"has the shape \(3,\), and must have \(4,\)"):
        Agreed(shape=(4,)).of(data)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"classes": ("a",)}, "at least two"),
        ({"classes": ("a", "b", "a")}, "are one"),
        ({"classes": ("1", "1.0")}, "are one"),
        ({"shape": (2, 0)}, "above 0"),
        ({"scales": (1.0, 0.0)}, "above 0"),
        ({"means": (float("nan"),)}, "finite"),
        ({"scales": (float("inf"),)}, "finite"),
    ],
)
def test_what_cannot_be_agreed_on_is_refused(said, why):
    with pytest.raises(ValueError, match=why):
        Agreed(**said)


def test_one_users_data_are_a_device(tmp_path):
    """All of it trains, unless its own samples are divided."""
    path = written(tmp_path, "a,answer\n" + "1,0\n2,1\n" * 5)
    data = read(path)
    assert len(data.train) == 1
    assert data.train[0].num_samples == 10
    assert data.test == ()
    divided = read(path, Split(train_fraction=Fraction(4, 5), by=SplitBy.SAMPLES, alone=True))
    assert [one.num_samples for one in (*divided.train, *divided.test)] == [8, 2]
    with pytest.raises(DataError, match="which column is the user's"):
        read(path, Split())
    with pytest.raises(DataError, match="at least 1 is needed"):
        read(path, Split(more_than=10, alone=True))


def test_so_are_arrays_and_images_of_one_user(tmp_path):
    from PIL import Image

    np.savez(tmp_path / "mine.npz", x=np.ones((2, 3)), y=np.array(["b", "a"]))
    arrays = read(str(tmp_path / "mine.npz"), options={})
    assert arrays.train[0].y.tolist() == [1, 0]
    assert arrays.classes == ("a", "b")
    with pytest.raises(DataError, match="no array 'user'"):
        read(str(tmp_path / "mine.npz"), Split(), {})
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("L", (2, 2)).save(tmp_path / "photos" / name / "1.png")
    images = read(str(tmp_path / "photos"), options={})
    assert len(images.train) == 1
    assert images.classes == ("cat", "dog")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npz", "folder"])
def test_labels_with_a_unit_are_numbers(tmp_path, name):
    import pandas as pd

    table = pd.DataFrame({"a": [1.0, 2.0], "answer": [0.5, -3.0]})
    path, options = tmp_path / name, {"label_column": "answer", "unit": "mmHg"}
    if name == "t.npz":
        np.savez(path, x=np.ones((2, 1)), y=table["answer"].to_numpy())
        options = {"unit": "mmHg"}
    elif name == "folder":
        (path / "me").mkdir(parents=True)
        table.to_csv(path / "me" / "1.csv", index=False)
    else:
        table.to_csv(path, index=False) if name == "t.csv" else table.to_parquet(path)
    data = read(str(path), options=options)
    assert data.train[0].y.tolist() == [0.5, -3.0]
    assert data.num_classes == 0


def test_texts_are_no_numbers(tmp_path):
    options = {"label_column": "answer", "unit": "mmHg"}
    with pytest.raises(DataError, match="labels such as high are no numbers"):
        read(written(tmp_path, "a,answer\n1,high\n"), options=options)


def test_a_folder_of_tables_has_no_arrays_where_columns_are_named(tmp_path):
    np.savez(tmp_path / "1.npz", x=np.ones((2, 1)), y=np.array([0, 1]))
    named = {"label_column": "answer", "feature_columns": ("a",)}
    with pytest.raises(DataError, match="tables alone where columns are named"):
        read(str(tmp_path), options=named)
