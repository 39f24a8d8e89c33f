"""`deltafl analyse`: its output, JSON, selections, and what it refuses of hostile tables."""

import json

import numpy as np
import pandas as pd
import pytest

from deltafl.sim.cli import main

ROWS = pd.DataFrame(
    {
        "who": [f"h{i % 12}" for i in range(60)],
        "age": [i % 53 for i in range(60)],
        "kind": ["a" if i % 2 else "b" for i in range(60)],
    }
)
RANGE = ("--range", "0", "40")
FLAGS = ("--user", "who", "--column", "age", *RANGE)


@pytest.fixture(params=["csv", "parquet"])
def table(request, tmp_path):
    path = tmp_path / f"table.{request.param}"
    if request.param == "csv":
        ROWS.to_csv(path, index=False)
    else:
        ROWS.to_parquet(path)
    return path


def run(capsys, *arguments):
    try:
        code = main(["analyse", *map(str, arguments)])
    except SystemExit as exit_:
        code = exit_.code
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.slow
def test_csv_and_parquet_give_what_numpy_gives(table, capsys):
    code, out, err = run(capsys, "mean", "--data", table, *FLAGS, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["value"] == np.clip(ROWS.age, 0, 40).mean()
    only = ROWS[ROWS.kind == "a"]
    flags = (*FLAGS, "--where", "kind=a", "--min-cohort", "5", "--json")
    code, out, _ = run(capsys, "mean", "--data", table, *flags)
    found = json.loads(out)
    assert code == 0
    assert found["value"] == float(np.clip(only.age, 0, 40).mean())
    assert found["holders"] == only.who.nunique() == 6
    assert found["invited"] == 12


@pytest.mark.slow
def test_tables_say_what_was_revealed_and_fit_the_terminal(table, capsys):
    for statistic in ("count", "mean", "variance", "histogram", "quantile"):
        code, out, _ = run(capsys, statistic, "--data", table, *FLAGS)
        assert code == 0
        assert "secure sums over 12 devices" in out
        assert "not differential privacy" in out
        assert max(map(len, out.splitlines())) <= 80
    code, out, _ = run(
        capsys, "count", "--data", table, *FLAGS, "--noise", "0.5", "--min-cohort", "5"
    )
    assert "ε = " in out
    assert "not differential privacy" not in out


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--where", "kind=c"), "'c'"),
        (("--where", "kind"), "NAME=VALUE"),
        (("--where", "sort=a"), "'sort'"),
        (("--where", "kind=a"), "6 devices have a row"),
        (("--min-cohort", "13"), "12 devices are fewer"),
        (("--level", "two"), "--level two"),
        (("--noise", "-1"), "noise -1"),
        (("--cap", "0"), "0"),
        (("--of", "rows"), "'rows'"),
        (("--colluding", "1.5"), "1.5"),
        (("--column", "kind"), "must have finite numbers"),
        (("--column", "size"), "'size'"),
        (("--user", "whom"), "'whom'"),
        (("--range", "5", "1"), "range 5 1"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_one_sentence(flags, named, tmp_path, capsys):
    path = tmp_path / "table.csv"
    ROWS.to_csv(path, index=False)
    code, out, err = run(capsys, "mean", "--data", path, *FLAGS, *flags)
    assert (code, out) == (2, "")
    assert named in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "Empty CSV file"),
        ("who,age\n", "no rows"),
        ("who,age\na,1\nb\n", "Row #3"),
        ("who,age\na,nan\nb,2\n", "has 'nan' in row 1"),
        ("who,age\na,1e999\nb,2\n", "finite"),
        ("who,age\na,\nb,2\n", "has '' in row 1"),
        ("who,who,age\na,a,1\n", "several columns"),
        ("who,age\n\x00,\x00\n", ""),
    ],
)
def test_hostile_tables_are_refused(text, named, tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text(text)
    code, out, err = run(capsys, "mean", "--data", path, *FLAGS)
    assert (code, out) == (2, "")
    assert named in err
    assert "Traceback" not in err


def test_files_of_other_kinds_are_refused(tmp_path, capsys):
    for name in ("table.npz", "missing.csv"):
        code, _, err = run(capsys, "mean", "--data", tmp_path / name, *FLAGS)
        assert code == 2
        assert name in err
    broken = tmp_path / "table.parquet"
    broken.write_bytes(b"PAR1" + bytes(64) + b"PAR1")
    assert run(capsys, "mean", "--data", broken, *FLAGS)[0] == 2


@pytest.mark.parametrize("low", ["-1e3", "-.5e-3", "-5"])
def test_ends_of_ranges_may_be_written_in_any_way(low, table, capsys):
    code, out, err = run(capsys, "count", "--data", table, *FLAGS[:4], "--range", low, "1e3")
    assert (code, err) == (0, "")
    assert f"[{float(low):g}, 1000]" in out


@pytest.mark.parametrize(
    "flags", [("--where", "age=3"), ("--user", "age"), ("--column", "who", "--where", "who=h1")]
)
def test_the_column_of_the_values_does_nothing_else(flags, table, capsys):
    code, _, err = run(capsys, "mean", "--data", table, *FLAGS, *flags)
    assert code == 2
    assert "can neither name the devices nor choose rows" in err


@pytest.mark.parametrize(
    ("column", "spellings"),
    [("half", ["1", "1.0", "1e0"]), ("whole", ["1", "1.0"]), ("is", ["1", "True", "true"])],
)
def test_rows_are_chosen_by_the_number_that_a_text_is(column, spellings, table, capsys):
    frame = ROWS.assign(half=ROWS.age % 3 / 1, whole=ROWS.age % 3, **{"is": ROWS.age % 3 == 1})
    (frame.to_csv if table.suffix == ".csv" else frame.to_parquet)(table, index=False)
    for text in spellings:
        flags = (*FLAGS, "--where", f"{column}={text}", "--min-cohort", "2", "--json")
        code, out, err = run(capsys, "count", "--data", table, *flags)
        assert (code, err) == (0, "")
        assert json.loads(out)["value"] == ((frame.age % 3 == 1) & (frame.age <= 40)).sum()


def test_values_have_as_many_digits_as_they_are_known_to(table, capsys):
    frame = ROWS.assign(age=ROWS.age + 1_000_000)
    (frame.to_csv if table.suffix == ".csv" else frame.to_parquet)(table, index=False)
    wide = ("--range", "1000000", "1000060")
    _, out, _ = run(capsys, "mean", "--data", table, *FLAGS, *wide)
    assert f"{frame.age.mean():,.10g}," in out
