"""Parquet files with a row for each sample, and a column for each number."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltafl.fl.data.load import DatasetSpec, load_dataset
from deltafl.fl.data.registry import Options
from deltafl.fl.data.tables import Columns, read_parquet_table
from deltafl.fl.errors import DataError

COLUMNS = Columns("who", ("answer",))


def write(folder, **changes):
    columns = {
        "who": ["ann", "bob", "ann"],
        "height": [1.5, 2.0, 3.0],
        "is_old": [True, False, True],
        "answer": ["b", "a", "a"],
    }
    path = folder / "people.parquet"
    pq.write_table(pa.table(columns | changes), path)
    return path


def test_a_row_is_a_sample_of_its_user(tmp_path):
    rows = read_parquet_table(write(tmp_path), COLUMNS)
    assert rows.classes == ("a", "b")
    assert [(name, x.tolist(), y.tolist()) for name, x, y in rows.by_user()] == [
        ("ann", [[1.5, 1.0], [3.0, 1.0]], [1, 0]),
        ("bob", [[2.0, 0.0]], [0]),
    ]


def test_users_and_labels_may_be_numbers(tmp_path):
    rows = read_parquet_table(write(tmp_path, who=[7, 8, 7], answer=[True, False, True]), COLUMNS)
    assert [name for name, *_ in rows.by_user()] == ["7", "8"]
    floats = read_parquet_table(write(tmp_path, who=[7.0, 8.5, 7.0]), COLUMNS)
    assert [name for name, *_ in floats.by_user()] == ["7", "8.5"]
    assert rows.labels.tolist() == [1.0, 0.0, 1.0]
    numbers = write(tmp_path, answer=[1, 0, 1])
    two = read_parquet_table(numbers, Columns("who", ("height", "is_old"), ("answer",)))
    assert two.labels.tolist() == [[1.5, 1.0], [2.0, 0.0], [3.0, 1.0]]


@pytest.mark.parametrize(
    ("changes", "columns", "complaint"),
    [
        (
            {"height": [1.0, None, 2.0]},
            COLUMNS,
            "column 'height' has nothing in row 2 of the samples: fill it",
        ),
        ({"who": ["a", None, "b"]}, COLUMNS, "column 'who' has nothing in row 2 of the samples"),
        ({"height": ["x"] * 3}, COLUMNS, "column 'height' has string, not numbers: encode it"),
        ({"height": [[1.0]] * 3}, COLUMNS, "not numbers.*data.format = 'hub'"),
        ({"who": [[1]] * 3}, COLUMNS, "column 'who' has list.*must have whole numbers or texts"),
        ({"who": [1.0, float("nan"), 2.0]}, COLUMNS, "column 'who' has nan in row 2"),
        ({"answer": [1.0, 0.0, float("nan")]}, COLUMNS, "column 'answer' has nan in row 3"),
        ({"height": [1.0, 1e300, 2.0]}, COLUMNS, r"'height' has 1e\+300 in row 2 of the samples"),
        ({"height": [1.0, 2.0, float("nan")]}, COLUMNS, "'height' has nan in row 3"),
        ({"who": ["x" * 5000] * 3}, COLUMNS, "name of at most 4096 characters"),
        ({}, Columns("whom", ("answer",)), "no column 'whom'"),
        ({}, Columns("who", ("height", "answer")), "column 'answer' has string, not numbers"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path, changes, columns, complaint):
    with pytest.raises(DataError, match=complaint):
        read_parquet_table(write(tmp_path, **changes), columns)


def test_what_is_no_parquet_file_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 or not")
    for one in (path, tmp_path / "absent.parquet", tmp_path):
        with pytest.raises(DataError, match=r"not a readable Parquet|no such file"):
            read_parquet_table(one, COLUMNS)


def test_a_file_of_the_settings_is_read_by_its_suffix(tmp_path):
    users = [f"u{k % 6}" for k in range(18)]
    path = write(tmp_path, who=users, height=[1.0] * 18, is_old=[1] * 18, answer=[0, 1] * 9)
    data = load_dataset(
        DatasetSpec(str(path), options=Options(user_column="who", label_column="answer"))
    )
    assert (data.input_shape, data.num_classes, len(data.train)) == ((2,), 2, 3)
