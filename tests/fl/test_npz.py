"""Arrays out of NumPy archives of a person's own."""

import io
import zipfile

import numpy as np
import pytest
from numpy.lib import format as npy

from deltafl.fl.data import npz
from deltafl.fl.data.npz import read_arrays
from deltafl.fl.errors import DataError


def header(shape, descr="<f4"):
    buffer = io.BytesIO()
    npy.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def write(path, method=zipfile.ZIP_DEFLATED, **members):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def stored(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


@pytest.mark.parametrize("compress", [False, True])
def test_arrays_come_back_as_numpy_gives_them(tmp_path, compress):
    arrays = {
        "a": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "b": np.array(["x", "yé"]),
        "c": np.asfortranarray(np.eye(3)),
        "d": np.zeros((0, 5)),
        "e": np.float64(2.5),
        "zeros": np.zeros(100_000),  # deflated to a thousandth
    }
    (np.savez_compressed if compress else np.savez)(tmp_path / "a.npz", **arrays)
    read = read_arrays(tmp_path / "a.npz", ["a", "b"], ["c", "d", "e", "zeros", "none"])
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        assert (read[name].dtype, read[name].shape) == (np.asarray(array).dtype, array.shape)
        assert np.array_equal(read[name], array)
    assert list(read_arrays(tmp_path / "a.npz", ["b"])) == ["b"]


def test_a_head_that_asks_for_more_than_there_is_is_refused(tmp_path):
    for shape in ((100,), (1 << 40,), (-1,)):
        path = write(tmp_path / "short.npz", x=header(shape))
        with pytest.raises(DataError, match=r"short\.npz: not a readable|fit into memory"):
            read_arrays(path, ["x"])


def test_an_archive_that_unpacks_to_more_than_the_bound_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(10_000))
    monkeypatch.setattr(npz, "MAX_BYTES", 80_128)  # with the head
    assert len(read_arrays(path, ["x"])["x"]) == 10_000
    monkeypatch.setattr(npz, "MAX_BYTES", 80_127)
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


def test_what_numpy_would_take_for_an_array_or_for_texts_is_refused(tmp_path):
    no_character = np.array([0x110000], "u4").view("U1")
    for content in (b"hello", stored(np.zeros(3)) + b"more", stored(no_character)):
        path = write(tmp_path / "odd.npz", x=content)
        with pytest.raises(DataError, match=r"odd\.npz: not a readable .*array 'x'"):
            read_arrays(path, ["x"])
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("x.npy", stored(np.zeros(3)))
    with pytest.raises(DataError, match="two arrays 'x'"):
        read_arrays(path, ["x"])


def test_an_array_that_is_not_there_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(DataError, match=r"no array 'y' \(found: x\): store x, y"):
        read_arrays(tmp_path / "a.npz", ["x", "y"])
    path = write(tmp_path / "empty.npz")
    with pytest.raises(DataError, match=r"no array 'x' \(found: none\)"):
        read_arrays(path, ["x"])
