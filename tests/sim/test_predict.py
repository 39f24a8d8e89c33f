"""`deltafl predict` on tables, as the run read its own: columns by their names, labels if known."""

import csv
import io

import numpy as np
import pytest

from deltafl.fl.bundle import Bundle
from deltafl.sim.cli import main

DRAWN = np.random.default_rng(5)
INPUTS = DRAWN.normal(size=(60, 2)).round(3).astype(np.float32)
LABELS = (INPUTS[:, 0] > INPUTS[:, 1]).astype(int)


def table(path, columns, separator=";"):
    rows = [separator.join(columns)]
    rows += [separator.join(map(str, row)).replace(".", ",") for row in zip(*columns.values())]  # noqa: B905
    path.write_text("\n".join(rows) + "\n")
    return path


def whole():
    site = [f"site {row % 3}" for row in range(60)]
    return {"site": site, "low": INPUTS[:, 0], "high": INPUTS[:, 1], "sick": LABELS}


def train(folder, file, **changes):
    data = {"source": str(file), "user_column": "site", **changes}
    data |= {"label_column": "sick", "separator": ";", "decimal": ",", "split": "samples"}
    given = {f"data.{name}": value for name, value in data.items() if name != "source"}
    given |= {"federation.algorithm": "fedavg", "federation.cohort_size": 2}
    given |= {"experiment.baselines": "[]", "experiment.num_seeds": 1, "training.device": "cpu"}
    words = [f"--set={name}={value}" for name, value in given.items()]
    words += ["--rounds", "2", "--quiet", "--no-plots", "--out", str(folder / "run")]
    assert main(["run", "--data", data["source"], *words]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return train(folder, table(folder / "visits.csv", whole()))


def predicted(capsys, run, path, code=0):
    capsys.readouterr()
    assert main(["predict", str(run), "--data", str(path)]) == code
    out, err = capsys.readouterr()
    return list(csv.DictReader(io.StringIO(out))), err


def expected(run):
    (level,) = Bundle.load(run / "bundle.npz").levels
    return Bundle.load(run / "bundle.npz").predict(INPUTS, level).argmax(axis=1).tolist()


@pytest.mark.parametrize("without", [(), ("site",), ("sick",), ("site", "sick")])
def test_columns_are_found_by_their_names_in_any_order(run, tmp_path, capsys, without):
    columns = dict(reversed(whole().items()))
    kept = {name: values for name, values in columns.items() if name not in without}
    rows, err = predicted(capsys, run, table(tmp_path / "new.csv", kept))
    assert [int(row["class"]) for row in rows] == expected(run)
    assert ("label" in rows[0]) == ("sick" not in without)
    assert {row["user"] for row in rows} == (
        {"new.csv"} if "site" in without else {"site 0", "site 1", "site 2"}
    )
    assert ("error" in err) == ("sick" not in without)


def test_a_column_that_is_missing_is_named(run, tmp_path, capsys):
    columns = whole()
    del columns["high"]
    _, err = predicted(capsys, run, table(tmp_path / "new.csv", columns), code=2)
    assert "no column 'high'" in err


def test_a_table_that_cannot_be_read_is_to_be_written_as_the_runs_own(run, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("site;low;high;sick\na;0.5;1;0\n")
    _, err = predicted(capsys, run, tmp_path / "new.csv", code=2)
    assert "is no number" in err
    assert "nothing can be set: write it as that was written" in err


@pytest.mark.parametrize("names", [("no", "yes"), ("1", "2")])
def test_labels_count_as_the_run_has_numbered_them(tmp_path, capsys, names):
    """The run has a third class, which the new file lacks; so 1 is a text there too."""
    labels = [names[one] for one in LABELS]
    more = whole() | {"sick": ["maybe", *labels[1:]]}
    run = train(tmp_path, table(tmp_path / "visits.csv", more))
    rows, err = predicted(capsys, run, table(tmp_path / "new.csv", whole() | {"sick": labels}))
    known = sorted(["maybe", *names])
    wrong = np.array([row["label"] != row["class"] for row in rows])
    assert {row["label"] for row in rows} == {str(known.index(name)) for name in names}
    sites = np.array([row["user"] for row in rows])
    each = [wrong[sites == site].mean() for site in sorted(set(sites))]
    assert f"error {np.mean(each):.1%} over 3 users" in err


def test_inputs_are_in_the_order_of_the_file_that_was_read_first(tmp_path, capsys):
    """That is one of train/, also where test/ has another order."""
    for side in ("train", "test"):
        for number in range(3):
            rows = {name: column[number::3] for name, column in whole().items() if name != "site"}
            ordered = rows if side == "train" else dict(reversed(rows.items()))
            (tmp_path / "made" / side).mkdir(parents=True, exist_ok=True)
            table(tmp_path / "made" / side / f"{side}-{number}.csv", ordered)
    run = train(tmp_path, tmp_path / "made", user_column="")
    rows, _ = predicted(capsys, run, table(tmp_path / "new.csv", whole()))
    assert [int(row["class"]) for row in rows] == expected(run)


def test_a_label_that_the_run_lacks_is_refused(run, tmp_path, capsys):
    _, err = predicted(capsys, run, table(tmp_path / "b.csv", whole() | {"sick": [7] * 60}), 2)
    assert "a label is '7'" in err
    _, err = predicted(capsys, run, table(tmp_path / "a.csv", whole() | {"sick": ["x"] * 60}), 2)
    assert "a label is 'x'" in err


def test_nothing_is_no_sample(run, tmp_path, capsys):
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 2), np.float32))
    assert "no samples" in predicted(capsys, run, tmp_path / "none.npz", 2)[1]


def test_what_columns_are_is_said_by_the_run(run, tmp_path, capsys):
    file = table(tmp_path / "new.csv", whole())
    _, err = predicted(capsys, run / "bundle.npz", file, code=2)
    assert "name the run's directory" in err
    (run.parent / "visits.csv").rename(run.parent / "visits.bak")
    try:
        _, err = predicted(capsys, run, file, code=2)
    finally:
        (run.parent / "visits.bak").rename(run.parent / "visits.csv")
    assert "the order of the inputs is not known" in err
