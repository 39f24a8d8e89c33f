import importlib.util
import io
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from devices_read import by_id
from PIL import Image

from deltafl.fl.data.federated import Split
from deltafl.fl.data.hub import load_hub
from deltafl.fl.errors import DataError


def png(array, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


def images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def femnist(count=12, **changes):
    columns = {
        "image": [{"bytes": png(image), "path": None} for image in images(count)],
        "writer_id": [f"f{k % 4:04}_1" for k in range(count)],
        "hsf_id": [0] * count,
        "character": [k % 62 for k in range(count)],
    }
    return pa.table(columns | changes)


def write(folder, table, name="train-00000.parquet"):
    path = folder / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def test_femnist_of_the_hub_is_read_by_its_known_columns(tmp_path):
    path = write(tmp_path, femnist())
    for source in (path, tmp_path):
        devices = by_id(load_hub(str(source), Split()))
        assert sorted(devices) == ["f0000_1", "f0001_1", "f0002_1", "f0003_1"]
        np.testing.assert_array_equal(devices["f0001_1"].x[:, 0], images(12)[1::4])
        assert devices["f0001_1"].x.dtype == np.uint8
        assert devices["f0001_1"].y.tolist() == [1, 5, 9]


def test_all_files_of_a_folder_are_one_data_set(tmp_path):
    whole = femnist()
    write(tmp_path, whole.slice(0, 5), "test-00000.parquet")
    write(tmp_path, whole.slice(5), "train-00000.parquet")
    devices = by_id(load_hub(str(tmp_path), Split()))
    assert sum(device.num_samples for device in devices.values()) == 12


def test_other_columns_are_named_and_may_hold_numbers(tmp_path):
    table = pa.table(
        {
            "who": [3, 3, 8, 8],
            "features": [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]],
            "class": [0, 1, 1, 0],
        }
    )
    data = load_hub(
        str(write(tmp_path, table)),
        Split(),
        user_column="who",
        input_column="features",
        label_column="class",
    )
    devices = by_id(data)
    assert sorted(devices) == ["3", "8"]
    np.testing.assert_array_equal(devices["8"].x, np.float32([[4, 5], [6, 7]]))


def test_lists_of_whole_numbers_stay_whole(tmp_path):
    table = {"who": ["a", "b"], "says": [[1, 70_000], [3, 4]], "label": [0, 1]}
    write(tmp_path, pa.table(table))
    read = load_hub(
        str(tmp_path), Split(), user_column="who", input_column="says", label_column="label"
    )
    assert {str(one.x.dtype) for one in (*read.train, *read.test)} == {"int64"}
    assert sorted(one.x.max() for one in (*read.train, *read.test)) == [4, 70_000]


def test_images_in_colour_keep_their_channels(tmp_path):
    colour = np.zeros((4, 6, 3), np.uint8)
    both = [{"bytes": png(colour, kind), "path": None} for kind in ("JPEG", "PNG")]
    table = femnist(image=both * 3, count=6)
    data = load_hub(str(write(tmp_path, table)), Split())
    assert data.input_shape == (3, 4, 6)


NO_UTF_8 = pa.StringArray.from_buffers(
    12, pa.py_buffer(np.arange(13, dtype=np.int32)), pa.py_buffer(b"\xff" * 12)
)


def large():
    return png(np.zeros((1025, 1024), np.uint8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": [{"bytes": b"ink", "path": None}] * 12}, "row 1 is no readable image"),
        (
            {"image": [{"bytes": png(images(1)[0])[:60], "path": None}] * 12},
            "row 1 is no readable",
        ),
        ({"image": [{"bytes": large(), "path": None}] * 12}, "1024 × 1025 pixels, more than"),
        ({"image": ["to be or not"] * 12}, "row 1 has an input of type str: .* the tokens"),
        ({"image": [["a"]] * 12}, "row 1 is no list of numbers"),
        ({"image": [[1.0, 2.0]] * 11 + [[1.0]]}, r"shapes \(1,\) and \(2,\): bring"),
        ({"character": pa.array([None] * 12, pa.int64())}, "'character' has nothing in row 1"),
        ({"character": ["a"] * 12}, "column 'character' has string, not numbers"),
        ({"character": [-1] * 12}, "label -1"),
        ({"character": [[1], [1, 2]] * 6}, "column 'character' has list.*not numbers"),
        ({"writer_id": NO_UTF_8}, "a value cannot be read .*UTF8.*: correct the table"),
        ({"writer_id": ["one"] * 12}, "1 of 1 devices"),
    ],
)
def test_tables_that_can_not_be_used_are_refused(tmp_path, changes, message):
    path = write(tmp_path, femnist(**changes))
    with pytest.raises(DataError, match=message):
        load_hub(str(path), Split())


def test_numbers_beyond_float32_are_refused_without_a_warning(tmp_path):
    path = write(tmp_path, femnist(image=[[1e300]] * 12))
    with pytest.raises(DataError, match="has the input inf, which is not a finite float32"):
        load_hub(str(path), Split())


def test_users_that_are_floats_are_whole_numbers_and_none_is_nan(tmp_path):
    users = [1.0, 2.0, 3.0] * 4
    path = write(tmp_path, femnist(writer_id=users))
    assert sorted(by_id(load_hub(str(path), Split()))) == ["1", "2", "3"]
    path = write(tmp_path, femnist(writer_id=[*users[:-1], float("nan")]))
    with pytest.raises(DataError, match="has nan in row 12"):
        load_hub(str(path), Split())


def test_a_missing_column_is_named_beside_those_that_are_there(tmp_path):
    path = write(tmp_path, femnist().drop_columns(["writer_id"]))
    with pytest.raises(
        DataError, match="no column 'writer_id': there are image, hsf_id, character"
    ):
        load_hub(str(path), Split())
    path = write(tmp_path, femnist().append_column("writer_id", pa.array(["a"] * 12)))
    with pytest.raises(DataError, match="several columns are called 'writer_id'"):
        load_hub(str(path), Split())


def test_files_whose_columns_differ_in_type_are_refused(tmp_path):
    write(tmp_path, femnist())
    write(tmp_path, femnist(writer_id=list(range(12))), "more.parquet")
    with pytest.raises(DataError, match=r"do not go together .*writer_id.* one type for each"):
        load_hub(str(tmp_path), Split())


def test_files_that_are_no_tables_are_refused(tmp_path):
    path = write(tmp_path, femnist())
    for content in (b"", b"PAR1", path.read_bytes()[:-100]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not a readable Parquet file"):
            load_hub(str(path), Split())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \.parquet file in the folder"):
        load_hub(str(tmp_path / "empty"), Split())
    with pytest.raises(DataError, match="no rows"):
        load_hub(str(write(tmp_path, femnist().slice(0, 0))), Split())
    with pytest.raises(DataError, match="nor a repository 'owner/name'"):
        load_hub(str(tmp_path / "none" / "here"), Split())


def test_the_package_is_asked_for_only_where_it_is_needed(tmp_path, monkeypatch):
    path = write(tmp_path, femnist())
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing it fails
    assert load_hub(str(path), Split()).num_classes == 12
    with pytest.raises(DataError, match=r"pip install '\.\[hub\]'"):
        load_hub("flwrlabs/femnist", Split())


class SplitBy:
    """What the package gives, as far as it is used."""

    def __init__(self, table):
        self.table = table

    def with_format(self, kind):
        assert kind == "arrow"
        return self

    def iter(self, size):
        return iter(pa.Table.from_batches([batch]) for batch in self.table.to_batches(size))


class Package:
    def load_dataset(self, name):
        if name != "flwrlabs/femnist":
            raise ValueError("no such data set")
        return {"train": SplitBy(femnist().slice(0, 7)), "test": SplitBy(femnist().slice(7))}


def test_a_repository_is_loaded_by_the_package_with_all_its_splits(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", Package())
    data = load_hub("flwrlabs/femnist", Split())
    assert sum(device.num_samples for device in by_id(data).values()) == 12
    with pytest.raises(DataError, match=r"'datasets' cannot load it .no such data set."):
        load_hub("flwrlabs/nothing", Split())


@pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None,
    reason="the package datasets is not installed (pip install '.[hub]')",
)
@pytest.mark.filterwarnings("ignore")  # of the package's own imports
def test_a_saved_data_set_is_read_by_the_package(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(femnist()).save_to_disk(str(tmp_path / "saved"))
    data = load_hub(str(tmp_path / "saved"), Split())
    assert sum(device.num_samples for device in by_id(data).values()) == 12
