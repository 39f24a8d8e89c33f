import gzip
import json
from fractions import Fraction

import numpy as np
import pytest
from beside import shared

from deltafl.fl.data.adult import NUM_FEATURES as ADULT_FEATURES
from deltafl.fl.data.adult import load_adult
from deltafl.fl.data.berka import load_berka
from deltafl.fl.data.federated import Split, SplitBy
from deltafl.fl.data.heart import NUM_FEATURES as HEART_FEATURES
from deltafl.fl.data.heart import load_heart
from deltafl.fl.data.mqp import load_mqp
from deltafl.fl.errors import DataError

BY_SAMPLES = Split(train_fraction=Fraction(4, 5), by=SplitBy.SAMPLES)


def both_sides(data):
    return {
        train.id: (np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y]))
        for train, test in zip(data.train, data.test, strict=True)
    }


# --- heart ----------------------------------------------------------------------------------------

HEART_ROW = "63,1,1,145,233,1,2,150,0,2.3,3,0,6,0"


def write_heart(folder, rows=(HEART_ROW,) * 5, **others):
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        lines = others.get(hospital, rows)
        (folder / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    return folder


def test_heart_has_the_counts_of_fed_heart_disease():
    hospitals = both_sides(load_heart(shared("heart"), BY_SAMPLES))
    assert {name: len(y) for name, (_, y) in hospitals.items()} == {
        "cleveland": 303,
        "hungarian": 261,
        "switzerland": 46,
        "va": 130,
    }
    assert [int(y.sum()) for _, y in hospitals.values()] == [139, 98, 45, 101]
    for x, _ in hospitals.values():
        assert x.shape[1] == HEART_FEATURES
        assert set(np.unique(x[:, 8:])) <= {0, 1}  # cp and restecg
        assert (x[:, 8:11].sum(axis=1) <= 1).all()


def test_heart_encodes_what_it_says(tmp_path):
    rows = [HEART_ROW, HEART_ROW.replace("63,1,1", "40,0,3").replace(",2,150", ",0,150")[:-1] + "2"]
    data = load_heart(write_heart(tmp_path, rows * 3), BY_SAMPLES)
    x, y = both_sides(data)["va"]
    first = [63, 1, 145, 233, 1, 150, 0, 2.3, 0, 0, 0, 0, 1]
    second = [40, 0, 145, 233, 1, 150, 0, 2.3, 0, 1, 0, 0, 0]
    for features, label in zip(x, y, strict=True):
        np.testing.assert_allclose(features, np.float32(second if label else first))
    assert y.sum() == 3


def test_heart_leaves_out_rows_that_lack_a_used_column_and_no_others(tmp_path):
    rows = [
        HEART_ROW,
        HEART_ROW.replace("145", "?"),
        HEART_ROW.replace(",3,0,6,", ",?,?,?,"),
    ]
    data = load_heart(write_heart(tmp_path, rows), BY_SAMPLES)
    assert [len(y) for _, y in both_sides(data).values()] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("63,1,1,145", r"va\.data: not a readable table .*Row #2: Expected 14 columns, got 4"),
        (
            HEART_ROW.replace("145", "high"),
            r"va\.data: .*Row #2: .*invalid value 'high'",
        ),
        (
            HEART_ROW.replace("145", "nan"),
            "'trestbps' has nan in row 2 of the samples",
        ),
        (HEART_ROW.replace("145", "1e999"), "column 'trestbps' has inf in row 2"),
        (
            HEART_ROW.replace("63,1,1", "63,1,7"),
            "row 2 has cp = 7.*not one of 1, 2, 3, 4",
        ),
        ('63,"1', r"va\.data: not a readable table .*Row #2"),
        ("\udcff" * 3, r"va\.data: not a readable table .*Row #2"),
    ],
)
def test_heart_that_is_damaged_is_refused_by_file_and_line(tmp_path, row, message):
    write_heart(tmp_path)
    text = f"{HEART_ROW}\n{row}\n"
    (tmp_path / "processed.va.data").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=message):
        load_heart(tmp_path, BY_SAMPLES)


def test_heart_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"none: no such folder"):
        load_heart(tmp_path / "none", BY_SAMPLES)
    with pytest.raises(DataError, match=r"cleveland\.data: no such file"):
        load_heart(tmp_path, BY_SAMPLES)
    write_heart(tmp_path, va=[HEART_ROW.replace("145", "?")])
    with pytest.raises(DataError, match=r"va\.data: no complete row"):
        load_heart(tmp_path, BY_SAMPLES)
    write_heart(tmp_path, va=[HEART_ROW] * 40_000)
    with pytest.raises(DataError, match=r"va\.data: .* bytes are more than"):
        load_heart(tmp_path, BY_SAMPLES)


# --- adult ----------------------------------------------------------------------------------------

ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K"
)
PHD_ROW = ADULT_ROW.replace("Bachelors, 13", "Doctorate, 16").replace("<=50K", ">50K")
NO_WORKCLASS = ADULT_ROW.replace("State-gov", "?")


def write_adult(folder, rows=(ADULT_ROW, PHD_ROW, NO_WORKCLASS)):
    (folder / "adult.data").write_text("\n".join(rows) + "\n\n")
    test = ["|1x3 Cross validator", *(f"{row}." for row in rows[:2])]
    (folder / "adult.test").write_text("\n".join(test) + "\n")
    return folder


def test_adult_has_the_counts_of_its_files():
    data = load_adult(shared("adult"), BY_SAMPLES)
    assert [(d.id, d.num_samples) for d in data.train] == [("non-phd", 32_148), ("phd", 413)]
    assert [(d.id, d.num_samples) for d in data.test] == [("non-phd", 16_100), ("phd", 181)]
    assert data.train[1].y.mean() > 0.7 > 0.3 > data.train[0].y.mean()
    assert data.input_shape == (ADULT_FEATURES,) == (105,)


def test_adult_is_read_as_uci_gives_it(tmp_path):
    data = load_adult(write_adult(tmp_path), BY_SAMPLES)
    assert [(d.id, d.y.tolist()) for d in data.train] == [("non-phd", [0, 0]), ("phd", [1])]
    assert [(d.id, d.y.tolist()) for d in data.test] == [("non-phd", [0]), ("phd", [1])]
    complete, missing = data.train[0].x
    assert complete[[0, 9]].tolist() == [39, 77516]  # age, 8 categories, fnlwgt
    assert complete.sum() - missing.sum() == 1  # '?' is a block of zeros
    assert complete[1:9].sum() == 1


def test_adult_is_the_same_in_both_kinds_of_files(tmp_path):
    uci = load_adult(write_adult(tmp_path), BY_SAMPLES)

    def columns(row):
        return [int(v) if v.isdecimal() else v for v in row.split(", ")[:-1]]

    users = {
        "non-phd": [ADULT_ROW, NO_WORKCLASS],
        "phd": [PHD_ROW],
        "non-phd_test": [ADULT_ROW],
        "phd_test": [PHD_ROW],
    }
    user_data = {
        user: {"x": list(map(columns, rows)), "y": [int(row.endswith(">50K")) for row in rows]}
        for user, rows in users.items()
    }
    packed = tmp_path / "packed"
    packed.mkdir()
    content = json.dumps({"user_data": user_data}).encode()
    (packed / "a.json.gz").write_bytes(gzip.compress(content))
    leaf = load_adult(packed, BY_SAMPLES)
    for one, other in ((uci.train, leaf.train), (uci.test, leaf.test)):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a.x, b.x)
            np.testing.assert_array_equal(a.y, b.y)
    (packed / "a.json.gz").write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(DataError, match=r"a\.json\.gz: not a readable JSON file"):
        load_adult(packed, BY_SAMPLES)
    (packed / "a.json.gz").write_bytes(gzip.compress(b"[" * 100_000))
    with pytest.raises(DataError, match=r"a\.json\.gz: not a readable JSON file"):
        load_adult(packed, BY_SAMPLES)
    nested = user_data | {"phd": user_data["phd"] | {"y": [[1]]}}
    (packed / "a.json.gz").write_bytes(gzip.compress(json.dumps({"user_data": nested}).encode()))
    with pytest.raises(DataError, match=r"1 inputs and labels of shape \(1, 1\)"):
        load_adult(packed, BY_SAMPLES)
    del user_data["phd"]
    (packed / "a.json.gz").write_bytes(gzip.compress(json.dumps({"user_data": user_data}).encode()))
    with pytest.raises(DataError, match="not the Adult data"):
        load_adult(packed, BY_SAMPLES)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ADULT_ROW.replace("Bachelors", "Bachelor"), "row 4 has education = 'Bachelor'"),
        (ADULT_ROW.replace("<=50K", "50K"), "row 4 has income = '50K', .* <=50K, >50K"),
        (ADULT_ROW.replace("39,", "old,"), ".*Row #4: .*invalid value 'old'"),
        ("39, State-gov", ".*Row #4: Expected 15 columns, got 2"),
    ],
)
def test_adult_that_is_damaged_is_refused_by_file_and_line(tmp_path, row, message):
    write_adult(tmp_path, (ADULT_ROW, PHD_ROW, NO_WORKCLASS, row))
    with pytest.raises(DataError, match=rf"adult\.data: {message}"):
        load_adult(tmp_path, BY_SAMPLES)


def test_adult_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"adult\.data: no such file"):
        load_adult(tmp_path, BY_SAMPLES)
    with pytest.raises(DataError, match="split by samples"):
        load_adult(write_adult(tmp_path), Split())
    with pytest.raises(DataError, match=r"a device has 1 samples: lower"):
        load_adult(tmp_path, Split(more_than=1, by=SplitBy.SAMPLES))
    with pytest.raises(DataError, match=r"no rows of 'phd'"):
        load_adult(write_adult(tmp_path, (ADULT_ROW, ADULT_ROW)), BY_SAMPLES)


# --- berka ----------------------------------------------------------------------------------------

REGIONS = ("Prague", "south Bohemia", "north Bohemia")


def berka_tables():
    """Three districts of three regions, two accounts with a loan in each, one without."""
    district = [
        f'{k};"D{k}";"{region}";{1000 * k};0;0;0;1;5;50.0;{8000 + k};'
        f"{'?' if k == 1 else 2.0};4.0;{100 + k};{'?' if k == 1 else 10};30"
        for k, region in enumerate(REGIONS, start=1)
    ]
    names = ("POPLATEK MESICNE", "POPLATEK TYDNE", "POPLATEK PO OBRATU")
    account = [f'{a};{(a + 1) // 2};"{names[a % 3]}";930101' for a in range(1, 7)]
    account.append('7;1;"POPLATEK MESICNE";930101')
    loan = [f'{a};{a};930111;{1000 * a};12;{a}.5;"{"ABCD"[a % 4]}"' for a in range(1, 7)]
    order = ['1;1;"AB";5;100.0;"SIPO"', '2;1;"AB";5;300.0;""']
    trans = [
        f'{10 * a + k};{a};930105;"PRIJEM";"VKLAD";{100 * k};{1000 * k};;;'
        for a in range(1, 8)
        for k in (1, 2)
    ]
    return {
        "district": [";".join(f"A{n}" for n in range(1, 17)), *district],
        "account": ["account_id;district_id;frequency;date", *account],
        "loan": ["loan_id;account_id;date;amount;duration;payments;status", *loan],
        "order": ["order_id;account_id;bank_to;account_to;amount;k_symbol", *order],
        "trans": [
            "trans_id;account_id;date;type;operation;amount;balance;k_symbol;bank;account",
            *trans,
        ],
    }


def write_berka(folder, ending=".asc", **changes):
    for table, lines in (berka_tables() | changes).items():
        (folder / f"{table}{ending}").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return folder


def test_berka_joins_its_tables_by_region(tmp_path):
    (tmp_path / "csv").mkdir()
    data = load_berka(write_berka(tmp_path), BY_SAMPLES)
    assert [device.id for device in data.train] == ["Prague", "south Bohemia"]
    assert data.input_shape == (15,)
    x, y = both_sides(data)["Prague"]
    rows = {int(features[0]): (features, label) for features, label in zip(x, y, strict=True)}
    features, label = rows[1000]  # account 1, status B; unemployment of 1995 is missing
    expected = [1000, 12, 1.5, 10, 1000, 8001, 101, 4, 30, 200, 2, 150, 1500, 1, 0]
    np.testing.assert_allclose(features, expected)
    assert label == 1
    features, label = rows[2000]  # no standing order, status C
    assert features[[9, 13, 14]].tolist() == [0, 0, 1]
    assert label == 0
    again = load_berka(write_berka(tmp_path / "csv", ".csv"), BY_SAMPLES)
    np.testing.assert_array_equal(again.train[1].x, data.train[1].x)


def without(table, old, new):
    return {table: [line.replace(old, new) for line in berka_tables()[table]]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (without("loan", '"B"', '"E"'), r"loan\.asc: row 1 has status = 'E', .* A, B, C or D"),
        (without("loan", "930111", "931301"), r"loan\.asc: row 1 has date = '931301'"),
        (without("loan", "930111", "9311"), "row 1 has date = '9311'"),
        (without("loan", "1;1;", "1;99;"), "row 1 has account_id = '99', .* in the table"),
        (without("account", "TYDNE", "?"), r"account\.asc: row 1 has frequency"),
        (without("account", "1;1;", "1;9;"), r"account\.asc: row 1 has district_id = '9'"),
        (without("trans", "100;1000", "x;1000"), r"trans\.asc: .*Row #2: .*invalid value 'x'"),
        (without("district", "?;4.0", "?;?"), r"district\.asc: column 'A12, A13' has nan in row 1"),
        (without("order", "account_id", "id"), r"order\.asc: .*'account_id'"),
        (
            {"trans": [*berka_tables()["trans"][:1], "1;2"]},
            r"trans\.asc: .*10 columns, got 2",
        ),
    ],
)
def test_berka_that_is_damaged_is_refused_by_file_and_line(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        load_berka(write_berka(tmp_path, **changes), BY_SAMPLES)


def test_berka_without_a_table_is_refused(tmp_path):
    (write_berka(tmp_path) / "order.asc").unlink()
    with pytest.raises(DataError, match=r"neither order\.asc nor order\.csv"):
        load_berka(tmp_path, BY_SAMPLES)


# --- mqp ------------------------------------------------------------------------------------------


def write_mqp(folder, lines):
    np.savez(
        folder / "vectors.npz",
        words=np.array(["pain", "fever", "my"]),
        vectors=np.array([[1, 0], [0, 1], [1, 1]], np.float32),
    )
    (folder / "mqp.csv").write_text("\n".join(lines) + "\n")
    return folder


PAIRS = ['1,"My pain, doctor",Fever,1', "1,fever,fever,0", "2,pain,xyz,0", "2,fever,my,1"]


def test_pairs_become_both_means_their_difference_and_their_product(tmp_path):
    write_mqp(tmp_path, PAIRS)
    data = load_mqp(tmp_path, BY_SAMPLES, vectors=tmp_path / "vectors.npz")
    doctors = both_sides(data)
    assert list(doctors) == ["doctor-01", "doctor-02"]
    assert "mean word vectors" in data.name
    x, y = doctors["doctor-01"]
    first = x[y == 1][0]
    np.testing.assert_allclose(first, [1, 0.5, 0, 1, 1, 0.5, 0, 0.5])
    x, y = doctors["doctor-02"]
    np.testing.assert_allclose(x[y == 0][0], [1, 0, 0, 0, 1, 0, 0, 0])  # no known word is zero


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x,a,b,1", "row 5 has doctor = 'x', which is not a number"),
        ("1,a,b,2", "row 5 has label = '2', which is not 0 or 1"),
        ("9" * 5000 + ",a,b,1", "row 5 has doctor = '9999"),
        ("1,a,1", "Row #5: Expected 4 columns, got 3"),
        ('1,"a,b,1', "Row #5: Expected 4 columns, got 2"),
    ],
)
def test_pairs_that_are_damaged_are_refused_by_file_and_line(tmp_path, line, message):
    write_mqp(tmp_path, [*PAIRS, line])
    with pytest.raises(DataError, match=message):
        load_mqp(tmp_path / "mqp.csv", BY_SAMPLES, vectors=tmp_path / "vectors.npz")
