"""CSV and Parquet files with a row for each sample; columns by name, texts that are kept once."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fresh_python import run_python

from deltafl.fl.data.federated import Split
from deltafl.fl.data.load import DatasetSpec, load_dataset
from deltafl.fl.data.tables import (
    MAX_COLUMNS,
    Columns,
    Texts,
    as_labels,
    check_filled,
    column_names,
    name_of,
    read_csv_table,
    read_frame,
    read_parquet_table,
)
from deltafl.fl.errors import DataError

TEXT = """who,height,answer,weight
ann,1.5,yes,80
"b, c",-2e-3,no,1

ann,3,no,0
"""
COLUMNS = Columns("who", ("answer",))


def write_csv(folder, text=TEXT):
    path = folder / "people.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("text", [TEXT, "\ufeff" + TEXT, TEXT.replace("\n", "\r\n")])
def test_a_row_of_a_csv_file_is_a_sample_of_its_user(tmp_path, text):
    rows = read_csv_table(write_csv(tmp_path, text), COLUMNS)
    found = {name: (x.tolist(), y.tolist()) for name, x, y in rows.by_user()}
    assert rows.classes == ("no", "yes")
    assert found == {
        "ann": ([[1.5, 80.0], [3.0, 0.0]], [1, 0]),
        "b, c": ([[np.float32(-2e-3), 1.0]], [0]),
    }


@pytest.mark.parametrize(
    "head", ["\n\nwho,0,answer,1", 'who,"0\nm",answer,1', "\ufeff\r\nwho,0,answer,1"]
)
def test_the_names_of_columns_are_no_sample(tmp_path, head):
    rows = read_csv_table(write_csv(tmp_path, head + "\nann,1.5,yes,80\n"), COLUMNS)
    assert (rows.users.names, rows.classes, rows.x.tolist()) == (("ann",), ("yes",), [[1.5, 80.0]])


@pytest.mark.parametrize("end", ["", "\n", "\r\n\n"])
def test_empty_lines_are_no_samples(tmp_path, end):
    rows = read_csv_table(write_csv(tmp_path, TEXT + end), COLUMNS)
    assert len(rows.x) == 3


def test_a_line_of_blanks_is_named(tmp_path):
    with pytest.raises(DataError, match=r"Row #5: Expected 4 columns, got 1:   \)"):
        read_csv_table(write_csv(tmp_path, TEXT + "  \n"), COLUMNS)


def test_several_labels_are_numbers(tmp_path):
    text = TEXT.replace("yes", "1").replace("no", "0")
    rows = read_csv_table(write_csv(tmp_path, text), Columns("who", ("height", "weight")))
    assert rows.labels.tolist() == [[1.5, 80.0], [-2e-3, 1.0], [3.0, 0.0]]
    assert rows.x.tolist() == [[1.0], [0.0], [0.0]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "people.csv: not a readable CSV file .the file is empty"),
        ("who,answer,height\nann,yes\n", "Expected 3 columns, got 2: ann,yes"),
        ("who,answer,height\nann,yes,tall\n", "'height' has 'tall' in row 1 .*feature_columns"),
        ("who,answer,height\nann,yes,\n", "'height' has nothing in row 1 .*fill it"),
        ("who,answer,height\nann,yes,True\n", "'True' in row 1 .*1 and 0 for true"),
        ('who,answer,height\nann,yes,"1,5"\n', "'1,5' in row 1 .*data.decimal"),
        ("who;answer;height\nann;yes;1\n", r"not divided by ',' but by ';'.*data.separator=;"),
        ("who\tanswer\theight\nann\tyes\t1\n", "but by 'tab'.*separator='tab'"),
        ("who,answer,height\nann,1,2\nbob,NA,3\n", "'answer' has 'NA' in row 2.*numbers elsewhere"),
        ("who,answer,height\n7,1,2\nnan,1,3\n", "'who' has 'nan' in row 2.*numbers elsewhere"),
        ("who,answer,height\na,\u00e9,2\nb,e\u0301,3\n", "classes .*are one, written in two ways"),
        ("who,answer,height\nann,yes,inf\n", "'height' has inf in row 1 .*not a finite"),
        ("who,answer,height\n,yes,1\n", "column 'who' has '' in row 1 of the samples"),
        ("who,answer,height\nann,,1\n", "column 'answer' has '' in row 1 of the samples"),
        ('who,answer,height\nann,"yes,1\n', "line 2: unexpected end of data"),
        ('who,answer,height\n"ann,yes,1\n"bob,no,2\n', "line 3: .*expected after"),
        ('who,answer,height\nann, "yes",1\n', "line 2: a blank stands before a quotation mark"),
        (b"who,answer,height\nann,\xff,1\n", "decode byte 0xff"),
        ("sep=;\nwho;answer;height\nann;yes;1\n", "first line is a note to Excel.*delete the line"),
        ('\ufeff"sep=,"\r\nwho,answer,height\r\nann,yes,1\r\n', "note to Excel, 'sep='"),
        ("\ufeff\ufeffwho,answer,height\nann,yes,1\n", "two byte-order marks: delete one"),
        (",,\nwho,answer,height\nann,yes,1\n", "first row has nothing in it: delete the line"),
        ("\ufeff \t\nwho,answer,height\nann,yes,1\n", "first row has nothing in it"),
        ("who,answer,height", "no rows under the names of the columns: give some"),
        ("who,answer,height\n", "no rows under the names of the columns: give some"),
        ("who,answer,height\n" + "a" * (1 << 24) + ",yes,1\n", "not a readable CSV file"),
    ],
)
def test_csv_files_that_cannot_be_used_are_refused_with_the_row(tmp_path, text, complaint):
    with pytest.raises(DataError, match=complaint):
        read_csv_table(write_csv(tmp_path, text), COLUMNS)


def test_the_settings_name_the_columns(tmp_path):
    body = "".join(f"u{k % 8},{k},{k % 3},{k / 7}\n" for k in range(24))
    path = write_csv(tmp_path, "user,a,label,b\n" + body)
    options = {"user_column": "user", "label_column": "label", "feature_columns": ("b",)}
    data = load_dataset(DatasetSpec(str(path), split=Split(), options=options))
    assert (data.name, data.num_classes, data.input_shape) == ("people", 3, (1,))
    assert len(data.train) == len(data.test) == 4
    with pytest.raises(DataError, match=r"the user.s is not said: add --set data\.user_column"):
        load_dataset(DatasetSpec(str(path)))
    with pytest.raises(DataError, match="no rows"):
        load_dataset(
            DatasetSpec(
                str(write_csv(tmp_path, "user,label,a\n")),
                options={"user_column": "user", "label_column": "label"},
            )
        )


def write_parquet(folder, **changes):
    columns = {
        "who": ["ann", "bob", "ann"],
        "height": [1.5, 2.0, 3.0],
        "is_old": [True, False, True],
        "answer": ["b", "a", "a"],
    }
    path = folder / "people.parquet"
    pq.write_table(pa.table(columns | changes), path)
    return path


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_row_of_a_parquet_file_is_a_sample_of_its_user(tmp_path, kind):
    people = write_parquet(tmp_path, who=pa.array(["ann", "bob", "ann"], kind))
    rows = read_parquet_table(people, COLUMNS)
    assert rows.classes == ("a", "b")
    assert [(name, x.tolist(), y.tolist()) for name, x, y in rows.by_user()] == [
        ("ann", [[1.5, 1.0], [3.0, 1.0]], [1, 0]),
        ("bob", [[2.0, 0.0]], [0]),
    ]


def test_users_and_labels_may_be_numbers(tmp_path):
    rows = read_parquet_table(
        write_parquet(tmp_path, who=[7, 8, 7], answer=[True, False, True]), COLUMNS
    )
    assert [name for name, *_ in rows.by_user()] == ["7", "8"]
    floats = read_parquet_table(write_parquet(tmp_path, who=[7.0, 8.5, 7.0]), COLUMNS)
    assert [name for name, *_ in floats.by_user()] == ["7", "8.5"]
    assert rows.labels.tolist() == [1.0, 0.0, 1.0]
    numbers = write_parquet(tmp_path, answer=[1, 0, 1])
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
        read_parquet_table(write_parquet(tmp_path, **changes), columns)


def test_what_is_no_parquet_file_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 or not")
    for one in (path, tmp_path / "absent.parquet", tmp_path):
        with pytest.raises(DataError, match=r"not a readable Parquet|no such file"):
            read_parquet_table(one, COLUMNS)


def test_a_file_of_the_settings_is_read_by_its_suffix(tmp_path):
    users = [f"u{k % 6}" for k in range(18)]
    path = write_parquet(tmp_path, who=users, height=[1.0] * 18, is_old=[1] * 18, answer=[0, 1] * 9)
    data = load_dataset(
        DatasetSpec(str(path), options={"user_column": "who", "label_column": "answer"})
    )
    assert (data.input_shape, data.num_classes, len(data.train)) == ((2,), 2, 3)


NAMES = ["who", "height", "weight", "answer"]


def built(*texts):
    names = tuple(dict.fromkeys(texts))
    return Texts(names, np.array([names.index(text) for text in texts]))


def test_all_columns_that_are_nothing_else_are_features():
    found = Columns("who", ("answer",)).found_in("t", NAMES)
    assert found.features == ("height", "weight")
    assert Columns("who", ("height", "answer")).found_in("t", NAMES).features == ("weight",)


@pytest.mark.parametrize(
    ("columns", "names", "complaint"),
    [
        (Columns("whom", ("answer",)), NAMES, "t: no column 'whom': there are who, height"),
        (Columns("who", ("answer",), ("size",)), NAMES, "no column 'size'"),
        (Columns("who", ("answer",), ("height", "answer")), NAMES, "'answer' is named twice"),
        (Columns("who", ("who",)), NAMES, "'who' is named twice"),
        (Columns("who", ("answer",)), [*NAMES, "who"], "several columns are called 'who'"),
        (Columns("who", ("answer",)), ["who", "answer"], "no column is left for the inputs"),
        (
            Columns("", ("",)),
            NAMES,
            r"the user's is not said: add --set data\.user_column=NAME; there are",
        ),
        (Columns("a", ("b",)), list(map(str, range(MAX_COLUMNS + 1))), "more than 65,536 columns"),
        (Columns("a", ("b",)), list(map(str, range(30))), "19 and 10 more"),
    ],
)
def test_columns_that_are_not_there_are_told_with_those_that_are(columns, names, complaint):
    with pytest.raises(DataError, match=complaint):
        columns.found_in("t", names)


def test_texts_are_kept_once():
    texts = built("b", "a", "b")
    assert (texts.names, texts.codes.tolist()) == (("b", "a"), [0, 1, 0])
    ordered = texts.in_order()
    assert (ordered.names, ordered.codes.tolist()) == (("a", "b"), [1, 0, 1])


def test_columns_of_whole_numbers_stay_whole(tmp_path):
    for second, kind in (([2, 4], "int64"), ([2.0, 4.0], "float32"), ([True, False], "float32")):
        table = pa.table({"who": ["x", "y"], "a": [1, 3], "b": second, "label": [0, 1]})
        pq.write_table(table, tmp_path / "a.parquet")
        rows = read_parquet_table(tmp_path / "a.parquet", Columns("who", ("label",), ("a", "b")))
        assert str(rows.x.dtype) == kind
        assert rows.x.tolist() == [[1, second[0]], [3, second[1]]]


def test_labels_are_numbers_if_all_of_them_are():
    assert as_labels(built("1", "0", "1.0")).tolist() == [1.0, 0.0, 1.0]
    assert as_labels(built("-1", "+.5", "2.", "1e3")).tolist() == [-1.0, 0.5, 2.0, 1000.0]
    for texts in (("1", "x"), ("1", "nan"), ("yes", "no"), ("01", "1"), ("1_0", "2"), ("1", "٣")):
        named = as_labels(built(*texts))
        assert isinstance(named, Texts)
        assert named.names == tuple(sorted(texts))
        assert np.array(named.names)[named.codes].tolist() == list(texts)


def test_a_word_for_nothing_is_refused_among_numbers_and_is_a_name_among_texts():
    check_filled("t", "land", built("NA", "DE", "FR"))
    check_filled("t", "land", built("1", "2"))
    with pytest.raises(DataError, match="t: column 'size' has 'NaN' in row 3 of the samples"):
        check_filled("t", "size", built("1", "2.5", "NaN", "1"))


def test_a_user_who_is_a_whole_number_has_one_name():
    assert [name_of(one) for one in (1, 1.0, np.float32(1), "1", 1.5)] == ["1"] * 4 + ["1.5"]
    assert name_of(1e300) == "1e+300"
    assert name_of(float("nan")) == "nan"


def test_row_numbers_that_pandas_has_written_are_no_input(tmp_path):
    frame = pd.DataFrame({"who": ["a", "b"], "answer": [0, 1], "height": [1.0, 2.0]})
    columns = Columns("who", ("answer",))
    frame.to_csv(tmp_path / "with.csv")
    with pytest.raises(DataError, match=r"a column has no name \(''\), as pandas writes"):
        read_csv_table(tmp_path / "with.csv", columns)
    with pytest.raises(DataError, match=r"a column has no name \('Unnamed: 0'\)"):
        read_frame("t", pd.read_csv(tmp_path / "with.csv"), columns)
    chosen = Columns("who", ("answer",), ("height",))
    assert read_csv_table(tmp_path / "with.csv", chosen).x.tolist() == [[1.0], [2.0]]


def test_labels_may_have_decimal_commas(tmp_path):
    (tmp_path / "t.csv").write_text("who;answer;height\na;0,5;1,5\nb;1,25;2,5\n")
    columns = Columns("who", ("answer",), separator=";", decimal=",")
    assert read_csv_table(tmp_path / "t.csv", columns).labels.tolist() == [0.5, 1.25]
    points = Columns("who", ("answer",), separator=";")
    (tmp_path / "t.csv").write_text("who;answer;height\na;0,5;1\nb;1,25;2\n")
    assert read_csv_table(tmp_path / "t.csv", points).classes == ("0,5", "1,25")


@pytest.mark.parametrize("gap", ["?", "-", "", "NA", "none"])
def test_gaps_as_people_write_them_are_gaps(tmp_path, gap):
    (tmp_path / "t.csv").write_text(f"who,answer,height\na,no,1\nb,yes,{gap}\nc,no,3\n")
    with pytest.raises(DataError, match="column 'height' has nothing in row 2"):
        read_csv_table(tmp_path / "t.csv", Columns("who", ("answer",)))
    rows = read_csv_table(tmp_path / "t.csv", Columns("who", ("answer",), missing="leave-out"))
    assert (rows.x.tolist(), rows.left_out) == ([[1.0], [3.0]], 1)


def test_rows_are_counted_without_those_that_are_left_out(tmp_path):
    (tmp_path / "t.csv").write_text("who,answer,height\na,no,\nb,yes,2\nc,no,1e300\n")
    with pytest.raises(DataError, match=r"without the rows with gaps: 1\): .* row 2"):
        read_csv_table(tmp_path / "t.csv", Columns("who", ("answer",), missing="leave-out"))


def test_separators_and_decimal_commas_may_be_said(tmp_path):
    frame = pd.DataFrame({"who": ["a", "b"], "answer": ["no", "yes"], "height": [1.25, 2.5]})
    for said, separator in ((";", ";"), ("|", "|"), ("tab", "\t")):
        frame.to_csv(tmp_path / "t.csv", index=False, sep=separator, decimal=",")
        columns = Columns("who", ("answer",), separator=said, decimal=",")
        assert read_csv_table(tmp_path / "t.csv", columns).x.tolist() == [[1.25], [2.5]]
    with pytest.raises(ValueError, match="separator='&': must be one of ',', ';'"):
        Columns("who", ("answer",), separator="&")


@pytest.mark.parametrize("before", ["", "\n\n", "\ufeff"])
def test_names_stand_in_the_first_row_that_is_not_empty(tmp_path, before):
    path = write_csv(tmp_path, before + '"a ""b""", c\r\n1,2\r\n')
    assert column_names(path, ",") == ['a "b"', "c"]


@pytest.mark.parametrize(("text", "complaint"), [("", "is empty"), ("a" * 200_000, "first row")])
def test_names_that_cannot_be_read_are_told(tmp_path, text, complaint):
    with pytest.raises(DataError, match=complaint):
        column_names(write_csv(tmp_path, text), ",")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_names_are_read_without_threads_that_would_outlive_the_program(tmp_path):
    path = write_csv(tmp_path)
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from deltafl.fl.data.tables import column_names\n"
        "before = len(os.listdir('/proc/self/task'))\ncolumn_names(Path(sys.argv[1]), ',')\n"
        "print(len(os.listdir('/proc/self/task')) - before)"
    )
    done = run_python("-c", script, str(path))
    assert done.stdout.strip() == "0", done.stderr


FAULTY = "user,label,a,b,c,d\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            FAULTY + 'u,x,1,high,,1\nu,x,2,low,3,true\nu,y,,3,4,"1,5"\n',
            "column 'b' has 'high' in row 1 of the samples (and in 1 more), which is no number: "
            "encode it as numbers (pandas.get_dummies), or name the columns of the inputs "
            "(features=[…]; as a setting, data.feature_columns) without it; besides, column 'd' "
            "has 'true' in row 2 of the samples (and in 1 more), which is no number: write 1 and 0 "
            "for true and false; besides, column 'a' has nothing in row 3 of the samples; column "
            "'c' has nothing in row 1 of the samples: fill it, or leave such rows out",
        ),
        (
            FAULTY + "u,x,1,2,,1\nu,x,,2,3,1\nu,x,,2,3,1\n",
            "column 'a' has nothing in row 2 of the samples (and in 1 more); column 'c' has "
            "nothing in row 1 of the samples: fill it",
        ),
        ("user,a,d\nu,1,2\n", "no column 'label'; no column 'b'; no column 'c': there are user, a"),
    ],
)
def test_all_faults_of_a_file_are_told_at_once(tmp_path, text, told):
    (tmp_path / "mine.csv").write_text(text)
    columns = Columns("user", ("label",), ("a", "b", "c", "d"))
    with pytest.raises(DataError) as refused:
        read_csv_table(tmp_path / "mine.csv", columns)
    assert str(refused.value).startswith(f"{tmp_path / 'mine.csv'}: {told}")


def test_gaps_that_are_left_out_are_no_faults(tmp_path):
    (tmp_path / "mine.csv").write_text("user,label,a,b\nu,x,1,\nu,x,high,2\n")
    with pytest.raises(DataError, match="'a' has 'high'") as refused:
        read_csv_table(tmp_path / "mine.csv", Columns("user", ("label",), missing="leave-out"))
    assert "nothing" not in str(refused.value)


def test_of_many_faults_ten_are_told_and_the_others_counted(tmp_path):
    names = [f"c{number}" for number in range(25)]
    (tmp_path / "mine.csv").write_text(f"user,label,{','.join(names)}\nu,x{',no' * 25}\n")
    with pytest.raises(DataError) as refused:
        read_csv_table(tmp_path / "mine.csv", Columns("user", ("label",)))
    assert str(refused.value).count("has 'no'") == 10
    assert str(refused.value).endswith("; and 15 more faults")
