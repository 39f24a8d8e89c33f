import numpy as np
import pytest
from hostile import HEADS, archive, head, lying
from mutations import peak

from deltafl.fl.read.npz import open_npz, parse_npy

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "other order": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "big": np.arange(3, dtype=">i2"),
    "texts": np.array(["ab", "é"]),
    "bytes": np.array([b"ab"]),
    "number": np.float64(0.5),
    "truth": np.array([True, False]),
    "nothing": np.zeros((0, 4), np.uint8),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_numpy_saves_them(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    with open_npz(tmp_path / "a.npz") as found:
        assert list(found.entries) == list(ARRAYS)
        for name, wanted in ARRAYS.items():
            read = found.read(name, wanted.nbytes)
            np.testing.assert_array_equal(read, wanted)
            assert (read.dtype, read.shape) == (wanted.dtype, wanted.shape)


@pytest.mark.parametrize("data", HEADS)
def test_arrays_that_are_none_are_refused(tmp_path, data):
    with pytest.raises(ValueError, match=r"\w"):
        parse_npy(data)
    assert peak(_refused, data) < 1 << 20


def _refused(data):
    with pytest.raises(ValueError, match=r"\w"):
        parse_npy(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (head(shape="(1099511627776,)"), "has 0 bytes and states"),
        (head(dtype="|O") + bytes(24), "objects and records are not read"),
        (head(dtype="|b1") + b"\0\1\2", "neither 0 nor 1"),
        (head(dtype="<U1", shape="(1,)") + b"\xff\xff\xff\x7f", "what is no character"),
        (head(shape="(" + "1, " * 32 + "1)") + bytes(4), "33 dimensions"),
        (head() + bytes(13), "has 13 bytes"),
        (head()[:-1] + b" \n" + bytes(12), "its head is not"),
    ],
)
def test_what_is_wrong_is_said(data, problem):
    with pytest.raises(ValueError, match=problem):
        parse_npy(data)


def test_sizes_in_the_directory_of_an_archive_are_not_believed(tmp_path):
    (tmp_path / "a.npz").write_bytes(lying(archive(x=head() + bytes(12))))

    def refuse(path):
        with pytest.raises(ValueError, match=r"\w"), open_npz(path) as found:
            found.read("x", 1 << 40)

    assert peak(refuse, tmp_path / "a.npz") < 8 << 20


def test_arrays_larger_than_the_caller_allows_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(100))
    with open_npz(tmp_path / "a.npz") as found:
        assert len(found.read("x", 800)) == 100
        with pytest.raises(ValueError, match="array 'x' has 800 bytes, more than 799"):
            found.read("x", 799)


def test_two_arrays_of_one_name_are_refused(tmp_path):
    data = archive(x=head() + bytes(12), y=head() + bytes(12)).replace(b"y.npy", b"x.npy")
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ValueError, match="two arrays 'x'"), open_npz(tmp_path / "a.npz"):
        pass
