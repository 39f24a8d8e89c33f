"""Arrays out of NumPy archives of a person's own."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from deltafl.fl.data import npz
from deltafl.fl.data.federated import Split, with_numbers
from deltafl.fl.data.npz import load_npz, read_arrays
from deltafl.fl.errors import DataError
from deltafl.sim.cli import main
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.settings.config import DataConfig


def write(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def stored(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def test_others_than_the_named_arrays_are_left_alone(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=np.eye(3), b=np.zeros(100_000), c=[{}])
    read = read_arrays(tmp_path / "a.npz", ["b"], ["a", "none"])
    assert {name: array.shape for name, array in read.items()} == {"b": (100_000,), "a": (3, 3)}


def test_an_archive_that_unpacks_to_more_than_the_bound_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(10_000))
    monkeypatch.setattr(npz, "MAX_ARRAY_BYTES", 80_128)  # with the head
    assert len(read_arrays(path, ["x"])["x"]) == 10_000
    monkeypatch.setattr(npz, "MAX_ARRAY_BYTES", 80_127)
    with pytest.raises(DataError, match="it unpacks to 80,128 bytes, more than 80,127"):
        read_arrays(path, ["x"])


def test_what_needs_pickle_and_what_is_no_archive_is_refused(tmp_path):
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="without object arrays"):
        read_arrays(tmp_path / "objects.npz", ["x"])
    (tmp_path / "bare.npz").write_bytes(stored(np.zeros(3)))
    with pytest.raises(DataError, match="one bare array"):
        read_arrays(tmp_path / "bare.npz", ["x"])
    (tmp_path / "none.npz").write_bytes(b"hello")
    with pytest.raises(DataError, match="not a readable"):
        read_arrays(tmp_path / "none.npz", ["x"])
    for content in (b"hello", stored(np.array([0x110000], "u4").view("U1"))):
        with pytest.raises(DataError, match=r"odd\.npz: not a readable .*array 'x'"):
            read_arrays(write(tmp_path / "odd.npz", x=content), ["x"])


def test_an_array_that_is_not_there_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(DataError, match=r"no array 'y' \(found: x\): store x, y"):
        read_arrays(tmp_path / "a.npz", ["x", "y"])
    with pytest.raises(DataError, match=r"no array 'x' \(found: none\)"):
        read_arrays(write(tmp_path / "empty.npz"), ["x"])


def test_one_user_for_all_samples_is_no_user_of_each(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.zeros(3), user=np.int64(3))
    with pytest.raises(DataError, match=r"'x' has shape \(3, 2\) and 'user' \(\)"):
        load_npz(tmp_path / "a.npz", Split())


def tokens(path, dtype, **more):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 12, (240, 5)).astype(dtype)
    y, user = rng.integers(0, 12, 240), np.arange(240) // 8
    np.savez(path, x=x, y=y, user=user, **more)
    return path


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("int64", "int64"),
        ("int8", "int64"),
        ("uint16", "int64"),
        ("uint8", "uint8"),
        ("uint64", "float32"),
        ("bool", "float32"),
        ("float64", "float32"),
    ],
)
def test_whole_numbers_stay_until_a_model_takes_them(tmp_path, given, kept):
    dataset = load_npz(tokens(tmp_path / "a.npz", given), Split())
    assert {str(one.x.dtype) for one in (*dataset.train, *dataset.test)} == {kept}
    numbers = with_numbers(dataset)
    assert str(numbers.train[0].x.dtype) == ("uint8" if kept == "uint8" else "float32")
    assert np.array_equal(numbers.test[1].x, dataset.test[1].x)
    assert numbers.test[1].id == dataset.test[1].id


def test_data_of_the_settings_are_numbers_unless_tokens_are_asked_for(tmp_path):
    config = DataConfig(source=str(tokens(tmp_path / "a.npz", "int16")))
    for keeps, kind in ((False, np.float32), (True, np.int64)):
        assert build_dataset(config, keeps_whole=keeps).train[0].x.dtype == kind
    scaled = build_dataset(replace(config, standardise="train"), keeps_whole=True)
    assert abs(np.concatenate([one.x for one in scaled.train]).mean()) < 1e-6


def test_vectors_of_tokens_come_with_them(tmp_path):
    vectors = np.random.default_rng(1).normal(size=(12, 3))
    dataset = load_npz(tokens(tmp_path / "a.npz", "int64", embedding=vectors), Split())
    assert np.array_equal(dataset.embedding, vectors.astype(np.float32))
    for wrong, complaint in ((vectors[0], "is no table"), (vectors * np.nan, "not a finite")):
        with pytest.raises(DataError, match=complaint):
            load_npz(tokens(tmp_path / "b.npz", "int64", embedding=wrong), Split())


@pytest.mark.parametrize("model", ["gru-embedding", "lstm", "linear"])
def test_the_command_feeds_tokens_of_ones_own_to_models_that_read_them(tmp_path, model):
    path = tokens(tmp_path / "a.npz", "int64", embedding=np.eye(12))
    few = ["--set", "federation.rounds=1", "--set", "federation.cohort_size=10"]
    run = ["run", "--data", str(path), "--set", f"model.name={model}", *few, "--no-plots"]
    assert main([*run, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert main(["predict", str(tmp_path / "run"), "--data", str(path)]) == 0


def test_a_vocabulary_that_lacks_a_token_is_refused_before_anything_is_written(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = np.zeros((240, 5), np.int64)
    x[-1] = 40  # of the last device alone
    np.savez(tmp_path / "a.npz", x=x, y=rng.integers(0, 12, 240), user=np.arange(240) // 8)
    run = ["run", "--data", str(tmp_path / "a.npz"), "--set", "model.name=gru-embedding"]
    assert main([*run, "--set", "federation.cohort_size=10", "--out", str(tmp_path / "run")]) == 2
    assert "are not in 0..11, the vocabulary" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
