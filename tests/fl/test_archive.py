"""Archives that lie about their arrays are refused before anything is allocated."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy

from deltafl.fl.data import archive
from deltafl.fl.data.archive import read_arrays
from deltafl.fl.data.federated import Split
from deltafl.fl.data.glove import load_glove
from deltafl.fl.data.npz import load_npz
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


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1 << 40,), r"array 'x': it has 0 bytes and states \(1099511627776,\) of float32"),
        ((1 << 59, 1 << 59), "array 'x': it has 0 bytes and states"),
        ((1 << 70, 1 << 70), r"array 'x': its head is not as numpy\.save"),
        ((1 << 31,), r"array 'x': it has 0 bytes and states \(2147483648,\)"),
        ((100,), r"array 'x': it has 0 bytes and states \(100,\)"),
        ((-1,), "not a readable"),
    ],
)
def test_a_header_that_asks_for_more_than_there_is_is_refused(tmp_path, shape, message):
    path = write(tmp_path / "bomb.npz", x=header(shape))
    with pytest.raises(DataError, match=message):
        read_arrays(path, ["x"])
    path = write(tmp_path / "empty.npz", x=header((1 << 33,), "<U0"))
    with pytest.raises(DataError, match=r"its head is not as numpy\.save"):
        read_arrays(path, ["x"])
    both = stored(np.zeros(3, np.int64))
    path = write(tmp_path / "bomb.npz", x=header(shape), y=both, user=both)
    with pytest.raises(DataError, match=message):
        load_npz(path, Split())
    path = write(tmp_path / "bomb.npz", words=header(shape, "<U1"), vectors=both)
    with pytest.raises(DataError, match=r"array 'words'|not a readable"):
        load_glove(path)


def test_more_than_the_limit_is_refused_though_it_is_there(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.zeros(100))
    monkeypatch.setattr(archive, "MAX_ARRAY_BYTES", 800)
    assert len(read_arrays(tmp_path / "a.npz", ["x"])["x"]) == 100
    monkeypatch.setattr(archive, "MAX_ARRAY_BYTES", 799)
    with pytest.raises(DataError, match="array 'x' has 800 bytes, more than 799"):
        read_arrays(tmp_path / "a.npz", ["x"])


def test_what_needs_pickle_or_another_method_is_refused(tmp_path):
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="without object arrays"):
        read_arrays(tmp_path / "objects.npz", ["x"])
    path = write(tmp_path / "lzma.npz", zipfile.ZIP_LZMA, x=stored(np.zeros(3)))
    with pytest.raises(DataError, match="encrypted, or packed by another method"):
        read_arrays(path, ["x"])
    unhashable = stored(np.zeros(3)).replace(b"{'descr'", b"{[]:1,'d'")
    assert b"{[]:1,'d'" in unhashable
    path = write(tmp_path / "head.npz", x=unhashable)
    with pytest.raises(DataError, match="not a readable"):
        read_arrays(path, ["x"])
    path = write(tmp_path / "text.npz", x=b"hello")
    with pytest.raises(DataError, match="not a readable"):
        read_arrays(path, ["x"])


def test_an_array_that_is_not_there_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(DataError, match=r"no array 'y' \(found: x\): store x, y"):
        read_arrays(tmp_path / "a.npz", ["x", "y"])
    path = write(tmp_path / "empty.npz")
    with pytest.raises(DataError, match=r"no array 'x' \(found: none\)"):
        read_arrays(path, ["x"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "whole.npz"
    np.savez_compressed(path, x=np.arange(20.0), users=np.array(["a", "b"]))
    return path, path.read_bytes()


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=60)
def test_damage_is_refused_or_does_no_harm(whole, damage):
    path, content = whole
    damaged = bytearray(content)
    for place, byte in damage:
        damaged[place % len(damaged)] = byte
    path.write_bytes(bytes(damaged))
    try:
        arrays = read_arrays(path, ["x", "users"])
    except DataError:
        return
    assert sum(array.nbytes for array in arrays.values()) <= 1032 * len(content)
