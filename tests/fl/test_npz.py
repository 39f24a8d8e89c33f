"""Arrays out of NumPy archives of a person's own."""

import io
import zipfile

import numpy as np
import pytest

from deltafl.fl.data import npz
from deltafl.fl.data.federated import Split
from deltafl.fl.data.npz import load_npz, read_arrays
from deltafl.fl.errors import DataError


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
