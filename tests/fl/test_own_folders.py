"""A folder with a file, or a folder of files, for each device, and splits that are already made."""

import numpy as np
import pandas as pd
import pytest

from deltafl.fl.data.load import DatasetSpec, load_dataset
from deltafl.fl.data.registry import format_of
from deltafl.fl.errors import DataError

LABELLED = {"label_column": "y"}


def frame(seed, n=6, names=("no", "yes")):
    rng = np.random.default_rng(seed)
    columns = {"bp": rng.normal(size=n), "age": rng.normal(size=n)}
    return pd.DataFrame({**columns, "y": [names[i % len(names)] for i in range(n)]})


def load(folder, options=LABELLED, **spec):
    return load_dataset(DatasetSpec(str(folder), options=options, **spec))


def everybody(dataset):
    return {d.id: d for side in dataset.sides.values() for d in side}


def test_each_file_is_a_device_called_by_its_name(tmp_path):
    for number in range(4):
        frame(number).to_csv(tmp_path / f"site-{number}.csv", index=False)
    (tmp_path / ".DS_Store").write_bytes(b"?")
    assert format_of(str(tmp_path)).name == "folder"
    found = everybody(load(tmp_path))
    assert sorted(found) == [f"site-{number}" for number in range(4)]
    np.testing.assert_allclose(found["site-2"].x, frame(2)[["bp", "age"]].to_numpy(np.float32))
    assert found["site-2"].y.tolist() == [0, 1, 0, 1, 0, 1]


def test_files_of_a_folder_are_one_devices_at_any_depth(tmp_path):
    for user in "abc":
        for year in (2024, 2025):
            (tmp_path / user / str(year)).mkdir(parents=True)
            frame(year).to_parquet(tmp_path / user / str(year) / "visits.parquet")
    found = everybody(load(tmp_path))
    assert {name: device.num_samples for name, device in found.items()} == dict.fromkeys("abc", 12)


def test_a_class_has_one_number_on_all_devices(tmp_path):
    """A device that has one class only does not call it 0 because it has no other."""
    for number, names in enumerate([("yes",), ("no", "yes"), ("no",)]):
        frame(number, names=names).to_csv(tmp_path / f"{number}.csv", index=False)
    dataset = load(tmp_path)
    found = everybody(dataset)
    assert set(found["0"].y.tolist()) == {1}
    assert set(found["2"].y.tolist()) == {0}
    assert dataset.num_classes == 2


def test_one_person_may_be_in_several_files_if_a_column_says_who(tmp_path):
    for number in range(3):
        table = frame(number)
        table["who"] = ["ann", "bob", "cy"] * 2
        table.to_csv(tmp_path / f"{number}.csv", index=False)
    found = everybody(load(tmp_path, {"label_column": "y", "user_column": "who"}))
    assert {name: device.num_samples for name, device in found.items()} == {
        "ann": 6,
        "bob": 6,
        "cy": 6,
    }


def test_columns_in_another_order_are_the_same_inputs(tmp_path):
    frame(0).to_csv(tmp_path / "a.csv", index=False)
    frame(1)[["age", "y", "bp"]].to_csv(tmp_path / "b.csv", index=False)
    found = everybody(load(tmp_path))
    np.testing.assert_allclose(found["b"].x, frame(1)[["bp", "age"]].to_numpy(np.float32))


@pytest.mark.parametrize("is_same", [True, False])
def test_a_split_that_is_made_stays(tmp_path, is_same):
    rng = np.random.default_rng(0)
    for side, first in (("train", 0), ("validation", 3), ("test", 5)):
        (tmp_path / side).mkdir()
        for number in range(3):
            name = number if is_same else first + number
            arrays = {"x": rng.normal(size=(4, 3)), "y": rng.integers(0, 3, 4)}
            np.savez(tmp_path / side / f"{name}.npz", **arrays)
            if side == "test":
                last = arrays
    dataset = load(tmp_path, {})
    wanted = {"train": 0, "validation": 3, "test": 5}
    for side, devices in dataset.sides.items():
        first = 0 if is_same else wanted[side]
        assert [device.id for device in devices] == [str(first + k) for k in range(3)]
    np.testing.assert_allclose(dataset.test[-1].x, last["x"].astype(np.float32))
    assert dataset.rule == "as the data are divided"


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("b.csv", frame(1).assign(more=1.0), r"b.csv: its columns are not those .*\(more\)"),
        ("b.csv", frame(1).drop(columns="age"), r"b.csv: its columns are not those .*\(age\)"),
        ("b.txt", frame(1), "a folder of devices has .csv, .parquet, .npz files"),
    ],
)
def test_files_that_do_not_go_together_are_refused(tmp_path, name, table, said):
    frame(0).to_csv(tmp_path / "a.csv", index=False)
    table.to_csv(tmp_path / name, index=False)
    with pytest.raises(DataError, match=said):
        load(tmp_path)


def test_half_a_split_is_none(tmp_path):
    (tmp_path / "train").mkdir()
    frame(0).to_csv(tmp_path / "train" / "a.csv", index=False)
    with pytest.raises(DataError, match="train alone is no split: give train/ and test/"):
        load(tmp_path)


def test_a_side_of_a_split_has_somebody(tmp_path):
    for side in ("train", "test"):
        (tmp_path / side).mkdir()
    frame(0).to_csv(tmp_path / "train" / "a.csv", index=False)
    with pytest.raises(DataError, match="nobody is in test"):
        load(tmp_path)


def test_inputs_of_one_person_are_of_one_kind(tmp_path):
    (tmp_path / "ann").mkdir()
    np.savez(tmp_path / "ann" / "1.npz", x=np.zeros((2, 3), np.uint8), y=[0, 1])
    np.savez(tmp_path / "ann" / "2.npz", x=np.zeros((2, 3)), y=[0, 1])
    with pytest.raises(DataError, match="inputs of 'ann' have several shapes or types"):
        load(tmp_path, {})


def test_whole_numbers_and_others_of_one_person_go_together(tmp_path):
    for user in "ab":
        (tmp_path / user).mkdir()
        for number, kind in enumerate((np.int64, np.float64)):
            np.savez(tmp_path / user / f"{number}.npz", x=np.ones((2, 3), kind), y=[0, 1])
    assert everybody(load(tmp_path, {}))["a"].x.dtype == np.float32


def test_one_device_is_no_two_entries_of_a_name(tmp_path):
    for name in ("ann.csv", "ben.csv"):
        frame(0).to_csv(tmp_path / name, index=False)
    assert sorted(everybody(load(tmp_path))) == ["ann", "ben"]  # control
    frame(0).to_parquet(tmp_path / "ann.parquet")
    with pytest.raises(DataError, match=r"ann\.csv is called alike"):
        load(tmp_path)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        load(tmp_path / "none", format="folder")


def test_the_names_of_classes_come_with_the_data(tmp_path):
    for number in range(3):
        frame(number).to_csv(tmp_path / f"{number}.csv", index=False)
    assert load(tmp_path).classes == ("no", "yes")
    whole = pd.concat([frame(number).assign(who=number) for number in range(3)])
    whole.to_csv(tmp_path.with_suffix(".csv"), index=False)
    options = {"user_column": "who", "label_column": "y"}
    assert load(tmp_path.with_suffix(".csv"), options).classes == ("no", "yes")


@pytest.mark.parametrize(
    ("file", "wanted"), [("a.json", "leaf"), ("u/k/1.png", "images"), ("u/1.npz", "folder")]
)
def test_the_kind_of_a_folder_follows_from_its_files(tmp_path, file, wanted):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(b"")
    assert format_of(str(tmp_path)).name == wanted


def test_rows_with_gaps_are_left_out_and_counted(tmp_path):
    for number in range(3):
        table = frame(number)
        table.loc[number, "bp"] = np.nan
        table.loc[4, "y"] = None
        table.to_csv(tmp_path / f"{number}.csv", index=False)
    with pytest.raises(DataError, match=r"leave such rows out \(--set data\.missing=leave-out"):
        load(tmp_path)
    dataset = load(tmp_path, {"label_column": "y", "missing": "leave-out"})
    assert {device.num_samples for device in everybody(dataset).values()} == {4}
    assert dataset.rule.endswith("; 6 rows with gaps left out")
