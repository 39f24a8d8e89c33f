"""CSV files with a row for each sample."""

import numpy as np
import pytest

from deltafl.fl.data.federated import Split
from deltafl.fl.data.load import DatasetSpec, load_dataset
from deltafl.fl.data.registry import Options
from deltafl.fl.data.tables import Columns, read_csv_table
from deltafl.fl.errors import DataError

TEXT = """who,height,answer,weight
ann,1.5,yes,80
"b, c",-2e-3,no,1

ann,3,no,0
"""
COLUMNS = Columns("who", ("answer",))


def write(folder, text=TEXT):
    path = folder / "people.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("text", [TEXT, "\ufeff" + TEXT, TEXT.replace("\n", "\r\n")])
def test_a_row_is_a_sample_of_its_user(tmp_path, text):
    rows = read_csv_table(write(tmp_path, text), COLUMNS)
    found = {name: (x.tolist(), y.tolist()) for name, x, y in rows.by_user()}
    assert rows.classes == ("no", "yes")
    assert found == {
        "ann": ([[1.5, 80.0], [3.0, 0.0]], [1, 0]),
        "b, c": ([[np.float32(-2e-3), 1.0]], [0]),
    }


def test_several_labels_are_numbers(tmp_path):
    text = TEXT.replace("yes", "1").replace("no", "0")
    rows = read_csv_table(write(tmp_path, text), Columns("who", ("height", "weight")))
    assert rows.labels.tolist() == [[1.5, 80.0], [-2e-3, 1.0], [3.0, 0.0]]
    assert rows.x.tolist() == [[1.0], [0.0], [0.0]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "people.csv: not a readable CSV file .Empty CSV file"),
        ("who,answer,height\nann,yes\n", "Expected 3 columns, got 2: ann,yes"),
        ("who,answer,height\nann,yes,tall\n", "Row #2: .*invalid value 'tall'.*: correct the line"),
        (
            "who,answer,height\nann,yes,\n",
            "'height' has nothing in row 1 .*fill it",
        ),
        ("who,answer,height\nann,yes,True\n", "invalid value 'True'.*1 and 0 for true"),
        ('who,answer,height\nann,yes,"1,5"\n', "invalid value '1,5'.*decimal points"),
        ("who;answer;height\nann;yes;1\n", r"semicolons and no commas.*sep=';'"),
        ("who\tanswer\theight\nann\tyes\t1\n", "tabs and no commas"),
        ("who,answer,height\nann,1,2\nbob,NA,3\n", "'answer' has 'NA' in row 2.*numbers elsewhere"),
        ("who,answer,height\n7,1,2\nnan,1,3\n", "'who' has 'nan' in row 2.*numbers elsewhere"),
        ("who,answer,height\na,\u00e9,2\nb,e\u0301,3\n", "classes .*are one, written in two ways"),
        (
            "who,answer,height\nann,yes,inf\n",
            "'height' has inf in row 1 .*not a finite",
        ),
        ("who,answer,height\n,yes,1\n", "column 'who' has '' in row 1 of the samples"),
        ("who,answer,height\nann,,1\n", "column 'answer' has '' in row 1 of the samples"),
        ('who,answer,height\nann,"yes,1\n', "a quotation mark has no other"),
        (b"who,answer,height\nann,\xff,1\n", "invalid UTF8"),
        ("who,answer,height\n" + "a" * (1 << 24) + ",yes,1\n", "not a readable CSV file"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_the_line(tmp_path, text, complaint):
    with pytest.raises(DataError, match=complaint):
        read_csv_table(write(tmp_path, text), COLUMNS)


def test_the_settings_name_the_columns(tmp_path):
    body = "".join(f"u{k % 8},{k},{k % 3},{k / 7}\n" for k in range(24))
    path = write(tmp_path, "user,a,label,b\n" + body)
    options = Options(user_column="user", label_column="label", feature_columns=("b",))
    data = load_dataset(DatasetSpec(str(path), split=Split(), options=options))
    assert (data.name, data.num_classes, data.input_shape) == ("people", 3, (1,))
    assert len(data.train) == len(data.test) == 4
    with pytest.raises(DataError, match="have no name"):
        load_dataset(DatasetSpec(str(path)))
    with pytest.raises(DataError, match="no rows"):
        load_dataset(
            DatasetSpec(
                str(write(tmp_path, "user,label,a\n")),
                options=Options(user_column="user", label_column="label"),
            )
        )
